//! The ring of one worker: a single writer, a single reader, and no lock.
//!
//! The worker fills the entry of a request when it accepts it, and its answer later. The reader
//! takes entries in order. It may take an entry before the request is answered. The answer is then
//! lost; if the entry is in use for another request by then, the answer is refused, because the
//! time of arrival differs: fewer requests arrive at one time than the small queue holds.

use super::{Recorded, Served};
use crate::clients::Submitted;
use crate::pool::prefetch_to_write;
use crate::shared::Volume;
use forebay_engine::Uncached;
use forebay_frontend::ClientRequest;
use forebay_volume::RequestKind;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// The bit of a write in [`Entry::request`], above the volume.
const WRITE: u64 = 1 << 48;
/// The place of the volume in [`Entry::request`], above the length.
const VOLUME_SHIFT: u32 = 32;
/// The place of the latency in [`Entry::answer`], above the code of how it was served.
const LATENCY_SHIFT: u32 = 8;
/// The code for a request served from the pool alone. Zero means that the request is not answered.
const POOL: u64 = 1;
/// The code for a request answered with an error.
const ERROR: u64 = 2;
/// The code of the first reason.
const FIRST_REASON: u64 = 3;

/// Entries of a small queue at most: 256 KiB, and the requests of a busy worker in an eightieth of
/// a second.
const SMALL_SLOTS_MAX: usize = 8 << 10;
/// How far ahead an entry is fetched into the processor's cache before it is filled.
const ENTRIES_AHEAD: u64 = 8;

/// A request in a ring.
#[derive(Default)]
struct Entry {
    arrived_ns: AtomicU64,
    offset: AtomicU64,
    /// Its length, volume and kind.
    request: AtomicU64,
    /// Its latency and how it was served; zero before the answer.
    answer: AtomicU64,
}

/// The counters that the worker writes, on cache lines of their own: a processor that writes to a
/// cache line takes it from the other processor. For the same reason, each side reads the other's
/// counter only when the value that it read last does not suffice.
#[derive(Default)]
#[repr(align(128))]
struct WorkerSide {
    /// The number of entries that the worker has filled since the start of the recording.
    filled: AtomicU64,
    /// [`ReaderSide::taken`] as the worker has seen it last.
    taken_seen: AtomicU64,
}

/// The counters that the reader writes. See [`WorkerSide`].
#[derive(Default)]
#[repr(align(128))]
struct ReaderSide {
    /// The number of entries that the reader has taken since the start of the recording.
    taken: AtomicU64,
    /// [`WorkerSide::filled`] as the reader has seen it last.
    filled_seen: AtomicU64,
}

/// Entries that are filled and taken in order.
struct Queue {
    /// Their number is a power of two.
    entries: Box<[Entry]>,
    worker: WorkerSide,
    reader: ReaderSide,
}

impl Queue {
    /// An empty queue of at most this many entries.
    fn new(slots: usize) -> Self {
        let slots = 1usize << slots.max(1).ilog2();
        let entries = (0..slots).map(|_| Entry::default()).collect();
        Self { entries, worker: WorkerSide::default(), reader: ReaderSide::default() }
    }

    fn slot(&self, number: u64) -> usize {
        number as usize & (self.entries.len() - 1)
    }

    /// The number of entries in use. Only the reader may call it.
    fn used(&self) -> u64 {
        self.worker.filled.load(Ordering::Relaxed) - self.reader.taken.load(Ordering::Relaxed)
    }

    /// The first entry in use. Only the reader may call it.
    fn first(&self) -> Option<&Entry> {
        let ReaderSide { taken, filled_seen } = &self.reader;
        let taken = taken.load(Ordering::Relaxed);
        if taken == filled_seen.load(Ordering::Relaxed) {
            let filled = self.worker.filled.load(Ordering::Acquire);
            filled_seen.store(filled, Ordering::Relaxed);
            if taken == filled {
                return None;
            }
        }
        Some(&self.entries[self.slot(taken)])
    }

    /// Frees the first entry. Only the reader may call it.
    fn free_first(&self) {
        let taken = self.reader.taken.load(Ordering::Relaxed);
        self.reader.taken.store(taken + 1, Ordering::Release);
    }

    /// Whether so many entries are in use, as far as the worker can see. Only the worker may call
    /// it.
    fn is_used(&self, entries: u64) -> bool {
        let WorkerSide { filled, taken_seen } = &self.worker;
        let filled = filled.load(Ordering::Relaxed);
        if filled - taken_seen.load(Ordering::Relaxed) < entries {
            return false;
        }
        let taken = self.reader.taken.load(Ordering::Acquire);
        taken_seen.store(taken, Ordering::Relaxed);
        filled - taken >= entries
    }

