//! The governor of a volume's write-back, fed with what the workers see.

use crate::locks::Lock;
use crate::pool::MappedLines;
use crate::shared::Reads;
use forebay_engine::Shard;
use forebay_policy::{Governor, GovernorStatus, Limits, Pace, Seen};
use forebay_types::{LINE_BYTES, VolumeId};

/// Between two looks, in milliseconds: as often as shards with dirty lines are ticked.
const LOOK_MS: u64 = 50;
/// What was noted of a shard longer ago, in milliseconds, is over: it has nothing dirty any more.
const NOTED_MS: u64 = 200;

/// See the module's description.
#[derive(Debug)]
pub(crate) struct Govern(Lock<State>);

#[derive(Debug)]
struct State {
    governor: Governor,
    pace: Pace,
    looked_ms: u64,
    shards: Vec<Work>,
}

/// What a shard does for the volume.
#[derive(Clone, Copy, Debug, Default)]
struct Work {
    noted_ms: u64,
    written_milli: u64,
    writing: bool,
    dirty_bytes: u64,
}

impl Govern {
    pub(crate) fn new(limits: Limits, shards: usize) -> Self {
        Self(Lock::new(State {
            governor: Governor::new(limits),
            pace: Pace::DEFAULT,
            looked_ms: 0,
            shards: vec![Work::default(); shards],
        }))
    }

    /// Changes what the operator says, from the next tick on.
    pub(crate) fn set(&self, limits: Limits) {
        self.0.lock().governor.set_limits(limits);
    }

    /// How it stands.
    pub(crate) fn status(&self) -> GovernorStatus {
        self.0.lock().governor.status()
    }

    /// Takes note of what a shard does for the volume, and returns its share of the pace.
    pub(crate) fn look(
        &self,
        id: VolumeId,
        (number, shard): (usize, &Shard<MappedLines>),
        reads: &Reads,
        now_ms: u64,
    ) -> Pace {
        let mut state = self.0.lock();
        let counters = shard.counters(id);
        state.shards[number] = Work {
            noted_ms: now_ms,
            written_milli: Pace::bursts_milli(counters.destage_writes, counters.destaged_bytes),
            writing: shard.destaging(id) > 0,
            dirty_bytes: shard.dirty_lines(id) as u64 * LINE_BYTES,
        };
        if now_ms >= state.looked_ms + LOOK_MS {
            state.look(reads, now_ms);
        }
        // Those with something to write take turns.
        let lately = |work: &Work| work.dirty_bytes > 0 && work.noted_ms + NOTED_MS >= now_ms;
        let turn = state.shards[..number].iter().filter(|work| lately(work)).count();
        let turns = state.shards.iter().filter(|work| lately(work)).count();
        state.pace.share(state.shards.len() as u64, turn as u64, turns as u64, now_ms)
    }
}

impl State {
    fn look(&mut self, reads: &Reads, now_ms: u64) {
        let lately = self.shards.iter().filter(|work| work.noted_ms + NOTED_MS >= now_ms);
        let (writing, dirty_bytes) = lately.fold((false, 0), |(writing, bytes), work| {
            (writing || work.writing, bytes + work.dirty_bytes)
        });
        self.looked_ms = now_ms;
        self.pace = self.governor.look(&Seen {
            now_ms,
            reads: reads.take_times(),
            written_milli: self.shards.iter().map(|work| work.written_milli).sum(),
            writing,
            dirty_milli: Pace::bursts_milli(0, dirty_bytes),
        });
    }
}
