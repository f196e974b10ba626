//! Ghosts: an ordered set of keys of evicted lines, with constant-time lookup.
//!
//! It is exact, at 22 to 26 bytes per ghost. The comparison policies use it to match their
//! published definitions.

use forebay_policy::list::{Links, List, NIL};

/// An ordered set of keys with a fixed bound.
pub struct Ghosts {
    index: KeyIndex,
    links: Links,
    /// Nodes in use, youngest first.
    order: List,
    free: List,
    /// The last incoming key that had a ghost.
    recalled: Option<u64>,
}

impl Ghosts {
    pub fn new(capacity: usize) -> Self {
        let (mut links, mut free) = (Links::new(capacity), List::new());
        (0..capacity as u32).for_each(|node| links.push_front(&mut free, node));
        Self { index: KeyIndex::new(capacity), links, order: List::new(), free, recalled: None }
    }

    pub const fn len(&self) -> usize {
        self.order.len()
    }

    /// Adds `key` as the youngest, or makes it the youngest. Drops the oldest key if full.
    pub fn push(&mut self, key: u64) {
        if let Some(node) = self.index.find(key) {
            self.links.move_to_front(&mut self.order, node);
            return;
        }
        if self.free.is_empty() {
            self.drop_oldest();
        }
        // A set of capacity zero has no node.
        let Some(node) = self.links.pop_back(&mut self.free) else { return };
        self.index.insert(node, key);
        self.links.push_front(&mut self.order, node);
    }

    /// Removes `key`; returns true if it was present.
    pub fn remove(&mut self, key: u64) -> bool {
        let Some(node) = self.index.find(key) else { return false };
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

    /// Removes the ghost of a line that is about to be inserted. An eviction calls this before it
    /// adds the victim's ghost, which could otherwise displace the incoming line's.
    pub fn recall(&mut self, incoming: u64) {
        if self.recalled != Some(incoming) {
            self.recalled = self.remove(incoming).then_some(incoming);
        }
    }

    /// Removes the ghost of an inserted line; returns true if it had one, recalled or present.
    pub fn take(&mut self, key: u64) -> bool {
        self.recalled.take() == Some(key) || self.remove(key)
    }

    pub fn heap_bytes(&self) -> usize {
        self.index.heap_bytes() + self.links.heap_bytes()
    }

    pub fn self_check(&self) {
        self.links.check(&self.order, |node| {
            assert_eq!(self.index.find(self.index.key(node)), Some(node), "a ghost can't be found");
        });
        self.links.check(&self.free, |_| {});
        let nodes = self.free.len() + self.len();
        assert_eq!(nodes, self.index.keys.len(), "a node is neither free nor in use");
    }

    /// Frees a node that has been removed from the order.
    fn release(&mut self, node: u32) {
        self.index.remove(node);
        self.links.push_front(&mut self.free, node);
    }
}

/// A hash index of nodes by key.
pub struct KeyIndex {
    keys: Box<[u64]>,
    /// The next node in the bucket.
    chain: Box<[u32]>,
    buckets: Box<[u32]>,
}

impl KeyIndex {
    pub fn new(capacity: usize) -> Self {
        Self {
            keys: vec![0; capacity].into_boxed_slice(),
            chain: vec![NIL; capacity].into_boxed_slice(),
            buckets: vec![NIL; capacity.next_power_of_two()].into_boxed_slice(),
        }
    }

    pub fn key(&self, node: u32) -> u64 {
        self.keys[node as usize]
    }

    pub fn find(&self, key: u64) -> Option<u32> {
        let mut node = self.buckets[self.bucket(key)];
        while node != NIL && self.key(node) != key {
            node = self.chain[node as usize];
        }
        (node != NIL).then_some(node)
    }

    pub fn insert(&mut self, node: u32, key: u64) {
        let bucket = self.bucket(key);
        self.keys[node as usize] = key;
        self.chain[node as usize] = self.buckets[bucket];
        self.buckets[bucket] = node;
    }

    pub fn remove(&mut self, node: u32) {
        let bucket = self.bucket(self.key(node));
        let after = self.chain[node as usize];
        let mut at = self.buckets[bucket];
        if at == node {
            self.buckets[bucket] = after;
            return;
        }
        while self.chain[at as usize] != node {
            at = self.chain[at as usize];
        }
        self.chain[at as usize] = after;
    }

    pub fn heap_bytes(&self) -> usize {
        size_of_val(&*self.keys) + size_of_val(&*self.chain) + size_of_val(&*self.buckets)
    }

    fn bucket(&self, key: u64) -> usize {
        // The keys are well mixed, so any bits will do.
        key as usize & (self.buckets.len() - 1)
    }
}
