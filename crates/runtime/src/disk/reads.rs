//! The reads of a disk for clients, which slow down its writeback and its warm-up.

use forebay_policy::ReadTimes;
use forebay_volume::DemandReads;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

/// How long a disk counts as being read after the last read, in milliseconds. A busy client sends
/// its next read sooner.
const READING_MS: u64 = 100;

/// The reads of a disk for clients: whether there are any, and their latencies. Background reads
/// themselves are not counted; a read counts as `beside` if it overlapped one of them, otherwise as
/// `alone`.
#[derive(Debug)]
pub(crate) struct Reads {
    in_flight: AtomicU64,
    last_end_ms: AtomicU64,
    /// A histogram of latencies since the last [`Reads::take_times`], by [`ReadTimes::bucket_of`].
    times: Box<[AtomicU32]>,
    background: AtomicU64,
    /// When the last background read ended, in microseconds since the start of the runtime.
    background_end_us: AtomicU64,
    /// The reads that overlapped no background read, and those that did.
    alone: Sum,
    beside: Sum,
}

/// The number of some reads, and the sum of their latencies.
#[derive(Debug, Default)]
struct Sum {
    count: AtomicU64,
    us: AtomicU64,
}

impl Sum {
    fn add(&self, us: u64) {
        self.count.fetch_add(1, Ordering::Relaxed);
        self.us.fetch_add(us, Ordering::Relaxed);
    }

    fn get(&self) -> DemandReads {
        let get = |sum: &AtomicU64| sum.load(Ordering::Relaxed);
        DemandReads { count: get(&self.count), us: get(&self.us) }
    }
}

impl Default for Reads {
    fn default() -> Self {
        Self {
            in_flight: AtomicU64::new(0),
            last_end_ms: AtomicU64::new(0),
            times: (0..ReadTimes::BUCKETS).map(|_| AtomicU32::new(0)).collect(),
            background: AtomicU64::new(0),
            background_end_us: AtomicU64::new(0),
            alone: Sum::default(),
            beside: Sum::default(),
        }
    }
}

impl Reads {
    pub(crate) fn begin(&self, is_background: bool) {
        let in_flight = if is_background { &self.background } else { &self.in_flight };
        in_flight.fetch_add(1, Ordering::Relaxed);
    }

    /// Ends a read, at a time since the start of the runtime.
    pub(crate) fn end(&self, is_background: bool, now: Duration, took: Duration) {
        let us = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        if is_background {
            self.background_end_us.fetch_max(us(now), Ordering::Relaxed);
            let before = self.background.fetch_sub(1, Ordering::Relaxed);
            assert!(before > 0, "a background read ends once");
            return;
        }
        let background_end_us = self.background_end_us.load(Ordering::Relaxed);
        let is_beside = self.background.load(Ordering::Relaxed) > 0
            || background_end_us > us(now.saturating_sub(took));
        (if is_beside { &self.beside } else { &self.alone }).add(us(took));
        self.times[ReadTimes::bucket_of(us(took))].fetch_add(1, Ordering::Relaxed);
        self.last_end_ms.store(now.as_millis() as u64, Ordering::Relaxed);
        let before = self.in_flight.fetch_sub(1, Ordering::Relaxed);
        assert!(before > 0, "a read ends once");
    }

    /// The reads that overlapped no background read, and those that did, since the volume was
    /// added.
    pub(crate) fn demand(&self) -> (DemandReads, DemandReads) {
        (self.alone.get(), self.beside.get())
    }

    /// Takes the latencies of the reads that have ended since the last call.
    pub(crate) fn take_times(&self) -> ReadTimes {
        let mut times = ReadTimes::default();
        for (bucket, count) in self.times.iter().enumerate() {
            if count.load(Ordering::Relaxed) > 0 {
                times.add(bucket, u64::from(count.swap(0, Ordering::Relaxed)));
            }
        }
        times
    }

    /// Whether the disk is being read for a client.
    pub(crate) fn is_reading(&self, now_ms: u64) -> bool {
        let last = self.last_end_ms.load(Ordering::Relaxed);
        let is_recent = last > 0 && now_ms < last + READING_MS;
        is_recent || self.in_flight.load(Ordering::Relaxed) > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn reads_beside_background_reads_are_counted_apart() {
        let reads = Reads::default();
        let read = |begin: u32, end: u32| {
            reads.begin(false);
            reads.end(false, MS * end, MS * (end - begin));
        };
        read(1, 3);
        reads.begin(true);
        read(4, 8);
        reads.end(true, MS * 10, MS * 5);
        // Began before the background read ended.
        read(9, 12);
        read(11, 12);
        let sum = |count, ms: u64| DemandReads { count, us: ms * 1_000 };
        assert_eq!(reads.demand(), (sum(2, 3), sum(2, 7)));
    }

    #[test]
    fn a_disk_with_background_reads_only_counts_as_idle() {
        let reads = Reads::default();
        reads.begin(true);
        assert!(!reads.is_reading(1));
        reads.end(true, MS * 5, MS * 4);
        assert!(!reads.is_reading(6));
        assert_eq!(reads.take_times().total(), 0, "no latency of a client");
        reads.begin(false);
        assert!(reads.is_reading(7));
        reads.end(false, MS * 8, MS);
        assert!(reads.is_reading(9) && !reads.is_reading(8 + READING_MS));
        assert_eq!(reads.take_times().total(), 1);
    }
}
