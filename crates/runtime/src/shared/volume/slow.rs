//! The requests of clients that took long, and what each of them waited for.
//!
//! A worker knows only at the end of a request whether it was slow, and pays for the record only
//! then: a lock and a copy of some 300 bytes. Each volume keeps its last slow requests, so that one
//! disk that fails does not displace those of other volumes. The log is written by another thread,
//! which takes the slowest request of each volume since its last line, with the number of the
//! others.

use crate::platform::locks::Lock;
use crate::shared::Served;
use forebay_types::ByteRange;
use forebay_volume::{RequestKind, WaitBreakdown};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

/// Slow requests that are kept for each volume: less than 20 KiB.
const KEPT_MAX: usize = 64;
const _: () = assert!(KEPT_MAX * size_of::<SlowRequest>() <= 20 << 10);
/// The least time between two log lines for a volume. A disk that fails for an hour gets 360 lines.
const LOG_INTERVAL: Duration = Duration::from_secs(10);
/// What the client waits for before its request is begun: memory for it.
const MEMORY: &str = "memory";
/// The time that no other wait explains: the worker was busy.
const WORKER: &str = "worker";

/// A slow request, or several that one turn of a worker made slow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlowRequest {
    /// When it was answered.
    pub at: SystemTime,
    /// `read`, `write`, `flush`, `trim` or `zero`.
    pub operation: &'static str,
    /// Whether it had to be on stable storage (FUA) before it was answered.
    pub is_fua: bool,
    /// The requests: more than one if they were answered immediately, and slow only because the
    /// worker's turn took so long.
    pub requests: u64,
    /// The range; `None` for a flush, and for requests that the turn made slow.
    pub range: Option<ByteRange>,
    /// The time from its arrival, before it waited for memory, to its answer.
    pub took: Duration,
    /// How it was served; `None` for requests that the turn made slow.
    pub served: Option<Served>,
    /// The wait for memory.
    memory: Duration,
    trail: WaitBreakdown,
}

/// What a slow request waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlowWait {
    /// `memory`, `worker`, or the name of a [`forebay_volume::Wait`].
    pub what: &'static str,
    /// The time, all waits of this kind together.
    pub took: Duration,
    /// The number of waits of this kind.
    pub times: u64,
    /// The longest of them.
    pub longest: Duration,
}

impl SlowRequest {
    /// A request that took this long, of which it waited some time for memory, and then as its
    /// trail says.
    pub(crate) fn new(
        (kind, range): (RequestKind, ByteRange),
        served: Served,
        (took, memory): (Duration, Duration),
        trail: WaitBreakdown,
    ) -> Self {
        let (operation, is_fua) = operation(kind);
        let range = (range.len > 0).then_some(range);
        let (at, served) = (SystemTime::now(), Some(served));
        Self { at, operation, is_fua, requests: 1, range, took, served, memory, trail }
    }

    /// Requests that one turn made slow.
    pub(crate) fn of_turn(operation: &'static str, requests: u64, took: Duration) -> Self {
        let (at, memory, trail) = (SystemTime::now(), Duration::ZERO, WaitBreakdown::default());
        let (range, served) = (None, None);
        Self { at, operation, is_fua: false, requests, range, took, served, memory, trail }
    }

    /// What it waited for, in the order in which it first did. The times add up to `took`.
    pub fn waits(&self) -> Vec<SlowWait> {
        let us = |us: u32| Duration::from_micros(u64::from(us));
        let one = |what, took| SlowWait { what, took, times: 1, longest: took };
        let mut waits = vec![one(MEMORY, self.memory)];
        let (mut unexplained, mut cut) = (self.took.saturating_sub(self.memory), None);
        for waited in self.trail.waits() {
            // Trails have the times at which turns began; `took` has those of the request.
            let took = us(waited.us).min(unexplained);
            unexplained -= took;
            if waited.us == u32::MAX {
                cut = Some(waits.len());
            }
            let (what, times) = (waited.wait.name(), u64::from(waited.times));
            waits.push(SlowWait { what, took, times, longest: us(waited.longest_us).min(took) });
        }
        match cut {
            Some(at) => waits[at].took += unexplained,
            None => waits.push(one(WORKER, unexplained)),
        }
        waits.retain(|wait| !wait.took.is_zero());
        waits
    }

