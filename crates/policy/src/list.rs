//! Doubly linked lists of slots, all in one array of links.
//!
//! A slot is in at most one list of a [`Links`] at a time; the policy keeps track of which. The
//! links take eight bytes per slot, and allow removing a line from any position in constant time.
//! Lines enter a list at its *front* and leave at its *back*.

use crate::{Lines, Slot};

/// No slot: the end of a list.
pub const NIL: u32 = u32::MAX;
/// The front link of a slot that is in no list.
const OUT: u32 = u32::MAX - 1;

/// Maximum unevictable lines that one eviction skips in one list. Enough for a batch of dirty lines
/// in writeback; few enough to take at most a microsecond or two.
pub const PASS_OVER_MAX: usize = 64;

#[derive(Clone, Copy)]
struct ListLink {
    /// The neighbour nearer to the front.
    fore: u32,
    /// The neighbour nearer to the back.
    aft: u32,
}

/// The links of all slots.
pub struct Links {
    links: Box<[ListLink]>,
}

/// The ends of one list.
pub struct List {
    front: u32,
    back: u32,
    len: usize,
}

impl Default for List {
    fn default() -> Self {
        Self::new()
    }
}

impl List {
    /// An empty list.
    pub const fn new() -> Self {
        Self { front: NIL, back: NIL, len: 0 }
    }

    /// Slots in the list.
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether the list is empty.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The slot at the back, or [`NIL`].
    pub const fn back(&self) -> u32 {
        self.back
    }
}

impl Links {
    /// Links for `slot_count` slots, none of them in a list.
    pub fn new(slot_count: usize) -> Self {
        Self { links: vec![ListLink { fore: OUT, aft: OUT }; slot_count].into_boxed_slice() }
    }

    /// Returns true if the slot is in a list.
    pub fn is_listed(&self, slot: Slot) -> bool {
        self.links[slot as usize].fore != OUT
    }

    /// The neighbour of a listed slot on the side of the front, or [`NIL`].
    pub fn fore(&self, slot: Slot) -> u32 {
        self.links[slot as usize].fore
    }

    /// Inserts an unlisted slot at the front.
    pub fn push_front(&mut self, list: &mut List, slot: Slot) {
        assert!(!self.is_listed(slot), "slot {slot} is already in a list");
        self.links[slot as usize] = ListLink { fore: NIL, aft: list.front };
        match list.front {
            NIL => list.back = slot,
            old => self.links[old as usize].fore = slot,
        }
        list.front = slot;
        list.len += 1;
    }

    /// Removes a slot from `list`, which must contain it.
    pub fn remove(&mut self, list: &mut List, slot: Slot) {
        assert!(self.is_listed(slot), "slot {slot} is in no list");
        let ListLink { fore, aft } = self.links[slot as usize];
        match fore {
            NIL => list.front = aft,
            fore => self.links[fore as usize].aft = aft,
        }
        match aft {
            NIL => list.back = fore,
            aft => self.links[aft as usize].fore = fore,
        }
        self.links[slot as usize] = ListLink { fore: OUT, aft: OUT };
        list.len -= 1;
    }

    /// Moves a slot of `list` to its front.
    pub fn move_to_front(&mut self, list: &mut List, slot: Slot) {
        if list.front != slot {
            self.remove(list, slot);
            self.push_front(list, slot);
        }
    }

    /// Removes the slot at the back.
    pub fn pop_back(&mut self, list: &mut List) -> Option<Slot> {
        let slot = list.back;
        if slot == NIL {
            return None;
        }
        self.remove(list, slot);
        Some(slot)
    }

    /// Finds the evictable line nearest to the back, among the last [`PASS_OVER_MAX`]; it stays
    /// listed. If none is evictable and the list is longer, moves all of them to the front in one
    /// piece, so that the next call examines others. Otherwise the order stays.
    pub fn last_evictable(&mut self, list: &mut List, lines: &dyn Lines) -> Option<Slot> {
        let mut slot = list.back;
        for _ in 0..PASS_OVER_MAX {
            if slot == NIL {
                return None;
            }
            if lines.is_evictable(slot) {
                return Some(slot);
            }
            slot = self.fore(slot);
        }
        self.rotate_behind(list, slot);
        None
    }

    /// Replaces `old` by the unlisted slot `new`.
    pub fn replace(&mut self, list: &mut List, old: Slot, new: Slot) {
        assert!(!self.is_listed(new), "slot {new} is already in a list");
        let link = self.links[old as usize];
        assert!(link.fore != OUT, "slot {old} is in no list");
        match link.fore {
            NIL => list.front = new,
            fore => self.links[fore as usize].aft = new,
        }
        match link.aft {
            NIL => list.back = new,
            aft => self.links[aft as usize].fore = new,
        }
        self.links[new as usize] = link;
        self.links[old as usize] = ListLink { fore: OUT, aft: OUT };
    }

    /// Makes `slot` the back of the list by moving all slots behind it to the front. With [`NIL`],
    /// does nothing: the whole list was searched.
    pub fn rotate_behind(&mut self, list: &mut List, slot: Slot) {
        if slot == NIL {
            return;
        }
        let first = self.links[slot as usize].aft;
        if first == NIL {
            return;
        }
        self.links[slot as usize].aft = NIL;
        self.links[first as usize].fore = NIL;
        self.links[list.back as usize].aft = list.front;
        self.links[list.front as usize].fore = list.back;
        list.front = first;
        list.back = slot;
    }

    /// Bytes on the heap.
    pub fn heap_bytes(&self) -> usize {
        size_of_val(&*self.links)
    }

    /// Slots that are in some list.
    pub fn listed_count(&self) -> usize {
        self.links.iter().filter(|link| link.fore != OUT).count()
    }

    /// Walks a list from the front and calls `visit` on each slot.
    ///
    /// # Panics
    /// Panics if the links of the list and its length disagree.
    pub fn check(&self, list: &List, mut visit: impl FnMut(Slot)) {
        let (mut slot, mut fore, mut len) = (list.front, NIL, 0);
        while slot != NIL {
            assert!(len < list.len, "a list is longer than its length of {}", list.len);
            let link = self.links[slot as usize];
            assert_eq!(link.fore, fore, "slot {slot} does not point back to its neighbour");
            visit(slot);
            (slot, fore, len) = (link.aft, slot, len + 1);
        }
        assert_eq!((fore, len), (list.back, list.len), "a list ends in the wrong place");
    }
}
