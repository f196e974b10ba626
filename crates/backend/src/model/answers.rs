//! The pending answers of a model, by time.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Answers by time; answers of the same time keep the order of insertion.
#[derive(Default)]
pub(super) struct TimedAnswers {
    /// Time, sequence number, id.
    heap: BinaryHeap<Reverse<(u64, u64, u64)>>,
    inserted: u64,
}

impl TimedAnswers {
    /// Adds the answer to the I/O `id` at `at_ns`.
    pub(super) fn push(&mut self, at_ns: u64, id: u64) {
        self.inserted += 1;
        self.heap.push(Reverse((at_ns, self.inserted, id)));
    }

    /// The time of the first answer.
    pub(super) fn next_ns(&self) -> Option<u64> {
        self.heap.peek().map(|&Reverse((at_ns, ..))| at_ns)
    }

    /// Removes the first answer if it is due at `now_ns`. Returns its id.
    pub(super) fn pop(&mut self, now_ns: u64) -> Option<u64> {
        self.next_ns().filter(|&at_ns| at_ns <= now_ns)?;
        self.heap.pop().map(|Reverse((.., id))| id)
    }
}
