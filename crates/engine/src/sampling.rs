//! What the sampled accesses to a volume tell about other sizes of the pool.

use crate::{LineKey, VolumeCounters};
use forebay_policy::{
    AccessCounts, CurveEstimator, ReadKind, SequenceWatch, SizeCounts, SizePrediction, WatchStep,
};
use std::ops::Range;

/// The samples of a volume in one shard.
#[derive(Debug, Default)]
pub(crate) struct AccessSamples {
    /// What accesses would miss with other sizes of the pool.
    pub sizes: SizeCounts,
    /// Whether clients read in sequence what is in the pool.
    sequence: SequenceWatch,
    /// Lines with the upper half of their hash below this are sampled.
    threshold: u32,
    /// Accesses that the cache served as if there were none, because their region is held out.
    held_out: AccessCounts,
}

impl AccessSamples {
    /// Samples of lines below a threshold. The curve of the volume reports these lines.
    pub(crate) fn new(threshold: u32, curve: &mut CurveEstimator) -> Self {
        curve.set_other_threshold(threshold);
        Self { threshold, ..Self::default() }
    }

    /// Lines that clients have accessed, and those that were absent. Those of held-out regions do
    /// not count: no size of the pool would serve them.
    pub(crate) fn counts(&self, counters: &VolumeCounters) -> AccessCounts {
        let misses = (counters.read_miss_lines + counters.write_miss_lines) as f64;
        let hits = (counters.read_hit_lines + counters.write_hit_lines) as f64;
        AccessCounts {
            accesses: hits + misses - self.held_out.accesses,
            misses: misses - self.held_out.misses,
        }
    }

    /// What the samples say, at this sampling rate.
    pub(crate) fn prediction(&self, rate: f64, counters: &VolumeCounters) -> SizePrediction {
        self.sizes.prediction(rate, self.counts(counters))
    }

    /// Counts accesses to held-out regions, which the counters count as well.
    pub(crate) fn count_held_out(&mut self, hits: u16, misses: u16) {
        self.held_out.accesses += f64::from(hits) + f64::from(misses);
        self.held_out.misses += f64::from(misses);
    }

    /// A read of `lines` begins. Returns a line that was read before, and whether that was in
    /// sequence, if this is known now.
    pub(crate) fn watch_read(
        &mut self,
        curve: &mut CurveEstimator,
        lines: &Range<u64>,
    ) -> Option<(u64, bool)> {
        let found = self.sequence.read(lines.start, lines.end)?;
        curve.set_other_threshold(self.threshold);
        Some(found)
    }

    /// A sampled line was read, with other `lines`. Returns whether that was in sequence, if this
    /// is known already.
    pub(crate) fn watch_sequence(
        &mut self,
        curve: &mut CurveEstimator,
        (key, kind): (LineKey, ReadKind),
        lines: &Range<u64>,
    ) -> bool {
        let step = self.sequence.begin(key.hash(), kind, lines.start, lines.end);
        if step == WatchStep::Begun {
            curve.set_other_threshold(u32::MAX);
        }
        step == WatchStep::InSequence
    }
}
