//! Write-back: acknowledged from memory, destaged later.

use super::{Through, WriteOutcome};
use crate::flight::OpKind;
use crate::meta::LineTable;
use crate::{Attempt, MemoryStep, Outbox, Part, Shard, Slot};
use forebay_policy::Hint;

/// Why a line of a write got no slot to be written to.
enum NoSlot {
    /// Every line is dirty or in use.
    NoRoom,
    /// The line is being destaged by this operation and can't be moved.
    Destaging(u32),
}

impl<M: LineTable> Shard<M> {
    pub(super) fn write_back(
        &mut self,
        part: &Part,
        attempt: Attempt,
        out: &mut Outbox,
    ) -> WriteOutcome {
        // A line being destaged may be written: it moves to another slot first.
        if self.wait_if_busy(part, |kind| kind != OpKind::Destage) {
            return WriteOutcome::Waiting;
        }
        self.look_up_pinned(part);
        match self.claim_slots(out) {
            Ok(()) => {}
            Err(NoSlot::NoRoom) => {
                self.unclaim_slots();
                return self.write_through(part, false, Through::NoRoom, attempt, out);
            }
            Err(NoSlot::Destaging(op)) => {
                self.unclaim_slots();
                self.wait(op, part);
                return WriteOutcome::Waiting;
            }
        }
        let mut payload_offset = 0;
        for at in 0..self.scratch.len() {
            let (line, slot) = self.scratch[at];
            let slot = slot.expect("every line of the part was given a slot");
            out.memory.push(MemoryStep::Fill {
                slot,
                offset: line.offset,
                payload_offset,
                len: line.len,
            });
            payload_offset += line.len;
            self.mark_dirty(slot, line.mask);
            self.slots.unpin(slot);
        }
        self.volume_mut(part.volume).counters.writes_back += 1;
        // ACKNOWLEDGED: the data is in the pool, and nowhere else. It outlives nothing but what
        // the volume's protection covers; a FLUSH brings it to the disk.
        WriteOutcome::Done
    }

    /// Gives every line in the scratch list a pinned slot that nobody else is using.
    fn claim_slots(&mut self, out: &mut Outbox) -> Result<(), NoSlot> {
        for at in 0..self.scratch.len() {
            let (line, found) = self.scratch[at];
            let slot = match found {
                None => {
                    let slot =
                        self.slots.allocate(line.key, Hint::Normal).ok_or(NoSlot::NoRoom)?;
                    self.slots.pin(slot);
                    slot
                }
                Some(slot) if self.slots.get(slot).pins == 1 => {
                    self.slots.touch(slot);
                    slot
                }
                Some(slot) => match self.move_away(slot, out) {
                    Some(new) => new,
                    None => match self.flight.busy(line.key) {
                        Some((op, _)) => return Err(NoSlot::Destaging(op)),
                        // Only replies on their way to clients use the line. They may carry either
                        // content, since the write is concurrent with the reads they answer.
                        None => slot,
                    },
                },
            };
            self.scratch[at].1 = Some(slot);
        }
        Ok(())
    }

    /// Lets go of the slots that [`Self::claim_slots`] got hold of before it failed.
    fn unclaim_slots(&mut self) {
        for at in 0..self.scratch.len() {
            if let Some(slot) = self.scratch[at].1.take() {
                self.unclaim(slot);
            }
        }
    }

    fn unclaim(&mut self, slot: Slot) {
        if self.slots.get(slot).valid == 0 && self.slots.get(slot).pins == 1 {
            self.slots.drop_line(slot);
        }
        self.slots.unpin(slot);
    }

    fn mark_dirty(&mut self, slot: Slot, mask: u8) {
        let line = self.slots.get_mut(slot);
        let (key, was_clean) = (line.key, line.dirty == 0);
        line.valid |= mask;
        line.dirty |= mask;
        if was_clean {
            self.dirty_lines += 1;
            self.volume_mut(key.volume()).dirty.insert(slot);
        }
    }
}
