//! The ring of one worker: a single writer, a single reader, and no lock.
//!
//! The worker fills the entry of a request when it accepts it, and its answer later. The reader
//! takes entries in order. It may take an entry before the request is answered. The answer is then
//! lost; if the entry is in use for another request by then, the answer is refused, because the
//! time of arrival differs: fewer requests arrive at one time than half of the ring holds.
//!
//! The entries are divided into segments, and the worker continues in the free one with the lowest
//! number. So it uses the same few as long as the reader keeps up, and again after it was late.
//! These fit the processor's cache. All of them, in turn, would take it from the index of the pool.

use super::Volume;
use crate::pool::prefetch_to_write;
use forebay_engine::Uncached;
use forebay_frontend::ClientRequest;
use forebay_volume::RequestKind;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
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

/// Segments of a ring: a bit of a word for each.
const SEGMENTS: usize = 64;
/// How far ahead an entry is fetched into the processor's cache before it is filled.
const ENTRIES_AHEAD: usize = 8;

/// How a recorded request was served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Served {
    /// From the pool alone.
    Pool,
    /// Not from the pool alone.
    Uncached(Uncached),
    /// With an error.
    Error,
}

impl Served {
    /// Its name in traces.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Pool => "pool",
            Self::Uncached(reason) => reason.name(),
            Self::Error => "error",
        }
    }
}

/// A recorded request: a read or a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recorded {
    /// When it had arrived completely, since the runtime was started.
    pub arrived: Duration,
    /// The position of its volume in the list that was recorded.
    pub volume: usize,
    /// Whether it is a write.
    pub is_write: bool,
    /// The first byte on the volume.
    pub offset: u64,
    /// Bytes.
    pub length: u64,
    /// The time until it was answered, and how it was served; `None` if it was not answered in
    /// time.
    pub answer: Option<(Duration, Served)>,
}

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

/// What the worker writes, on cache lines of its own: a processor that writes to a cache line takes
/// it from the other processor.
#[derive(Default)]
#[repr(align(128))]
struct WorkerSide {
    /// The number of entries that the worker has filled since the start of the recording.
    filled: AtomicU64,
    /// The number of requests that found no free entry.
    dropped: AtomicU64,
}

/// What the reader writes. See [`WorkerSide`].
#[derive(Default)]
#[repr(align(128))]
struct ReaderSide {
    /// The number of entries that the reader has taken since the start of the recording.
    taken: AtomicU64,
    /// [`WorkerSide::filled`] as the reader has seen it last. It is read again when this does not
    /// suffice, not for each entry.
    filled_seen: AtomicU64,
}

/// The segments: what both sides write, once for each segment.
#[repr(align(128))]
struct Segments {
    /// A bit for each segment that is free.
    free: AtomicU64,
    /// The segments in the order in which the worker has begun them. That of the entries from
    /// the `n`-th multiple of its length on is at `n`, modulo their number.
    order: [AtomicU8; SEGMENTS],
}

/// The requests that one worker has recorded and that are not taken yet.
pub(crate) struct Ring {
    entries: Box<[Entry]>,
    /// The number of entries in a segment, as a power of two.
    segment_shift: u32,
    segments: Segments,
    worker: WorkerSide,
    reader: ReaderSide,
}

impl Ring {
    /// An empty ring of at most this many entries, or of one for each segment.
    pub(crate) fn new(slots: usize) -> Self {
        let segment_shift = (slots / SEGMENTS).max(1).ilog2();
        let segments = Segments {
            free: AtomicU64::new(u64::MAX),
            order: std::array::from_fn(|_| AtomicU8::new(0)),
        };
        Self {
            entries: (0..SEGMENTS << segment_shift).map(|_| Entry::default()).collect(),
            segment_shift,
            segments,
            worker: WorkerSide::default(),
            reader: ReaderSide::default(),
        }
    }

    /// Whether an entry is the first one of its segment.
    const fn begins_segment(&self, number: u64) -> bool {
        number.trailing_zeros() >= self.segment_shift
    }

    /// The segment of an entry in use.
    fn segment(&self, number: u64) -> usize {
        let at = (number >> self.segment_shift) as usize % SEGMENTS;
        usize::from(self.segments.order[at].load(Ordering::Relaxed)) % SEGMENTS
    }

    /// The slot of an entry in use.
    fn slot(&self, number: u64) -> usize {
        let in_segment = number & ((1 << self.segment_shift) - 1);
        (self.segment(number) << self.segment_shift) + in_segment as usize
    }

    /// Whether more than half of the entries are in use. Only the reader may call it.
    pub(crate) fn is_half_full(&self) -> bool {
        let filled = self.worker.filled.load(Ordering::Relaxed);
        let used = filled - self.reader.taken.load(Ordering::Relaxed);
        debug_assert!(used <= self.entries.len() as u64, "entries in use are not overwritten");
        used > self.entries.len() as u64 / 2
    }

    pub(crate) fn dropped(&self) -> u64 {
        self.worker.dropped.load(Ordering::Relaxed)
    }

    /// When the oldest request arrived, since the start of the runtime. Only the reader may call
    /// it.
    pub(crate) fn first_arrived(&self) -> Option<Duration> {
        let entry = self.first()?;
        Some(Duration::from_nanos(entry.arrived_ns.load(Ordering::Relaxed)))
    }

    /// Whether the oldest request, if there is one, is answered. Only the reader may call it.
    pub(crate) fn is_first_answered(&self) -> bool {
        self.first().is_some_and(|entry| entry.answer.load(Ordering::Relaxed) != 0)
    }

    /// The entry of the oldest request. Only the reader may call it.
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

