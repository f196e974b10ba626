//! The reads of a disk, which slow its writeback down.

use forebay_policy::ReadTimes;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

/// How long a disk counts as being read after the last read, in milliseconds. A busy client sends
/// its next read sooner.
const READING_MS: u64 = 100;

/// The reads of a disk: whether there are any, and their latencies.
#[derive(Debug)]
pub(crate) struct Reads {
    in_flight: AtomicU64,
    last_end_ms: AtomicU64,
    /// A histogram of latencies since the last [`Reads::take_times`], by [`ReadTimes::bucket_of`].
    times: Box<[AtomicU32]>,
}

impl Default for Reads {
    fn default() -> Self {
        Self {
            in_flight: AtomicU64::new(0),
            last_end_ms: AtomicU64::new(0),
            times: (0..ReadTimes::BUCKETS).map(|_| AtomicU32::new(0)).collect(),
        }
    }
}

impl Reads {
    pub(crate) fn begin(&self) {
        self.in_flight.fetch_add(1, Ordering::Relaxed);
    }

    /// Ends a read, at `now_ms` milliseconds since the start of the runtime.
    pub(crate) fn end(&self, now_ms: u64, took: Duration) {
        let us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        self.times[ReadTimes::bucket_of(us)].fetch_add(1, Ordering::Relaxed);
        self.last_end_ms.store(now_ms, Ordering::Relaxed);
        self.in_flight.fetch_sub(1, Ordering::Relaxed);
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

    /// Whether the disk is being read.
    pub(crate) fn is_reading(&self, now_ms: u64) -> bool {
        let last = self.last_end_ms.load(Ordering::Relaxed);
        let is_recent = last > 0 && now_ms < last + READING_MS;
        is_recent || self.in_flight.load(Ordering::Relaxed) > 0
    }
}
