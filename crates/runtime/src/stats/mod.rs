//! Per-worker statistics of each volume. A counter of a worker has one writer, so an update is a
//! plain load and store; readers add up the workers, and block none of them.

mod arms;
mod disk_load;
mod histogram;
mod internal;
mod volume;

pub(crate) use arms::Compared;
pub use arms::{ArmTimes, ResponseTimes};
pub(crate) use disk_load::DiskLoad;
pub use disk_load::DiskUse;
pub(crate) use histogram::Histogram;
pub use histogram::LatencyHistogram;
pub use internal::InternalIos;
pub(crate) use internal::InternalReads;
pub use volume::{NamedStatistics, VolumeStatistics};

use forebay_engine::{IoCause, Uncached};
use std::sync::atomic::{AtomicU64, Ordering};
use volume::Visit;

/// The classes of sizes of requests: up to 512 bytes, up to 1 KiB, and so on to 32 MiB.
pub const SIZE_CLASSES: usize = 17;

/// The class of a request of `bytes`.
pub(crate) const fn size_class(bytes: u64) -> usize {
    let halved = bytes.saturating_sub(1) >> 8;
    let class = (u64::BITS - halved.leading_zeros()).saturating_sub(1) as usize;
    if class < SIZE_CLASSES { class } else { SIZE_CLASSES - 1 }
}

/// The largest size of a class, in bytes.
pub const fn size_class_bytes(class: usize) -> u64 {
    512 << class
}

const REASONS: usize = Uncached::ALL.len();
const CAUSES: usize = IoCause::ALL.len();

fn size_label(class: usize) -> String {
    size_class_bytes(class).to_string()
}

fn reason_label(reason: usize) -> String {
    Uncached::ALL[reason].name().to_owned()
}

fn cause_label(cause: usize) -> String {
    IoCause::ALL[cause].name().to_owned()
}

