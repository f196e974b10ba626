//! Write-back: acknowledged from memory, destaged later.

use super::{Through, WriteOutcome};
use crate::index::key::line_parts;
use crate::index::meta::{LineTable, SEALED};
use crate::ops::OpKind;
use crate::sabotage::PlantedBug;
use crate::{Attempt, MemoryStep, Outbox, Part, Shard, Slot};
use forebay_policy::Hint;

impl<M: LineTable> Shard<M> {
    pub(super) fn write_back(
        &mut self,
        part: &Part,
        fua: bool,
        attempt: Attempt,
        out: &mut Outbox,
    ) -> WriteOutcome {
        if self.overwrite_line(part, out) {
            return WriteOutcome::Done;
        }
        // A line being destaged may be written: it moves to another slot first.
        let heed = !self.is_planted(PlantedBug::IgnoreBusyInWriteBack);
        if self.wait_if_busy(part, |kind| heed && kind != OpKind::Destage) {
            return WriteOutcome::Waiting;
        }
        let touched = self.look_up_pinned(part);
        if !self.claim_slots(out) {
            // Destages hold what is missing: they are on their way, and the way through would be
            // behind them all.
            if self.waits_for_room(part, self.gates.now_ms, attempt, out) {
                return WriteOutcome::Waiting;
            }
            return self.write_through(part, fua, Through::NoRoom, attempt, out);
        }
        let mut payload_offset = 0;
        for at in 0..self.scratch.len() {
            let (line, slot) = self.scratch[at];
            let slot = slot.expect("every line of the part was given a slot");
            self.verify_before_write(slot, line.mask, out);
            out.memory.push(MemoryStep::Fill {
                slot,
                offset: line.offset,
                payload_offset,
                len: line.len,
            });
            payload_offset += line.len;
            self.mark_dirty(slot, line.mask);
            self.hurry(part, slot);
            self.slots.unpin(slot);
        }
        self.count_write(part, touched);
        self.volume_mut(part.volume).counters.writes_back += 1;
        self.tell_elevator(part, out);
        // ACKNOWLEDGED: the data is in the pool, and nowhere else. It outlives nothing but what
        // the volume's protection covers; a FLUSH brings it to the disk.
        WriteOutcome::Done
    }

    /// The common case by a short way: a write of one line that is there and that nobody uses.
    /// Returns whether it was that, and could be done.
    fn overwrite_line(&mut self, part: &Part, out: &mut Outbox) -> bool {
        let mut lines = line_parts(part.volume, part.range);
        let (Some(line), None) = (lines.next(), lines.next()) else { return false };
        let Some(slot) = self.slots.find(line.key) else { return false };
        // Every operation pins the slots it uses, so a line without a pin is not busy.
        if self.slots.get(slot).pins > 0 {
            return false;
        }
        self.slots.touch(slot);
        let Some(slot) = self.slot_to_change(slot, line.mask, out) else { return false };
        self.verify_before_write(slot, line.mask, out);
        let fill = MemoryStep::Fill { slot, offset: line.offset, payload_offset: 0, len: line.len };
        out.memory.push(fill);
        self.mark_dirty(slot, line.mask);
        self.hurry(part, slot);
        let counters = &mut self.volume_mut(part.volume).counters;
        counters.write_hit_lines += 1;
        counters.writes_back += 1;
        self.tell_elevator(part, out);
        // ACKNOWLEDGED: as below.
        true
    }

    /// The slot for a write to a line that nobody uses: its own, or, where dirty sectors are
    /// written over or are of an epoch that is over, another one. Half a sector of each would be
    /// all that is left of something acknowledged if the process were killed meanwhile.
    fn slot_to_change(&mut self, slot: Slot, mask: u8, out: &mut Outbox) -> Option<Slot> {
        let line = self.slots.get(slot);
        let free = line.dirty & mask == 0 || self.is_planted(PlantedBug::OverwriteDirty);
        if free && !self.is_closed(slot, line) {
            return Some(slot);
        }
        let new = self.slots.reserve(self.slots.get(slot).key, Hint::Normal)?;
        self.slots.pin(slot);
        self.move_to(slot, new, mask, out);
        self.slots.unpin(new);
        Some(new)
    }

