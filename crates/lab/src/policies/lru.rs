//! LRU: evicts the line whose last use is longest ago.
//!
//! The baseline of the comparison: one list in the order of use, without ghosts.

use forebay_policy::list::{Links, List};
use forebay_policy::{Eviction, Hint, Lines, Slot};

pub struct Lru {
    links: Links,
    recency: List,
}

impl Lru {
    pub fn new(capacity: usize) -> Self {
        Self { links: Links::new(capacity), recency: List::new() }
    }
}

impl Eviction for Lru {
    fn name(&self) -> &'static str {
        "lru"
    }

    fn on_insert(&mut self, slot: Slot, _key: u64, _hint: Hint) {
        self.links.push_front(&mut self.recency, slot);
    }

    fn on_hit(&mut self, slot: Slot) {
        self.links.move_to_front(&mut self.recency, slot);
    }

    fn on_remove(&mut self, slot: Slot) {
        self.links.remove(&mut self.recency, slot);
    }

    fn evict(&mut self, _incoming: u64, _hint: Hint, lines: &dyn Lines) -> Option<Slot> {
        let slot = self.links.last_evictable(&mut self.recency, lines)?;
        self.links.remove(&mut self.recency, slot);
        Some(slot)
    }

    fn metadata_bytes(&self) -> usize {
        size_of::<Self>() + self.links.heap_bytes()
    }

    fn self_check(&self) {
        self.links.check(&self.recency, |_| {});
        assert_eq!(self.links.listed_count(), self.recency.len());
    }
}
