//! The end of an operation: what it brought becomes true, and whoever waited is told.

use crate::index::meta::{DETACHED, LineTable, NO_SLOT};
use crate::ops::{Op, OpKind, OpLine, WaitFor};
use crate::sabotage::PlantedBug;
use crate::{Answer, IoId, Note, Outbox, Outcome, Shard, Slot};
use forebay_types::{IoResult, Mode};

impl<M: LineTable> Shard<M> {
    /// One I/O has ended. To be called once for each [`crate::IoAction`].
    pub fn complete(&mut self, id: IoId, result: IoResult, now_ms: u64, out: &mut Outbox) {
        self.gates.now_ms = now_ms;
        if self.flight.gated_mut(id).is_some() {
            self.complete_gated(id, result, now_ms, out);
        } else {
            self.ended(id, result, now_ms, out);
        }
    }

    /// An I/O of one operation has ended.
    pub(crate) fn ended(&mut self, id: IoId, result: IoResult, now_ms: u64, out: &mut Outbox) {
        let Some(op) = self.flight.finish_io(id.op, id.generation, result.err()) else { return };
        let ok = op.error.is_none();
        let state = self.volume_mut(op.volume);
        state.operations -= 1;
        match op.kind {
            OpKind::Fill => {
                state.counters.fill_errors += u64::from(!ok);
                self.each_slot(&op, |shard, line| shard.filled(line, ok, out));
            }
            OpKind::WriteThrough => {
                state.counters.write_errors += u64::from(!ok);
                self.regain(&op, ok);
                self.each_slot(&op, |shard, line| shard.filled(line, ok, out));
                self.drop_regained(&op);
            }
            OpKind::Destage => {
                state.destaging -= 1;
                state.elevator.ended(op.lines.len());
                state.elevator.release(state.elevator_shard);
                self.destaging_lines -= op.lines.len();
                self.note_destage(&op, now_ms);
                self.each_slot(&op, |shard, line| shard.destaged(line, &op));
            }
            OpKind::DestagePart => {
                state.counters.destage_errors += u64::from(!ok);
                self.each_slot(&op, |shard, line| shard.destaged_part(line, ok));
            }
            OpKind::Erase => self.each_slot(&op, |shard, line| shard.erased(line, ok, out)),
            OpKind::DirectRead => {}
        }
        if self.mode(op.volume) == Mode::Bypass {
            self.let_go(&op);
        }
        if let (Some(part), Some((kind, range)), true) = (op.part, op.note.clone(), ok) {
            // NOT YET ACKNOWLEDGED: an older record of the place would undo the change after a
            // crash. It is when the journal has this one.
            out.notes.push(Note { part, volume: op.volume, range, kind });
        } else if let Some(part) = op.part {
            // ACKNOWLEDGED: a write through the cache is on the disk (on stable storage if it was
            // FUA), an erase has been done, a direct read has its data.
            let outcome = Outcome::Done(op.error.map_or(Ok(()), Err));
            out.answers.push(Answer { part, outcome });
        }
        let lost = !ok && self.is_planted(PlantedBug::LoseWaitersOnError);
        for &(part, wait_for) in op.waiters.iter().filter(|_| !lost) {
            let outcome = match (wait_for, op.error) {
                (WaitFor::Verdict, Some(error)) => Outcome::Done(Err(error)),
                (WaitFor::Result, error) => Outcome::Retry(error),
                (WaitFor::End | WaitFor::Verdict, _) => Outcome::Retry(None),
            };
            out.answers.push(Answer { part, outcome });
        }
        self.resume_flushes(op.volume, now_ms, out);
        if op.kind == OpKind::Destage {
            self.give_room(op.volume, now_ms, out);
        }
    }

    fn each_slot(&mut self, op: &Op, mut end: impl FnMut(&mut Self, &OpLine)) {
        for line in op.lines.iter().filter(|line| line.slot != NO_SLOT) {
            end(self, line);
            self.slots.unpin(line.slot);
        }
    }

    /// The sectors hold what the disk holds, or nothing.
    fn filled(&mut self, line: &OpLine, ok: bool, out: &mut Outbox) {
        let too_much = self.is_planted(PlantedBug::FillMarksTooMuch);
        let meta = *self.slots.get(line.slot);
        if meta.has(DETACHED) {
            // A payload that was written from the pool and is not kept there.
        } else if ok {
            let filled = if too_much { 0xff } else { line.mask };
            if line.mask != 0 {
                self.verify_before(line.slot, filled, out);
                self.slots.change(line.slot, meta.valid | filled);
            }
        } else if meta.valid == 0 && meta.dirty == 0 {
            self.slots.drop_line(line.slot);
        }
    }