    /// Fills the next entry. Returns its slot; `None` if all are in use. Only the worker may call
    /// it.
    fn push(&self, arrived_ns: u64, offset: u64, request: u64) -> Option<usize> {
        if self.is_used(self.entries.len() as u64) {
            return None;
        }
        let filled = self.worker.filled.load(Ordering::Relaxed);
        // The entry may be in the cache of the reader's processor, and the stores to it would stall
        // all later ones.
        let ahead = &self.entries[self.slot(filled + ENTRIES_AHEAD)];
        prefetch_to_write((&raw const *ahead).cast());
        let slot = self.slot(filled);
        let entry = &self.entries[slot];
        entry.arrived_ns.store(arrived_ns, Ordering::Relaxed);
        entry.offset.store(offset, Ordering::Relaxed);
        entry.request.store(request, Ordering::Relaxed);
        entry.answer.store(0, Ordering::Relaxed);
        self.worker.filled.store(filled + 1, Ordering::Release);
        Some(slot)
    }
}

/// The requests that one worker has recorded and that are not taken yet.
///
/// The worker fills a small queue, whose entries stay in its processor's cache, and a large one
/// while the small one is full, because the reader is late. One large queue alone would push the
/// index of the pool out of the cache, which costs every request more than its entry does.
///
/// What is in the small queue is older than what is in the large one: the worker fills the small
/// one again only when the large one is empty.
pub(super) struct Ring {
    small: Queue,
    large: Queue,
    dropped: AtomicU64,
}

impl Ring {
    /// An empty ring with a large queue of at most this many entries.
    pub(super) fn new(slots: usize) -> Self {
        let (small, large) = (Queue::new(SMALL_SLOTS_MAX.min(slots / 8)), Queue::new(slots));
        Self { small, large, dropped: AtomicU64::new(0) }
    }

    fn entry(&self, slot: usize) -> &Entry {
        let small = &self.small.entries;
        small.get(slot).unwrap_or_else(|| &self.large.entries[slot - small.len()])
    }

    /// Whether more than half of the entries are in use. Only the reader may call it.
    pub(super) fn is_half_full(&self) -> bool {
        let entries = self.small.entries.len() + self.large.entries.len();
        self.small.used() + self.large.used() > entries as u64 / 2
    }

    pub(super) fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    /// When the oldest request arrived, since the start of the runtime. Only the reader may call
    /// it.
    pub(super) fn first_arrived(&self) -> Option<Duration> {
        let (_, entry) = self.first()?;
        Some(Duration::from_nanos(entry.arrived_ns.load(Ordering::Relaxed)))
    }

    /// Whether the oldest request, if there is one, is answered. Only the reader may call it.
    pub(super) fn is_first_answered(&self) -> bool {
        self.first().is_some_and(|(_, entry)| entry.answer.load(Ordering::Relaxed) != 0)
    }

    /// The entry of the oldest request, and its queue. Stays the same until it is taken.
    fn first(&self) -> Option<(&Queue, &Entry)> {
        // The large queue is read first: whatever is older is in the small one by then.
        let in_large = self.large.first();
        let in_small = self.small.first().map(|entry| (&self.small, entry));
        in_small.or_else(|| Some((&self.large, in_large?)))
    }

    /// Takes the oldest request, and frees its entry. Only the reader may call it.
    pub(super) fn take_first(&self) -> Option<Recorded> {
        let (queue, entry) = self.first()?;
        let request = entry.request.load(Ordering::Relaxed);
        let answer = entry.answer.load(Ordering::Relaxed);
        let latency = Duration::from_nanos(answer >> LATENCY_SHIFT);
        let recorded = Recorded {
            arrived: Duration::from_nanos(entry.arrived_ns.load(Ordering::Relaxed)),
            volume: usize::from((request >> VOLUME_SHIFT) as u16),
            is_write: request & WRITE != 0,
            offset: entry.offset.load(Ordering::Relaxed),
            length: u64::from(request as u32),
            answer: served(answer as u8).map(|served| (latency, served)),
        };
        queue.free_first();
        Some(recorded)
    }

    /// Adds a request. Returns its slot; `None` if the ring is full. Only the worker may call it.
    fn push(&self, arrived_ns: u64, offset: u64, request: u64) -> Option<usize> {
        let is_late = self.large.is_used(1);
        let small = if is_late { None } else { self.small.push(arrived_ns, offset, request) };
        let in_large = |slot| self.small.entries.len() + slot;
        let slot = small.or_else(|| self.large.push(arrived_ns, offset, request).map(in_large));
        if slot.is_none() {
            self.dropped.store(self.dropped() + 1, Ordering::Relaxed);
        }
        slot
    }