    /// I/Os that it has started. They may be coalesced with others, and count once each. A write
    /// that was held back to be coalesced counts none.
    pub fn ios(&self) -> u64 {
        u64::from(self.trail.ios())
    }

    /// Attempts that have failed, because of the disk or the journal, and were repeated in another
    /// way.
    pub fn errors(&self) -> u64 {
        u64::from(self.trail.errors())
    }
}

/// A request that has waited long and is not answered yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WaitingRequest {
    /// The volume.
    pub volume: String,
    /// `read`, `write`, `flush`, `trim` or `zero`.
    pub operation: &'static str,
    /// Whether it must be on stable storage (FUA) before it is answered.
    pub is_fua: bool,
    /// The range; `None` for a flush.
    pub range: Option<ByteRange>,
    /// The time since its arrival.
    pub waited: Duration,
}

impl WaitingRequest {
    pub(crate) fn new(
        volume: &str,
        (kind, range): (RequestKind, ByteRange),
        waited: Duration,
    ) -> Self {
        let (operation, is_fua) = operation(kind);
        let range = (range.len > 0).then_some(range);
        Self { volume: volume.to_owned(), operation, is_fua, range, waited }
    }
}

/// The requests that have waited long and are not answered yet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WaitingRequests {
    /// Their number.
    pub total: u64,
    /// Those that have waited longest, at most 64, the oldest first.
    pub oldest: Vec<WaitingRequest>,
}

impl WaitingRequests {
    pub(crate) fn plus(mut self, more: impl IntoIterator<Item = WaitingRequest>) -> Self {
        let before = self.oldest.len();
        self.oldest.extend(more);
        self.total += (self.oldest.len() - before) as u64;
        self.oldest.sort_by_key(|request| std::cmp::Reverse(request.waited));
        self.oldest.truncate(KEPT_MAX);
        self
    }
}

/// The name of a request of a client, and whether it has FUA.
const fn operation(kind: RequestKind) -> (&'static str, bool) {
    match kind {
        RequestKind::Read => ("read", false),
        RequestKind::Write { fua } => ("write", fua),
        RequestKind::Trim { fua } => ("trim", fua),
        RequestKind::Zero { fua, .. } => ("zero", fua),
        RequestKind::Prefetch => ("prefetch", false),
        _ => ("flush", false),
    }
}

/// The slow requests of a volume, and the latency that makes a request slow.
pub(crate) struct SlowVolume {
    /// In nanoseconds; the largest number if no request is slow.
    threshold_ns: AtomicU64,
    log: Lock<Log>,
}

#[derive(Default)]
struct Log {
    total: u64,
    /// Oldest first.
    kept: VecDeque<SlowRequest>,
    /// The slowest that is not logged yet, and the number of all that are not.
    unlogged: Option<(SlowRequest, u64)>,
    /// When it was logged last.
    logged: Option<Instant>,
}

impl SlowVolume {
    /// Without a threshold, no request is slow.
    pub(crate) fn new(threshold_us: Option<u64>) -> Self {
        let this = Self { threshold_ns: AtomicU64::new(0), log: Lock::default() };
        this.set(threshold_us);
        this
    }

    pub(crate) fn set(&self, threshold_us: Option<u64>) {
        let ns = threshold_us.map_or(u64::MAX, |us| us.saturating_mul(1_000));
        self.threshold_ns.store(ns, Ordering::Relaxed);
    }

    pub(crate) fn is_passed_by(&self, latency: Duration) -> bool {
        self.is_passed_by_ns(nanos(latency))
    }

    /// See [`SlowVolume::is_passed_by`], in nanoseconds.
    pub(crate) fn is_passed_by_ns(&self, latency_ns: u64) -> bool {
        let threshold_ns = self.threshold_ns.load(Ordering::Relaxed);
        threshold_ns != u64::MAX && latency_ns >= threshold_ns
    }

    /// Whether a request that had taken this long when the turn began may turn out to be slow. The
    /// turn and its wait for memory are still to be added. If they add more than this, what the
    /// request waited for in between explains little.
    pub(crate) fn may_be_passed_by(&self, latency: Duration) -> bool {
        self.is_passed_by_ns(nanos(latency).saturating_mul(2))
    }

