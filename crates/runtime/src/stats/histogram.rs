//! Latency histograms with fixed buckets, eight to each doubling.
//!
//! One thread records, without a lock, and any number of threads read. Below a microsecond, a
//! bucket is 128 ns wide; above, an eighth of a doubling, so a value is known to within an eighth.
//! The price: 1.8 KiB for each histogram, whatever it holds.

use super::Count;
use super::volume::Visit;

/// Binary logarithm of the first bucket's width: 128 ns.
const UNIT_BITS: u32 = 7;
/// Buckets of a doubling, as a power of two.
const STEP_BITS: u32 = 3;
/// The doublings from a microsecond on: the last one ends at 137 seconds.
const DOUBLINGS: usize = 27;
/// Buckets of a histogram. Longer latencies count in the last one.
const BUCKETS: usize = (DOUBLINGS + 1) << STEP_BITS;

/// The bucket that a latency falls into.
fn bucket_of(ns: u64) -> usize {
    let units = ns >> UNIT_BITS;
    let steps = 1 << STEP_BITS;
    if units < steps {
        return units as usize;
    }
    let doubling = units.ilog2() - STEP_BITS;
    let bucket = (u64::from(doubling) << STEP_BITS) + (units >> doubling);
    (bucket as usize).min(BUCKETS - 1)
}

/// The shortest latency of a bucket, in nanoseconds.
const fn bucket_start_ns(bucket: usize) -> u64 {
    let steps = 1 << STEP_BITS;
    if bucket < steps {
        return (bucket as u64) << UNIT_BITS;
    }
    let doubling = (bucket >> STEP_BITS) - 1;
    ((bucket - (doubling << STEP_BITS)) as u64) << (doubling as u32 + UNIT_BITS)
}

/// A histogram that one thread records into.
#[derive(Debug)]
pub(crate) struct Histogram {
    buckets: Box<[Count; BUCKETS]>,
    sum_ns: Count,
}

impl Default for Histogram {
    fn default() -> Self {
        Self {
            buckets: Box::new(std::array::from_fn(|_| Count::default())),
            sum_ns: Count::default(),
        }
    }
}

impl Histogram {
    /// Records `times` equal latencies. Only one thread may call it.
    pub(crate) fn record(&self, ns: u64, times: u64) {
        self.buckets[bucket_of(ns)].add(times);
        // Not zero, which stands for a histogram without latencies.
        self.sum_ns.add(ns.max(1).saturating_mul(times));
    }

    /// A copy of it.
    pub(crate) fn copy(&self) -> LatencyHistogram {
        let mut copy = LatencyHistogram::default();
        copy.add(self);
        copy
    }
}

/// A copy of latency histograms, or their sum or difference.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LatencyHistogram {
    buckets: Box<[u64]>,
    sum_ns: u64,
}

impl Default for LatencyHistogram {
    fn default() -> Self {
        Self { buckets: vec![0; BUCKETS].into(), sum_ns: 0 }
    }
}

impl LatencyHistogram {
    pub(crate) fn add(&mut self, other: &Histogram) {
        // Most classes of most volumes are unused.
        if other.sum_ns.get() == 0 {
            return;
        }
        for (sum, more) in self.buckets.iter_mut().zip(other.buckets.iter()) {
            *sum += more.get();
        }
        self.sum_ns = self.sum_ns.wrapping_add(other.sum_ns.get());
    }

    /// Adds the latencies of another one.
    pub fn merge(&mut self, other: &Self) {
        for (sum, more) in self.buckets.iter_mut().zip(&other.buckets) {
            *sum += more;
        }
        self.sum_ns = self.sum_ns.wrapping_add(other.sum_ns);
    }

