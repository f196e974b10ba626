//! What the server reads from a disk for itself: calibration, and samples by which the disk is
//! recognised. No client waits for it, and it goes past the pool.

use std::sync::atomic::{AtomicU64, Ordering};

/// The reads of a volume's disk that the server needs for itself.
#[derive(Debug, Default)]
pub(crate) struct InternalReads {
    reads: AtomicU64,
    bytes: AtomicU64,
}

/// Internal reads of a disk since the volume was added.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InternalIos {
    /// Reads.
    pub reads: u64,
    /// Bytes of these reads.
    pub read_bytes: u64,
}

impl InternalReads {
    /// Counts reads of `bytes` altogether, whatever their results.
    pub(crate) fn add(&self, reads: u64, bytes: u64) {
        self.reads.fetch_add(reads, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// The reads so far.
    pub(crate) fn ios(&self) -> InternalIos {
        InternalIos {
            reads: self.reads.load(Ordering::Relaxed),
            read_bytes: self.bytes.load(Ordering::Relaxed),
        }
    }
}