    /// Completes an entry, unless it is in use for another request. Only the worker may call it.
    fn answer(&self, slot: usize, arrived_ns: u64, latency_ns: u64, code: u64) {
        let entry = self.entry(slot);
        if entry.arrived_ns.load(Ordering::Relaxed) == arrived_ns {
            entry.answer.store(latency_ns << LATENCY_SHIFT | code, Ordering::Relaxed);
        }
    }
}

/// How a request with this code was served; `None` if it was not answered.
fn served(code: u8) -> Option<Served> {
    match u64::from(code) {
        0 => None,
        POOL => Some(Served::Pool),
        ERROR => Some(Served::Error),
        reason => {
            Uncached::ALL.get((reason - FIRST_REASON) as usize).copied().map(Served::Uncached)
        }
    }
}

fn code_of(served: Served) -> u64 {
    match served {
        Served::Pool => POOL,
        Served::Error => ERROR,
        Served::Uncached(reason) => FIRST_REASON + reason as u64,
    }
}

/// A request that was answered in the current turn.
struct Answered {
    slot: usize,
    arrived: Instant,
    code: u64,
}

/// A worker's end of its ring.
pub(crate) struct Recorder {
    ring: Arc<Ring>,
    volumes: Arc<[Weak<Volume>]>,
    /// The start of the runtime.
    started: Instant,
    is_closed: bool,
    answered: Vec<Answered>,
    /// The last time that was converted. Many requests of a turn arrive at the same time.
    converted: (Instant, u64),
}

impl Recorder {
    pub(super) fn new(ring: Arc<Ring>, volumes: Arc<[Weak<Volume>]>, started: Instant) -> Self {
        let (answered, converted) = (Vec::new(), (started, 0));
        Self { ring, volumes, started, is_closed: false, answered, converted }
    }

    /// Ends the recording of further requests.
    pub(super) const fn close(&mut self) {
        self.is_closed = true;
    }

    /// Records a request. Returns its mark for [`Recorder::answer`], zero if it is not recorded.
    #[cold]
    pub(crate) fn begin(
        &mut self,
        volume: &Arc<Volume>,
        request: &ClientRequest,
        arrived: Instant,
    ) -> u32 {
        let write = match request.kind {
            RequestKind::Read => 0,
            RequestKind::Write { .. } => WRITE,
            _ => return 0,
        };
        let is_selected = |selected: &Weak<Volume>| selected.as_ptr() == Arc::as_ptr(volume);
        let Some(at) = self.volumes.iter().position(is_selected) else { return 0 };
        if self.is_closed || request.range.len == 0 {
            return 0;
        }
        let arrived_ns = self.converted_ns(arrived);
        let packed = request.range.len & u64::from(u32::MAX) | (at as u64) << VOLUME_SHIFT | write;
        let slot = self.ring.push(arrived_ns, request.range.offset, packed);
        slot.map_or(0, |slot| slot as u32 + 1)
    }

    /// Records the answer to a request with a mark.
    #[cold]
    pub(crate) fn answer(&mut self, submitted: &Submitted, served: Served) {
        let Some(slot) = submitted.recorded.checked_sub(1) else { return };
        let (slot, code) = (slot as usize, code_of(served));
        self.answered.push(Answered { slot, arrived: submitted.arrived, code });
    }

    /// Completes the entries of the turn, which ends now.
    #[cold]
    pub(crate) fn end_turn(&mut self, now: Option<Instant>) {
        if self.answered.is_empty() {
            return;
        }
        let now_ns = ns_since(self.started, now.unwrap_or_else(Instant::now));
        let mut answered = std::mem::take(&mut self.answered);
        for Answered { slot, arrived, code } in answered.drain(..) {
            let arrived_ns = self.converted_ns(arrived);
            self.ring.answer(slot, arrived_ns, now_ns.saturating_sub(arrived_ns), code);
        }
        self.answered = answered;
    }

    /// The time since the start of the runtime, in nanoseconds.
    fn converted_ns(&mut self, time: Instant) -> u64 {
        if self.converted.0 != time {
            self.converted = (time, ns_since(self.started, time));
        }
        self.converted.1
    }
}