    /// Takes the oldest request, and frees its entry. Only the reader may call it.
    pub(crate) fn take_first(&self) -> Option<Recorded> {
        let entry = self.first()?;
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
        let taken = self.reader.taken.load(Ordering::Relaxed);
        self.reader.taken.store(taken + 1, Ordering::Relaxed);
        if self.begins_segment(taken + 1) {
            // The worker may overwrite what was read above.
            let bit = 1 << self.segment(taken);
            let before = self.segments.free.fetch_or(bit, Ordering::Release);
            assert_eq!(before & bit, 0, "a segment is freed once");
        }
        Some(recorded)
    }

    /// Adds a request. Returns its slot; `None` if the ring is full. Only the worker may call it.
    fn push(&self, arrived_ns: u64, offset: u64, request: u64) -> Option<usize> {
        let filled = self.worker.filled.load(Ordering::Relaxed);
        if self.begins_segment(filled) && !self.begin_segment(filled) {
            self.worker.dropped.store(self.dropped() + 1, Ordering::Relaxed);
            return None;
        }
        let slot = self.slot(filled);
        // The entry may be in the cache of the reader's processor, and the stores to it would stall
        // all later ones.
        if let Some(ahead) = self.entries.get(slot + ENTRIES_AHEAD) {
            prefetch_to_write((&raw const *ahead).cast());
        }
        let entry = &self.entries[slot];
        entry.arrived_ns.store(arrived_ns, Ordering::Relaxed);
        entry.offset.store(offset, Ordering::Relaxed);
        entry.request.store(request, Ordering::Relaxed);
        entry.answer.store(0, Ordering::Relaxed);
        self.worker.filled.store(filled + 1, Ordering::Release);
        Some(slot)
    }

    /// Chooses the segment of the entries from a number on. Returns whether one is free. Only the
    /// worker may call it.
    fn begin_segment(&self, number: u64) -> bool {
        let Segments { free, order } = &self.segments;
        let all = free.load(Ordering::Acquire);
        if all == 0 {
            return false;
        }
        let segment = all.trailing_zeros();
        free.fetch_and(!(1 << segment), Ordering::Relaxed);
        let at = (number >> self.segment_shift) as usize % SEGMENTS;
        order[at].store(segment as u8, Ordering::Relaxed);
        true
    }

    /// Completes an entry, unless it is in use for another request. Only the worker may call it.
    fn answer(&self, slot: usize, arrived_ns: u64, latency_ns: u64, code: u64) {
        let entry = &self.entries[slot];
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
    pub(crate) fn new(ring: Arc<Ring>, volumes: Arc<[Weak<Volume>]>, started: Instant) -> Self {
        let (answered, converted) = (Vec::new(), (started, 0));
        Self { ring, volumes, started, is_closed: false, answered, converted }
    }

    /// Ends the recording of further requests.
    pub(crate) const fn close(&mut self) {
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
    pub(crate) fn answer(&mut self, mark: u32, arrived: Instant, served: Served) {
        let Some(slot) = mark.checked_sub(1) else { return };
        let (slot, code) = (slot as usize, code_of(served));
        self.answered.push(Answered { slot, arrived, code });
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
        let ring = Ring::new(SEGMENTS);
        let slots = SEGMENTS as u64;
        for number in 0..slots {
            assert_eq!(ring.push(number, number, 1), Some(number as usize));
        }
        assert_eq!([ring.push(98, 98, 1), ring.push(99, 99, 1)], [None, None]);
        assert!(ring.is_half_full() && ring.dropped() == 2);
        for offset in 0..2 {
            assert_eq!(ring.take_first().unwrap().offset, offset);
        }
        assert_eq!(ring.push(100, 100, 1), Some(0), "in the entry of the first");
        ring.answer(0, 0, 1, POOL);
        ring.answer(2, 2, 1, POOL);
        let expected = (2..slots).chain([100]).map(|number| (number, number == 2));
        assert_eq!(offsets_and_answers(&ring), expected.collect::<Vec<_>>());
    }

    /// Takes all that a ring has.
    fn offsets_and_answers(ring: &Ring) -> Vec<(u64, bool)> {
        let rest = std::iter::from_fn(|| ring.take_first());
        rest.map(|request| (request.offset, request.answer.is_some())).collect()
    }

    #[test]
    fn few_segments_are_used_while_the_reader_keeps_up_also_after_it_was_late() {
        const SEGMENT: u64 = 4;
        let ring = Ring::new(SEGMENTS * SEGMENT as usize);
        let (mut pushed, mut taken) = (0, 0);
        let mut push = |count: u64| {
            let slots = (0..count).map(|_| {
                pushed += 1;
                ring.push(pushed, pushed, 1).expect("not full")
            });
            slots.max().unwrap()
        };
        let mut take = |count: u64| {
            for _ in 0..count {
                taken += 1;
                assert_eq!(ring.take_first().unwrap().offset, taken);
            }
        };
        // Always a few behind, and then late once.
        assert!(push(2 * SEGMENT) < 2 * SEGMENT as usize);
        for _ in 0..100 {
            assert!(push(SEGMENT) < 3 * SEGMENT as usize);
            take(SEGMENT);
        }
        assert!(push(100) >= 100);
        take(100);
        push(2 * SEGMENT);
        take(2 * SEGMENT);
        for _ in 0..100 {
            assert!(push(SEGMENT) < 4 * SEGMENT as usize);
            take(SEGMENT);
        }
        assert_eq!(ring.dropped(), 0);
    }

    #[test]
    fn a_reader_beside_the_worker_takes_every_request_in_order() {
        const REQUESTS: u64 = 300_000;
        let ring = Ring::new(4 * SEGMENTS);
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
                // Late again and again, so that many segments are used.
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
