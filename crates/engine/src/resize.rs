//! Resizing a shard: empties slabs and takes them into use again, in steps of bounded work.
//!
//! A shrink first compares all slabs. The value of a slab is that of its lines for the policy, plus
//! the work to empty it. The least valuable ones are then emptied:
//!
//! | in a slot | becomes |
//! | --- | --- |
//! | a clean line without an operation | is dropped, unless it is retained |
//! | a dirty line that nothing uses | moves to a slab that stays, where it may evict a clean line |
//! | a dirty line for which no slot is free | is made old, so that it is destaged soon |
//! | a retained line ([`crate::index::retained`]) | moves like a dirty one, or waits for a slot |
//! | a clean line of a volume with no more than its guaranteed lines | the same |
//! | a dirty line of a closed epoch, or an older version of a line | waits for its destage |
//! | parity | is dropped, after its line is verified; the patrol stores new parity elsewhere |
//! | anything pinned or in an operation | waits |
//!
//! From the beginning of a shrink, the dirty limit is that of the smaller shard, so writeback soon
//! leaves enough clean lines to evict. A dirty line is never dropped: a shard whose dirty lines
//! cannot be destaged stops shrinking. Retained lines beyond the limit of the smaller shard return
//! to the policy before slabs are compared.
//!
//! A growth first takes back slabs that are still being emptied, then those given back.

use crate::index::Slots;
use crate::index::miniatures::resize_miniatures;
use crate::index::retained::{self, is_retained};
use crate::index::shares::{self, Taker, is_guaranteed};
use crate::index::slabs::{apply_policy_capacity, give_back, rank, slabs_mut, take_back};
use crate::integrity::ShardIntegrity;
use crate::line::key::LineKey;
use crate::line::meta::{DETACHED, LineTable};
use crate::lines::{VolumeLines, drop_if_idle};
use crate::ops::Ops;
use crate::sabotage::{Planted, PlantedBug};
use crate::slabs::Slab;
use crate::volume::ShardVolumes;
use crate::writeback::quota::DirtyQuota;
use crate::{LineMeta, Outbox, Slot};
use forebay_types::VolumeId;
use std::cmp::Ordering;

/// Slots that one step examines to compare slabs; at least one slab is examined.
const SLOTS_COMPARED_MAX: Slot = 4096;
/// Lines that one step moves at most: 256 KiB.
const MOVES_MAX: u32 = 64;
/// Parity places that one step examines at most, and lines whose parity it drops at most.
const PLACES_EXAMINED_MAX: Slot = 4096;
const PARITIES_FREED_MAX: u32 = 64;

/// The value of a slot for each reason to keep it, besides the policy's value of its line: the line
/// must be moved, or the slot is pinned.
const MOVED_VALUE: u64 = 4;
const PINNED_VALUE: u64 = 8;

/// The result of a step of a resize, and what the driver does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResizeStep {
    /// The resize is complete.
    Done,
    /// Call again soon; the driver may unlock the shard in between.
    More,
    /// The rest waits for pins, operations or destages, or for [`crate::Shard::gave_back`]. Call
    /// again after a while.
    Waiting,
    /// A slab that was given back is in use again. Nothing has used its memory yet.
    TakenBack(Slab),
    /// A slab is empty. The driver gives its memory back, may unlock the shard for that, and then
    /// calls [`crate::Shard::gave_back`]. Until then the slots are not used.
    Empty(Slab),
}

/// The lines that a shard may hold, now and after a shrink that has begun.
pub(crate) fn lines_of<M: LineTable>(index: &Slots<M>) -> usize {
    index.slabs().usable().min(index.slabs().target()) as usize
}

/// Resizes a shard. Borrows its components for one call; owns nothing.
pub(crate) struct ShardResizer<'a, M> {
    pub volumes: &'a mut ShardVolumes,
    pub quota: &'a mut DirtyQuota,
    pub index: &'a mut Slots<M>,
    pub ops: &'a mut Ops,
    pub integrity: &'a mut ShardIntegrity,
    pub planted: Planted,
}

