//! Replays a log through a cache of one size.

use crate::cache::{Cache, Served};
use crate::log::{AccessLog, Entry};
use forebay_types::LINE_BYTES;
use forebay_volume::Streams;
use std::collections::HashMap;

/// A log, with the figures that do not depend on the size of the cache.
pub(crate) struct Workload<'a> {
    log: &'a AccessLog,
    /// Whether each entry is a read of a line that was not accessed before.
    is_first: Vec<bool>,
    /// Lines that were accessed.
    pub(crate) lines: usize,
    /// Lines that were read.
    pub(crate) read_lines: usize,
    /// Reads; parts of divided requests count for their fraction.
    pub(crate) reads: f64,
}

/// Reads counted in a replay. Parts of divided requests count for their fraction.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Tally {
    /// Reads.
    pub(crate) reads: f64,
    /// Reads found in memory.
    pub(crate) hits: f64,
    /// Hits that read-ahead served at least in part: see [`Served::is_ahead`].
    pub(crate) ahead: f64,
    /// Reads that are no hits and touch a line for the first time.
    pub(crate) first: f64,
}

/// The result of a replay.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Outcome {
    /// Everything, from an empty cache.
    pub(crate) all: Tally,
    /// The second half.
    pub(crate) later: Tally,
}

impl<'a> Workload<'a> {
    pub(crate) fn new(log: &'a AccessLog) -> Self {
        // Whether each line was read.
        let mut known: HashMap<u64, bool> = HashMap::new();
        let mut is_first = Vec::with_capacity(log.entries().len());
        let mut reads = 0.0;
        for entry in log.entries() {
            let before = known.len();
            for line in entry.lines() {
                *known.entry(line).or_insert(false) |= !entry.is_write;
            }
            is_first.push(!entry.is_write && known.len() > before);
            reads += if entry.is_write { 0.0 } else { entry.weight() };
        }
        let read_lines = known.values().filter(|&&was_read| was_read).count();
        Self { log, is_first, lines: known.len(), read_lines, reads }
    }

    /// Replays the log through an empty cache of `bytes`, scaled down by the sampling rate.
    pub(crate) fn replay(&self, bytes: u64) -> Outcome {
        let rate = self.log.rate();
        let lines = (bytes as f64 / LINE_BYTES as f64 * rate) as usize;
        let is_whole = rate >= 1.0;
        let streams = is_whole.then(|| Streams::new(self.log.device_bytes(), bytes));
        // More than the accessed lines, because lines that are read ahead in vain take memory too.
        let mut cache = Cache::new(lines.min(2 * self.lines), streams);
        let mut outcome = Outcome::default();
        let half = self.is_first.len() / 2;
        for (at, (entry, &is_first)) in self.log.entries().iter().zip(&self.is_first).enumerate() {
            if entry.is_write {
                cache.write(entry.lines());
                continue;
            }
            let served = cache.read(entry.lines(), entry.is_streamed);
            outcome.all.add(entry, is_first, served);
            if at >= half {
                outcome.later.add(entry, is_first, served);
            }
        }
        outcome
    }
}

impl Tally {
    fn add(&mut self, entry: &Entry, is_first: bool, served: Served) {
        let weight = entry.weight();
        self.reads += weight;
        if served.is_hit {
            self.hits += weight;
            self.ahead += if served.is_ahead { weight } else { 0.0 };
        } else if is_first {
            self.first += weight;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_types::ByteRange;

    fn log(accesses: impl IntoIterator<Item = (u64, u64, bool)>) -> AccessLog {
        let mut log = AccessLog::new(1 << 40);
        for (line, lines, is_write) in accesses {
            log.record(ByteRange::new(line * LINE_BYTES, lines * LINE_BYTES), is_write);
        }
        log
    }

    #[test]
    fn reads_are_counted_by_how_they_are_served() {
        let log = log([(10, 4, false), (12, 2, false), (12, 4, false), (90, 1, true)]);
        let workload = Workload::new(&log);
        let outcome = workload.replay(1 << 20);
        assert_eq!(outcome.all, Tally { reads: 3.0, hits: 1.0, ahead: 0.0, first: 2.0 });
        assert_eq!(outcome.later, Tally { reads: 1.0, hits: 0.0, ahead: 0.0, first: 1.0 });
        assert_eq!((workload.lines, workload.read_lines, workload.reads), (7, 6, 3.0));
    }

    #[test]
    fn a_scan_has_hits_by_read_ahead_alone() {
        let outcome = Workload::new(&log((0..10_000).map(|n| (n, 1, false)))).replay(64 << 20);
        assert!(outcome.all.ahead > 9_900.0 && outcome.all.hits == outcome.all.ahead);
    }

    #[test]
    fn an_empty_log_and_a_tiny_cache_are_replayed() {
        assert_eq!(Workload::new(&log([])).replay(0), Outcome::default());
        let outcome = Workload::new(&log((0..500).map(|n| (n % 5 * 100, 1, false)))).replay(0);
        assert_eq!(outcome.all.reads, 500.0);
        assert!(outcome.all.hits < 200.0, "{outcome:?}");
    }
}
