//! Calibration: chooses the reads that measure the cost of splitting a write, and when to stop.
//!
//! The reads cycle through sizes from 4 KiB to 1 MiB, extremes first, so that an early end still
//! leaves distant sizes with about equal counts. Offsets are pseudo-random over the whole disk.
//!
//! A measurement takes [`READS_MIN`] reads, more if their times vary too much for an estimate, and
//! at most [`READS_MAX`] reads and [`DISK_NS_MAX`] of disk time. It exceeds the latter only if a
//! read takes longer than all reads before.

use crate::split_cost::{ReadTime, SplitCost, Unclear};
use forebay_types::{ByteRange, LINE_BYTES};

/// Reads per measurement of a disk whose times vary little: seven of each size, and one more.
pub const READS_MIN: usize = 64;
/// Maximum reads per measurement.
pub const READS_MAX: usize = 4 * READS_MIN;
/// The largest read, in bytes.
pub const READ_BYTES_MAX: u64 = 1 << 20;
/// Maximum disk time per measurement, in nanoseconds.
pub const DISK_NS_MAX: u64 = 1_000_000_000;

/// The cycle of sizes, as powers of two times 4 KiB: 4 KiB, 1 MiB, 64 KiB, ...
const SIZE_CYCLE: [u32; 9] = [0, 8, 4, 2, 6, 1, 7, 3, 5];

/// A measurement in progress or completed.
#[derive(Clone, Debug)]
pub struct Probing {
    disk_bytes: u64,
    random: u64,
    times: Vec<ReadTime>,
    spent_ns: u64,
    longest_ns: u64,
}

impl Probing {
    /// A measurement of a disk of `disk_bytes`. The same seed gives the same offsets.
    pub const fn new(disk_bytes: u64, seed: u64) -> Self {
        Self { disk_bytes, random: seed, times: Vec::new(), spent_ns: 0, longest_ns: 0 }
    }

    /// The next read, at a multiple of 4 KiB; `None` if the measurement is complete or the disk is
    /// smaller than 4 KiB.
    pub fn next_read(&mut self) -> Option<ByteRange> {
        let is_over =
            self.has_enough() || self.spent_ns.saturating_add(self.longest_ns) > DISK_NS_MAX;
        let sizes = SIZE_CYCLE.into_iter().map(|step| LINE_BYTES << step);
        let sizes: Vec<u64> = sizes.filter(|&bytes| bytes <= self.disk_bytes).collect();
        if is_over || sizes.is_empty() {
            return None;
        }
        let bytes = sizes[self.times.len() % sizes.len()];
        let places = (self.disk_bytes - bytes) / LINE_BYTES + 1;
        Some(ByteRange::new(self.random_below(places) * LINE_BYTES, bytes))
    }

    /// Whether more reads would not help. An estimate takes time, so there is one per cycle of
    /// sizes.
    fn has_enough(&self) -> bool {
        let Some(more) = self.times.len().checked_sub(READS_MIN) else { return false };
        let is_sure =
            || more.is_multiple_of(SIZE_CYCLE.len()) && self.cost() != Err(Unclear::Noise);
        self.times.len() >= READS_MAX || is_sure()
    }

    /// Records that a read of `bytes` took `ns` nanoseconds.
    pub fn record_read(&mut self, bytes: u64, ns: u64) {
        self.times.push(ReadTime { bytes, ns });
        self.spent_ns = self.spent_ns.saturating_add(ns);
        self.longest_ns = self.longest_ns.max(ns);
    }

    /// The number of reads so far.
    pub const fn reads(&self) -> usize {
        self.times.len()
    }

    /// The total time of the reads, in nanoseconds.
    pub const fn spent_ns(&self) -> u64 {
        self.spent_ns
    }

    /// Estimates the cost from the reads so far.
    ///
    /// # Errors
    /// Fails if the times allow no estimate.
    pub fn cost(&self) -> Result<SplitCost, Unclear> {
        SplitCost::of(&self.times)
    }