impl<M: LineTable> ShardResizer<'_, M> {
    /// See [`crate::Shard::resize`].
    pub(crate) fn set_target(&mut self, lines: usize) {
        slabs_mut(self.index).set_target(lines);
        self.apply_size();
    }

    /// Scales the shares, the quota and the policy to the number of lines that the shard may hold,
    /// the last two to those beside pinned ranges. The quota follows a shrink at once, so that
    /// dirty lines are destaged meanwhile.
    pub(crate) fn apply_size(&mut self) {
        let lines = lines_of(self.index);
        shares::set_lines(self.index, lines);
        retained::set_lines(self.index, lines);
        let parts = retained::ShardParts::of(self.index, lines).beside_pins(self.index);
        let shares = parts.shares.into_iter();
        self.quota.set_lines(lines - parts.retained, shares);
        apply_policy_capacity(self.index, parts.retained);
        let times = resize_miniatures(self.index, lines, parts.retained);
        if times != 1.0 {
            self.volumes.count_resize(times);
        }
    }

    /// See [`crate::Shard::step_resize`].
    pub(crate) fn step(&mut self, out: &mut Outbox) -> ResizeStep {
        if !retained::trim(self.index, SLOTS_COMPARED_MAX) {
            return ResizeStep::More;
        }
        let slabs = self.index.slabs();
        match slabs.compare_with_target() {
            Ordering::Less => self.grow(),
            Ordering::Greater => self.choose(),
            Ordering::Equal if slabs.is_emptying() => self.empty(out),
            Ordering::Equal if slabs.is_resizing() => ResizeStep::Waiting,
            Ordering::Equal => ResizeStep::Done,
        }
    }

    /// Takes one slab into use again.
    fn grow(&mut self) -> ResizeStep {
        let step = if let Some(slab) = slabs_mut(self.index).cancel_emptying() {
            self.integrity.open_parity(self.index, slab);
            ResizeStep::More
        } else if let Some(slab) = self.index.slabs().next_given_back() {
            take_back(self.index, slab);
            ResizeStep::TakenBack(slab)
        } else {
            return ResizeStep::Waiting;
        };
        self.apply_size();
        step
    }

    /// Compares some slabs, and chooses those to empty when all have been compared.
    fn choose(&mut self) -> ResizeStep {
        if rank(self.index, SLOTS_COMPARED_MAX, MOVED_VALUE, PINNED_VALUE) {
            for slab in slabs_mut(self.index).choose() {
                self.integrity.close_parity(slab);
            }
            self.apply_size();
        }
        ResizeStep::More
    }

    /// Empties some slots of the next emptying slab.
    fn empty(&mut self, out: &mut Outbox) -> ResizeStep {
        let slab = slabs_mut(self.index).next_emptying();
        let (mut moves, mut drops, mut left) = (0, 0, 0);
        let mut has_slot = true;
        let start = self.index.slabs().search().slot.max(slab.first);
        for slot in start..slab.slots().end {
            if moves == MOVES_MAX {
                slabs_mut(self.index).search_mut().slot = slot;
                return self.end_step(true);
            }
            let before = *self.index.get(slot);
            if before.key == LineKey::NONE {
                continue;
            }
            if before.key == LineKey::PARITY {
                slabs_mut(self.index).search_mut().sees_parity = true;
            } else if before.has(DETACHED) {
                // Waits for its pins.
            } else if before.dirty == 0 && !self.must_stay(slot) {
                drop_if_idle(self.index, self.ops, slot);
                drops += u32::from(*self.index.get(slot) != before);
            } else if before.dirty != 0 && self.planted.is(PlantedBug::GiveBackDirty) {
                continue;
            } else if self.move_line(slot, &mut has_slot, out) {
                moves += 1;
            }
            left += u32::from(self.index.get(slot).key != LineKey::NONE);
        }
        let search = slabs_mut(self.index).search_mut();
        (search.slab, search.slot) = (slab.number + 1, 0);
        // An earlier step may have found lines in the slots before `start`.
        if left == 0 && start == slab.first {
            give_back(self.index, slab, self.planted);
            slabs_mut(self.index).search_mut().quiet = 0;
            return ResizeStep::Empty(slab);
        }
        let freed = self.free_parities(out);
        self.end_step(moves + drops > 0 || freed)
    }

    /// Ends a step. The shrink waits once the last steps have examined everything without progress.
    fn end_step(&mut self, progress: bool) -> ResizeStep {
        let places = self.index.capacity().div_ceil(PLACES_EXAMINED_MAX as usize);
        match slabs_mut(self.index).is_search_over(progress, places) {
            true => ResizeStep::Waiting,
            false => ResizeStep::More,
        }
    }

    /// The lines of a served volume.
    fn on(&mut self, id: VolumeId) -> VolumeLines<'_, M> {
        VolumeLines {
            id,
            volume: self.volumes.get_mut(id),
            quota: self.quota,
            index: self.index,
            ops: self.ops,
            integrity: self.integrity,
            planted: self.planted,
        }
    }

    /// Whether a clean line is moved instead of dropped.
    fn must_stay(&self, slot: Slot) -> bool {
        is_retained(self.index, slot) && !self.planted.is(PlantedBug::DropRetained)
            || is_guaranteed(self.index, slot) && !self.planted.is(PlantedBug::DropGuaranteed)
    }

    /// Whether a line can be moved or sealed anew: its volume is served, and nothing uses it.
    fn is_movable(&mut self, slot: Slot) -> bool {
        let line = *self.index.get(slot);
        let volume = line.key.volume();
        line.pins == 0
            && self.ops.busy(line.key).is_none()
            && self.volumes.has(volume)
            && !self.on(volume).is_closed(&line)
    }

    /// Moves a line to a slab that stays. Returns whether it did. `has_slot` becomes false when no
    /// slot is found: such a search is long, and would find none for the next line either.
    fn move_line(&mut self, slot: Slot, has_slot: &mut bool, out: &mut Outbox) -> bool {
        if !self.is_movable(slot) {
            return false;
        }
        let LineMeta { key, dirty, .. } = *self.index.get(slot);
        let mut lines = self.on(key.volume());
        if *has_slot {
            lines.index.pin(slot);
            if let Some(new) = lines.move_away_as(Taker::Moved, slot, 0, out) {
                lines.index.unpin(new);
                lines.volume.counters_mut().moved_lines += 1;
                return true;
            }
            lines.index.unpin(slot);
            *has_slot = false;
        }
        if dirty != 0 {
            lines.volume.writeback_mut().boost(key.line());
        }
        false
    }

    /// Drops the parity of some lines that is stored in emptying slabs. The lines are verified
    /// first, because their next seal covers whatever they contain. Returns whether any was
    /// dropped.
    fn free_parities(&mut self, out: &mut Outbox) -> bool {
        if !self.index.slabs().search().sees_parity {
            return false;
        }
        let first = self.index.slabs().search().parity;
        let end = first.saturating_add(PLACES_EXAMINED_MAX).min(self.index.capacity() as Slot);
        let (mut at, mut freed) = (first, 0);
        while at < end && freed < PARITIES_FREED_MAX {
            let place = self.integrity.parity().of(at);
            if place.is_some_and(|place| !self.index.slabs().is_usable(place.slot))
                && self.is_movable(at)
            {
                let valid = self.index.get(at).valid;
                self.integrity.verify_before(self.index, at, 0, out);
                self.index.change(at, valid);
                self.integrity.free_parity(at, self.index);
                freed += 1;
            }
            at += 1;
        }
        let is_end = at as usize >= self.index.capacity();
        slabs_mut(self.index).search_mut().parity = if is_end { 0 } else { at };
        freed > 0
    }
}