    /// The disk has been written where sectors were lost.
    fn regain(&mut self, op: &Op, ok: bool) {
        for line in op.lines.iter().filter(|line| ok && line.regained != 0) {
            if let Some(slot) = self.slots.find(line.key) {
                self.settle_lost(slot, line.regained);
            }
        }
    }

    /// Lines that were kept for what was lost of them, and hold nothing else.
    fn drop_regained(&mut self, op: &Op) {
        for line in op.lines.iter().filter(|line| line.regained != 0) {
            if let Some(slot) = self.slots.find(line.key) {
                let meta = self.slots.get(slot);
                if meta.valid == 0 && meta.dirty == 0 {
                    self.slots.drop_line(slot);
                }
            }
        }
    }

    /// Drops the clean lines of an operation on a volume that has no place in the pool any more:
    /// who dropped the clean ones with the change of mode found these busy or dirty.
    fn let_go(&mut self, op: &Op) {
        if self.is_planted(PlantedBug::KeepLinesInBypass) {
            return;
        }
        for line in &op.lines {
            if let Some(slot) = self.slots.find(line.key) {
                self.drop_if_idle(slot);
            }
        }
    }

    fn destaged(&mut self, line: &OpLine, op: &Op) {
        if line.mask == 0 {
            return;
        }
        if op.is_wide && op.error.is_some() {
            // What is dirty is tried again, unless it was lost meanwhile.
            if self.slots.get(line.slot).destageable() == 0 {
                self.volume_mut(op.volume).flushed(line.slot, op.error);
            }
            return self.wait_again(line);
        }
        let volume = op.volume;
        let ok = op.error.is_none() || self.is_planted(PlantedBug::CleanAfterFailedDestage);
        let meta = self.slots.get_mut(line.slot);
        // A line that was written again meanwhile has moved, and is dirty where it is now.
        if ok && !meta.has(DETACHED) {
            meta.dirty &= !line.mask;
            if meta.dirty == 0 {
                self.cleaned(line.slot);
            }
        }
        self.volume_mut(volume).flushed(line.slot, op.error);
        self.wait_again(line);
        self.destaged_in_order(line, ok);
    }

    /// A line is dirty after its destage: that has failed, or the line was written meanwhile.
    fn wait_again(&mut self, line: &OpLine) {
        let there = self.slots.get(line.slot);
        if there.dirty == 0 && !there.has(DETACHED) {
            return;
        }
        if self.slots.find(line.key).is_some_and(|slot| self.slots.get(slot).dirty != 0) {
            self.volume_mut(line.key.volume()).wait_in_line(line.key.line());
        }
    }

    /// Some dirty sectors of a line are on the disk. What waits for the line waits for the rest.
    fn destaged_part(&mut self, line: &OpLine, ok: bool) {
        if !ok {
            return;
        }
        let meta = self.slots.get_mut(line.slot);
        meta.dirty &= !line.mask;
        if meta.dirty == 0 {
            self.cleaned(line.slot);
            self.volume_mut(line.key.volume()).flushed(line.slot, None);
        }
    }

    fn erased(&mut self, line: &OpLine, ok: bool, out: &mut Outbox) {
        let keep = self.is_planted(PlantedBug::KeepValidAfterErase);
        if ok {
            // The disk has zeroes: a process that finds the sectors valid and clean is misled.
            self.slots.doubt(line.slot, line.mask);
        }
        self.verify_before(line.slot, line.mask, out);
        let meta = *self.slots.get(line.slot);
        if ok {
            let was_dirty = meta.dirty != 0;
            self.found_again(line.slot, line.mask);
            self.slots.change(line.slot, meta.valid & if keep { 0xff } else { !line.mask });
            let meta = self.slots.get_mut(line.slot);
            meta.dirty &= !line.mask;
            let (valid, dirty) = (meta.valid, meta.dirty);
            if was_dirty && dirty == 0 {
                self.cleaned(line.slot);
                self.volume_mut(line.key.volume()).flushed(line.slot, None);
            }
            if valid == 0 && dirty == 0 {
                self.slots.drop_line(line.slot);
            }
        } else {
            // The disk may hold either content now; only dirty data is still known to be right.
            let valid = meta.valid & !(line.mask & !meta.dirty);
            self.slots.change(line.slot, valid);
            if valid == 0 && meta.dirty == 0 {
                self.slots.drop_line(line.slot);
            }
        }
    }

    /// A line has no dirty sector any more.
    pub(crate) fn cleaned(&mut self, slot: Slot) {
        let key = self.slots.get(slot).key;
        let volume = key.volume();
        self.dirty_lines -= 1;
        let state = self.volume_mut(volume);
        state.dirty.remove(slot);
        state.aged.remove(slot);
        state.leave_line(key.line());
        if let Some(order) = &mut state.order {
            order.forget(key, slot);
        }
        self.parity.give_back(slot, &mut self.slots);
    }
}
