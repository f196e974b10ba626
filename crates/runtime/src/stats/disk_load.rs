//! How busy a disk is with the I/Os of a volume.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The I/Os of a volume in flight, and the time during which there were any. All workers update it,
/// once at the start and once at the end of each I/O. The busy time is exact as long as no two
/// updates overlap; one that overlaps another may be off by the time between the two.
#[derive(Debug, Default)]
pub(crate) struct DiskLoad {
    in_flight: AtomicU64,
    /// The last start or end of an I/O, in nanoseconds.
    changed_ns: AtomicU64,
    busy_ns: AtomicU64,
}

/// How busy a disk was with the I/Os of a volume.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskUse {
    /// I/Os in flight now.
    pub in_flight: u64,
    /// The time with an I/O in flight, since the volume was added.
    pub busy: Duration,
    /// The time since the runtime was started. In a period, the busy time divided by the length is
    /// the utilization, and the sum of the latencies that ended in it divided by the length is the
    /// mean queue length.
    pub at: Duration,
}

impl DiskLoad {
    /// Begins an I/O, at a time since the start of the runtime.
    pub(crate) fn begin(&self, now: Duration) {
        let was_busy = self.in_flight.fetch_add(1, Ordering::Relaxed) > 0;
        self.pass(now, was_busy);
    }

    /// Ends an I/O.
    pub(crate) fn end(&self, now: Duration) {
        self.pass(now, true);
        let before = self.in_flight.fetch_sub(1, Ordering::Relaxed);
        assert!(before > 0, "an I/O ends once, after it has begun");
    }

    /// Accounts for the time up to `now`, in which the number of I/Os did not change.
    fn pass(&self, now: Duration, is_busy: bool) {
        let now_ns = now.as_nanos() as u64;
        let before_ns = self.changed_ns.fetch_max(now_ns, Ordering::Relaxed);
        if is_busy {
            self.busy_ns.fetch_add(now_ns.saturating_sub(before_ns), Ordering::Relaxed);
        }
    }

    /// How busy the disk was until `now`.
    pub(crate) fn until(&self, now: Duration) -> DiskUse {
        let in_flight = self.in_flight.load(Ordering::Relaxed);
        let mut busy_ns = self.busy_ns.load(Ordering::Relaxed);
        if in_flight > 0 {
            let since_ns = self.changed_ns.load(Ordering::Relaxed);
            busy_ns += (now.as_nanos() as u64).saturating_sub(since_ns);
        }
        DiskUse { in_flight, busy: Duration::from_nanos(busy_ns), at: now }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn time_counts_once_however_many_ios_are_in_flight() {
        let load = DiskLoad::default();
        load.begin(MS * 10);
        load.begin(MS * 12);
        assert_eq!(load.until(MS * 13), DiskUse { in_flight: 2, busy: MS * 3, at: MS * 13 });
        load.end(MS * 15);
        load.end(MS * 20);
        assert_eq!(load.until(MS * 50), DiskUse { in_flight: 0, busy: MS * 10, at: MS * 50 });
        load.begin(MS * 60);
        load.end(MS * 61);
        assert_eq!(load.until(MS * 70).busy, MS * 11);
    }

    #[test]
    fn a_clock_read_late_does_not_make_time_negative() {
        let load = DiskLoad::default();
        load.begin(MS * 10);
        load.begin(MS * 9);
        load.end(MS * 8);
        load.end(MS * 14);
        assert_eq!(load.until(MS * 20).busy, MS * 4);
    }
}
