//! I/O counters of a backend.

use crate::{Io, IoKind};
use std::sync::atomic::{AtomicU64, Ordering};

/// I/Os submitted to a backend since it was opened, and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IoCount {
    pub reads: u64,
    pub read_bytes: u64,
    pub writes: u64,
    /// Bytes written.
    pub write_bytes: u64,
    pub flushes: u64,
    pub discards: u64,
    /// Requests to zero a range.
    pub zeroes: u64,
}

/// The counters behind an [`IoCount`]. They are read one by one: a snapshot during I/O may include
/// a read but not its bytes.
#[derive(Default)]
pub struct IoCounter {
    reads: AtomicU64,
    read_bytes: AtomicU64,
    writes: AtomicU64,
    write_bytes: AtomicU64,
    flushes: AtomicU64,
    discards: AtomicU64,
    zeroes: AtomicU64,
}

impl IoCounter {
    /// Counts one I/O.
    pub fn add(&self, io: &Io) {
        let (count, bytes) = match io.kind {
            IoKind::Read => (&self.reads, Some(&self.read_bytes)),
            IoKind::Write { .. } => (&self.writes, Some(&self.write_bytes)),
            IoKind::Flush => (&self.flushes, None),
            IoKind::Discard => (&self.discards, None),
            IoKind::Zero { .. } => (&self.zeroes, None),
        };
        count.fetch_add(1, Ordering::Relaxed);
        if let Some(bytes) = bytes {
            bytes.fetch_add(io.len, Ordering::Relaxed);
        }
    }

    /// A snapshot of the counters.
    pub fn get(&self) -> IoCount {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        IoCount {
            reads: get(&self.reads),
            read_bytes: get(&self.read_bytes),
            writes: get(&self.writes),
            write_bytes: get(&self.write_bytes),
            flushes: get(&self.flushes),
            discards: get(&self.discards),
            zeroes: get(&self.zeroes),
        }
    }
}
