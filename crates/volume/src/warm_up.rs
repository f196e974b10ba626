//! Warm-up: which granules of a warm list are read into the pool, in which order, and when. Pinned
//! ranges are read in the same way.
//!
//! A [`Loader`] has the list of one volume. Its host polls it, starts the reads that it returns,
//! and reports their ends. Hot granules come first, then the others, each in ascending order, so
//! that a hard disk needs two sweeps.
//!
//! Clients come first. While no client reads from the disk, a few reads are in flight all the time.
//! Beside clients there is one at a time, at a rate that their latency determines: the loader
//! compares client reads that overlapped one of its own with those that did not. The rate doubles
//! while the former are hardly slower, and halves while they are clearly slower, down to one read
//! per second.
//!
//! While other programs wait for processors or disks, there is also one read at a time. Pauses
//! between reads limit them to the share of the time that background work may use, but to no less
//! than one read per second.
//!
//! A warm-up uses free slots only and evicts nothing: the loader ends when no slot is free.

mod list;

pub use list::{collect_granules, granules_of, keep_most_valuable, merge_granules, shrink_to_pool};

use forebay_types::{BackgroundShare, Granule};
use std::collections::VecDeque;

/// Reads in flight while no client reads. A hard disk needs at least two, so that it loses no time
/// between them. The more there are, the longer they delay the first read of a client.
const IDLE_READS_MAX: u32 = 4;
/// The interval between reads beside clients, in milliseconds: the initial and largest one, and the
/// smallest.
const INTERVAL_MS_MAX: u64 = 1_000;
const INTERVAL_MS_MIN: u64 = 1;
/// The minimum number of client reads of each kind for a comparison: the mean of fewer is too
/// uncertain.
const COMPARED_READS_MIN: u64 = 8;
/// How much longer client reads may take beside preloads: this percentage plus these microseconds.
/// Above the sum the rate halves, below half of it the rate doubles.
const SLOWER_PERCENT_MAX: u64 = 25;
const SLOWER_US_MAX: u64 = 100;
/// Consecutive failed reads after which the loader gives up.
const ERRORS_MAX: u32 = 8;
/// How long the host may wait before it polls again, in milliseconds.
const POLL_MS: u64 = 50;

/// Reads of clients from the disk since the volume was added: their number, and the sum of their
/// latencies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DemandReads {
    /// Reads.
    pub count: u64,
    /// The sum of their latencies in microseconds.
    pub us: u64,
}

impl DemandReads {
    const fn since(self, earlier: Self) -> Self {
        Self {
            count: self.count.saturating_sub(earlier.count),
            us: self.us.saturating_sub(earlier.us),
        }
    }

    const fn mean_us(self) -> u64 {
        self.us / if self.count == 0 { 1 } else { self.count }
    }
}

/// What the loader needs to know at each poll.
#[derive(Clone, Copy, Debug, Default)]
pub struct Conditions {
    /// The current time in milliseconds.
    pub now_ms: u64,
    /// Clients read from the disk, now or a moment ago.
    pub is_read: bool,
    /// Client reads that overlapped no preload.
    pub alone: DemandReads,
    /// Client reads that overlapped a preload.
    pub beside: DemandReads,
    /// The pool has a free slot, or the reads may evict other lines.
    pub has_room: bool,
    /// The share of the time that reads may take.
    pub share: BackgroundShare,
}

/// What the host does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoaderStep {
    /// Start a read of this granule, and poll again at once.
    Read(Granule),
    /// Poll again when a read has ended, or after this many milliseconds.
    Wait(u64),
    /// The warm-up has ended, and no read is in flight.
    Ended(LoaderEnd),
}

/// Why a warm-up has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoaderEnd {
    /// Everything was read.
    Loaded,
    /// The pool is full.
    Full,
    /// The disk fails reads.
    Failing,
    /// It was cancelled.
    Cancelled,
}

/// The warm-up of one volume. See the module.
#[derive(Debug)]
pub struct Loader {
    /// The granules that are not yet read, in the order of reading.
    rest: VecDeque<Granule>,
    planned_lines: u64,
    done_lines: u64,
    in_flight: Vec<Granule>,
    errors: u32,
    end: Option<LoaderEnd>,
    interval_ms: u64,
    /// When the next read beside clients is due.
    due_ms: u64,
    /// When the last read began, and when the next one is due with less than the full share.
    begun_ms: u64,
    share_due_ms: u64,
    /// A read has ended since the last poll.
    has_ended: bool,
    /// The client reads at the last change of the interval.
    alone: DemandReads,
    beside: DemandReads,
}

impl Loader {
    /// A loader of these granules, at most one per number.
    pub fn new(mut granules: Vec<Granule>) -> Self {
        granules.sort_unstable_by_key(|granule| (!granule.is_hot(), granule.index));
        let planned_lines = lines_of(&granules);
        Self {
            rest: granules.into(),
            planned_lines,
            done_lines: 0,
            in_flight: Vec::new(),
            errors: 0,
            end: None,
            interval_ms: INTERVAL_MS_MAX,
            due_ms: 0,
            begun_ms: 0,
            share_due_ms: 0,
            has_ended: false,
            alone: DemandReads::default(),
            beside: DemandReads::default(),
        }
    }

