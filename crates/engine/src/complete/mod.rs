//! Completion of operations: applies the result to the lines, answers the part, and wakes the
//! waiting parts.

mod gathered;

use crate::line::meta::{DETACHED, LineTable, NO_SLOT};
use crate::lines::{VolumeLines, drop_if_idle};
use crate::ops::{LineOp, OpKind, OpLine, WaitFor};
use crate::sabotage::PlantedBug;
use crate::writeback::Retry;
use crate::{Answer, IoId, Outbox, Outcome};
use forebay_types::{IoResult, Mode};

/// Completes operations of one volume.
pub(crate) struct OpCompletion<'a, M> {
    pub(super) lines: VolumeLines<'a, M>,
}

impl<'a, M: LineTable> OpCompletion<'a, M> {
    pub(crate) const fn new(lines: VolumeLines<'a, M>) -> Self {
        Self { lines }
    }

    /// See [`crate::Shard::complete`].
    pub(crate) fn complete(&mut self, id: IoId, result: IoResult, now_ms: u64, out: &mut Outbox) {
        if self.lines.ops.is_gated(id) {
            self.complete_gated(id, result, now_ms, out);
        } else {
            self.complete_io(id, result, now_ms, out);
        }
    }

    /// Completes one I/O of an operation, and with the last one the operation.
    pub(super) fn complete_io(
        &mut self,
        id: IoId,
        result: IoResult,
        now_ms: u64,
        out: &mut Outbox,
    ) {
        let Some(op) = self.lines.ops.finish_io(id, result.err()) else { return };
        let ok = op.error.is_none();
        let state = &mut *self.lines.volume;
        state.count_end(op.kind, now_ms);
        match op.kind {
            OpKind::Fill => {
                state.counters_mut().fill_errors += u64::from(!ok);
                self.for_each_slot(&op, |this, line| {
                    let there = this.lines.index.get(line.slot);
                    let is_missing = (there.valid | there.dirty) & line.mask == 0;
                    assert!(is_missing, "{line:?} was filled over the data of {there:?}");
                    this.finish_fill(line, ok, out);
                });
            }
            OpKind::WriteThrough => {
                state.counters_mut().write_errors += u64::from(!ok);
                self.clean_regained(&op, ok);
                self.for_each_slot(&op, |this, line| this.finish_fill(line, ok, out));
                self.drop_regained(&op);
            }
            OpKind::Destage => {
                self.lines.destager().count_end(&op, now_ms);
                self.for_each_slot(&op, |this, line| this.finish_destage(line, &op));
            }
            OpKind::DestagePart => {
                state.counters_mut().destage_errors += u64::from(!ok);
                self.for_each_slot(&op, |this, line| this.finish_destage_part(line, ok));
            }
            OpKind::Erase => self.for_each_slot(&op, |this, line| this.finish_erase(line, ok, out)),
            OpKind::DirectRead => {}
        }
        if self.lines.volume.mode() == Mode::Bypass {
            self.drop_clean_lines(&op);
        } else if self.lines.volume.has_buffered() {
            self.drop_buffered_lines(&op);
        }
        if let (Some(part), Some((kind, range)), true) = (op.part, op.journal_op.clone(), ok) {
            // NOT YET ACKNOWLEDGED: after a crash, an older record of the range would undo the
            // change. The driver acknowledges the part when the journal has this record.
            self.lines.notify_journal(part, range, kind, out);
        } else if let Some(part) = op.part {
            // ACKNOWLEDGED: a write through the cache is on the disk (on stable storage if FUA), an
            // erase is done, a direct read has its data.
            let outcome = Outcome::Done(op.error.map_or(Ok(()), Err));
            out.answers.push(Answer { part, outcome });
        }
        let lost = !ok && self.lines.planted.is(PlantedBug::LoseWaitersOnError);
        for &(part, wait_for) in op.waiters.iter().filter(|_| !lost) {
            let outcome = match (wait_for, op.error) {
                (WaitFor::Success, Some(error)) => Outcome::Done(Err(error)),
                (WaitFor::Result, error) => Outcome::Retry(error),
                (WaitFor::End | WaitFor::Success, _) => Outcome::Retry(None),
            };
            out.answers.push(Answer { part, outcome });
        }
        let mut destager = self.lines.destager();
        destager.resume(&op, now_ms, out);
        if op.kind == OpKind::Destage {
            destager.admit(now_ms, out);
        }
    }

    fn for_each_slot(&mut self, op: &LineOp, mut end: impl FnMut(&mut Self, &OpLine)) {
        for line in op.lines.iter().filter(|line| line.slot != NO_SLOT) {
            let there = self.lines.index.get(line.slot);
            assert!(there.key == line.key && there.pins > 0, "{line:?} is not in {there:?}");
            end(self, line);
            self.lines.index.unpin(line.slot);
        }
    }

