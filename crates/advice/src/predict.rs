//! The share of reads that a cache would serve, by its size.

use crate::load::{Pattern, ratio};
use crate::log::AccessLog;
use crate::replay::{Outcome, Tally, Workload};
use forebay_types::LINE_BYTES;

/// The smallest size of a cache that is predicted, in bytes.
const BYTES_MIN: u64 = 16 << 20;
/// The most powers of two among the sizes of a prediction: a factor of 2,048 between the smallest
/// and the largest.
const SIZES_MAX: usize = 12;
/// With fewer lines than this, a scaled-down cache does not behave like the cache that it stands
/// for.
const SAMPLE_LINES_MIN: f64 = 64.0;

/// What a cache of one size would serve. Ratios are from 0 to 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// The size: the memory for data, in bytes.
    pub bytes: u64,
    /// The share of the reads that an initially empty cache would have served in the observation.
    pub from_empty: f64,
    /// The same in the second half of the observation: a lower bound for a warm cache.
    pub low: f64,
    /// An upper bound for a warm cache: as if each line that was read for the first time in the
    /// second half had been read before the observation.
    pub high: f64,
    /// The part of `low` that only read-ahead serves.
    pub ahead: f64,
}

impl Point {
    /// The share that is served because data is read again, without read-ahead.
    pub fn reuse(&self) -> f64 {
        (self.low - self.ahead).max(0.0)
    }
}

/// A prediction for several sizes of the cache.
#[derive(Clone, Debug, PartialEq)]
pub struct Prediction {
    /// The pattern of the observed requests.
    pub pattern: Pattern,
    /// The data that was read or written, in bytes, each line once.
    pub touched_bytes: u64,
    /// The data that was read, in bytes, each line once.
    pub read_bytes: u64,
    /// The sampling rate of the log that the prediction is based on.
    pub rate: f64,
    /// The predictions, in ascending order of sizes.
    pub points: Vec<Point>,
}

impl AccessLog {
    /// Predicts what caches of up to `bytes_max` would serve. Sizes that are too small for the
    /// sample are left out. Takes up to a second for each of at most 13 sizes.
    pub fn predict(&self, bytes_max: u64) -> Prediction {
        self.predict_at(|touched_bytes| sizes(touched_bytes, bytes_max))
    }

    fn predict_at(&self, sizes: impl Fn(u64) -> Vec<u64>) -> Prediction {
        let workload = Workload::new(self);
        let rate = self.rate();
        let bytes = |lines: usize| (lines as f64 / rate) as u64 * LINE_BYTES;
        let touched_bytes = bytes(workload.lines);
        let excess = self.excess(&workload);
        let mut points = Vec::new();
        for size in sizes(touched_bytes) {
            let lines = size as f64 / LINE_BYTES as f64 * rate;
            if rate >= 1.0 || lines >= SAMPLE_LINES_MIN {
                points.push(point(size, workload.replay(size), excess));
            }
        }
        let read_bytes = bytes(workload.read_lines);
        Prediction { pattern: *self.pattern(), touched_bytes, read_bytes, rate, points }
    }

    /// The share of the reads by which the sample falls short of what its rate predicts; negative
    /// if the sample has too many. The difference is due to the most popular places, whose reads
    /// nearly all hit (SHARDS-adj, Waldspurger et al., USENIX FAST 2015).
    fn excess(&self, workload: &Workload<'_>) -> f64 {
        let sampled = workload.reads / self.rate();
        let reads = self.pattern().reads as f64;
        ratio(reads - sampled, reads)
    }
}

/// The prediction for a size, corrected for the popular reads that the sample lacks or has too many
/// of.
fn point(bytes: u64, outcome: Outcome, excess: f64) -> Point {
    let share = |part: f64, tally: &Tally| {
        (ratio(part, tally.reads) * (1.0 - excess) + excess).clamp(0.0, 1.0)
    };
    let Outcome { all, later } = outcome;
    let low = share(later.hits, &later);
    Point {
        bytes,
        from_empty: share(all.hits, &all),
        low,
        high: share(later.hits + later.first, &later),
        ahead: ratio(later.ahead, later.reads).min(low),
    }
}

impl Prediction {
    /// The prediction for this size or the next smaller one; `None` below the first.
    pub fn at(&self, bytes: u64) -> Option<&Point> {
        self.points.iter().rev().find(|point| point.bytes <= bytes)
    }

