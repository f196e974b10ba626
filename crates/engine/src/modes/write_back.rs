//! Write-back: acknowledged from memory, destaged later.

use super::{Through, WriteOutcome, Writer};
use crate::index::key::line_parts;
use crate::index::meta::LineTable;
use crate::ops::OpKind;
use crate::sabotage::PlantedBug;
use crate::{Attempt, LineMeta, MemoryStep, Outbox, Part, Slot, Touched};
use forebay_policy::Hint;
use forebay_types::LINE_BYTES;

impl<M: LineTable> Writer<'_, M> {
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
        let heed = !self.lines.planted.is(PlantedBug::IgnoreBusyInWriteBack);
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
        for at in 0..self.scratch.lines.len() {
            let (line, slot) = self.scratch.lines[at];
            let slot = slot.expect("every line of the part was given a slot");
            self.verify_before_write(slot, line.mask, out);
            out.memory.push(MemoryStep::Fill {
                slot,
                offset: line.offset,
                payload_offset,
                len: line.len,
            });
            payload_offset += line.len;
            self.lines.mark_dirty(slot, line.mask, now_ms);
            self.lines.index.unpin(slot);
        }
        self.count_write(touched);
        self.boost(part);
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
        let Some(slot) = self.lines.index.find(line.key) else { return false };
        // Every operation pins the slots it uses, so a line without a pin is not busy.
        let LineMeta { pins, dirty: was_dirty, .. } = *self.lines.index.get(slot);
        if pins > 0 {
            return false;
        }
        self.lines.index.touch(slot);
        let Some(slot) = self.slot_to_change(slot, line.mask, out) else { return false };
        self.verify_before_write(slot, line.mask, out);
        let fill = MemoryStep::Fill { slot, offset: line.offset, payload_offset: 0, len: line.len };
        out.memory.push(fill);
        self.lines.mark_dirty(slot, line.mask, now_ms);
        self.count_write(Touched { hits: 1, misses: 0 });
        // Where all writes are boosted, a line that was dirty has been boosted already.
        if was_dirty == 0 || self.lines.volume.gather_below() > 0 {
            self.boost(part);
        }
        self.written_back(part, now_ms, out);
        // ACKNOWLEDGED: as below.
        true
    }

    /// The slot for a write to a line that nobody uses: its own, or, where dirty sectors are
    /// written over or are of an epoch that is over, another one. Half a sector of each would be
    /// all that is left of something acknowledged if the process were killed meanwhile.
    fn slot_to_change(&mut self, slot: Slot, mask: u8, out: &mut Outbox) -> Option<Slot> {
        let line = self.lines.index.get(slot);
        let free = line.dirty & mask == 0 || self.lines.planted.is(PlantedBug::OverwriteDirty);
        if free && !self.lines.is_closed(line) {
            return Some(slot);
        }
        let new = self.lines.index.reserve(self.lines.index.get(slot).key, Hint::Normal)?;
        self.lines.index.pin(slot);
        self.lines.move_to(slot, new, mask, out);
        self.lines.index.unpin(new);
        Some(new)
    }

    /// Gives every line in the scratch list a pinned slot that nobody else is using; or none of
    /// them, and takes the pins away, when there are too few. A line that moved for nothing would
    /// still be dirty after the destage that it was moved out of, and so be destaged for ever.
    fn claim_slots(&mut self, out: &mut Outbox) -> bool {
        if !self.reserve_slots() {
            for at in 0..self.scratch.lines.len() {
                if let Some(slot) = self.scratch.lines[at].1 {
                    self.lines.index.unpin(slot);
                }
            }
            return false;
        }
        // The last slot reserved is for the last line that needs one.
        for at in (0..self.scratch.lines.len()).rev() {
            let (line, found) = self.scratch.lines[at];
            let slot = match found {
                Some(slot) if self.may_overwrite(slot, line.mask) => {
                    self.lines.index.touch(slot);
                    slot
                }
                _ => {
                    let new =
                        self.scratch.reserved.pop().expect("a slot is reserved for each such line");
                    match found {
                        None => {
                            self.lines.index.place(new, line.key, Hint::Normal);
                            self.lines.index.pin(new);
                        }
                        Some(old) => self.lines.move_to(old, new, line.mask, out),
                    }
                    new
                }
            };
            self.scratch.lines[at].1 = Some(slot);
        }
        assert!(self.scratch.reserved.is_empty());
        true
    }

    /// Reserves a slot for each line in the scratch list that is absent, in use by others, or dirty
    /// where it is written. A sector that changed under a reply could be sent half old and half
    /// new, so such a line moves.
    fn reserve_slots(&mut self) -> bool {
        assert!(self.scratch.reserved.is_empty());
        for at in 0..self.scratch.lines.len() {
            let (line, found) = self.scratch.lines[at];
            if found.is_some_and(|slot| self.may_overwrite(slot, line.mask)) {
                continue;
            }
            let Some(slot) = self.lines.index.reserve(line.key, Hint::Normal) else {
                while let Some(slot) = self.scratch.reserved.pop() {
                    self.lines.index.free_slot(slot);
                }
                return false;
            };
            self.scratch.reserved.push(slot);
        }
        true
    }

    /// Whether nobody but the write at hand, which has it pinned, uses a slot, nothing that is only
    /// there is written over, and it is not of an epoch that is over.
    fn may_overwrite(&self, slot: Slot, mask: u8) -> bool {
        let line = self.lines.index.get(slot);
        let unused = line.pins == 1 || self.lines.planted.is(PlantedBug::OverwritePinned);
        let free = line.dirty & mask == 0 || self.lines.planted.is(PlantedBug::OverwriteDirty);
        unused && free && !self.lines.is_closed(line)
    }

    fn verify_before_write(&self, slot: Slot, mask: u8, out: &mut Outbox) {
        if !self.lines.planted.is(PlantedBug::ChangeUnverified) {
            self.lines.verify_before(slot, mask, out);
        }
    }

    /// Has the lines of a write that is not worth holding back go soon.
    pub(super) fn boost(&mut self, part: &Part) {
        let state = &mut *self.lines.volume;
        if part.range.len >= state.gather_below() {
            let lines = line_parts(part.volume, part.range);
            lines.for_each(|line| state.writeback_mut().boost(line.key.line()));
        }
    }

    /// The lines of a part are dirty.
    pub(super) fn written_back(&mut self, part: &Part, now_ms: u64, out: &mut Outbox) {
        self.lines.volume.counters_mut().writes_back += 1;
        let line = part.range.offset / LINE_BYTES;
        self.lines.destager().notify_elevator(line, now_ms, out);
    }
}
