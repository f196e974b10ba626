//! The lines of a miniature cache: which line is in which slot, and which slots are free.
//!
//! A table of two-byte entries finds the slot of a line; a removal moves the entries behind it, so
//! that a search ends at the first unused entry.

use crate::{Lines, Slot};
use std::collections::VecDeque;

/// An unused entry of the table.
const NONE: u16 = u16::MAX;

/// See the module.
pub(super) struct MiniatureLines {
    /// The line in each slot.
    lines: Box<[u32]>,
    /// Whether the line in a slot waits for its first use, and how it came there.
    arrivals: Box<[Arrival]>,
    /// Whether the line in a slot was last read in sequence; a bit for each slot.
    in_sequence: Box<[u64]>,
    /// Open addressing: the slots of lines. Twice as long as `lines`.
    table: Box<[u16]>,
    free: Vec<u16>,
    /// Whether the line in a slot is dirty, and cannot be evicted; a bit for each slot.
    dirty: Box<[u64]>,
    /// The slots of dirty lines, in the order in which these became dirty, and of some that were
    /// removed since.
    dirty_order: VecDeque<u16>,
    /// The slot from which to search for a clean line.
    hand: usize,
}

/// How a line came into a slot, if its first use will be another one than a reuse.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Arrival {
    /// A client has used it.
    Used,
    /// Read ahead, and not used yet.
    Prefetched,
    /// Preloaded, and not used yet.
    Preloaded,
}

impl MiniatureLines {
    pub(super) fn new(slots: usize) -> Self {
        assert!(slots < usize::from(NONE), "{slots} slots do not fit an entry of the table");
        Self {
            lines: vec![0; slots].into_boxed_slice(),
            arrivals: vec![Arrival::Used; slots].into_boxed_slice(),
            in_sequence: vec![0; slots.div_ceil(64)].into_boxed_slice(),
            table: vec![NONE; 2 * slots].into_boxed_slice(),
            free: (0..slots as u16).rev().collect(),
            dirty: vec![0; slots.div_ceil(64)].into_boxed_slice(),
            dirty_order: VecDeque::new(),
            hand: 0,
        }
    }

    pub(super) fn heap_bytes(&self) -> usize {
        size_of_val(&*self.lines)
            + size_of_val(&*self.arrivals)
            + size_of_val(&*self.in_sequence)
            + size_of_val(&*self.table)
            + self.free.capacity() * size_of::<u16>()
            + size_of_val(&*self.dirty)
            + self.dirty_order.capacity() * size_of::<u16>()
    }

    pub(super) const fn heap_bytes_for(slots: usize) -> usize {
        slots * (size_of::<u32>() + size_of::<Arrival>() + 4 * size_of::<u16>())
            + 2 * slots.div_ceil(64) * size_of::<u64>()
    }

    /// Lines in slots.
    pub(super) const fn len(&self) -> usize {
        self.lines.len() - self.free.len()
    }

    pub(super) fn find(&self, line: u32) -> Option<Slot> {
        match self.table[self.entry_of(line)] {
            NONE => None,
            slot => Some(slot.into()),
        }
    }

    /// Takes the arrival of the line in a slot: from now on, it is used.
    pub(super) fn take_arrival(&mut self, slot: Slot) -> Arrival {
        std::mem::replace(&mut self.arrivals[slot as usize], Arrival::Used)
    }

    pub(super) fn arrival(&self, slot: Slot) -> Arrival {
        self.arrivals[slot as usize]
    }

    /// Whether the line in a slot was last read in sequence.
    pub(super) fn is_in_sequence(&self, slot: Slot) -> bool {
        self.in_sequence[slot as usize / 64] & 1 << (slot % 64) != 0
    }

    pub(super) fn set_in_sequence(&mut self, slot: Slot, is_in_sequence: bool) {
        let word = &mut self.in_sequence[slot as usize / 64];
        *word = *word & !(1 << (slot % 64)) | u64::from(is_in_sequence) << (slot % 64);
    }

    /// A line becomes dirty, unless it is. The lines that have been dirty for longest become clean,
    /// so that at most `dirty_max` are dirty.
    pub(super) fn set_dirty(&mut self, slot: Slot, dirty_max: usize) {
        if !self.is_dirty(slot) {
            self.dirty[slot as usize / 64] |= 1 << (slot % 64);
            if self.dirty_order.capacity() == 0 {
                self.dirty_order.reserve_exact(self.lines.len());
            }
            if self.dirty_order.len() == self.lines.len() {
                self.clean_oldest();
            }
            self.dirty_order.push_back(slot as u16);
        }
        while self.dirty_order.len() > dirty_max {
            self.clean_oldest();
        }
    }

