//! The log of observed accesses, bounded by sampling.
//!
//! While the log is small, it has every request. When it is full, it halves its sampling rate: it
//! keeps the requests to half of the places, chosen by a hash of the place, and drops the others.
//! So the log has either all accesses to a place or none, and a cache scaled down by the sampling
//! rate behaves on the sample as the whole cache does on the load (Waldspurger et al., USENIX ATC
//! 2017). A place is a granule of 16 lines. A request over several granules is divided into one
//! part per granule, and each part counts as an equal fraction of the request.

use crate::load::Pattern;
use forebay_types::{ByteRange, LINE_BYTES};

/// The most entries of a log.
const ENTRIES_MAX: usize = 1 << 20;
/// The most lines of all entries together. This bounds the time of a prediction.
const LINES_MAX: u64 = 1 << 21;
/// The unit of sampling, in lines: 64 KiB.
const GRANULE_LINES: u64 = 16;
/// Requests are recorded in parts that end at multiples of this many lines: 1 MiB.
const REQUEST_LINES_MAX: u64 = 256;
/// The threshold at which every place is sampled.
const ALL: u64 = 1 << 32;
/// The number of stream ends that are remembered to detect sequential requests.
const ENDS: usize = 32;
/// A read that continues this many consecutive reads belongs to a stream that the server would read
/// ahead.
const RUN_MIN: u32 = 3;

/// An access, or the part of one in a sampled granule.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    pub(crate) line: u64,
    pub(crate) lines: u16,
    /// The number of parts of its request.
    pub(crate) parts: u16,
    pub(crate) is_write: bool,
    /// Whether it is a read that continues a stream.
    pub(crate) is_streamed: bool,
}

impl Entry {
    /// The numbers of its lines.
    pub(crate) const fn lines(&self) -> std::ops::Range<u64> {
        self.line..self.line + self.lines as u64
    }

    /// The fraction of its request that this entry counts for.
    pub(crate) fn weight(&self) -> f64 {
        1.0 / f64::from(self.parts)
    }
}

/// The accesses to one device, in the order of their arrival.
#[derive(Debug)]
pub struct AccessLog {
    entries: Vec<Entry>,
    lines: u64,
    /// Granules with a hash below this are sampled.
    threshold: u64,
    /// The limits of entries and lines.
    limits: (usize, u64),
    pattern: Pattern,
    read_ends: Ends,
    write_ends: Ends,
    device_bytes: u64,
}

impl AccessLog {
    /// An empty log for a device of `device_bytes`.
    pub fn new(device_bytes: u64) -> Self {
        Self::with_limits(device_bytes, (ENTRIES_MAX, LINES_MAX))
    }

    pub(crate) fn with_limits(device_bytes: u64, limits: (usize, u64)) -> Self {
        Self {
            entries: Vec::new(),
            lines: 0,
            threshold: ALL,
            limits,
            pattern: Pattern::default(),
            read_ends: Ends::default(),
            write_ends: Ends::default(),
            device_bytes,
        }
    }

    /// Records a read or a write. Empty ranges, and those beyond the end of the device, are
    /// ignored.
    pub fn record(&mut self, range: ByteRange, is_write: bool) {
        if range.len == 0 || !range.fits(self.device_bytes) {
            return;
        }
        let pattern = &mut self.pattern;
        let mut is_streamed = false;
        if is_write {
            pattern.writes += 1;
            pattern.write_bytes += range.len;
            pattern.sequential_writes += u64::from(self.write_ends.follow(range) > 0);
        } else {
            let run = self.read_ends.follow(range);
            pattern.reads += 1;
            pattern.read_bytes += range.len;
            pattern.sequential_reads += u64::from(run > 0);
            is_streamed = run >= RUN_MIN;
        }
        let first = range.offset / LINE_BYTES;
        let lines = range.end().div_ceil(LINE_BYTES) - first;
        let unit = if self.threshold == ALL { REQUEST_LINES_MAX } else { GRANULE_LINES };
        let parts = parts(first, lines, unit).count();
        for (line, lines) in parts_of(first, lines, unit) {
            let parts = parts.min(usize::from(u16::MAX)) as u16;
            self.push(Entry { line, lines, parts, is_write, is_streamed });
        }
        if self.entries.len() > self.limits.0 || self.lines > self.limits.1 {
            self.lower_rate();
        }
    }

    /// The pattern of all requests.
    pub const fn pattern(&self) -> &Pattern {
        &self.pattern
    }

    /// The share of the places that are sampled, above 0 and at most 1.
    pub fn rate(&self) -> f64 {
        self.threshold as f64 / ALL as f64
    }

    pub(crate) fn entries(&self) -> &[Entry] {
        &self.entries
    }

    pub(crate) const fn device_bytes(&self) -> u64 {
        self.device_bytes
    }

    fn push(&mut self, entry: Entry) {
        if is_sampled(entry.line, self.threshold) {
            self.entries.push(entry);
            self.lines += u64::from(entry.lines);
        }
    }

    /// Halves the rate until the log is at most half full.
    fn lower_rate(&mut self) {
        let is_whole = self.threshold == ALL;
        let former = std::mem::take(&mut self.entries);
        let kept = |threshold| {
            let mut kept = (0usize, 0u64);
            for entry in former.iter().flat_map(|entry| split(*entry, is_whole)) {
                if is_sampled(entry.line, threshold) {
                    kept = (kept.0 + 1, kept.1 + u64::from(entry.lines));
                }
            }
            kept
        };
        let mut threshold = self.threshold;
        loop {
            threshold /= 2;
            let (entries, lines) = kept(threshold);
            if threshold <= 1 || entries <= self.limits.0 / 2 && lines <= self.limits.1 / 2 {
                break;
            }
        }
        self.threshold = threshold.max(1);
        self.lines = 0;
        for entry in former.iter().flat_map(|entry| split(*entry, is_whole)) {
            self.push(entry);
        }
    }
}