    /// Gives every line in the scratch list a pinned slot that nobody else is using; or none of
    /// them, and takes the pins away, when there are too few. A line that moved for nothing would
    /// still be dirty after the destage that it was moved out of, and so be destaged for ever.
    fn claim_slots(&mut self, out: &mut Outbox) -> bool {
        if !self.reserve_slots() {
            for at in 0..self.scratch.len() {
                if let Some(slot) = self.scratch[at].1 {
                    self.slots.unpin(slot);
                }
            }
            return false;
        }
        // The last slot reserved is for the last line that needs one.
        for at in (0..self.scratch.len()).rev() {
            let (line, found) = self.scratch[at];
            let slot = match found {
                Some(slot) if self.may_overwrite(slot, line.mask) => {
                    self.slots.touch(slot);
                    slot
                }
                _ => {
                    let new = self.reserved.pop().expect("a slot is reserved for each such line");
                    match found {
                        None => {
                            self.slots.place(new, line.key, Hint::Normal);
                            self.slots.pin(new);
                        }
                        Some(old) => self.move_to(old, new, line.mask, out),
                    }
                    new
                }
            };
            self.scratch[at].1 = Some(slot);
        }
        assert!(self.reserved.is_empty());
        true
    }

    /// Reserves a slot for each line in the scratch list that is absent, in use by others, or dirty
    /// where it is written. A sector that changed under a reply could be sent half old and half
    /// new, so such a line moves.
    fn reserve_slots(&mut self) -> bool {
        assert!(self.reserved.is_empty());
        for at in 0..self.scratch.len() {
            let (line, found) = self.scratch[at];
            if found.is_some_and(|slot| self.may_overwrite(slot, line.mask)) {
                continue;
            }
            let Some(slot) = self.slots.reserve(line.key, Hint::Normal) else {
                while let Some(slot) = self.reserved.pop() {
                    self.slots.free_slot(slot);
                }
                return false;
            };
            self.reserved.push(slot);
        }
        true
    }

    /// Whether nobody but the write at hand, which has it pinned, uses a slot, nothing that is only
    /// there is written over, and it is not of an epoch that is over.
    fn may_overwrite(&self, slot: Slot, mask: u8) -> bool {
        let line = self.slots.get(slot);
        let unused = line.pins == 1 || self.is_planted(PlantedBug::OverwritePinned);
        let free = line.dirty & mask == 0 || self.is_planted(PlantedBug::OverwriteDirty);
        unused && free && !self.is_closed(slot, line)
    }

    fn verify_before_write(&self, slot: Slot, mask: u8, out: &mut Outbox) {
        if !self.is_planted(PlantedBug::ChangeUnverified) {
            self.verify_before(slot, mask, out);
        }
    }

    /// A line of a write that is not held back goes as if it were old enough, or with the elevator
    /// if that runs.
    pub(super) fn hurry(&mut self, part: &Part, slot: Slot) {
        let state = self.volume_mut(part.volume);
        if part.range.len >= state.gather_below && !state.elevator.is_called() {
            state.aged.insert(slot);
        }
    }

    /// Says that a write has changed sectors of a line, which are newer than the disk's now.
    pub(super) fn mark_dirty(&mut self, slot: Slot, mask: u8) {
        let line = *self.slots.get(slot);
        if line.lost() & mask != 0 {
            self.found_again(slot, mask);
        }
        let (key, was_clean) = self.slots.mark_dirty(slot, mask);
        if self.is_planted(PlantedBug::KeepSeal) {
            self.slots.get_mut(slot).flags |= line.flags & SEALED;
        }
        if self.is_planted(PlantedBug::TrustFilling) {
            self.slots.believe();
        }
        if was_clean {
            self.dirty_lines += 1;
            self.dirtied_ms = self.gates.now_ms;
            let state = self.volume_mut(key.volume());
            state.dirty.insert(slot);
            state.wait_in_line(key.line());
            if let Some(order) = &mut state.order {
                order.touch(slot);
            }
        }
    }
}