    fn clean_oldest(&mut self) {
        if let Some(slot) = self.dirty_order.pop_front() {
            self.set_clean(slot.into());
        }
    }

    fn set_clean(&mut self, slot: Slot) {
        self.dirty[slot as usize / 64] &= !(1 << (slot % 64));
    }

    fn is_dirty(&self, slot: Slot) -> bool {
        self.dirty[slot as usize / 64] & 1 << (slot % 64) != 0
    }

    /// All dirty lines become clean.
    pub(super) fn clean_all(&mut self) {
        while !self.dirty_order.is_empty() {
            self.clean_oldest();
        }
    }

    /// A clean line, for an eviction that the policy has given up.
    pub(super) fn next_clean(&mut self) -> Option<Slot> {
        for _ in 0..self.lines.len() {
            let slot = self.hand as Slot;
            self.hand = (self.hand + 1) % self.lines.len();
            if !self.is_dirty(slot) && self.find(self.lines[slot as usize]) == Some(slot) {
                return Some(slot);
            }
        }
        None
    }

    /// A slot without a line.
    pub(super) fn take_free(&mut self) -> Option<Slot> {
        self.free.pop().map(Slot::from)
    }

    /// Puts an absent line into a slot that was taken.
    pub(super) fn insert(&mut self, slot: Slot, line: u32, arrival: Arrival) {
        let at = self.entry_of(line);
        debug_assert!(self.table[at] == NONE, "line {line} is in two slots");
        self.table[at] = slot as u16;
        self.lines[slot as usize] = line;
        self.arrivals[slot as usize] = arrival;
        self.set_in_sequence(slot, false);
    }

    /// Takes the line out of its slot, which the caller may use for another one.
    pub(super) fn remove(&mut self, slot: Slot) {
        let mut hole = self.entry_of(self.lines[slot as usize]);
        debug_assert!(self.table[hole] == slot as u16, "slot {slot} has no line");
        let mut at = hole;
        loop {
            at = self.next(at);
            let entry = self.table[at];
            if entry == NONE {
                break;
            }
            // An entry moves into the hole unless it belongs between the hole and its place.
            let home = self.home_of(self.lines[usize::from(entry)]);
            let is_between = match hole < at {
                true => hole < home && home <= at,
                false => hole < home || home <= at,
            };
            if !is_between {
                self.table[hole] = entry;
                hole = at;
            }
        }
        self.table[hole] = NONE;
        self.set_clean(slot);
    }

    /// Makes a slot, from which the line was removed, free.
    pub(super) fn release(&mut self, slot: Slot) {
        self.free.push(slot as u16);
    }

    /// # Panics
    /// Panics if an invariant is violated.
    pub(super) fn self_check(&self) {
        let entries = self.table.iter().filter(|&&entry| entry != NONE).count();
        assert_eq!(entries, self.len(), "lines in the table, and in slots");
        for &entry in self.table.iter().filter(|&&entry| entry != NONE) {
            assert_eq!(self.find(self.lines[usize::from(entry)]), Some(entry.into()));
        }
    }

    /// The entry of a line in the table, or the unused one where it belongs.
    fn entry_of(&self, line: u32) -> usize {
        let mut at = self.home_of(line);
        while self.table[at] != NONE && self.lines[usize::from(self.table[at])] != line {
            at = self.next(at);
        }
        at
    }

    fn home_of(&self, line: u32) -> usize {
        let mixed = line.wrapping_mul(0x9e37_79b9);
        ((u64::from(mixed) * self.table.len() as u64) >> 32) as usize
    }

    const fn next(&self, at: usize) -> usize {
        if at + 1 == self.table.len() { 0 } else { at + 1 }
    }
}

impl Lines for MiniatureLines {
    fn is_evictable(&self, slot: Slot) -> bool {
        !self.is_dirty(slot)
    }

    fn key(&self, slot: Slot) -> u64 {
        key_of(self.lines[slot as usize])
    }
}

/// The key of a line for the policy: a finalizer of 32 bits that are mixed already, because the
/// policy needs more.
pub(super) const fn key_of(line: u32) -> u64 {
    let x = (line as u64).wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x ^ (x >> 31)
}
