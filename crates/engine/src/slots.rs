//! The slots of a shard: which line is where, which are free, which may go.
//!
//! A slot is free, unused so far, resident (indexed and known to the policy) or detached: its line
//! has moved to another slot, but somebody still uses the old data, or it holds data that nobody
//! is to see yet. Only this module changes that; everybody else pins, unpins and asks.

use crate::index::Index;
use crate::meta::{DETACHED, LineTable, NO_SLOT};
use crate::{LineKey, LineMeta, Slot};
use forebay_policy::{Eviction, Hint, Lines};

pub(crate) struct Slots<M> {
    pub lines: M,
    index: Index,
    policy: Box<dyn Eviction>,
    /// First free slot; the others are linked through `pins`.
    free: Slot,
    /// Slots from here on were never used: their memory has never been touched.
    unused: Slot,
    pub evictions: u64,
}

/// What the policy may know of a line.
struct View<'a>(&'a [LineMeta]);

impl Lines for View<'_> {
    fn may_go(&self, slot: Slot) -> bool {
        let line = &self.0[slot as usize];
        line.pins == 0 && line.dirty == 0
    }

    fn key(&self, slot: Slot) -> u64 {
        self.0[slot as usize].key.hash()
    }
}

impl<M: LineTable> Slots<M> {
    pub(crate) fn new(lines: M, policy: Box<dyn Eviction>) -> Self {
        let index = Index::new(lines.len());
        Self { lines, index, policy, free: NO_SLOT, unused: 0, evictions: 0 }
    }

    pub(crate) fn capacity(&self) -> usize {
        self.lines.len()
    }

    /// Slots that were ever used: those below this number.
    pub(crate) const fn used(&self) -> Slot {
        self.unused
    }

    pub(crate) const fn resident(&self) -> usize {
        self.index.len()
    }

    pub(crate) fn get(&self, slot: Slot) -> &LineMeta {
        &self.lines[slot as usize]
    }

    pub(crate) fn get_mut(&mut self, slot: Slot) -> &mut LineMeta {
        &mut self.lines[slot as usize]
    }

    pub(crate) fn find(&self, key: LineKey) -> Option<Slot> {
        self.index.find(key, &self.lines)
    }

    pub(crate) fn hints(&self) -> crate::Hints {
        self.index.hints()
    }

    pub(crate) fn touch(&mut self, slot: Slot) {
        self.policy.on_hit(slot);
    }

    /// Makes room for `key`, which must be absent, evicting another line if need be. The new line
    /// has no valid sector. `None` when every line is dirty or in use.
    pub(crate) fn allocate(&mut self, key: LineKey, hint: Hint) -> Option<Slot> {
        let slot = self.reserve(key)?;
        self.place(slot, key, hint);
        Some(slot)
    }

    /// Puts `key`, which must be absent, into a slot that was reserved for it.
    pub(crate) fn place(&mut self, slot: Slot, key: LineKey, hint: Hint) {
        self.lines[slot as usize] = LineMeta { key, ..LineMeta::FREE };
        self.index.insert(key, slot);
        self.policy.on_insert(slot, key.hash(), hint);
    }

    /// Makes room for `key` and pins it, without giving the line to anybody: a detached slot. It is
    /// adopted or relocated to later, or free with its last pin.
    pub(crate) fn reserve_detached(&mut self, key: LineKey) -> Option<Slot> {
        let slot = self.reserve(key)?;
        let line = LineMeta { key, pins: 1, flags: DETACHED, ..LineMeta::FREE };
        self.lines[slot as usize] = line;
        Some(slot)
    }

    /// Makes a detached slot the one of its line, which must be absent.
    pub(crate) fn adopt(&mut self, slot: Slot) {
        let line = self.get_mut(slot);
        debug_assert!(line.has(DETACHED));
        line.flags = 0;
        let key = line.key;
        self.index.insert(key, slot);
        self.policy.on_insert(slot, key.hash(), Hint::Normal);
    }

