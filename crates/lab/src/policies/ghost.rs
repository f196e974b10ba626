//! Ghosts: an ordered set of keys of evicted lines, with constant-time lookup.
//!
//! It is exact, at 22 to 26 bytes per ghost. The comparison policies use it to match their
//! published definitions.

use forebay_policy::list::{Links, List, NIL};

/// An ordered set of keys with a fixed bound.
pub struct Ghosts {
    keys: Box<[u64]>,
    /// The next node in the bucket or in the free list.
    chain: Box<[u32]>,
    buckets: Box<[u32]>,
    free: u32,
    links: Links,
    order: List,
}

impl Ghosts {
    /// An empty set for `capacity` keys.
    pub fn new(capacity: usize) -> Self {
        // A chain through all nodes; the last one ends it.
        let mut chain: Box<[u32]> = (1..=capacity as u32).collect();
        let free = match chain.last_mut() {
            Some(last) => {
                *last = NIL;
                0
            }
            None => NIL,
        };
        Self {
            keys: vec![0; capacity].into_boxed_slice(),
            chain,
            buckets: vec![NIL; capacity.next_power_of_two()].into_boxed_slice(),
            free,
            links: Links::new(capacity),
            order: List::new(),
        }
    }

    /// The number of keys.
    pub const fn len(&self) -> usize {
        self.order.len()
    }

    /// Adds `key` as the youngest, or makes it the youngest. Drops the oldest key if full.
    pub fn push(&mut self, key: u64) {
        if let Some(node) = self.find(key) {
            self.links.move_to_front(&mut self.order, node);
            return;
        }
        if self.free == NIL {
            self.drop_oldest();
        }
        let node = self.free;
        if node == NIL {
            return; // The capacity is zero.
        }
        self.free = self.chain[node as usize];
        let bucket = self.bucket(key);
        self.keys[node as usize] = key;
        self.chain[node as usize] = self.buckets[bucket];
        self.buckets[bucket] = node;
        self.links.push_front(&mut self.order, node);
    }

    /// Removes `key`; returns true if it was present.
    pub fn remove(&mut self, key: u64) -> bool {
        let Some(node) = self.find(key) else { return false };
        self.links.remove(&mut self.order, node);
        self.release(node);
        true
    }

    /// Removes the oldest key; returns true if there was one.
    pub fn drop_oldest(&mut self) -> bool {
        let Some(node) = self.links.pop_back(&mut self.order) else { return false };
        self.release(node);
        true
    }

    /// Bytes on the heap.
    pub fn heap_bytes(&self) -> usize {
        size_of_val(&*self.keys)
            + size_of_val(&*self.chain)
            + size_of_val(&*self.buckets)
            + self.links.heap_bytes()
    }

    /// # Panics
    /// Panics if an invariant is violated.
    pub fn self_check(&self) {
        self.links.check(&self.order, |node| {
            assert_eq!(self.find(self.keys[node as usize]), Some(node), "a ghost can't be found");
        });
        let (mut free, mut node) = (0, self.free);
        while node != NIL {
            assert!(!self.links.is_listed(node), "ghost {node} is free and in order");
            free += 1;
            node = self.chain[node as usize];
        }
        assert_eq!(free + self.len(), self.keys.len(), "a node is neither free nor in use");
    }

    fn find(&self, key: u64) -> Option<u32> {
        let mut node = self.buckets[self.bucket(key)];
        while node != NIL && self.keys[node as usize] != key {
            node = self.chain[node as usize];
        }
        (node != NIL).then_some(node)
    }

    /// Removes a node, already unlinked from the order, from its bucket, and frees it.
    fn release(&mut self, node: u32) {
        let bucket = self.bucket(self.keys[node as usize]);
        let after = self.chain[node as usize];
        if self.buckets[bucket] == node {
            self.buckets[bucket] = after;
        } else {
            let mut at = self.buckets[bucket];
            while self.chain[at as usize] != node {
                at = self.chain[at as usize];
            }
            self.chain[at as usize] = after;
        }
        self.chain[node as usize] = self.free;
        self.free = node;
    }

    fn bucket(&self, key: u64) -> usize {
        // The keys are well mixed, so any bits will do.
        key as usize & (self.buckets.len() - 1)
    }
}
