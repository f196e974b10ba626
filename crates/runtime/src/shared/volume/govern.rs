//! Feeds the governor of a volume's writeback with samples from the workers.

use crate::disk::Reads;
use crate::platform::locks::Lock;
use crate::pool::MappedLines;
use forebay_engine::Shard;
use forebay_policy::{DiskSample, Governor, GovernorState, Pace, ReadTarget, WritebackLimits};
use forebay_types::{LINE_BYTES, ReadLatency, VolumeConfig, VolumeId};

/// The sampling interval in milliseconds: the interval of ticks of shards with dirty lines.
const SAMPLE_MS: u64 = 50;
/// Milliseconds after which the sample of a shard is stale: the shard no longer has dirty lines.
const STALE_MS: u64 = 200;

/// The writeback governor of one volume.
#[derive(Debug)]
pub(crate) struct Govern(Lock<State>);

#[derive(Debug)]
struct State {
    governor: Governor,
    pace: Pace,
    sampled_ms: u64,
    shards: Vec<Sample>,
}

/// A sample of the volume's writeback in one shard.
#[derive(Clone, Copy, Debug, Default)]
struct Sample {
    at_ms: u64,
    prefetched_lines: u64,
    missed_lines: u64,
    written_milli: u64,
    writing: bool,
    dirty_bytes: u64,
}

/// The limits of a volume's writeback.
pub(crate) fn limits_of(config: &VolumeConfig) -> WritebackLimits {
    WritebackLimits {
        target: match config.read_latency {
            ReadLatency::Idle => ReadTarget::Idle,
            ReadLatency::Off => ReadTarget::Off,
            ReadLatency::Micros(us) => ReadTarget::Micros(us),
        },
        bytes: config.write_back_rate.unwrap_or(u64::MAX),
        ios: config.write_back_iops.unwrap_or(u64::MAX),
        age_s: config.write_back_age_s.unwrap_or(u64::MAX),
    }
}

impl Govern {
    pub(crate) fn new(limits: WritebackLimits, shards: usize) -> Self {
        Self(Lock::new(State {
            governor: Governor::new(limits),
            pace: Pace::DEFAULT,
            sampled_ms: 0,
            shards: vec![Sample::default(); shards],
        }))
    }

    /// Sets the limits, which apply from the next sample on.
    pub(crate) fn set(&self, limits: WritebackLimits) {
        self.0.lock().governor.set_limits(limits);
    }

    pub(crate) fn status(&self) -> GovernorState {
        self.0.lock().governor.status()
    }

    /// Samples a shard, and returns the shard's share of the volume's pace.
    pub(crate) fn sample(
        &self,
        id: VolumeId,
        (number, shard): (usize, &Shard<MappedLines>),
        reads: &Reads,
        now_ms: u64,
    ) -> Pace {
        let mut state = self.0.lock();
        let volume = shard.volume(id);
        let counters = volume.counters();
        state.shards[number] = Sample {
            at_ms: now_ms,
            prefetched_lines: counters.prefetched_lines,
            missed_lines: counters.read_miss_lines,
            written_milli: Pace::bursts_milli(counters.destage_writes, counters.destaged_bytes),
            writing: volume.destaging() > 0,
            dirty_bytes: volume.dirty_lines() as u64 * LINE_BYTES,
        };
        if now_ms >= state.sampled_ms + SAMPLE_MS {
            state.update(reads, now_ms);
        }
        // Shards with dirty lines take turns.
        let has_turn = |sample: &Sample| sample.dirty_bytes > 0 && sample.is_fresh(now_ms);
        let turn = state.shards[..number].iter().filter(|sample| has_turn(sample)).count();
        let turns = state.shards.iter().filter(|sample| has_turn(sample)).count();
        state.pace.share(state.shards.len() as u64, turn as u64, turns as u64, now_ms)
    }
}

impl Sample {
    const fn is_fresh(&self, now_ms: u64) -> bool {
        self.at_ms + STALE_MS >= now_ms
    }
}

impl State {
    fn update(&mut self, reads: &Reads, now_ms: u64) {
        let fresh = self.shards.iter().filter(|sample| sample.is_fresh(now_ms));
        let (writing, dirty_bytes) = fresh.fold((false, 0), |(writing, bytes), sample| {
            (writing || sample.writing, bytes + sample.dirty_bytes)
        });
        self.sampled_ms = now_ms;
        self.pace = self.governor.update(&DiskSample {
            now_ms,
            reads: reads.take_times(),
            prefetched_lines: self.shards.iter().map(|sample| sample.prefetched_lines).sum(),
            missed_lines: self.shards.iter().map(|sample| sample.missed_lines).sum(),
            written_milli: self.shards.iter().map(|sample| sample.written_milli).sum(),
            is_writing: writing,
            dirty_milli: Pace::bursts_milli(0, dirty_bytes),
        });
    }
}
