//! A queue of events in virtual time.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

#[derive(Debug)]
struct Entry<E> {
    time: u64,
    order: u64,
    event: E,
}

/// Events ordered by time; events with the same time keep the order of insertion.
#[derive(Debug)]
pub(crate) struct Queue<E> {
    heap: BinaryHeap<Reverse<Entry<E>>>,
    order: u64,
}

impl<E> Default for Queue<E> {
    fn default() -> Self {
        Self { heap: BinaryHeap::new(), order: 0 }
    }
}

impl<E> Queue<E> {
    pub(crate) fn push(&mut self, time: u64, event: E) {
        self.order += 1;
        self.heap.push(Reverse(Entry { time, order: self.order, event }));
    }

    pub(crate) fn pop(&mut self) -> Option<(u64, E)> {
        self.heap.pop().map(|Reverse(entry)| (entry.time, entry.event))
    }

    pub(crate) fn next_time(&self) -> Option<u64> {
        self.heap.peek().map(|Reverse(entry)| entry.time)
    }

    pub(crate) fn clear(&mut self) {
        self.heap.clear();
    }

    /// Moves all later events to `time`.
    pub(crate) fn cap_times(&mut self, time: u64) {
        let late = std::mem::take(&mut self.heap).into_iter().map(|Reverse(mut entry)| {
            entry.time = entry.time.min(time);
            Reverse(entry)
        });
        self.heap = late.collect();
    }
}

impl<E> Ord for Entry<E> {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.time, self.order).cmp(&(other.time, other.order))
    }
}

impl<E> PartialOrd for Entry<E> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<E> PartialEq for Entry<E> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl<E> Eq for Entry<E> {}
