//! 2Q, the full version: a FIFO for new lines, an LRU list for returning ones.
//!
//! A new line enters the FIFO `A1in`, where hits have no effect. When it is evicted from there, its
//! key enters `A1out`; a line whose key is still in `A1out` goes to the LRU list `Am`. The sizes
//! are those that the paper recommends: `A1in` a quarter of the lines, `A1out` keys for half of
//! them (Johnson and Shasha, VLDB 1994).

use super::ghost::Ghosts;
use forebay_policy::list::{Links, List};
use forebay_policy::{Eviction, Hint, Lines, Slot};

/// See the module.
pub struct TwoQ {
    links: Links,
    a1in: List,
    am: List,
    a1out: Ghosts,
    is_in_am: Box<[bool]>,
    a1in_len_max: usize,
    /// The last incoming key that was found in `a1out`. It is removed from there before the
    /// eviction adds a new ghost, which could otherwise displace the very key that is about to
    /// return.
    recalled: Option<u64>,
}

impl TwoQ {
    /// A policy for `capacity` lines.
    pub fn new(capacity: usize) -> Self {
        Self {
            links: Links::new(capacity),
            a1in: List::new(),
            am: List::new(),
            a1out: Ghosts::new((capacity / 2).max(1)),
            is_in_am: vec![false; capacity].into_boxed_slice(),
            a1in_len_max: (capacity / 4).max(1),
            recalled: None,
        }
    }

    fn evict_from_a1in(&mut self, lines: &dyn Lines) -> Option<Slot> {
        let slot = self.links.last_that_may_go(&mut self.a1in, lines)?;
        self.links.remove(&mut self.a1in, slot);
        self.a1out.push(lines.key(slot));
        Some(slot)
    }

    fn evict_from_am(&mut self, lines: &dyn Lines) -> Option<Slot> {
        let slot = self.links.last_that_may_go(&mut self.am, lines)?;
        self.links.remove(&mut self.am, slot);
        Some(slot)
    }
}

impl Eviction for TwoQ {
    fn name(&self) -> &'static str {
        "2q"
    }

    fn on_insert(&mut self, slot: Slot, key: u64, _hint: Hint) {
        let returns = self.recalled.take() == Some(key) || self.a1out.remove(key);
        self.is_in_am[slot as usize] = returns;
        let list = if returns { &mut self.am } else { &mut self.a1in };
        self.links.push_front(list, slot);
    }

    fn on_hit(&mut self, slot: Slot) {
        if self.is_in_am[slot as usize] {
            self.links.move_to_front(&mut self.am, slot);
        }
    }

    fn on_remove(&mut self, slot: Slot) {
        let list = if self.is_in_am[slot as usize] { &mut self.am } else { &mut self.a1in };
        self.links.remove(list, slot);
    }

    fn evict(&mut self, incoming: u64, _hint: Hint, lines: &dyn Lines) -> Option<Slot> {
        if self.recalled != Some(incoming) {
            self.recalled = self.a1out.remove(incoming).then_some(incoming);
        }
        if self.a1in.len() > self.a1in_len_max || self.am.is_empty() {
            self.evict_from_a1in(lines).or_else(|| self.evict_from_am(lines))
        } else {
            self.evict_from_am(lines).or_else(|| self.evict_from_a1in(lines))
        }
    }

    fn metadata_bytes(&self) -> usize {
        size_of::<Self>()
            + self.links.heap_bytes()
            + self.a1out.heap_bytes()
            + size_of_val(&*self.is_in_am)
    }

    fn self_check(&self) {
        self.links.check(&self.a1in, |slot| assert!(!self.is_in_am[slot as usize]));
        self.links.check(&self.am, |slot| assert!(self.is_in_am[slot as usize]));
        assert_eq!(self.links.listed_count(), self.a1in.len() + self.am.len());
        self.a1out.self_check();
    }
}