    /// The latencies recorded since `earlier`; none if `earlier` has some that this one lacks.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let pairs = self.buckets.iter().zip(&earlier.buckets);
        let difference = pairs.map(|(now, then)| now.checked_sub(*then)).collect();
        let sum_ns = self.sum_ns.wrapping_sub(earlier.sum_ns);
        Option::map(difference, |buckets| Self { buckets, sum_ns }).unwrap_or_default()
    }

    /// Calls a function with the buckets, and with the sum.
    pub(super) fn visit(&mut self, [buckets, sum]: [&'static str; 2], visit: Visit<'_>) {
        visit(buckets, None, &mut self.buckets);
        visit(sum, None, std::slice::from_mut(&mut self.sum_ns));
    }

    /// The number of latencies.
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }

    /// The sum of the latencies, in microseconds.
    pub fn sum_us(&self) -> f64 {
        self.sum_ns as f64 / 1000.0
    }

    /// The mean, in microseconds; zero without latencies.
    pub fn mean_us(&self) -> f64 {
        self.sum_us() / self.count().max(1) as f64
    }

    /// A quantile between 0 and 1, in microseconds, interpolated within its bucket; zero without
    /// latencies.
    pub fn quantile_us(&self, quantile: f64) -> f64 {
        let rank = (quantile * self.count() as f64).max(1.0);
        let mut before = 0.0;
        for (bucket, &count) in self.buckets.iter().enumerate().filter(|(_, count)| **count > 0) {
            let (count, start) = (count as f64, bucket_start_ns(bucket) as f64);
            if before + count >= rank {
                let width = bucket_start_ns(bucket + 1) as f64 - start;
                return (start + width * (rank - before) / count) / 1000.0;
            }
            before += count;
        }
        self.max_us()
    }

    /// The end of the highest bucket with a latency, in microseconds; zero without latencies.
    pub fn max_us(&self) -> f64 {
        self.buckets().last().map_or(0.0, |(end_us, _)| end_us)
    }

    /// The end of each bucket that has latencies, in microseconds, and their number. A bucket
    /// starts where the one before it ends.
    pub fn buckets(&self) -> impl Iterator<Item = (f64, u64)> {
        let used = if self.sum_ns == 0 { 0 } else { BUCKETS };
        let some = self.buckets[..used].iter().enumerate().filter(|(_, count)| **count > 0);
        some.map(|(bucket, &count)| (bucket_start_ns(bucket + 1) as f64 / 1000.0, count))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn of(latencies_ns: &[u64]) -> LatencyHistogram {
        let histogram = Histogram::default();
        latencies_ns.iter().for_each(|&ns| histogram.record(ns, 1));
        histogram.copy()
    }

    #[test]
    fn buckets_join_and_are_an_eighth_wide() {
        for bucket in 0..BUCKETS {
            let (start, end) = (bucket_start_ns(bucket), bucket_start_ns(bucket + 1));
            assert_eq!((bucket_of(start), bucket_of(end - 1)), (bucket, bucket));
            assert!(start < end && end - start <= (start / 8).max(128), "{bucket}");
        }
        let longest = bucket_start_ns(BUCKETS);
        assert!((100_000_000_000..150_000_000_000).contains(&longest), "{longest}");
        assert_eq!((bucket_of(longest), bucket_of(u64::MAX)), (BUCKETS - 1, BUCKETS - 1));
    }

    #[test]
    fn a_histogram_without_latencies_is_all_zero() {
        let none = of(&[]);
        let figures = [none.mean_us(), none.quantile_us(0.99), none.max_us(), none.sum_us()];
        assert_eq!((none.count(), figures), (0, [0.0; 4]));
    }

    #[test]
    fn the_difference_to_a_foreign_histogram_is_empty() {
        let (few, many) = (of(&[5_000]), of(&[5_000, 7_000_000, 9_000]));
        assert_eq!(many.since(&few).count(), 2);
        assert_eq!(few.since(&many), LatencyHistogram::default());
    }

    proptest! {
        #[test]
        fn figures_agree_with_a_sorted_list(
            mut list in prop::collection::vec(0..100_000_000_000_u64, 1..300),
            percent in 0..=100_u32,
        ) {
            let histogram = of(&list);
            list.sort_unstable();
            let count = list.len();
            prop_assert_eq!(histogram.count(), count as u64);
            let mean = list.iter().sum::<u64>() as f64 / count as f64 / 1000.0;
            prop_assert!((histogram.mean_us() - mean).abs() < 1.0 + mean * 1e-9);
            let rank = (f64::from(percent) / 100.0 * count as f64).ceil().max(1.0) as usize;
            let near = |us: f64, ns: u64| {
                let exact = ns as f64 / 1000.0;
                (us - exact).abs() <= exact / 8.0 + 0.129
            };
            let quantile = histogram.quantile_us(f64::from(percent) / 100.0);
            prop_assert!(near(quantile, list[rank - 1]), "{quantile} for {}", list[rank - 1]);
            prop_assert!(near(histogram.max_us(), list[count - 1]));
            let sum: u64 = histogram.buckets().map(|(_, count)| count).sum();
            prop_assert_eq!(sum, count as u64);
        }
    }
}