    /// The lines of all granules.
    pub const fn planned_lines(&self) -> u64 {
        self.planned_lines
    }

    /// The lines of the granules whose reads have ended.
    pub const fn done_lines(&self) -> u64 {
        self.done_lines
    }

    /// Reads in flight.
    pub fn in_flight(&self) -> usize {
        self.in_flight.len()
    }

    /// The granules that are still to be read, or are being read, in ascending order; none if the
    /// warm-up has ended. A list that is written meanwhile includes them.
    pub fn remaining(&self) -> Vec<Granule> {
        if self.end.is_some() {
            return Vec::new();
        }
        let mut remaining: Vec<Granule> =
            self.rest.iter().chain(&self.in_flight).copied().collect();
        remaining.sort_unstable_by_key(|granule| granule.index);
        remaining
    }

    /// Ends the warm-up once the reads in flight have ended.
    pub fn cancel(&mut self) {
        self.finish(LoaderEnd::Cancelled);
    }

    /// Chooses the next step.
    pub fn poll(&mut self, conditions: &Conditions) -> LoaderStep {
        if self.rest.is_empty() && self.in_flight.is_empty() {
            self.finish(LoaderEnd::Loaded);
        } else if !conditions.has_room {
            self.finish(LoaderEnd::Full);
        }
        if let Some(end) = self.end {
            let is_over = self.in_flight.is_empty();
            return if is_over { LoaderStep::Ended(end) } else { LoaderStep::Wait(POLL_MS) };
        }
        self.adapt(conditions);
        let now_ms = conditions.now_ms;
        if std::mem::take(&mut self.has_ended) {
            let pauses = u64::from(conditions.share.divisor() - 1);
            let pause_ms = now_ms.saturating_sub(self.begun_ms).max(1) * pauses;
            self.share_due_ms = now_ms + pause_ms.min(INTERVAL_MS_MAX);
        }
        let is_alone = !conditions.is_read && conditions.share.is_full();
        let reads_max = if is_alone { IDLE_READS_MAX } else { 1 };
        if self.rest.is_empty() || self.in_flight.len() >= reads_max as usize {
            return LoaderStep::Wait(POLL_MS);
        }
        let beside_ms = if conditions.is_read { self.due_ms } else { 0 };
        let share_ms = if conditions.share.is_full() { 0 } else { self.share_due_ms };
        let due_ms = beside_ms.max(share_ms);
        if now_ms < due_ms {
            return LoaderStep::Wait((due_ms - now_ms).min(POLL_MS));
        }
        let granule = self.rest.pop_front().expect("checked above");
        assert!(self.in_flight.iter().all(|other| other.index != granule.index), "{granule:?}");
        self.due_ms = now_ms + self.interval_ms;
        self.begun_ms = now_ms;
        self.in_flight.push(granule);
        LoaderStep::Read(granule)
    }

    /// Records the end of a read.
    ///
    /// # Panics
    /// If no read of this granule is in flight.
    pub fn complete(&mut self, granule: Granule, is_ok: bool) {
        let at = self.in_flight.iter().position(|other| *other == granule);
        self.in_flight.swap_remove(at.expect("a read ends once"));
        self.has_ended = true;
        self.done_lines += u64::from(granule.line_count());
        assert!(self.done_lines <= self.planned_lines, "{granule:?} was not planned");
        self.errors = if is_ok { 0 } else { self.errors + 1 };
        if self.errors >= ERRORS_MAX {
            self.finish(LoaderEnd::Failing);
        }
    }

    fn finish(&mut self, end: LoaderEnd) {
        self.end.get_or_insert(end);
        self.rest.clear();
    }

    /// Adapts the rate beside clients to their latency.
    fn adapt(&mut self, conditions: &Conditions) {
        let alone = conditions.alone.since(self.alone);
        let beside = conditions.beside.since(self.beside);
        if alone.count.min(beside.count) < COMPARED_READS_MIN {
            // At a high rate, almost every client read overlaps a preload, which leaves too few for
            // a comparison. Then the rate falls until enough reads overlap none.
            if beside.count >= COMPARED_READS_MIN * COMPARED_READS_MIN {
                self.set_interval(self.interval_ms * 2, conditions);
            }
            return;
        }
        let (alone_us, beside_us) = (alone.mean_us(), beside.mean_us());
        let slower_us = alone_us * SLOWER_PERCENT_MAX / 100 + SLOWER_US_MAX;
        if beside_us > alone_us + slower_us {
            self.set_interval(self.interval_ms * 2, conditions);
        } else if beside_us <= alone_us + slower_us / 2 {
            self.set_interval(self.interval_ms / 2, conditions);
        } else {
            self.set_interval(self.interval_ms, conditions);
        }
    }

    fn set_interval(&mut self, ms: u64, conditions: &Conditions) {
        self.interval_ms = ms.clamp(INTERVAL_MS_MIN, INTERVAL_MS_MAX);
        (self.alone, self.beside) = (conditions.alone, conditions.beside);
    }
}

fn lines_of(granules: &[Granule]) -> u64 {
    granules.iter().map(|granule| u64::from(granule.line_count())).sum()
}

#[cfg(test)]
mod tests;
