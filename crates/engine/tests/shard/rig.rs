//! One shard, its pool and a disk, driven by hand: each I/O ends when the test says so.
//!
//! A sector is told by one number. The disk holds [`Rig::on_disk`] at first.

use forebay_engine::{
    Answer, Attempt, EraseKind, IoAction, IoVerb, LineMeta, MemoryStep, Outbox, Outcome, Part,
    PartId, Place, ReadOutcome, Segment, Shard, ShardConfig, Slot, WriteOutcome, WriteTerms,
};
use forebay_policy::PolicyKind;
use forebay_types::{ByteRange, IoError, IoResult, Mode, SECTOR_BYTES, VolumeId};

pub const VOLUME: VolumeId = VolumeId(0);
pub const LINE: u64 = 4096;

pub struct Rig {
    pub shard: Shard<Vec<LineMeta>>,
    pub pool: Vec<u64>,
    pub disk: Vec<u64>,
    /// I/Os under way, oldest first.
    pub ios: Vec<IoAction>,
    pub answers: Vec<Answer>,
    out: Outbox,
}

impl Rig {
    pub fn new(slots: usize, lines: u64, mode: Mode) -> Self {
        Self::with(slots, lines, mode, ShardConfig::for_slots(slots))
    }

    pub fn with(slots: usize, lines: u64, mode: Mode, config: ShardConfig) -> Self {
        let table = vec![LineMeta::FREE; slots];
        let mut shard = Shard::new(table, PolicyKind::Lru.build(slots), config);
        shard.add_volume(VOLUME, lines * LINE, mode);
        Self {
            shard,
            pool: vec![u64::MAX; slots * 8],
            disk: (0..lines * 8).map(Self::on_disk).collect(),
            ios: Vec::new(),
            answers: Vec::new(),
            out: Outbox::default(),
        }
    }

    /// What a sector holds before anybody writes it.
    pub const fn on_disk(sector: u64) -> u64 {
        1_000_000 + sector
    }

    fn part(id: u64, offset: u64, len: u64) -> Part {
        Part { id: PartId(id), volume: VOLUME, range: ByteRange::new(offset, len), restores: false }
    }

    fn settle(&mut self, value: u64) {
        for step in self.out.memory.drain(..) {
            match step {
                MemoryStep::Fill { slot, offset, len, .. } => {
                    let at = index(slot, offset);
                    self.pool[at..at + (len / 512) as usize].fill(value);
                }
                MemoryStep::Copy { from, to, offset, len } => {
                    let from = index(from, offset);
                    let count = (len / 512) as usize;
                    self.pool.copy_within(from..from + count, index(to, offset));
                }
            }
        }
        self.ios.append(&mut self.out.ios);
        self.answers.append(&mut self.out.answers);
        self.shard.self_check();
    }

    /// Writes `value` to every sector of a range.
    pub fn write(&mut self, id: u64, offset: u64, len: u64, value: u64) -> WriteOutcome {
        self.write_again(id, offset, len, value, false, Attempt::default())
    }

    pub fn write_again(
        &mut self,
        id: u64,
        offset: u64,
        len: u64,
        value: u64,
        fua: bool,
        attempt: Attempt,
    ) -> WriteOutcome {
        let part = Self::part(id, offset, len);
        let outcome =
            self.shard.write(&part, WriteTerms { fua, through: false }, attempt, &mut self.out);
        self.settle(value);
        outcome
    }

    /// Takes slots for a payload and fills them with `value`.
    pub fn stage(&mut self, offset: u64, len: u64, value: u64) -> Option<Vec<Slot>> {
        let mut slots = Vec::new();
        let range = ByteRange::new(offset, len);
        let has_room = self.shard.stage(VOLUME, range, &mut slots);
        self.shard.self_check();
        for sector in 0..len / SECTOR_BYTES {
            let at = offset % LINE + sector * SECTOR_BYTES;
            let slot = *slots.get((at / LINE) as usize)?;
            self.pool[index(slot, (at % LINE) as u32)] = value;
        }
        has_room.then_some(slots)
    }

    pub fn write_staged(
        &mut self,
        id: u64,
        offset: u64,
        len: u64,
        slots: &[Slot],
        attempt: Attempt,
    ) -> WriteOutcome {
        let part = Self::part(id, offset, len);
        let outcome =
            self.shard.write_staged(&part, WriteTerms::default(), attempt, slots, &mut self.out);
        self.settle(0);
        outcome
    }

    pub fn unstage(&mut self, slots: &[Slot]) {
        slots.iter().for_each(|&slot| self.shard.release(slot));
        self.shard.self_check();
    }