    pub(crate) fn add(&self, slow: SlowRequest) {
        let mut log = self.log.lock();
        log.total += slow.requests;
        let (slowest, count) = log.unlogged.get_or_insert_with(|| (slow.clone(), 0));
        *count += slow.requests;
        if slow.took > slowest.took {
            slowest.clone_from(&slow);
        }
        if log.kept.len() == KEPT_MAX {
            log.kept.pop_front();
        }
        debug_assert!(log.kept.len() < KEPT_MAX);
        log.kept.push_back(slow);
    }

    /// Takes what is to be logged now, unless the last time was less than [`LOG_INTERVAL`] ago.
    pub(crate) fn take_unlogged(&self, now: Instant) -> Option<(SlowRequest, u64)> {
        let mut log = self.log.lock();
        if log.logged.is_some_and(|at| now.saturating_duration_since(at) < LOG_INTERVAL) {
            return None;
        }
        let taken = log.unlogged.take()?;
        log.logged = Some(now);
        Some(taken)
    }

    /// The slow requests that are kept, with the volume's name.
    pub(crate) fn kept(&self, name: &str) -> VolumeSlow {
        let log = self.log.lock();
        VolumeSlow {
            name: name.to_owned(),
            total: log.total,
            requests: log.kept.iter().cloned().collect(),
        }
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// The slow requests of a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeSlow {
    /// The volume.
    pub name: String,
    /// Slow requests since it was added.
    pub total: u64,
    /// The last of them, at most 64, oldest first.
    pub requests: Vec<SlowRequest>,
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn slow(ms: u32) -> SlowRequest {
        let request = (RequestKind::Read, ByteRange::new(4096, 512));
        SlowRequest::new(request, Served::Pool, (MS * ms, MS * 2), WaitBreakdown::default())
    }

    fn wait(what: &'static str, ms: u32) -> SlowWait {
        SlowWait { what, took: MS * ms, times: 1, longest: MS * ms }
    }

    #[test]
    fn the_waits_add_up_to_the_latency() {
        assert_eq!(slow(10).waits(), [wait(MEMORY, 2), wait(WORKER, 8)]);
        let turn = SlowRequest::of_turn("read", 64, MS * 3);
        assert_eq!(turn.waits(), [wait(WORKER, 3)]);
    }

    #[test]
    fn the_last_are_kept_and_the_slowest_is_logged() {
        let volume = SlowVolume::new(None);
        let start = Instant::now();
        assert_eq!(volume.take_unlogged(start), None);
        for ms in [5, 9, 7] {
            volume.add(slow(ms));
        }
        volume.add(SlowRequest::of_turn("read", 64, MS * 3));
        let taken = |after: Duration| {
            volume.take_unlogged(start + after).map(|(slow, count)| (slow.took, count))
        };
        assert_eq!(taken(MS), Some((MS * 9, 67)));
        // The next line is at least ten seconds later, and counts all in between.
        volume.add(slow(8));
        assert_eq!(taken(LOG_INTERVAL), None);
        volume.add(slow(4));
        assert_eq!(taken(LOG_INTERVAL + MS), Some((MS * 8, 2)));
        assert_eq!(taken(LOG_INTERVAL * 9), None);
        for _ in 0..2 * KEPT_MAX {
            volume.add(slow(4));
        }
        let all = volume.kept("a");
        assert_eq!((all.total, all.requests.len()), (69 + 2 * KEPT_MAX as u64, KEPT_MAX));
        assert!(all.requests.iter().all(|it| it.took == MS * 4));
    }

    #[test]
    fn a_threshold_can_be_off() {
        let volume = SlowVolume::new(Some(100_000));
        assert!(volume.is_passed_by(MS * 100) && !volume.is_passed_by(MS * 99));
        assert!(volume.may_be_passed_by(MS * 50) && !volume.may_be_passed_by(MS * 49));
        volume.set(None);
        assert!(!volume.is_passed_by(Duration::MAX) && !volume.may_be_passed_by(Duration::MAX));
    }
}
