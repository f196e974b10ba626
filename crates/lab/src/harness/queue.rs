//! A queue of events in virtual time.

use std::collections::BTreeMap;

/// Events ordered by time; events with the same time keep the order of insertion.
#[derive(Debug)]
pub(crate) struct Queue<E> {
    /// By time and number.
    events: BTreeMap<(u64, u64), E>,
    pushed: u64,
}

impl<E> Default for Queue<E> {
    fn default() -> Self {
        Self { events: BTreeMap::new(), pushed: 0 }
    }
}

impl<E> Queue<E> {
    pub(crate) fn push(&mut self, time: u64, event: E) {
        self.pushed += 1;
        self.events.insert((time, self.pushed), event);
    }

    pub(crate) fn pop(&mut self) -> Option<(u64, E)> {
        self.events.pop_first().map(|((time, _), event)| (time, event))
    }

    pub(crate) fn next_time(&self) -> Option<u64> {
        self.events.first_key_value().map(|(&(time, _), _)| time)
    }

    pub(crate) fn clear(&mut self) {
        self.events.clear();
    }

    /// Moves all later events to `time`.
    pub(crate) fn cap_times(&mut self, time: u64) {
        let events = std::mem::take(&mut self.events).into_iter();
        self.events = events.map(|((at, number), event)| ((at.min(time), number), event)).collect();
    }
}