macro_rules! counts {
    (
        scalars { $($(#[$doc:meta])* $name:ident,)* }
        arrays { $($(#[$array_doc:meta])* $array:ident: [$len:expr] by $label:expr,)* }
    ) => {
        /// The counters of one worker for one volume.
        #[derive(Debug, Default)]
        pub(crate) struct Counts {
            $(pub(crate) $name: Count,)*
            $(pub(crate) $array: [Count; $len],)*
        }

        /// Requests and bytes of a volume since it was added. A request is what a client sent, or
        /// a piece of it if its front end divides a huge one.
        #[derive(Clone, Debug, Default, PartialEq, Eq)]
        pub struct RequestCounters {
            $($(#[$doc])* pub $name: u64,)*
            $($(#[$array_doc])* pub $array: [u64; $len],)*
        }

        impl RequestCounters {
            pub(crate) fn add(&mut self, counts: &Counts) {
                $(self.$name += counts.$name.get();)*
                $(
                    let pairs = self.$array.iter_mut().zip(&counts.$array);
                    pairs.for_each(|(sum, count)| *sum += count.get());
                )*
            }

            /// Calls a function with each counter. The names are kept in files.
            pub(crate) fn visit(&mut self, visit: Visit<'_>) {
                $(visit(stringify!($name), None, std::slice::from_mut(&mut self.$name));)*
                $(visit(stringify!($array), Some($label), &mut self.$array);)*
            }
        }
    };
}

counts! {
    scalars {
        /// Bytes of the reads answered.
        read_bytes,
        /// Reads with all lines in the pool.
        read_hits,
        /// Reads with some lines in the pool.
        read_partial_hits,
        /// Reads with no line in the pool, and those that failed before their lines were looked up.
        read_misses,
        /// Reads that begin where the previous read of the same client ends.
        sequential_reads,
        /// Bytes of the writes answered.
        write_bytes,
        /// Writes whose lines were all in the pool.
        write_hits,
        /// Writes of which some lines were in the pool.
        write_partial_hits,
        /// Writes with no line in the pool, and those that failed before the lookup of their lines.
        write_misses,
        /// Writes that begin where the previous write of the same client ends.
        sequential_writes,
        /// Reads and writes that do not begin and end at a multiple of a line.
        unaligned,
        /// Flushes answered.
        flushes,
        /// Trims answered.
        trims,
        /// Bytes of these trims.
        trim_bytes,
        /// Writes of zeroes answered.
        zeroes,
        /// Bytes of these writes.
        zero_bytes,
        /// Prefetch requests answered.
        prefetches,
        /// Requests answered with an error, refused ones included.
        errors,
        /// Requests refused before they were begun: they are in no other counter but the errors.
        refused,
        /// Requests that waited for a limit of their volume.
        limited,
        /// The time that they waited for it, in microseconds. It is not part of their latencies.
        limited_us,
        /// The sum of the latencies of all answered requests but prefetches, in microseconds.
        latency_us,
        /// Flushes sent to the backend.
        backend_flushes,
        /// Discards and writes of zeroes sent to the backend.
        backend_erases,
        /// I/Os that the backend has completed, with or without an error.
        backend_answers,
        /// I/Os that the backend has failed.
        backend_errors,
    }
    arrays {
        /// Reads answered, by size: see [`size_class_bytes`].
        read_sizes: [SIZE_CLASSES] by size_label,
        /// Writes answered, by size: see [`size_class_bytes`].
        write_sizes: [SIZE_CLASSES] by size_label,
        /// Reads that are no hits, by [`Uncached`].
        uncached_reads: [REASONS] by reason_label,
        /// Writes that were not acknowledged from the pool, by [`Uncached`].
        uncached_writes: [REASONS] by reason_label,
        /// Reads sent to the backend, by [`IoCause`].
        backend_reads_by_cause: [CAUSES] by cause_label,
        /// Bytes of these reads.
        backend_read_bytes_by_cause: [CAUSES] by cause_label,
        /// Writes sent to the backend, by [`IoCause`].
        backend_writes_by_cause: [CAUSES] by cause_label,
        /// Bytes of these writes.
        backend_write_bytes_by_cause: [CAUSES] by cause_label,
    }
}

impl RequestCounters {
    /// Requests answered whose latencies are recorded: all but prefetch requests.
    pub const fn answered(&self) -> u64 {
        self.reads() + self.writes() + self.flushes + self.trims + self.zeroes
    }

    /// Reads answered.
    pub const fn reads(&self) -> u64 {
        self.read_hits + self.read_partial_hits + self.read_misses
    }

    /// Writes answered.
    pub const fn writes(&self) -> u64 {
        self.write_hits + self.write_partial_hits + self.write_misses
    }

    /// Reads sent to the backend.
    pub fn backend_reads(&self) -> u64 {
        self.backend_reads_by_cause.iter().sum()
    }

    /// Bytes of these reads.
    pub fn backend_read_bytes(&self) -> u64 {
        self.backend_read_bytes_by_cause.iter().sum()
    }

    /// Writes sent to the backend.
    pub fn backend_writes(&self) -> u64 {
        self.backend_writes_by_cause.iter().sum()
    }

    /// Bytes of these writes.
    pub fn backend_write_bytes(&self) -> u64 {
        self.backend_write_bytes_by_cause.iter().sum()
    }
}

/// A counter with one writing thread and any number of readers.
#[derive(Debug, Default)]
pub(crate) struct Count(AtomicU64);

impl Count {
    pub(crate) fn add(&self, more: u64) {
        // Wraps, as the sum of latencies may after centuries.
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(more), Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// The classes of latencies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LatencyClass {
    /// Reads with all lines in the pool.
    ReadHit,
    /// Reads that needed the disk.
    ReadMiss,
    /// Writes acknowledged from the pool, with or without a journal.
    WriteMemory,
    /// Writes acknowledged from the disk.
    WriteDisk,
    /// Flushes.
    Flush,
    /// Trims and writes of zeroes.
    Trim,
    /// Reads from the disk.
    DiskRead,
    /// Writes to the disk.
    DiskWrite,
    /// Flushes of the disk.
    DiskFlush,
    /// Discards of the disk and writes of zeroes by the disk.
    DiskErase,
}

impl LatencyClass {
    /// All classes.
    pub const ALL: [Self; 10] = [
        Self::ReadHit,
        Self::ReadMiss,
        Self::WriteMemory,
        Self::WriteDisk,
        Self::Flush,
        Self::Trim,
        Self::DiskRead,
        Self::DiskWrite,
        Self::DiskFlush,
        Self::DiskErase,
    ];

    /// The requests of clients, or I/Os, in this class.
    pub(crate) const fn operation(self) -> &'static str {
        match self {
            Self::ReadHit | Self::ReadMiss | Self::DiskRead => "read",
            Self::WriteMemory | Self::WriteDisk | Self::DiskWrite => "write",
            Self::Flush | Self::DiskFlush => "flush",
            Self::Trim | Self::DiskErase => "trim",
        }
    }

    /// The names of its buckets and of its sum in files.
    const fn names(self) -> [&'static str; 2] {
        match self {
            Self::ReadHit => ["latency.read-hit", "latency-ns.read-hit"],
            Self::ReadMiss => ["latency.read-miss", "latency-ns.read-miss"],
            Self::WriteMemory => ["latency.write-memory", "latency-ns.write-memory"],
            Self::WriteDisk => ["latency.write-disk", "latency-ns.write-disk"],
            Self::Flush => ["latency.flush", "latency-ns.flush"],
            Self::Trim => ["latency.trim", "latency-ns.trim"],
            Self::DiskRead => ["latency.disk-read", "latency-ns.disk-read"],
            Self::DiskWrite => ["latency.disk-write", "latency-ns.disk-write"],
            Self::DiskFlush => ["latency.disk-flush", "latency-ns.disk-flush"],
            Self::DiskErase => ["latency.disk-erase", "latency-ns.disk-erase"],
        }
    }
}

/// Latencies by class. Those of requests run from the start of the turn in which the request was
/// complete to the end of the turn in which it was answered, so they include the time of the other
/// requests of these turns. Those of the disk run from the start of an I/O to its completion.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Latencies([LatencyHistogram; LatencyClass::ALL.len()]);

impl Default for Latencies {
    fn default() -> Self {
        Self(std::array::from_fn(|_| LatencyHistogram::default()))
    }
}

impl Latencies {
    /// The latencies of a class.
    pub const fn of(&self, class: LatencyClass) -> &LatencyHistogram {
        &self.0[class as usize]
    }

    /// Adds the latencies of all workers.
    pub(crate) fn add(&mut self, workers: &[WorkerStats]) {
        for worker in workers {
            for (sum, more) in self.0.iter_mut().zip(&worker.latencies) {
                sum.add(more);
            }
        }
    }

    fn visit(&mut self, visit: Visit<'_>) {
        for (latencies, class) in self.0.iter_mut().zip(LatencyClass::ALL) {
            latencies.visit(class.names(), visit);
        }
    }

    /// The latencies recorded since `earlier`.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        Self(std::array::from_fn(|class| self.0[class].since(&earlier.0[class])))
    }
}

/// One worker's share of a volume's statistics.
#[derive(Debug, Default)]
pub(crate) struct WorkerStats {
    pub(crate) counts: Counts,
    latencies: [Histogram; LatencyClass::ALL.len()],
    arms: arms::Arms,
}

impl WorkerStats {
    /// Records `times` equal latencies. Only the worker itself may call it.
    pub(crate) fn record(&self, class: LatencyClass, ns: u64, times: u64) {
        self.latencies[class as usize].record(ns, times);
    }

    /// Records `times` equal response times of compared requests. Only the worker itself may call
    /// it.
    pub(crate) fn record_compared(&self, compared: Compared, ns: u64, times: u64) {
        self.arms.record(compared, ns, times);
    }
}

/// I/Os that the backend has completed for all workers.
pub(crate) fn add_up_answers(workers: &[WorkerStats]) -> u64 {
    workers.iter().map(|worker| worker.counts.backend_answers.get()).sum()
}

/// Adds up the counters of all workers.
pub(crate) fn add_up_counters(workers: &[WorkerStats]) -> RequestCounters {
    let mut counters = RequestCounters::default();
    workers.iter().for_each(|worker| counters.add(&worker.counts));
    counters
}

/// Adds up the response times of both sides of the comparison with a hold-out.
pub(crate) fn add_up_arms(workers: &[WorkerStats]) -> ArmTimes {
    let mut times = ArmTimes::default();
    workers.iter().for_each(|worker| times.add(&worker.arms));
    times
}

/// Adds up the statistics of all workers.
pub(crate) fn add_up(workers: &[WorkerStats]) -> (RequestCounters, Latencies) {
    let mut latencies = Latencies::default();
    latencies.add(workers);
    (add_up_counters(workers), latencies)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_class_of_sizes_ends_at_a_power_of_two() {
        assert_eq!((size_class(0), size_class(1)), (0, 0));
        for class in 0..SIZE_CLASSES {
            let bytes = size_class_bytes(class);
            assert_eq!((size_class(bytes), size_class(bytes - 1)), (class, class), "{bytes}");
            assert_eq!(size_class(bytes + 1), (class + 1).min(SIZE_CLASSES - 1), "{bytes}");
        }
        assert_eq!(size_class_bytes(SIZE_CLASSES - 1), 32 << 20);
    }
}
