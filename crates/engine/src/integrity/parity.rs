//! Allocates slots for the parity of dirty lines.
//!
//! Parity takes a fifth of the data that it protects. Only dirty lines have it, because the disk
//! can replace clean ones. It is stored in slots of the pool, each with the parity of up to five
//! lines. A slot is reserved when needed and freed with its last parity. The price: a pool with two
//! thirds of its lines dirty uses about an eighth of its slots for parity. If every slot is dirty
//! or pinned, a line gets no parity.

use crate::index::Slots;
use crate::line::meta::{LineTable, NO_SLOT};
use crate::line::seal::{PARITIES_PER_SLOT, ParityPlace};
use crate::slabs::Slab;
use crate::{LineKey, Slot};
use std::collections::BTreeSet;

/// Bits of a packed place that hold its part.
const INDEX_BITS: u32 = 3;
const _: () = assert!(crate::SLOTS_MAX < 1 << (32 - INDEX_BITS));

/// The parity places of a shard. A slot's table entry records which of its parts are in use, in the
/// field that holds the valid sectors of a line.
#[derive(Debug, Default)]
pub(crate) struct Parity {
    /// Packed places, indexed by the line's slot; [`NO_SLOT`] if the line has no parity. Empty
    /// until the first use.
    places: Box<[u32]>,
    /// Slots with a free part, in slabs in use.
    open: BTreeSet<Slot>,
    lines: usize,
    slots: usize,
}

impl Parity {
    /// The place of a line's parity, if it has one.
    pub(crate) fn of(&self, line: Slot) -> Option<ParityPlace> {
        let packed = *self.places.get(line as usize)?;
        let index = (packed & ((1 << INDEX_BITS) - 1)) as u8;
        (packed != NO_SLOT).then_some(ParityPlace { slot: packed >> INDEX_BITS, index })
    }

    /// Finds a place for the parity of a line that has none. `None` if no slot can be freed.
    pub(crate) fn take<M: LineTable>(
        &mut self,
        line: Slot,
        slots: &mut Slots<M>,
    ) -> Option<ParityPlace> {
        if self.places.is_empty() {
            self.places = vec![NO_SLOT; slots.capacity()].into_boxed_slice();
        }
        assert!(slots.get(line).dirty != 0, "parity is requested for clean slot {line}");
        let slot = match self.open.first() {
            Some(&slot) => slot,
            None => {
                let volume = slots.get(line).key.volume();
                let slot = slots.reserve_detached(LineKey::PARITY, volume)?;
                self.open.insert(slot);
                self.slots += 1;
                slot
            }
        };
        let used = slots.get(slot).valid;
        let index = used.trailing_ones() as u8;
        let used = used | 1 << index;
        slots.set_parity_parts(slot, used);
        if used.count_ones() == u32::from(PARITIES_PER_SLOT) {
            self.open.remove(&slot);
        }
        let place = &mut self.places[line as usize];
        assert!(*place == NO_SLOT, "slot {line} has parity already");
        *place = slot << INDEX_BITS | u32::from(index);
        self.lines += 1;
        Some(ParityPlace { slot, index })
    }

    /// Frees the parity of a line, if it has any.
    pub(crate) fn free<M: LineTable>(&mut self, line: Slot, slots: &mut Slots<M>) {
        let Some(place) = self.of(line) else { return };
        self.places[line as usize] = NO_SLOT;
        self.lines -= 1;
        let before = slots.get(place.slot).valid;
        assert!(before & 1 << place.index != 0, "the parity of slot {line} is free already");
        let used = before & !(1 << place.index);
        slots.set_parity_parts(place.slot, used);
        let was_full = before.count_ones() == u32::from(PARITIES_PER_SLOT);
        if used == 0 {
            self.open.remove(&place.slot);
            self.slots -= 1;
            slots.unpin(place.slot);
        } else if was_full && slots.slabs().is_usable(place.slot) {
            // Otherwise it is open already, or its slab is closed.
            self.open.insert(place.slot);
        }
    }

    /// Stops storing parity in a slab.
    pub(crate) fn close(&mut self, slab: Slab) {
        let end = slab.slots().end;
        while let Some(&slot) = self.open.range(slab.first..end).next() {
            self.open.remove(&slot);
        }
    }

    /// Resumes storing parity in the free parts of a slab's slots.
    pub(crate) fn reopen<M: LineTable>(&mut self, slab: Slab, slots: &Slots<M>) {
        let has_free_part = |slot: &Slot| {
            let line = slots.get(*slot);
            line.key == LineKey::PARITY && line.valid.count_ones() < u32::from(PARITIES_PER_SLOT)
        };
        self.open.extend(slab.slots().filter(has_free_part));
    }

    /// Lines that have parity.
    pub(crate) const fn lines(&self) -> usize {
        self.lines
    }

    /// Slots that hold parity.
    pub(crate) const fn slots(&self) -> usize {
        self.slots
    }

    pub(crate) const fn metadata_bytes(&self) -> usize {
        self.places.len() * size_of::<u32>()
    }

    /// Panics if places, slots and lines are inconsistent.
    pub(crate) fn self_check<M: LineTable>(&self, slots: &Slots<M>) {
        let mut used = std::collections::BTreeMap::new();
        for line in 0..self.places.len() as Slot {
            let Some(place) = self.of(line) else { continue };
            let meta = slots.get(line);
            assert!(meta.dirty != 0, "a clean line has parity: {meta:?}");
            assert!(place.index < PARITIES_PER_SLOT);
            let mask: &mut u8 = used.entry(place.slot).or_default();
            assert!(*mask & 1 << place.index == 0, "two lines share {place:?}");
            *mask |= 1 << place.index;
        }
        assert_eq!(used.len(), self.slots);
        for (slot, used) in used {
            let line = slots.get(slot);
            assert!(
                line.key == LineKey::PARITY && line.pins == 1,
                "slot {slot} is not kept for parity: {line:?}"
            );
            assert_eq!(line.valid, used, "parts in use of slot {slot}");
            let full = used.count_ones() == u32::from(PARITIES_PER_SLOT);
            let is_open = !full && slots.slabs().is_usable(slot);
            assert_eq!(self.open.contains(&slot), is_open);
        }
        assert!(self.open.len() <= self.slots);
    }
}