    /// Marks the sectors valid after a successful fill or write. After a failed one, drops the line
    /// if it has no valid or dirty sector.
    fn finish_fill(&mut self, line: &OpLine, ok: bool, out: &mut Outbox) {
        let too_much = self.lines.planted.is(PlantedBug::FillMarksTooMuch);
        let meta = *self.lines.index.get(line.slot);
        if meta.has(DETACHED) {
            // The slot holds a payload that was written past the cache, which is not kept.
        } else if ok {
            let filled = if too_much { 0xff } else { line.mask };
            if line.mask != 0 {
                self.lines.set_valid(line.slot, meta.valid | filled, out);
            }
        } else {
            self.lines.drop_if_empty(line.slot);
        }
    }

    /// Cleans the lost sectors that a write has replaced on the disk.
    fn clean_regained(&mut self, op: &LineOp, ok: bool) {
        for line in op.lines.iter().filter(|line| ok && line.regained != 0) {
            if let Some(slot) = self.lines.index.find(line.key) {
                self.lines.clean_lost(slot, line.regained);
            }
        }
    }

    /// Drops the lines that were kept only for their lost sectors.
    fn drop_regained(&mut self, op: &LineOp) {
        for line in op.lines.iter().filter(|line| line.regained != 0) {
            if let Some(slot) = self.lines.index.find(line.key) {
                self.lines.drop_if_empty(slot);
            }
        }
    }

    /// Drops the clean lines of an operation on a bypass volume. They were busy or dirty when the
    /// change of mode dropped the others.
    fn drop_clean_lines(&mut self, op: &LineOp) {
        if self.lines.planted.is(PlantedBug::KeepLinesInBypass) {
            return;
        }
        for line in &op.lines {
            if let Some(slot) = self.lines.index.find(line.key) {
                drop_if_idle(self.lines.index, self.lines.ops, slot);
            }
        }
    }

    /// Drops the clean lines of an operation that were in the pool only because writes to the
    /// frozen volume were acknowledged from memory. If it is no longer frozen, they stay.
    fn drop_buffered_lines(&mut self, op: &LineOp) {
        for line in &op.lines {
            self.lines.finish_buffered(line.key);
        }
        if self.lines.volume.dirty_lines() == 0 {
            self.lines.volume.forget_buffered();
        }
    }

    fn finish_destage(&mut self, line: &OpLine, op: &LineOp) {
        if line.mask == 0 {
            return;
        }
        // Sectors may have been lost meanwhile, and a rewritten line has moved.
        let has_data = |slot| self.lines.index.get(slot).destageable() != 0;
        let retry = if op.error.is_none() {
            Retry::None
        } else if op.is_wide && has_data(line.slot) {
            Retry::All
        } else if self.lines.index.find(line.key).is_some_and(has_data) {
            Retry::Later
        } else {
            Retry::None
        };
        let ok = op.error.is_none() || self.lines.planted.is(PlantedBug::CleanAfterFailedDestage);
        // A line that was rewritten meanwhile has moved, and is dirty in its new slot.
        let stays = !self.lines.index.get(line.slot).has(DETACHED);
        if ok && stays {
            self.lines.clean(line.slot, line.mask);
        }
        self.clear_in_destage(line);
        let writeback = self.lines.volume.writeback_mut();
        if !op.is_wide || op.error.is_none() {
            writeback.record_result(line.key.line(), ok);
        }
        writeback.record_attempt(line, op.serves, op.error, retry);
        self.lines.finish_ordered(line.key, line.slot, if ok { line.mask } else { 0 });
    }

    /// Makes a line wait for a destage again if it is still dirty after one: the destage failed, or
    /// the line was rewritten meanwhile.
    fn clear_in_destage(&mut self, line: &OpLine) {
        let there = self.lines.index.get(line.slot);
        if there.dirty == 0 && !there.has(DETACHED) {
            return;
        }
        self.lines.volume.writeback_mut().clear_in_destage(line.key.line());
    }

    /// Cleans the destaged sectors. Flushes that wait for the line still wait for its other dirty
    /// sectors.
    fn finish_destage_part(&mut self, line: &OpLine, ok: bool) {
        self.lines.volume.writeback_mut().record_result(line.key.line(), ok);
        if ok {
            self.lines.clean(line.slot, line.mask);
        }
    }

    fn finish_erase(&mut self, line: &OpLine, ok: bool, out: &mut Outbox) {
        let keep = self.lines.planted.is(PlantedBug::KeepValidAfterErase);
        if ok {
            // The disk has erased the sectors. If the process is killed here, recovery must not use
            // sectors that the table still shows as valid and clean.
            self.lines.index.mark_filling(line.slot, line.mask);
        }
        let meta = *self.lines.index.get(line.slot);
        if ok {
            self.lines.count_recovered(line.slot, line.mask);
            let valid = meta.valid & if keep { 0xff } else { !line.mask };
            self.lines.set_valid(line.slot, valid, out);
            self.lines.clean(line.slot, line.mask);
            self.lines.drop_if_empty(line.slot);
        } else {
            // The disk may have either content now; only dirty sectors are known to be the newest.
            let valid = meta.valid & !(line.mask & !meta.dirty);
            self.lines.set_valid(line.slot, valid, out);
            self.lines.drop_if_empty(line.slot);
        }
    }
}