    /// How much of the predicted share is unknown, from 0 to 1: the reads of data that had not been
    /// accessed earlier in the observation. A longer observation has fewer of them.
    pub fn unknown(&self) -> f64 {
        self.points.iter().map(|point| point.high - point.low).fold(0.0, f64::max)
    }
}

/// The sizes to predict for a load that touches `touched_bytes`: powers of two up to the first that
/// holds all touched data. Powers above `bytes_max` are left out; if any are, `bytes_max` is the
/// last size.
fn sizes(touched_bytes: u64, bytes_max: u64) -> Vec<u64> {
    let last = touched_bytes.max(BYTES_MIN).checked_next_power_of_two().unwrap_or(1 << 63);
    let mut sizes = Vec::new();
    let mut size = last;
    while size >= BYTES_MIN && sizes.len() < SIZES_MAX {
        if size < bytes_max {
            sizes.push(size);
        }
        size /= 2;
    }
    sizes.reverse();
    if bytes_max < last || sizes.is_empty() {
        sizes.push(bytes_max.max(LINE_BYTES));
    } else if bytes_max == last {
        sizes.push(last);
    }
    sizes
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_types::ByteRange;

    const MIB: u64 = 1 << 20;

    fn uniform(log: &mut AccessLog, reads: u64, lines: u64) {
        let mut dice = 1u64;
        for _ in 0..reads {
            dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let line = (dice >> 33) % lines * 37;
            log.record(ByteRange::new(line * LINE_BYTES, LINE_BYTES), false);
        }
    }

    #[test]
    fn uniform_reads_hit_in_proportion_to_the_memory() {
        let mut log = AccessLog::new(1 << 40);
        uniform(&mut log, 100_000, 8_192);
        let prediction = log.predict_at(|_| vec![16 * MIB, 32 * MIB]);
        let [half, whole] = prediction.points[..] else { panic!() };
        assert!((half.low - 0.5).abs() < 0.03 && half.high - half.low < 0.01, "{half:?}");
        assert!(whole.low > 0.99 && whole.from_empty < 0.93, "{whole:?}");
        assert_eq!(prediction.touched_bytes, 32 * MIB);
        assert!(prediction.unknown() < 0.01);
    }

    #[test]
    fn a_sample_predicts_what_the_whole_load_does() {
        let mut log = AccessLog::with_limits(1 << 40, (60_000, 1 << 20));
        uniform(&mut log, 200_000, 65_536);
        let prediction = log.predict_at(|_| vec![128 * MIB]);
        assert!(prediction.rate < 0.3, "{}", prediction.rate);
        let point = prediction.points[0];
        assert!((point.low - 0.5).abs() < 0.04, "{point:?}");
        let touched = prediction.touched_bytes as f64 / (256 * MIB) as f64;
        assert!((touched - 1.0).abs() < 0.1, "{touched}");
    }

    #[test]
    fn a_short_observation_says_what_it_does_not_know() {
        let mut log = AccessLog::new(1 << 40);
        uniform(&mut log, 1_000, 100_000);
        let prediction = log.predict_at(|_| vec![512 * MIB]);
        assert!(prediction.unknown() > 0.95, "{prediction:?}");
        assert_eq!(AccessLog::new(1 << 40).predict(MIB).unknown(), 0.0);
    }

    #[test]
    fn sizes_end_with_the_first_that_holds_everything() {
        assert_eq!(sizes(50 * MIB, 1 << 40), [16 * MIB, 32 * MIB, 64 * MIB]);
        assert_eq!(sizes(50 * MIB, 64 * MIB), [16 * MIB, 32 * MIB, 64 * MIB]);
        assert_eq!(sizes(50 * MIB, 40 * MIB), [16 * MIB, 32 * MIB, 40 * MIB]);
        assert_eq!(sizes(50 * MIB, 8 * MIB), [8 * MIB]);
        assert_eq!(sizes(0, 1 << 40), [16 * MIB]);
        assert_eq!(sizes(u64::MAX, u64::MAX).len(), SIZES_MAX);
        assert_eq!(sizes(1 << 50, 1 << 60).len(), SIZES_MAX);
    }

    #[test]
    fn the_prediction_for_a_size_is_that_of_the_next_smaller_one() {
        let mut log = AccessLog::new(1 << 40);
        uniform(&mut log, 1_000, 100);
        let prediction = log.predict_at(|_| vec![16 * MIB, 32 * MIB]);
        let at = |mib: u64| prediction.at(mib * MIB).map(|point| point.bytes / MIB);
        assert_eq!([at(15), at(16), at(31), at(900)], [None, Some(16), Some(16), Some(32)]);
    }
}