/// Whether the granule of a line is sampled.
fn is_sampled(line: u64, threshold: u64) -> bool {
    threshold == ALL || key(line / GRANULE_LINES) >> 32 < threshold
}

/// Splits an entry at the borders of granules, if it was recorded while all places were sampled
/// (`is_whole`).
fn split(entry: Entry, is_whole: bool) -> impl Iterator<Item = Entry> {
    let unit = if is_whole { GRANULE_LINES } else { u64::MAX };
    let lines = u64::from(entry.lines);
    let count = parts(entry.line, lines, unit).count() as u16;
    let parts = entry.parts.saturating_mul(count);
    parts_of(entry.line, lines, unit).map(move |(line, lines)| Entry {
        line,
        lines,
        parts,
        ..entry
    })
}

/// The numbers of the units that some lines touch.
fn parts(first: u64, lines: u64, unit: u64) -> std::ops::RangeInclusive<u64> {
    first / unit..=(first + lines - 1) / unit
}

/// The part of some lines in each unit: its first line, and their number.
fn parts_of(first: u64, lines: u64, unit: u64) -> impl Iterator<Item = (u64, u16)> {
    let end = first + lines;
    parts(first, lines, unit).map(move |part| {
        let from = first.max(part.saturating_mul(unit));
        (from, (end.min((part + 1).saturating_mul(unit)) - from) as u16)
    })
}

/// A well-mixed hash (the finalizer of SplitMix64).
pub(crate) const fn key(number: u64) -> u64 {
    let x = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// The ends of the last requests that no later request has continued, each with the number of
/// consecutive requests that led up to its request.
#[derive(Debug, Default)]
struct Ends {
    ends: [(u64, u32); ENDS],
    next: usize,
}

impl Ends {
    /// Returns how many consecutive requests lead up to the start of the range, and remembers the
    /// end of the range.
    fn follow(&mut self, range: ByteRange) -> u32 {
        let found = self.ends.iter().position(|&(end, _)| end != 0 && end == range.offset);
        let run = found.map_or(0, |at| self.ends[at].1.saturating_add(1));
        self.ends[found.unwrap_or(self.next)] = (range.end(), run);
        if found.is_none() {
            self.next = (self.next + 1) % ENDS;
        }
        run
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(log: &mut AccessLog, line: u64, lines: u64) {
        log.record(ByteRange::new(line * LINE_BYTES, lines * LINE_BYTES), false);
    }

    #[test]
    fn requests_are_whole_until_the_log_is_full() {
        let mut log = AccessLog::with_limits(1 << 40, (100, 1_000));
        read(&mut log, 10, 20);
        assert_eq!((log.entries.len(), log.entries[0].lines, log.entries[0].parts), (1, 20, 1));
        (0..100).for_each(|n| read(&mut log, n * 1_000, 20));
        assert!(log.rate() < 1.0);
        assert!(log.entries.len() <= 100 && log.lines <= 1_000);
        let is_in_granule = |entry: &Entry| {
            let end = entry.line + u64::from(entry.lines) - 1;
            entry.line / GRANULE_LINES == end / GRANULE_LINES && entry.parts > 1
        };
        assert!(log.entries.iter().all(is_in_granule), "{:?}", log.entries);
        assert_eq!(log.pattern.reads, 101, "the pattern is that of all requests");
    }

    #[test]
    fn all_accesses_to_a_place_are_sampled_or_none() {
        let mut log = AccessLog::with_limits(1 << 40, (2_000, 1 << 20));
        for pass in 1..=4 {
            (0..5_000).for_each(|n| read(&mut log, n * GRANULE_LINES, 1));
            let mut counts = std::collections::HashMap::new();
            log.entries.iter().for_each(|entry| *counts.entry(entry.line).or_insert(0) += 1);
            assert!(counts.values().all(|&count| count == pass), "pass {pass}");
            let expected = 5_000.0 * log.rate();
            assert!((counts.len() as f64 / expected - 1.0).abs() < 0.25, "{}", counts.len());
        }
    }

    #[test]
    fn sequential_requests_are_told_from_others() {
        let mut log = AccessLog::new(1 << 40);
        (0..10).for_each(|n| read(&mut log, n, 1));
        (0..10).for_each(|n| read(&mut log, 1_000 + 7 * n, 1));
        (0..10).for_each(|n| log.record(ByteRange::new(n * 512, 512), true));
        let pattern = log.pattern();
        assert_eq!((pattern.sequential_reads, pattern.sequential_writes), (9, 9));
        assert_eq!((pattern.reads, pattern.writes, pattern.write_bytes), (20, 10, 5_120));
    }

    #[test]
    fn absurd_ranges_are_ignored() {
        let mut log = AccessLog::new(1 << 30);
        for (offset, len) in [(0, 0), (1 << 30, 4_096), (u64::MAX, 4_096), (0, u64::MAX)] {
            log.record(ByteRange::new(offset, len), true);
        }
        assert_eq!((log.entries.len(), log.pattern.writes), (0, 0));
        log.record(ByteRange::new(0, 1 << 30), false);
        assert_eq!(log.pattern.reads, 1);
    }

    #[test]
    fn the_first_request_at_the_start_of_a_device_follows_nothing() {
        let mut log = AccessLog::new(1 << 30);
        (0..3).for_each(|_| read(&mut log, 0, 1));
        assert_eq!(log.pattern.sequential_reads, 0);
    }
}
