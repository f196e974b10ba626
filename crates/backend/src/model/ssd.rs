//! An SSD: dies that work in parallel, and one shared interface.
//!
//! Each I/O occupies one die for its latency, and then the interface for its transfer. The
//! interface is booked for the transfer from the arrival of the I/O on, so that latencies do not
//! reduce the bandwidth. There is no garbage collection: the disk stays as fast as a new one.

use super::DiskModel;
use super::answers::TimedAnswers;
use crate::IoKind;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Parameters of the disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SsdSpec {
    /// Latency of a read before the transfer, in nanoseconds.
    pub read_latency_ns: u64,
    /// The same for a write, which the disk's cache answers.
    pub write_latency_ns: u64,
    /// Latency of a flush after the last write, in nanoseconds.
    pub flush_latency_ns: u64,
    /// Concurrent I/Os, above zero.
    pub parallel_count: usize,
    /// Bandwidth of the interface, in bytes per second, above zero.
    pub bytes_per_second: u64,
}

impl Default for SsdSpec {
    /// A mid-range NVMe disk.
    fn default() -> Self {
        Self {
            read_latency_ns: 80_000,
            write_latency_ns: 20_000,
            flush_latency_ns: 100_000,
            parallel_count: 32,
            bytes_per_second: 2 << 30,
        }
    }
}

/// A modelled SSD.
pub struct Ssd {
    spec: SsdSpec,
    /// When each die is idle, the earliest first.
    dies: BinaryHeap<Reverse<u64>>,
    /// When the interface is idle.
    free_at_ns: u64,
    /// Completion time of the last write.
    written_ns: u64,
    /// The I/Os in flight.
    answers: TimedAnswers,
}

impl Ssd {
    /// An idle disk.
    pub fn new(spec: SsdSpec) -> Self {
        let dies = (0..spec.parallel_count.max(1)).map(|_| Reverse(0)).collect();
        Self { spec, dies, free_at_ns: 0, written_ns: 0, answers: TimedAnswers::default() }
    }

    /// Executes one I/O of `len` bytes. Returns its completion time. Calls must be in the order of
    /// their times.
    pub fn service(&mut self, now_ns: u64, kind: IoKind, len: u64) -> u64 {
        let (latency_ns, bytes) = match kind {
            IoKind::Flush => return now_ns.max(self.written_ns) + self.spec.flush_latency_ns,
            IoKind::Read => (self.spec.read_latency_ns, len),
            IoKind::Write { .. } => (self.spec.write_latency_ns, len),
            IoKind::Discard | IoKind::Zero { .. } => (self.spec.write_latency_ns, 0),
        };
        let Reverse(die_free_ns) = self.dies.pop().unwrap_or_default();
        let die_done_ns = now_ns.max(die_free_ns) + latency_ns;
        self.dies.push(Reverse(die_done_ns));
        let rate = u128::from(self.spec.bytes_per_second.max(1));
        let transfer_ns = (u128::from(bytes) * 1_000_000_000 / rate) as u64;
        let mut done_ns = die_done_ns.max(self.free_at_ns) + transfer_ns;
        self.free_at_ns = self.free_at_ns.max(now_ns) + transfer_ns;
        if kind.changes_data() {
            self.written_ns = self.written_ns.max(done_ns);
        }
        if kind == (IoKind::Write { fua: true }) {
            done_ns += self.spec.flush_latency_ns;
        }
        done_ns
    }
}

impl DiskModel for Ssd {
    fn enqueue(&mut self, now_ns: u64, id: u64, kind: IoKind, _offset: u64, len: u64) {
        let done_ns = self.service(now_ns, kind, len);
        self.answers.push(done_ns, id);
    }

    fn next_completion(&self) -> Option<u64> {
        self.answers.next_ns()
    }

    fn pop(&mut self, now_ns: u64) -> Option<u64> {
        self.answers.pop(now_ns)
    }

    fn is_rotational(&self) -> bool {
        false
    }
}
