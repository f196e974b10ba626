//! A shard of the server's policy whose disk answers at once, for loads of many requests.

use crate::rig::{LINE, VOLUME};
use forebay_engine::{
    Attempt, LineMeta, Outbox, Part, PartId, ReadOutcome, ResizeStep, Shard, ShardConfig,
    WriteTerms,
};
use forebay_policy::Weir;
use forebay_types::{ByteRange, Mode, VolumeId};

pub const SLOTS: usize = 4096;

/// See the module.
pub struct InstantDisk {
    pub shard: Shard<Vec<LineMeta>>,
    out: Outbox,
}

impl InstantDisk {
    pub fn new(mode: Mode) -> Self {
        let (config, policy) = (ShardConfig::for_slots(SLOTS), Box::new(Weir::new(SLOTS)));
        let mut shard = Shard::new(vec![LineMeta::FREE; SLOTS], policy, config);
        shard.add_volume(VOLUME, 1 << 40, mode);
        Self { shard, out: Outbox::default() }
    }

    fn part(volume: VolumeId, line: u64) -> Part {
        let range = ByteRange::new(line * LINE, LINE);
        Part { id: PartId(0), volume, range, restores: false }
    }

    pub fn read(&mut self, line: u64) {
        self.read_of(VOLUME, line);
    }

    /// Reads a line. Returns whether it was in the pool.
    pub fn read_of(&mut self, volume: VolumeId, line: u64) -> bool {
        let (part, mut segments) = (Self::part(volume, line), Vec::new());
        let (outcome, _) = self.shard.read(&part, Attempt::default(), &mut segments, &mut self.out);
        self.complete();
        for segment in segments {
            if let forebay_engine::Place::Slot { slot, .. } = segment.place {
                self.shard.release(slot);
            }
        }
        outcome == ReadOutcome::Ready
    }

    pub fn write(&mut self, line: u64) {
        let part = Self::part(VOLUME, line);
        self.shard.write(&part, WriteTerms::default(), Attempt::default(), &mut self.out);
        self.complete();
    }

    pub fn prefetch(&mut self, line: u64, lines: u64) {
        self.shard.prefetch(VOLUME, ByteRange::new(line * LINE, lines * LINE), None, &mut self.out);
        self.complete();
    }

    fn complete(&mut self) {
        self.out.memory.clear();
        self.shard.finish_call();
        while let Some(io) = self.out.ios.pop() {
            self.shard.complete(io.id, Ok(()), 0, &mut self.out);
            self.out.memory.clear();
            self.shard.finish_call();
        }
        self.out = Outbox::default();
    }

    pub fn resize(&mut self, lines: usize) {
        self.shard.resize(lines);
        loop {
            let step = self.shard.step_resize(&mut self.out);
            self.complete();
            match step {
                ResizeStep::Empty(slab) => self.shard.gave_back(slab),
                ResizeStep::Done => return,
                _ => {}
            }
        }
    }
}
