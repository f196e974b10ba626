//! Changes of all slots of a slab, in the line table and in [`Slabs`]. Used by `resize`.

use super::Slots;
use crate::line::meta::{DETACHED, LineTable, RETAINED, in_order};
use crate::sabotage::{Planted, PlantedBug};
use crate::slabs::{Slab, Slabs};
use crate::{LineKey, LineMeta, Slot};

/// The slabs of a shard.
pub(crate) const fn slabs_mut<M>(slots: &mut Slots<M>) -> &mut Slabs {
    &mut slots.slabs
}

/// Sets the capacity of the policy: all usable slots except `retained` ones.
pub(crate) fn apply_policy_capacity<M>(slots: &mut Slots<M>, retained: usize) {
    slots.policy.set_capacity((slots.slabs.usable() as usize).saturating_sub(retained));
}

/// Records the values of some slabs; see [`Slabs::rank`]. `moved` is added to the value of each
/// line that would be moved because it is dirty, retained or guaranteed, and `pinned` to that of
/// each pinned slot.
pub(crate) fn rank<M: LineTable>(
    slots: &mut Slots<M>,
    slots_max: Slot,
    moved: u64,
    pinned: u64,
) -> bool {
    let Slots { slabs, lines, policy, unused, shares, index, .. } = slots;
    let lines: &[LineMeta] = lines;
    let guaranteed = shares.guaranteed(index.residents());
    slabs.rank(slots_max, |slot| {
        let line = &lines[slot as usize];
        if slot >= *unused || line.key == LineKey::NONE {
            return 0;
        }
        let is_known = line.flags & (DETACHED | RETAINED) == 0;
        let value = if is_known { u64::from(policy.value(slot)) } else { 0 };
        let is_moved = line.dirty != 0 || line.has(RETAINED) || guaranteed(line.key);
        let moved = if is_moved { moved } else { 0 };
        value + moved + if line.pins > 0 { pinned } else { 0 }
    })
}

/// Marks the slots of an emptying slab as away, before the shard reports it as empty.
pub(crate) fn give_back<M: LineTable>(slots: &mut Slots<M>, slab: Slab, planted: Planted) {
    for slot in slab.slots() {
        let line = *slots.get(slot);
        if planted.is(PlantedBug::GiveBackDirty) && line.key != LineKey::NONE {
            continue;
        }
        assert!(line.key == LineKey::NONE, "slot {slot} is given back with {line:?}");
        let line = slots.get_mut(slot);
        line.flags = DETACHED;
        line.pins = 0;
        in_order();
        line.key = LineKey::AWAY;
        in_order();
    }
    slots.slabs.set_empty(slab);
}

/// Takes a slab that was given back into use again. The content of its memory is undefined.
pub(crate) fn take_back<M: LineTable>(slots: &mut Slots<M>, slab: Slab) {
    slots.slabs.take_back(slab);
    for slot in slab.slots().rev() {
        slots.clear(slot);
        if slot < slots.unused {
            slots.free_slot(slot);
        }
    }
}

/// Whether a slot can be reserved without an eviction.
pub(super) fn has_free_slot<M: LineTable>(slots: &Slots<M>) -> bool {
    slots.slabs.first_free().is_some() || slots.slabs.is_any_usable_from(slots.unused)
}

/// Takes the first slot that was never used and may hold a line.
pub(super) fn take_unused<M: LineTable>(slots: &mut Slots<M>) -> Option<Slot> {
    while (slots.unused as usize) < slots.capacity() {
        let slot = slots.unused;
        if let Some(end) = slots.slabs.end_if_away(slot) {
            slots.unused = end;
            continue;
        }
        let is_usable = slots.slabs.is_usable(slot);
        if !is_usable && !slots.slabs.is_any_usable_from(slot) {
            // No slab from here on can take a line. To free their unused slots one by one would
            // take a request too long.
            return None;
        }
        slots.unused += 1;
        if is_usable {
            return Some(slot);
        }
        // The shrink may be cancelled, so the slot joins the free ones of its slab.
        slots.free_slot(slot);
    }
    None
}

/// Finds the slabs of an adopted table that are given back: all their slots are marked. In other
/// slabs, frees the marked slots: the process was killed while it marked them. Returns the number
/// of slots that are given back.
pub(super) fn recover<M: LineTable>(slots: &mut Slots<M>) -> u64 {
    let mut given_back = 0;
    for slab in slots.slabs.all() {
        if slab.slots().all(|slot| slots.get(slot).is_away()) {
            slots.slabs.adopt_given_back(slab.number);
            given_back += u64::from(slab.count);
            continue;
        }
        for slot in slab.slots() {
            if slots.get(slot).is_away() {
                *slots.get_mut(slot) = LineMeta::FREE;
            }
        }
    }
    given_back
}
