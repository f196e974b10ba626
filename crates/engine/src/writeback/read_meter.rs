//! Measures how long reads of a volume's disk take.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Above this number of reads, sums are halved, so that the mean follows the disk.
const READS_MAX: u64 = 1_024;

/// The reads in flight over time, and the reads completed. By Little's law, the mean duration of a
/// read is the mean number in flight divided by the rate.
#[derive(Debug, Default)]
pub(super) struct ReadMeter {
    /// The sum of the times that reads were in flight, in milliseconds.
    in_flight_ms: AtomicU64,
    reads: AtomicU64,
}

impl ReadMeter {
    /// Counts a read as completed; `in_flight` were in flight in the last `passed_ms`.
    pub(super) fn add(&self, in_flight: u64, passed_ms: u64) {
        self.in_flight_ms.fetch_add(in_flight * passed_ms, Relaxed);
        if self.reads.fetch_add(1, Relaxed) >= READS_MAX {
            self.in_flight_ms.store(self.in_flight_ms.load(Relaxed) / 2, Relaxed);
            self.reads.store(self.reads.load(Relaxed) / 2, Relaxed);
        }
    }

    pub(super) fn reads(&self) -> u64 {
        self.reads.load(Relaxed)
    }

    /// The mean duration of a read, in microseconds.
    pub(super) fn mean_us(&self) -> u64 {
        self.in_flight_ms.load(Relaxed) * 1_000 / self.reads().max(1)
    }

    pub(super) fn reset(&self) {
        self.in_flight_ms.store(0, Relaxed);
        self.reads.store(0, Relaxed);
    }
}