    /// Gives the line in `old` the slot `new`, reserved or detached, under one pin, and leaves
    /// `old` to those who have it pinned. The caller copies the data.
    pub(crate) fn relocate(&mut self, old: Slot, new: Slot) {
        let line = *self.get(old);
        let key = line.key;
        debug_assert!(line.pins > 0, "the caller has the old slot pinned");
        self.lines[new as usize] = LineMeta { pins: 1, ..line };
        self.index.replace(key, old, new);
        self.policy.on_move(old, new, key.hash());
        let old = self.get_mut(old);
        old.flags = DETACHED;
        old.dirty = 0;
    }

    /// Takes a clean line out of the pool: at once, or with its last pin.
    pub(crate) fn drop_line(&mut self, slot: Slot) {
        let line = *self.get(slot);
        assert!(line.dirty == 0, "a dirty line is never dropped");
        self.index.remove(line.key, slot, &self.lines);
        self.policy.on_remove(slot);
        if line.pins == 0 {
            self.free_slot(slot);
        } else {
            self.get_mut(slot).flags = DETACHED;
        }
    }

    pub(crate) fn pin(&mut self, slot: Slot) {
        self.get_mut(slot).pins += 1;
    }

    pub(crate) fn unpin(&mut self, slot: Slot) {
        let line = self.get_mut(slot);
        assert!(line.pins > 0, "slot {slot} was let go of more often than it was taken");
        line.pins -= 1;
        if line.pins == 0 && line.has(DETACHED) {
            self.free_slot(slot);
        }
    }

    /// Makes room for `incoming`, evicting another line if need be: a slot that is neither free
    /// nor resident until it is placed, relocated to or freed. `None` when every line is dirty or
    /// in use.
    pub(crate) fn reserve(&mut self, incoming: LineKey) -> Option<Slot> {
        if self.free != NO_SLOT {
            let slot = self.free;
            self.free = self.get(slot).pins;
            return Some(slot);
        }
        if (self.unused as usize) < self.capacity() {
            self.unused += 1;
            return Some(self.unused - 1);
        }
        let victim = self.policy.evict(incoming.hash(), &View(&self.lines))?;
        let line = *self.get(victim);
        assert!(line.pins == 0 && line.dirty == 0, "the policy gave up a line that may not go");
        self.index.remove(line.key, victim, &self.lines);
        self.evictions += 1;
        Some(victim)
    }

    /// Gives back a slot that holds no line any more.
    pub(crate) fn free_slot(&mut self, slot: Slot) {
        let next = self.free;
        *self.get_mut(slot) = LineMeta { pins: next, ..LineMeta::FREE };
        self.free = slot;
    }

    pub(crate) fn metadata_bytes(&self) -> usize {
        self.capacity() * size_of::<LineMeta>()
            + self.index.metadata_bytes()
            + self.policy.metadata_bytes()
    }

    /// Panics where table, index, free list and policy contradict each other.
    pub(crate) fn self_check(&self) {
        let mut free = 0;
        let mut at = self.free;
        while at != NO_SLOT {
            assert!(self.get(at).key == LineKey::NONE, "a free slot names no line");
            free += 1;
            at = self.get(at).pins;
        }
        let mut resident = 0;
        let mut detached = 0;
        for slot in 0..self.unused {
            let line = self.get(slot);
            if line.key == LineKey::NONE {
                continue;
            }
            assert!(line.dirty & !line.valid == 0, "dirty sectors are valid: {line:?}");
            if line.has(DETACHED) {
                assert!(line.pins > 0 && line.dirty == 0, "a detached slot is in use: {line:?}");
                detached += 1;
            } else {
                assert_eq!(self.find(line.key), Some(slot), "a resident line is found");
                resident += 1;
            }
        }
        assert_eq!(resident, self.index.len(), "the index holds the resident lines");
        assert_eq!(resident + detached + free, self.unused as usize, "no slot is lost");
        self.policy.self_check();
    }
}
