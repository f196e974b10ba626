//! SIEVE: one FIFO queue and a hand that moves from old lines to young ones.
//!
//! A hit only sets a bit. The hand clears set bits and evicts the first line without one. Unlike in
//! a clock, spared lines keep their position, so that the hand reaches new lines early and evicts
//! those that are used once (Zhang et al., NSDI 2024).

use forebay_policy::list::{Links, List, NIL, PASS_OVER_MAX};
use forebay_policy::{Eviction, Hint, Lines, Slot};

pub struct Sieve {
    links: Links,
    queue: List,
    visited: Box<[bool]>,
    /// The start of the next search; [`NIL`] for the back of the queue.
    hand: u32,
}

impl Sieve {
    pub fn new(capacity: usize) -> Self {
        Self {
            links: Links::new(capacity),
            queue: List::new(),
            visited: vec![false; capacity].into_boxed_slice(),
            hand: NIL,
        }
    }

    fn unlink(&mut self, slot: Slot) {
        if self.hand == slot {
            self.hand = self.links.fore(slot);
        }
        self.links.remove(&mut self.queue, slot);
    }
}

impl Eviction for Sieve {
    fn name(&self) -> &'static str {
        "sieve"
    }

    fn on_insert(&mut self, slot: Slot, _key: u64, _hint: Hint) {
        self.links.push_front(&mut self.queue, slot);
        self.visited[slot as usize] = false;
    }

    fn on_hit(&mut self, slot: Slot) {
        self.visited[slot as usize] = true;
    }

    fn on_remove(&mut self, slot: Slot) {
        self.unlink(slot);
    }

    fn evict(&mut self, _incoming: u64, _hint: Hint, lines: &dyn Lines) -> Option<Slot> {
        let mut passed = 0;
        // A line that is passed over because of its bit is not counted, because a hit has paid for
        // it. The first round clears all bits, so two rounds find any evictable line.
        for _ in 0..2 * self.queue.len() {
            let slot = if self.hand == NIL { self.queue.back() } else { self.hand };
            self.hand = self.links.fore(slot);
            if self.visited[slot as usize] {
                self.visited[slot as usize] = false;
            } else if lines.is_evictable(slot) {
                self.unlink(slot);
                return Some(slot);
            } else {
                passed += 1;
                if passed == PASS_OVER_MAX {
                    return None;
                }
            }
        }
        None
    }

    fn metadata_bytes(&self) -> usize {
        size_of::<Self>() + self.links.heap_bytes() + size_of_val(&*self.visited)
    }

    fn self_check(&self) {
        self.links.check(&self.queue, |_| {});
        assert_eq!(self.links.listed_count(), self.queue.len());
        assert!(self.hand == NIL || self.links.is_listed(self.hand), "the hand points outside");
    }
}