    pub fn read(&mut self, id: u64, offset: u64, len: u64) -> (ReadOutcome, Vec<Segment>) {
        self.read_again(id, offset, len, Attempt::default())
    }

    pub fn read_again(
        &mut self,
        id: u64,
        offset: u64,
        len: u64,
        attempt: Attempt,
    ) -> (ReadOutcome, Vec<Segment>) {
        let part = Self::part(id, offset, len);
        let mut segments = Vec::new();
        let (outcome, _) = self.shard.read(&part, attempt, &mut segments, &mut self.out);
        self.settle(0);
        (outcome, segments)
    }

    pub fn prefetch(&mut self, offset: u64, len: u64) -> u64 {
        let range = ByteRange::new(offset, len);
        let lines = self.shard.prefetch(VOLUME, range, None, &mut self.out);
        self.settle(0);
        lines
    }

    pub fn zero(&mut self, id: u64, offset: u64, len: u64) -> bool {
        let kind = EraseKind::Zero { unmap: false };
        let started = self.shard.erase(&Self::part(id, offset, len), kind, &mut self.out);
        self.settle(0);
        started
    }

    pub fn flush(&mut self, id: u64) -> Option<IoResult> {
        let result = self.shard.flush(VOLUME, PartId(id), 0, &mut self.out);
        self.settle(0);
        result
    }

    pub fn tick(&mut self, now_ms: u64) {
        self.shard.tick(now_ms, &mut self.out);
        self.settle(0);
    }

    /// Ends the I/O at `at` of [`Rig::ios`]. Writes from private memory put 0 on the disk.
    pub fn end(&mut self, at: usize, result: IoResult) {
        let io = self.ios.remove(at);
        let mut sector = (io.range.offset / SECTOR_BYTES) as usize;
        let last = (io.range.end() / SECTOR_BYTES) as usize;
        if matches!(io.verb, IoVerb::Zero { .. } | IoVerb::Discard) {
            self.disk[sector..last].fill(0);
        }
        for segment in &io.segments {
            let count = (u64::from(segment.len) / SECTOR_BYTES) as usize;
            let on_disk = &mut self.disk[sector..sector + count];
            sector += count;
            match (segment.place, io.verb) {
                _ if result.is_err() => {}
                (Place::Slot { slot, offset }, IoVerb::Read) => {
                    let at = index(slot, offset);
                    self.pool[at..at + count].copy_from_slice(on_disk);
                }
                (Place::Slot { slot, offset }, _) => {
                    let at = index(slot, offset);
                    on_disk.copy_from_slice(&self.pool[at..at + count]);
                }
                (_, IoVerb::Write { .. }) => on_disk.fill(0),
                _ => {}
            }
        }
        self.shard.complete(io.id, result, 0, &mut self.out);
        self.settle(0);
    }

    /// Ends all I/Os well, and those that follow from them, until there are none.
    pub fn end_all(&mut self) {
        while !self.ios.is_empty() {
            self.end(0, Ok(()));
        }
    }

    /// What the segments of an answer hold in the pool.
    pub fn bytes(&self, segments: &[Segment]) -> Vec<u64> {
        let mut values = Vec::new();
        for segment in segments {
            let Place::Slot { slot, offset } = segment.place else { continue };
            let at = index(slot, offset);
            values.extend_from_slice(&self.pool[at..at + (segment.len / 512) as usize]);
        }
        values
    }

    pub fn release(&mut self, segments: &[Segment]) {
        for segment in segments {
            if let Place::Slot { slot, .. } = segment.place {
                self.shard.release(slot);
            }
        }
        self.shard.self_check();
    }

    /// Reads a range to its end and lets go of it.
    pub fn read_now(&mut self, offset: u64, len: u64) -> Vec<u64> {
        for count in 0..3 {
            let attempt = Attempt { count, error: None };
            let (outcome, segments) = self.read_again(900, offset, len, attempt);
            if outcome == ReadOutcome::Ready {
                let values = self.bytes(&segments);
                self.release(&segments);
                return values;
            }
            self.end_all();
        }
        panic!("the pool of this test has room for what it reads");
    }

    /// The outcome that a part has learnt, once.
    pub fn learnt(&mut self, id: u64) -> Option<Outcome> {
        let at = self.answers.iter().position(|answer| answer.part == PartId(id))?;
        Some(self.answers.remove(at).outcome)
    }
}

/// The next attempt after a wait that ended like that.
pub fn after(error: Option<IoError>) -> Attempt {
    Attempt::default().after(error)
}

fn index(slot: u32, offset: u32) -> usize {
    (slot * 8 + offset / 512) as usize
}
