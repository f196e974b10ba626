//! 2Q, the full version: a FIFO for new lines, an LRU list for returning ones.
//!
//! A new line enters the FIFO `A1in`, where hits have no effect. When it is evicted from there, its
//! key enters `A1out`; a line whose key is still in `A1out` goes to the LRU list `Am`. The sizes
//! are those that the paper recommends: `A1in` a quarter of the lines, `A1out` keys for half of
//! them (Johnson and Shasha, VLDB 1994).

use super::ghost::Ghosts;
use super::queues::Queues;
use forebay_policy::{Eviction, Hint, Lines, Slot};

const A1IN: usize = 0;
const AM: usize = 1;

pub struct TwoQ {
    queues: Queues<2>,
    a1out: Ghosts,
    a1in_len_max: usize,
}

impl TwoQ {
    pub fn new(capacity: usize) -> Self {
        Self {
            queues: Queues::new(capacity),
            a1out: Ghosts::new((capacity / 2).max(1)),
            a1in_len_max: (capacity / 4).max(1),
        }
    }

    fn evict_from_a1in(&mut self, lines: &dyn Lines) -> Option<Slot> {
        let slot = self.queues.evict(A1IN, lines)?;
        self.a1out.push(lines.key(slot));
        Some(slot)
    }
}

impl Eviction for TwoQ {
    fn name(&self) -> &'static str {
        "2q"
    }

    fn on_insert(&mut self, slot: Slot, key: u64, _hint: Hint) {
        let queue = if self.a1out.take(key) { AM } else { A1IN };
        self.queues.push(queue, slot);
    }

    fn on_hit(&mut self, slot: Slot) {
        if self.queues.queue_of(slot) == AM {
            self.queues.move_to_front(slot);
        }
    }

    fn on_remove(&mut self, slot: Slot) {
        self.queues.remove(slot);
    }

    fn evict(&mut self, incoming: u64, _hint: Hint, lines: &dyn Lines) -> Option<Slot> {
        self.a1out.recall(incoming);
        if self.queues.len(A1IN) > self.a1in_len_max || self.queues.len(AM) == 0 {
            self.evict_from_a1in(lines).or_else(|| self.queues.evict(AM, lines))
        } else {
            self.queues.evict(AM, lines).or_else(|| self.evict_from_a1in(lines))
        }
    }

    fn metadata_bytes(&self) -> usize {
        size_of::<Self>() + self.queues.heap_bytes() + self.a1out.heap_bytes()
    }

    fn self_check(&self) {
        self.queues.self_check();
        self.a1out.self_check();
    }
}
