//! The response times of both sides of the comparison with a hold-out.
//!
//! Counted while a volume has a hold-out, by kind and by class of size: requests of different sizes
//! take different times without a cache too, so only those of one class are comparable.

use super::{Count, SIZE_CLASSES, size_class};
use forebay_engine::{Arm, LineHits};
use forebay_types::ByteRange;
use forebay_volume::RequestKind;

/// The counters of a comparison that a request belongs to: by its side, its kind and its class of
/// size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Compared {
    arm: Arm,
    is_write: bool,
    size_class: usize,
}

impl Compared {
    /// The counters of a request that has succeeded; `None` if it is not compared. Only a read or
    /// write is compared, and only if it was held out as a whole or not at all.
    pub(crate) fn of(kind: RequestKind, range: ByteRange, line_hits: LineHits) -> Option<Self> {
        let is_write = match kind {
            RequestKind::Read => false,
            // The hash of the region does not depend on FUA, so both sides have the same share of
            // writes with FUA.
            RequestKind::Write { .. } => true,
            _ => return None,
        };
        Some(Self { arm: line_hits.arm()?, is_write, size_class: size_class(range.len) })
    }
}

/// Requests and their response times, by class of size: see [`super::size_class_bytes`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ResponseTimes {
    /// Requests.
    pub counts: [u64; SIZE_CLASSES],
    /// The sums of their response times, in nanoseconds.
    pub sums_ns: [u64; SIZE_CLASSES],
}

impl ResponseTimes {
    /// What was counted since `earlier`.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let difference = |now: &[u64; SIZE_CLASSES], then: &[u64; SIZE_CLASSES]| {
            std::array::from_fn(|class| now[class].saturating_sub(then[class]))
        };
        Self {
            counts: difference(&self.counts, &earlier.counts),
            sums_ns: difference(&self.sums_ns, &earlier.sums_ns),
        }
    }
}

/// Both sides of a comparison with a hold-out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ArmTimes {
    /// Reads that the cache has served.
    pub served_reads: ResponseTimes,
    /// Reads that were held out.
    pub held_reads: ResponseTimes,
    /// Writes that the cache has served.
    pub served_writes: ResponseTimes,
    /// Writes that were held out.
    pub held_writes: ResponseTimes,
}

impl ArmTimes {
    /// What was counted since `earlier`.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            served_reads: self.served_reads.since(&earlier.served_reads),
            held_reads: self.held_reads.since(&earlier.held_reads),
            served_writes: self.served_writes.since(&earlier.served_writes),
            held_writes: self.held_writes.since(&earlier.held_writes),
        }
    }

    /// Adds what one worker has counted.
    pub(super) fn add(&mut self, arms: &Arms) {
        let sides = [
            (&mut self.served_reads, &arms.0[0]),
            (&mut self.held_reads, &arms.0[1]),
            (&mut self.served_writes, &arms.0[2]),
            (&mut self.held_writes, &arms.0[3]),
        ];
        for (sum, times) in sides {
            for class in 0..SIZE_CLASSES {
                sum.counts[class] += times.counts[class].get();
                sum.sums_ns[class] = sum.sums_ns[class].wrapping_add(times.sums_ns[class].get());
            }
        }
    }
}

#[derive(Debug, Default)]
struct Times {
    counts: [Count; SIZE_CLASSES],
    sums_ns: [Count; SIZE_CLASSES],
}

/// The response times that one worker has counted: served reads, held-out reads, and the same of
/// writes.
#[derive(Debug, Default)]
pub(super) struct Arms([Times; 4]);

impl Arms {
    pub(super) fn record(&self, compared: Compared, ns: u64, times: u64) {
        let Compared { arm, is_write, size_class } = compared;
        let side = &self.0[2 * usize::from(is_write) + usize::from(arm == Arm::HeldOut)];
        side.counts[size_class].add(times);
        side.sums_ns[size_class].add(ns.saturating_mul(times));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_engine::Uncached;

    #[test]
    fn each_request_counts_on_its_side_and_in_its_class() {
        let uncached = Some(Uncached::HoldOut);
        let held = LineHits { hits: 0, misses: 1, uncached, held_out: 1 };
        let mixed = LineHits { held_out: 0, ..held };
        let (read, write) = (RequestKind::Read, RequestKind::Write { fua: false });
        let of = |kind, len, hits| Compared::of(kind, ByteRange::new(0, len), hits);
        let arms = Arms::default();
        arms.record(of(read, 4096, LineHits::ONE_HIT).unwrap(), 10, 3);
        arms.record(of(read, 4096, held).unwrap(), 1000, 1);
        arms.record(of(write, 8192, held).unwrap(), 500, 2);
        assert_eq!(of(read, 4096, mixed), None);
        assert_eq!(of(RequestKind::Flush, 0, LineHits::default()), None);
        let mut sum = ArmTimes::default();
        sum.add(&arms);
        let class = size_class(4096);
        assert_eq!((sum.served_reads.counts[class], sum.served_reads.sums_ns[class]), (3, 30));
        assert_eq!((sum.held_reads.counts[class], sum.held_reads.sums_ns[class]), (1, 1000));
        assert_eq!(sum.held_writes.sums_ns[class + 1], 1000);
        assert_eq!(sum.served_writes, ResponseTimes::default());
        assert_eq!(sum.since(&sum), ArmTimes::default());
    }
}
