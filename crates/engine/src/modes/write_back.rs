//! Write-back: a write is acknowledged from memory and destaged later.

use super::{PartWriter, Through, WriteOutcome};
use crate::index::shares::Taker;
use crate::line::key::{line_parts, only_line};
use crate::line::meta::LineTable;
use crate::ops::OpKind;
use crate::sabotage::PlantedBug;
use crate::{Attempt, LineHits, LineMeta, MemoryStep, Outbox, Part, Slot};
use forebay_policy::Hint;
use forebay_types::LINE_BYTES;

impl<M: LineTable> PartWriter<'_, M> {
    pub(super) fn write_back(
        &mut self,
        part: &Part,
        fua: bool,
        attempt: Attempt,
        now_ms: u64,
        out: &mut Outbox,
    ) -> WriteOutcome {
        // A line being destaged may be written: it is relocated first.
        let may_wait = !self.lines.planted.is(PlantedBug::IgnoreBusyInWriteBack);
        if self.wait_if_busy(part, |kind| may_wait && kind != OpKind::Destage, out) {
            return WriteOutcome::Waiting;
        }
        let line_hits = self.look_up_pinned(part);
        if !self.claim_slots(out) {
            // Wait for the destages that occupy the missing slots: they are in flight already, and
            // a write-through would queue behind them.
            if self.throttle(part, now_ms, attempt, out) {
                return WriteOutcome::Waiting;
            }
            return self.write_through(part, fua, Through::NoRoom, attempt, now_ms, out);
        }
        let mut payload_offset = 0;
        for at in 0..self.scratch.lines.len() {
            let (line, slot) = self.scratch.lines[at];
            let slot = slot.expect("`claim_slots` gave every line a slot");
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
        self.count_write(part, line_hits, out);
        self.boost(part);
        self.finish_write_back(part, now_ms, out);
        // ACKNOWLEDGED, unless the answer waits for its record in the journal
        // (`JournalRecording::Answers`): the data is only in the pool. It survives only what the
        // volume's protection covers; a FLUSH makes it durable on the disk.
        WriteOutcome::Done
    }

    /// Fast path: overwrites the only line of a part, which was found in a slot. Returns false if
    /// the slot is pinned, if the line is in a conflicting operation, or if the write needs a slot
    /// and finds none.
    pub(super) fn overwrite_line(
        &mut self,
        part: &Part,
        (slot, found): (Slot, LineMeta),
        now_ms: u64,
        out: &mut Outbox,
    ) -> bool {
        let line = only_line(part.volume, part.range).expect("the part is one line");
        let LineMeta { pins, dirty: was_dirty, .. } = found;
        // Two operations keep a line busy without a pin on its slot: a destage from an older slot,
        // which does not conflict, and a staged write past the pool, which does.
        let busy = self.lines.ops.busy(line.key);
        if pins > 0 || busy.is_some_and(|(_, kind)| kind != OpKind::Destage) {
            return false;
        }
        self.lines.index.touch(slot, Hint::Write);
        let Some(slot) = self.slot_to_change(slot, line.mask, out) else { return false };
        self.verify_before_write(slot, line.mask, out);
        let fill = MemoryStep::Fill { slot, offset: line.offset, payload_offset: 0, len: line.len };
        out.memory.push(fill);
        self.lines.mark_dirty(slot, line.mask, now_ms);
        self.count_write(part, LineHits::ONE_HIT, out);
        // If even the smallest write is boosted, a line that was dirty has been boosted already.
        if was_dirty == 0 || self.lines.volume.gather_below() > 0 {
            self.boost(part);
        }
        self.finish_write_back(part, now_ms, out);
        // ACKNOWLEDGED: as in `write_back`.
        true
    }

    /// The slot for a write to an unpinned line: its own, or a new one if the write overwrites
    /// dirty sectors or the line belongs to a closed epoch. If the process were killed during the
    /// copy, dirty sectors overwritten in place would be neither old nor new.
    fn slot_to_change(&mut self, slot: Slot, mask: u8, out: &mut Outbox) -> Option<Slot> {
        let line = self.lines.index.get(slot);
        let free = line.dirty & mask == 0 || self.lines.planted.is(PlantedBug::OverwriteDirty);
        if free && !self.lines.is_closed(line) {
            return Some(slot);
        }
        let new = self.lines.index.reserve(Taker::Data(self.lines.id))?;
        self.lines.index.pin(slot);
        self.lines.move_to(slot, new, mask, out);
        self.lines.index.unpin(new);
        Some(new)
    }

    /// Gives every line in the scratch list a pinned slot that only this write uses. If there are
    /// too few slots, relocates nothing, unpins all lines and returns false. A line relocated in
    /// vain would still be dirty after the destage of its old slot, and be destaged repeatedly.
    fn claim_slots(&mut self, out: &mut Outbox) -> bool {
        if !self.reserve_slots() {
            for at in 0..self.scratch.lines.len() {
                if let Some(slot) = self.scratch.lines[at].1 {
                    self.lines.index.unpin(slot);
                }
            }
            return false;
        }
        // Slots were reserved in ascending order of the lines.
        for at in (0..self.scratch.lines.len()).rev() {
            let (line, found) = self.scratch.lines[at];
            let slot = match found {
                Some(slot) if self.may_overwrite(slot, line.mask) => {
                    self.lines.index.touch(slot, Hint::Write);
                    slot
                }
                _ => {
                    let new = self.scratch.reserved.pop().expect("a slot is reserved per line");
                    match found {
                        None => {
                            self.lines.index.place(new, line.key, Hint::Write);
                            self.lines.index.pin(new);
                            self.mark_buffered(new);
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

    /// Reserves a slot for each line in the scratch list that is absent or that
    /// [`PartWriter::may_overwrite`] rejects: otherwise a reply that is being sent could be half
    /// old and half new, and a kill could leave a dirty sector half written.
    fn reserve_slots(&mut self) -> bool {
        assert!(self.scratch.reserved.is_empty());
        let (volume, mut reserved) = (self.lines.id, 0);
        for at in 0..self.scratch.lines.len() {
            let (line, found) = self.scratch.lines[at];
            if found.is_some_and(|slot| self.may_overwrite(slot, line.mask)) {
                continue;
            }
            let taker = match found {
                Some(_) => Taker::Data(volume),
                None => Taker::Line { volume, reserved },
            };
            let Some(slot) = self.lines.index.reserve(taker) else {
                while let Some(slot) = self.scratch.reserved.pop() {
                    self.lines.index.free_slot(slot);
                }
                return false;
            };
            self.scratch.reserved.push(slot);
            reserved += usize::from(found.is_none());
        }
        true
    }

    /// Whether a slot that the current write has pinned can be overwritten in place: it has no
    /// other pin, no dirty sector is overwritten, and it belongs to no closed epoch.
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

    /// Boosts the lines of a write that is too long to be worth gathering.
    pub(super) fn boost(&mut self, part: &Part) {
        let state = &mut *self.lines.volume;
        if part.range.len >= state.gather_below() {
            let lines = line_parts(part.volume, part.range);
            lines.for_each(|line| state.writeback_mut().boost(line.key.line()));
        }
    }

    /// Counts a part whose lines have been made dirty, and notifies the elevator.
    pub(super) fn finish_write_back(&mut self, part: &Part, now_ms: u64, out: &mut Outbox) {
        self.lines.volume.counters_mut().writes_back += 1;
        let line = part.range.offset / LINE_BYTES;
        self.lines.destager().notify_elevator(line, now_ms, out);
    }
}
