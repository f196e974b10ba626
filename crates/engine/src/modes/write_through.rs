//! Write-through: a write is acknowledged when the disk has it, and is kept in memory for reads.

use super::{ByteSource, PartWriter, Through, WriteOutcome};
use crate::destage::span::Span;
use crate::line::key::{LineKey, LinePart, line_parts, sector_mask};
use crate::line::meta::{LineTable, NO_SLOT};
use crate::ops::gather::Gated;
use crate::ops::io_run::IoRun;
use crate::ops::{LineOp, OpKind, OpLine, WaitFor, emit};
use crate::sabotage::PlantedBug;
use crate::{
    Attempt, IoCause, IoVerb, JournalOp, LineHits, MemoryStep, Outbox, Part, Place, Segment, Slot,
};
use forebay_policy::Hint;
use forebay_types::{Few, LINE_BYTES, Mode, SECTOR_BYTES};

impl<M: LineTable> PartWriter<'_, M> {
    pub(super) fn write_through(
        &mut self,
        part: &Part,
        fua: bool,
        why: Through,
        attempt: Attempt,
        now_ms: u64,
        out: &mut Outbox,
    ) -> WriteOutcome {
        if let Some(dirty) = self.held_by_epoch(part, attempt) {
            return WriteOutcome::Held { dirty };
        }
        if self.wait_if_busy(part, |_| true, out) {
            return WriteOutcome::Waiting;
        }
        if !self.lines.planted.is(PlantedBug::SkipDestageUnderWrite)
            && self.destage_under(part, attempt, out)
        {
            return WriteOutcome::Waiting;
        }
        self.count_through(why);
        let line_hits = self.look_up_pinned(part).past_cache(why.reason());
        let held_out = self.pure_lines(part, why, attempt);
        self.count_write(part, LineHits { held_out, ..line_hits }, out);
        for at in 0..self.scratch.lines.len() {
            let (line, found) = self.scratch.lines[at];
            self.scratch.lines[at].1 = match found {
                Some(slot) => self.slot_to_overwrite(at, slot, out),
                None if !self.admits_write(why) => None,
                None => self.lines.index.allocate(line.key, Hint::Write).inspect(|&slot| {
                    self.lines.index.pin(slot);
                }),
            };
        }
        self.start_write(part, fua, ByteSource::Payload, now_ms, out);
        // NOT YET ACKNOWLEDGED: `complete` does that when the disk has the data (on stable storage
        // if `fua`). Until then the sectors are invalid, and reads of them wait.
        WriteOutcome::Started
    }

    /// The slot to overwrite for a line that the caller has pinned and in which no sector under the
    /// write is dirty. If the slot has other pins and no other slot is free, returns the result of
    /// [`PartWriter::forget_sectors`].
    fn slot_to_overwrite(&mut self, at: usize, slot: Slot, out: &mut Outbox) -> Option<Slot> {
        if self.lines.index.get(slot).pins == 1 {
            self.lines.index.touch(slot, Hint::Write);
            return Some(slot);
        }
        let mask = self.scratch.lines[at].0.mask;
        let moved = self.lines.move_away(slot, mask, out);
        moved.or_else(|| self.forget_sectors(at, slot, out))
    }

    /// Invalidates the line at `at` of the scratch list in its pinned slot: drops a clean line, or
    /// invalidates the written sectors of a dirty one. In the second case the operation keeps the
    /// slot pinned, but with an empty sector mask.
    pub(super) fn forget_sectors(
        &mut self,
        at: usize,
        slot: Slot,
        out: &mut Outbox,
    ) -> Option<Slot> {
        let meta = *self.lines.index.get(slot);
        let is_destaged = meta.destageable() & self.scratch.lines[at].0.mask == 0
            || self.lines.planted.is(PlantedBug::SkipDestageUnderWrite);
        assert!(is_destaged, "dirty sectors are forgotten: {meta:?}");
        if meta.dirty == 0 {
            self.lines.index.drop_line(slot);
            self.lines.index.unpin(slot);
            return None;
        }
        let valid = meta.valid & !self.scratch.lines[at].0.mask;
        self.scratch.lines[at].0.mask = 0;
        self.lines.set_valid(slot, valid, out);
        Some(slot)
    }

    /// Destages the dirty sectors under a write before the write starts: if the write failed
    /// half-way, acknowledged data would be lost. The first attempt destages them with their
    /// neighbours in one operation. If that fails, the next attempt destages them alone, so that a
    /// bad sector elsewhere does not fail the write. Returns whether the part waits.
    pub(super) fn destage_under(
        &mut self,
        part: &Part,
        attempt: Attempt,
        out: &mut Outbox,
    ) -> bool {
        let mut lines = line_parts(part.volume, part.range);
        let Some(dirty) = lines.find(|line| self.dirty_under(line).is_some()) else {
            return false;
        };
        if attempt.error.is_none() {
            let op = self.lines.destager().start_destage(dirty.key, usize::MAX, true, out);
            self.lines.wait(op, part, WaitFor::Result, out);
        } else {
            let op = self.start_destage_part(part, out);
            self.lines.wait(op, part, WaitFor::Success, out);
        }
        true
    }

    /// The slot and the dirty sectors of a line under the write.
    fn dirty_under(&self, line: &LinePart) -> Option<(Slot, u8)> {
        let slot = self.lines.index.find(line.key)?;
        let mask = self.lines.index.get(slot).destageable() & line.mask;
        (mask != 0).then_some((slot, mask))
    }

    /// Destages only the dirty sectors of a part, none of whose lines is busy.
    fn start_destage_part(&mut self, part: &Part, out: &mut Outbox) -> u32 {
        let (mut lines, mut runs) = (Few::new(), Few::new());
        for line in line_parts(part.volume, part.range) {
            let Some((slot, mask)) = self.dirty_under(&line) else { continue };
            self.lines.destager().planner().push_sectors(line.key, slot, mask, &mut runs);
            self.lines.index.pin(slot);
            lines.push(OpLine::new(line.key, slot, mask));
        }
        let span = Span::of_runs(lines, runs);
        self.lines.destager().count_start(&span, true);
        let Span { lines, runs, .. } = span;
        let id = self.lines.start(LineOp::new(
            OpKind::DestagePart,
            part.volume,
            lines,
            None,
            runs.len(),
        ));
        let verb = IoVerb::Write { fua: false };
        emit(out, id, (verb, IoCause::DestageUrgent), part.volume, None, runs);
        id.op
    }

    /// The lost sectors of a line that the write makes valid on the disk.
    fn regained_by(&self, line: &LinePart) -> u8 {
        if self.lines.volume.lost_sectors() == 0 {
            return 0;
        }
        let first = u64::from(line.offset) / SECTOR_BYTES;
        let covered = sector_mask(first, first + u64::from(line.len) / SECTOR_BYTES);
        self.lines.lost_under(line.key, covered)
    }

    /// Starts the write of a part. The scratch list holds its lines and their pinned slots.
    pub(super) fn start_write(
        &mut self,
        part: &Part,
        fua: bool,
        source: ByteSource,
        now_ms: u64,
        out: &mut Outbox,
    ) {
        let count = self.scratch.lines.len();
        let (mut segments, mut lines) = (Few::with_capacity(count), Few::with_capacity(count));
        let mut payload_offset = 0;
        for at in 0..count {
            let (line, slot) = self.scratch.lines[at];
            let offset = line.key.offset() + u64::from(line.offset);
            let expected = part.range.offset + u64::from(payload_offset);
            assert_eq!(offset, expected, "the lines of a part are one range");
            let regained = self.regained_by(&line);
            let place = match slot.filter(|_| line.mask != 0) {
                None => Place::Private { offset: payload_offset },
                Some(slot) => {
                    let meta = self.lines.index.get(slot);
                    let is_destaged = meta.destageable() & line.mask == 0
                        || self.lines.planted.is(PlantedBug::SkipDestageUnderWrite);
                    assert!(is_destaged, "a write to the disk over dirty sectors of {meta:?}");
                    if !self.lines.planted.is(PlantedBug::KeepValidInWriteThrough) {
                        let valid = meta.valid & !line.mask;
                        self.lines.set_valid(slot, valid, out);
                    }
                    let (offset, len) = (line.offset, line.len);
                    if source == ByteSource::Payload {
                        out.memory.push(MemoryStep::Fill { slot, offset, payload_offset, len });
                    }
                    Place::Slot { slot, offset: line.offset }
                }
            };
            segments.push(Segment { place, len: line.len });
            let slot = slot.unwrap_or(NO_SLOT);
            lines.push(OpLine { regained, ..OpLine::new(line.key, slot, line.mask) });
            payload_offset += line.len;
        }
        let mut op = LineOp::new(OpKind::WriteThrough, part.volume, lines, Some(part.id), 1);
        op.journal_op = self.lines.journal_op(part, JournalOp::Forget);
        op.gated = self.gated(part, fua, out.turn, now_ms);
        let trial = self.lines.volume.trial();
        let held =
            !self.is_held_out(part) && self.lines.ops.must_hold_back(part.range.len, &op, trial);
        let id = self.lines.start(op);
        match held {
            true => {
                self.lines.ops.hold_back(id, part.range.len);
                self.lines.volume.counters_mut().writes_held += 1;
            }
            false => {
                self.lines.ops.pass_gate(id);
                let verb = IoVerb::Write { fua };
                let run = IoRun { range: part.range, segments, seals: Vec::new() };
                emit(out, id, (verb, IoCause::Demand), part.volume, Some(part.id), [run]);
            }
        }
    }

    /// The gathering state of a part, if it lies in one stripe.
    fn gated(&self, part: &Part, fua: bool, turn: u64, begun_ms: u64) -> Option<Gated> {
        let volume = &*self.lines.volume;
        let width = volume.writeback().dirty().stripes().width();
        if width <= LINE_BYTES || volume.mode() == Mode::Bypass {
            return None;
        }
        let stripe = volume.stripe_at(part.range.offset / LINE_BYTES * LINE_BYTES)?;
        if part.range.end() > stripe.end() {
            return None;
        }
        let stripe = LineKey::new(part.volume, stripe.offset / LINE_BYTES);
        let round = (part.range.len < volume.gather_below()).then_some(volume.trial().round());
        Some(Gated { stripe, turn, fua, begun_ms, round, joined: Vec::new() })
    }
}
