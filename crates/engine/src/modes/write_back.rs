//! Write-back: acknowledged from memory, destaged later.

use super::{Through, WriteOutcome};
use crate::index::key::line_parts;
use crate::index::meta::LineTable;
use crate::ops::OpKind;
use crate::sabotage::PlantedBug;
use crate::{Attempt, MemoryStep, Outbox, Part, Shard, Slot, Touched};
use forebay_policy::Hint;

impl<M: LineTable> Shard<M> {
    pub(super) fn write_back(
        &mut self,
        part: &Part,
        fua: bool,
        attempt: Attempt,
        now_ms: u64,
        out: &mut Outbox,
    ) -> WriteOutcome {
        if self.overwrite_line(part, now_ms, out) {
            return WriteOutcome::Done;
        }
        // A line being destaged may be written: it moves to another slot first.
        let heed = !self.planted.is(PlantedBug::IgnoreBusyInWriteBack);
        if self.wait_if_busy(part, |kind| heed && kind != OpKind::Destage) {
            return WriteOutcome::Waiting;
        }
        let touched = self.look_up_pinned(part);
        if !self.claim_slots(out) {
            // Destages hold what is missing: they are on their way, and the way through would be
            // behind them all.
            if self.throttle(part, now_ms, attempt, out) {
                return WriteOutcome::Waiting;
            }
            return self.write_through(part, fua, Through::NoRoom, attempt, now_ms, out);
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
            self.mark_dirty(slot, line.mask, now_ms);
            self.index.unpin(slot);
        }
        self.count_write(part, touched);
        self.written_back(part, now_ms, out);
        // ACKNOWLEDGED: the data is in the pool, and nowhere else. It outlives nothing but what
        // the volume's protection covers; a FLUSH brings it to the disk.
        WriteOutcome::Done
    }

    /// The common case by a short way: a write of one line that is there and that nobody uses.
    /// Returns whether it was that, and could be done.
    fn overwrite_line(&mut self, part: &Part, now_ms: u64, out: &mut Outbox) -> bool {
        let mut lines = line_parts(part.volume, part.range);
        let (Some(line), None) = (lines.next(), lines.next()) else { return false };
        let Some(slot) = self.index.find(line.key) else { return false };
        // Every operation pins the slots it uses, so a line without a pin is not busy.
        if self.index.get(slot).pins > 0 {
            return false;
        }
        self.index.touch(slot);
        let Some(slot) = self.slot_to_change(slot, line.mask, out) else { return false };
        self.verify_before_write(slot, line.mask, out);
        let fill = MemoryStep::Fill { slot, offset: line.offset, payload_offset: 0, len: line.len };
        out.memory.push(fill);
        self.mark_dirty(slot, line.mask, now_ms);
        self.count_write(part, Touched { hits: 1, misses: 0 });
        self.written_back(part, now_ms, out);
        // ACKNOWLEDGED: as below.
        true
    }

    /// The slot for a write to a line that nobody uses: its own, or, where dirty sectors are
    /// written over or are of an epoch that is over, another one. Half a sector of each would be
    /// all that is left of something acknowledged if the process were killed meanwhile.
    fn slot_to_change(&mut self, slot: Slot, mask: u8, out: &mut Outbox) -> Option<Slot> {
        let line = self.index.get(slot);
        let free = line.dirty & mask == 0 || self.planted.is(PlantedBug::OverwriteDirty);
        if free && !self.is_closed(line) {
            return Some(slot);
        }
        let new = self.index.reserve(self.index.get(slot).key, Hint::Normal)?;
        self.index.pin(slot);
        self.move_to(slot, new, mask, out);
        self.index.unpin(new);
        Some(new)
    }

    /// Gives every line in the scratch list a pinned slot that nobody else is using; or none of
    /// them, and takes the pins away, when there are too few. A line that moved for nothing would
    /// still be dirty after the destage that it was moved out of, and so be destaged for ever.
    fn claim_slots(&mut self, out: &mut Outbox) -> bool {
        if !self.reserve_slots() {
            for at in 0..self.scratch.len() {
                if let Some(slot) = self.scratch[at].1 {
                    self.index.unpin(slot);
                }
            }
            return false;
        }
        // The last slot reserved is for the last line that needs one.
        for at in (0..self.scratch.len()).rev() {
            let (line, found) = self.scratch[at];
            let slot = match found {
                Some(slot) if self.may_overwrite(slot, line.mask) => {
                    self.index.touch(slot);
                    slot
                }
                _ => {
                    let new = self.reserved.pop().expect("a slot is reserved for each such line");
                    match found {
                        None => {
                            self.index.place(new, line.key, Hint::Normal);
                            self.index.pin(new);
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
            let Some(slot) = self.index.reserve(line.key, Hint::Normal) else {
                while let Some(slot) = self.reserved.pop() {
                    self.index.free_slot(slot);
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
        let line = self.index.get(slot);
        let unused = line.pins == 1 || self.planted.is(PlantedBug::OverwritePinned);
        let free = line.dirty & mask == 0 || self.planted.is(PlantedBug::OverwriteDirty);
        unused && free && !self.is_closed(line)
    }

    fn verify_before_write(&self, slot: Slot, mask: u8, out: &mut Outbox) {
        if !self.planted.is(PlantedBug::ChangeUnverified) {
            self.verify_before(slot, mask, out);
        }
    }

    /// The lines of a part are dirty. Those of a write that is not worth holding back are to go soon.
    pub(super) fn written_back(&mut self, part: &Part, now_ms: u64, out: &mut Outbox) {
        let state = self.volume_mut(part.volume);
        state.counters_mut().writes_back += 1;
        if part.range.len >= state.gather_below() {
            let lines = line_parts(part.volume, part.range);
            lines.for_each(|line| state.writeback_mut().boost(line.key.line()));
        }
        self.notify_elevator(part, now_ms, out);
    }

    /// Says that a write has changed sectors of a line, which are newer than the disk's now.
    pub(super) fn mark_dirty(&mut self, slot: Slot, mask: u8, now_ms: u64) {
        let line = *self.index.get(slot);
        if line.lost() & mask != 0 {
            self.found_again(slot, mask);
        }
        let (key, was_clean) = self.index.mark_dirty(slot, mask);
        if self.planted.is(PlantedBug::KeepSeal) {
            self.index.keep_seal(slot, line.flags);
        }
        if self.planted.is(PlantedBug::TrustFilling) {
            self.index.believe();
        }
        if was_clean {
            self.quota.dirtied(now_ms);
            self.volume_mut(key.volume()).writeback_mut().dirtied(key.line());
        }
    }
}
