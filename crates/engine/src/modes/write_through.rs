//! Write-through: acknowledged when the disk has it, and kept in memory for reads.

use super::{Source, Through, WriteOutcome};
use crate::flight::{OpKind, OpLine, WaitFor};
use crate::meta::{LineTable, NO_SLOT};
use crate::read::push_run;
use crate::sabotage::PlantedBug;
use crate::shard::{emit, operation};
use crate::{Attempt, IoVerb, MemoryStep, Outbox, Part, Place, Segment, Shard, Slot};
use forebay_policy::Hint;

impl<M: LineTable> Shard<M> {
    pub(super) fn write_through(
        &mut self,
        part: &Part,
        fua: bool,
        why: Through,
        attempt: Attempt,
        out: &mut Outbox,
    ) -> WriteOutcome {
        if self.wait_if_busy(part, |_| true) {
            return WriteOutcome::Waiting;
        }
        if !self.is_planted(PlantedBug::SkipDestageUnderWrite)
            && let Some(outcome) = self.destage_under(part, attempt, out)
        {
            return outcome;
        }
        self.count_through(part, why);
        self.look_up_pinned(part);
        for at in 0..self.scratch.len() {
            let (line, found) = self.scratch[at];
            self.scratch[at].1 = match found {
                Some(slot) => self.slot_to_overwrite(slot, line.mask, out),
                None => self.slots.allocate(line.key, Hint::Normal).inspect(|&slot| {
                    self.slots.pin(slot);
                }),
            };
        }
        self.start_write(part, fua, Source::Payload, out);
        // NOT YET ACKNOWLEDGED: `complete` does it, when the disk has said that it has the data
        // (on stable storage if `fua`). Until then the sectors are invalid, and reads of them wait.
        WriteOutcome::Started
    }

    /// A clean line that is there and pinned by us: the slot to overwrite, or none if others use
    /// it and there is no other; the line is then forgotten.
    fn slot_to_overwrite(&mut self, slot: Slot, mask: u8, out: &mut Outbox) -> Option<Slot> {
        if self.slots.get(slot).pins == 1 {
            self.slots.touch(slot);
            return Some(slot);
        }
        let moved = self.move_away(slot, mask, out);
        if moved.is_none() {
            self.slots.drop_line(slot);
            self.slots.unpin(slot);
        }
        moved
    }

    /// Lines of the part that are dirty must reach the disk first: what the write does not cover
    /// of them would be lost if it failed half-way. Waits for that, or gives up if it failed.
    pub(super) fn destage_under(
        &mut self,
        part: &Part,
        attempt: Attempt,
        out: &mut Outbox,
    ) -> Option<WriteOutcome> {
        let dirty = crate::key::line_parts(part.volume, part.range).find(|line| {
            let found = self.slots.find(line.key);
            found.is_some_and(|slot| self.slots.get(slot).dirty != 0)
        })?;
        if let Some(error) = attempt.error {
            return Some(WriteOutcome::Failed(error));
        }
        let op = self.start_destage(dirty.key, true, out);
        self.wait(op, part, WaitFor::Result);
        Some(WriteOutcome::Waiting)
    }

    /// Starts the write of the part whose lines and slots, pinned, are in the scratch list.
    pub(super) fn start_write(&mut self, part: &Part, fua: bool, source: Source, out: &mut Outbox) {
        let mut runs = Vec::with_capacity(1);
        let mut lines = Vec::with_capacity(self.scratch.len());
        let mut payload_offset = 0;
        for at in 0..self.scratch.len() {
            let (line, slot) = self.scratch[at];
            let place = match slot {
                None => Place::Private { offset: payload_offset },
                Some(slot) => {
                    if !self.is_planted(PlantedBug::KeepValidInWriteThrough) {
                        self.slots.get_mut(slot).valid &= !line.mask;
                    }
                    let (offset, len) = (line.offset, line.len);
                    if source == Source::Payload {
                        out.memory.push(MemoryStep::Fill { slot, offset, payload_offset, len });
                    }
                    Place::Slot { slot, offset: line.offset }
                }
            };
            let offset = line.key.offset() + u64::from(line.offset);
            push_run(&mut runs, offset, Segment { place, len: line.len }, 0);
            lines.push(OpLine { key: line.key, slot: slot.unwrap_or(NO_SLOT), mask: line.mask });
            payload_offset += line.len;
        }
        debug_assert_eq!(runs.len(), 1, "a part is one range");
        let op = operation(OpKind::WriteThrough, part.volume, lines, Some(part.id), runs.len());
        let id = self.start(op);
        emit(out, id, IoVerb::Write { fua }, part.volume, Some(part.id), runs);
    }
}