fn ns_since(started: Instant, time: Instant) -> u64 {
    time.saturating_duration_since(started).as_nanos() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_taken_in_order_with_their_answers() {
        let ring = Ring::new(8);
        for number in 0..3 {
            let request = 4096 | (number << VOLUME_SHIFT) | ((number & 1) * WRITE);
            assert_eq!(ring.push(100 + number, number << 40, request), Some(number as usize));
        }
        ring.answer(1, 101, 5000, code_of(Served::Uncached(Uncached::Failed)));
        ring.answer(0, 100, 7000, POOL);
        let request = |number: u64, answer| Recorded {
            arrived: Duration::from_nanos(100 + number),
            volume: number as usize,
            is_write: number == 1,
            offset: number << 40,
            length: 4096,
            answer,
        };
        let ns = Duration::from_nanos;
        assert_eq!(ring.take_first(), Some(request(0, Some((ns(7000), Served::Pool)))));
        let failed = Served::Uncached(Uncached::Failed);
        assert_eq!(ring.take_first(), Some(request(1, Some((ns(5000), failed)))));
        assert_eq!(ring.take_first(), Some(request(2, None)));
        assert_eq!(ring.take_first(), None);
    }

    #[test]
    fn every_way_to_be_served_has_a_code() {
        let reasons = Uncached::ALL.map(Served::Uncached);
        for way in reasons.into_iter().chain([Served::Pool, Served::Error]) {
            assert_eq!(served(code_of(way) as u8), Some(way));
        }
        assert_eq!(served(0), None);
    }

    #[test]
    fn a_full_ring_drops_and_counts_and_a_late_answer_hits_no_other_request() {
        let ring = Ring::new(5);
        let pushed: Vec<_> = (0..7).map(|number| ring.push(number, number, 1)).collect();
        assert_eq!(pushed, [Some(0), Some(1), Some(2), Some(3), Some(4), None, None]);
        assert!(ring.is_half_full() && ring.dropped() == 2);
        for offset in 0..2 {
            assert_eq!(ring.take_first().unwrap().offset, offset);
        }
        assert_eq!(ring.push(9, 9, 1), Some(1), "in the entry of the second");
        ring.answer(1, 1, 1, POOL);
        assert_eq!(offsets_and_answers(&ring), [(2, false), (3, false), (4, false), (9, false)]);
    }

    /// Takes all that a ring has.
    fn offsets_and_answers(ring: &Ring) -> Vec<(u64, bool)> {
        let rest = std::iter::from_fn(|| ring.take_first());
        rest.map(|request| (request.offset, request.answer.is_some())).collect()
    }

    #[test]
    fn what_the_small_queue_cannot_hold_follows_it_in_order() {
        let ring = Ring::new(32);
        let small = ring.small.entries.len() as u64;
        assert_eq!(small, 4);
        let push = |number| ring.push(number, number, 1).expect("not full");
        // The small queue alone, again and again.
        for number in 0..3 * small {
            assert!(push(number) < 4);
            assert_eq!(ring.take_first().unwrap().offset, number);
        }
        let slots: Vec<_> = (0..6).map(push).collect();
        assert_eq!(slots, [0, 1, 2, 3, 4, 5]);
        ring.answer(slots[5], 5, 1, POOL);
        ring.answer(slots[2], 2, 1, POOL);
        assert_eq!(ring.take_first().unwrap().offset, 0);
        assert!(push(6) >= 4, "behind what is in the large queue already");
        let rest = [(1, false), (2, true), (3, false), (4, false), (5, true), (6, false)];
        assert_eq!(offsets_and_answers(&ring), rest);
        assert!(push(7) < 4, "nothing is in the large queue any more");
        assert_eq!(offsets_and_answers(&ring), [(7, false)]);
        assert_eq!(ring.dropped(), 0);
    }

    #[test]
    fn a_reader_beside_the_worker_takes_every_request_in_order() {
        const REQUESTS: u64 = 300_000;
        let ring = Ring::new(64);
        let mut in_order = true;
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for number in 0..REQUESTS {
                    while ring.push(number, number, 1).is_none() {
                        std::thread::yield_now();
                    }
                }
            });
            for number in 0..REQUESTS {
                // Late again and again, so that both queues are used.
                while number % 500 == 0 && number + 500 < REQUESTS && !ring.is_half_full() {
                    std::thread::yield_now();
                }
                let taken = loop {
                    match ring.take_first() {
                        Some(taken) => break taken,
                        None => std::thread::yield_now(),
                    }
                };
                // Not asserted here, where the worker would wait for room forever.
                in_order &= taken.offset == number;
            }
        });
        assert!(in_order);
    }
}