    /// A pseudo-random number below `limit`, which must not be zero (SplitMix64).
    const fn random_below(&mut self, limit: u64) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.random;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^= z >> 31;
        ((z as u128 * limit as u128) >> 64) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    const MIB: u64 = 1 << 20;

    /// Runs a measurement on a disk that takes `ns` for each read.
    fn measure(disk_bytes: u64, seed: u64, ns: impl Fn(u64) -> u64) -> (Probing, Vec<ByteRange>) {
        let mut probing = Probing::new(disk_bytes, seed);
        let mut ranges = Vec::new();
        while let Some(range) = probing.next_read() {
            probing.record_read(range.len, ns(range.len));
            ranges.push(range);
        }
        (probing, ranges)
    }

    #[test]
    fn a_fast_disk_gets_seven_reads_of_each_size_over_its_whole_range() {
        let (probing, ranges) = measure(1 << 40, 7, |bytes| 80_000 + bytes / 2);
        assert_eq!((probing.reads(), ranges.len()), (READS_MIN, READS_MIN));
        let mut counts = BTreeMap::new();
        ranges.iter().for_each(|range| *counts.entry(range.len).or_insert(0) += 1);
        assert_eq!(counts.len(), SIZE_CYCLE.len());
        assert!(counts.values().all(|count| (7..=8).contains(count)), "{counts:?}");
        for part in 0..8 {
            let part = (part << 37)..((part + 1) << 37);
            assert!(ranges.iter().any(|range| part.contains(&range.offset)), "{part:?}");
        }
        let cost = probing.cost().unwrap();
        assert_eq!((cost.fixed_ns, cost.threshold_bytes), (80_000, 512 << 10));
        assert_eq!(measure(1 << 40, 7, |_| 1).1, ranges, "the same seed");
        assert_ne!(measure(1 << 40, 8, |_| 1).1, ranges, "another seed");
    }

    #[test]
    fn a_slow_disk_is_measured_for_a_second_with_extreme_sizes_first() {
        let (probing, ranges) = measure(1 << 40, 7, |_| 240_000_000);
        assert_eq!((ranges.len(), probing.spent_ns()), (4, 960_000_000));
        assert_eq!(ranges.iter().map(|range| range.len).max(), Some(MIB));
        assert!(probing.cost().is_ok());
        let (probing, ranges) = measure(1 << 40, 7, |_| 400_000_000);
        assert_eq!((ranges.len(), probing.cost()), (2, Err(Unclear::TooFew)));
    }

    #[test]
    fn a_disk_whose_times_vary_is_read_more_often() {
        let count = std::cell::Cell::new(0);
        let noise = |bytes: u64| {
            count.set(count.get() + 1);
            let factor = [1, 3, 10, 30, 100][crate::testing::key(count.get()) as usize % 5];
            (10_000 + bytes / 2) * factor
        };
        let (probing, _) = measure(1 << 40, 7, noise);
        assert_eq!((probing.reads(), probing.cost()), (READS_MAX, Err(Unclear::Noise)));
    }

    proptest! {
        #[test]
        fn every_read_lies_inside_the_disk(
            sectors in 0..(1u64 << 55), shift in 0..55u32, seed: u64, ns in 0..(1u64 << 31)
        ) {
            let disk_bytes = (sectors >> shift) * 512;
            let (probing, ranges) = measure(disk_bytes, seed, |_| ns);
            prop_assert!(probing.reads() <= READS_MAX);
            prop_assert!(probing.spent_ns() <= DISK_NS_MAX.max(ns));
            for range in &ranges {
                prop_assert!(range.len <= READ_BYTES_MAX);
                prop_assert!(range.fits(disk_bytes) && range.offset.is_multiple_of(LINE_BYTES));
            }
            prop_assert_eq!(ranges.is_empty(), disk_bytes < LINE_BYTES);
        }
    }
}
