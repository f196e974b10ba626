//! What will happen, in order of time.

use forebay_engine::Answer;
use std::cmp::Ordering;
use std::collections::BinaryHeap;

/// Something that will happen.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Event {
    /// A client has thought and asks for something.
    Client(u16),
    /// The rest of a payload has come, or its client has gone.
    Payload(u32),
    /// An I/O ends.
    Complete(u32),
    /// A disk's own flush ends.
    Flushed(u32),
    /// A write of the journal ends.
    Journal,
    /// The bytes of a reply are sent.
    Release(u32),
    /// An answer reaches another worker.
    Answer(u8, Answer),
    /// The shards' clock moves on.
    Tick,
}

#[derive(Debug)]
struct Entry {
    time_us: u64,
    order: u64,
    event: Event,
}

/// Events in order of time, and in the order in which they were put in where the time is the same.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    heap: BinaryHeap<Entry>,
    order: u64,
}

impl Queue {
    pub(crate) fn push(&mut self, time_us: u64, event: Event) {
        self.order += 1;
        self.heap.push(Entry { time_us, order: self.order, event });
    }

    pub(crate) fn pop(&mut self) -> Option<(u64, Event)> {
        self.heap.pop().map(|entry| (entry.time_us, entry.event))
    }

    pub(crate) fn clear(&mut self) {
        self.heap.clear();
    }

    /// Brings everything forward that would come later than `time_us`.
    pub(crate) fn hurry(&mut self, time_us: u64) {
        let late = std::mem::take(&mut self.heap).into_iter().map(|mut entry| {
            entry.time_us = entry.time_us.min(time_us);
            entry
        });
        self.heap = late.collect();
    }
}

impl Ord for Entry {
    fn cmp(&self, other: &Self) -> Ordering {
        // The heap gives the greatest first; the first to happen is to be that.
        (other.time_us, other.order).cmp(&(self.time_us, self.order))
    }
}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Entry {}
