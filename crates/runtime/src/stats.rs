//! Per-worker counters of each volume. Each counter has one writer, so an update is a plain load
//! and store; readers add up the workers.

use crate::locks::Lock;
use hdrhistogram::Histogram;
use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! counts {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// The counters of one worker for one volume.
        #[derive(Debug, Default)]
        pub(crate) struct Counts {
            $(pub(crate) $name: Count,)*
        }

        /// Requests and bytes of a volume since it was added.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct RequestCounters {
            $($(#[$doc])* pub $name: u64,)*
        }

        impl RequestCounters {
            pub(crate) fn add(&mut self, counts: &Counts) {
                $(self.$name += counts.$name.get();)*
            }
        }
    };
}

counts! {
    /// Reads answered.
    reads,
    /// Bytes of these reads.
    read_bytes,
    /// Reads with all lines in the pool.
    read_hits,
    /// Reads with some lines in the pool.
    read_partial_hits,
    /// Reads with no line in the pool.
    read_misses,
    /// Writes answered.
    writes,
    /// Bytes of these writes.
    write_bytes,
    /// Flushes answered.
    flushes,
    /// Trims answered.
    trims,
    /// Writes of zeroes answered.
    zeroes,
    /// Prefetch requests answered.
    prefetches,
    /// Requests answered with an error.
    errors,
    /// The sum of the latencies of all answered requests, in microseconds.
    waited_us,
    /// Reads sent to the backend.
    backend_reads,
    /// Bytes of these reads.
    backend_read_bytes,
    /// Writes sent to the backend.
    backend_writes,
    /// Bytes of these writes.
    backend_write_bytes,
    /// Flushes sent to the backend.
    backend_flushes,
    /// Discards and writes of zeroes sent to the backend.
    backend_erases,
    /// I/Os that the backend has completed, with or without an error.
    backend_answers,
    /// I/Os that the backend has failed.
    backend_errors,
}

impl RequestCounters {
    /// Requests answered.
    pub const fn answered(&self) -> u64 {
        self.reads + self.writes + self.flushes + self.trims + self.zeroes + self.prefetches
    }
}

/// A counter with one writing thread and any number of readers.
#[derive(Debug, Default)]
pub(crate) struct Count(AtomicU64);

impl Count {
    pub(crate) fn add(&self, more: u64) {
        self.0.store(self.0.load(Ordering::Relaxed) + more, Ordering::Relaxed);
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// The classes of latencies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LatencyClass {
    /// Reads with all lines in the pool, and prefetch requests.
    Hit,
    /// Reads that needed the disk.
    Miss,
    /// Writes, trims and writes of zeroes.
    Write,
    /// Flushes.
    Flush,
}

impl LatencyClass {
    /// All classes.
    pub const ALL: [Self; 4] = [Self::Hit, Self::Miss, Self::Write, Self::Flush];
}

/// Latencies in nanoseconds, by class.
#[derive(Debug)]
pub(crate) struct Latencies([Histogram<u64>; 4]);

/// The longest latency in the histograms, in nanoseconds: a minute. Longer ones count as a minute.
const LATENCY_NS_MAX: u64 = 60_000_000_000;

impl Default for Latencies {
    fn default() -> Self {
        Self(std::array::from_fn(|_| {
            Histogram::new_with_bounds(1_000, LATENCY_NS_MAX, 2)
                .expect("the bounds are constants in range")
        }))
    }
}

impl Latencies {
    pub(crate) fn record(&mut self, class: LatencyClass, ns: u64, times: u64) {
        self.0[class as usize].saturating_record_n(ns, times);
    }

    fn add(&mut self, other: &Self) {
        for (sum, more) in self.0.iter_mut().zip(&other.0) {
            sum.add(more).expect("all histograms have the same bounds");
        }
    }

    /// Summarizes the latencies recorded since `earlier`, an older snapshot.
    pub(crate) fn since(&self, earlier: &Self) -> [LatencySummary; 4] {
        std::array::from_fn(|class| {
            let mut histogram = self.0[class].clone();
            // The subtraction fails if a volume was removed meanwhile.
            match histogram.subtract(&earlier.0[class]) {
                Ok(()) => LatencySummary::of(&histogram),
                Err(_) => LatencySummary::default(),
            }
        })
    }
}

/// A summary of a latency distribution, in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LatencySummary {
    /// Requests.
    pub count: u64,
    /// Mean.
    pub mean_us: f64,
    /// Median.
    pub p50_us: f64,
    /// 99th percentile.
    pub p99_us: f64,
    /// Maximum.
    pub max_us: f64,
}

impl LatencySummary {
    fn of(histogram: &Histogram<u64>) -> Self {
        let us = |ns: u64| ns as f64 / 1000.0;
        Self {
            count: histogram.len(),
            mean_us: histogram.mean() / 1000.0,
            p50_us: us(histogram.value_at_quantile(0.5)),
            p99_us: us(histogram.value_at_quantile(0.99)),
            max_us: us(histogram.max()),
        }
    }
}

/// One worker's share of a volume's statistics.
#[derive(Debug, Default)]
pub(crate) struct WorkerStats {
    pub(crate) counts: Counts,
    /// Locked by the worker once per batch, and by readers.
    pub(crate) latencies: Lock<Latencies>,
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

/// Adds the latencies of all workers to `sum`.
pub(crate) fn add_up_latencies(workers: &[WorkerStats], sum: &mut Latencies) {
    for worker in workers {
        sum.add(&worker.latencies.lock());
    }
}

/// Adds up the statistics of all workers.
pub(crate) fn add_up(workers: &[WorkerStats]) -> (RequestCounters, [LatencySummary; 4]) {
    let mut latencies = Latencies::default();
    add_up_latencies(workers, &mut latencies);
    (add_up_counters(workers), latencies.0.each_ref().map(LatencySummary::of))
}
