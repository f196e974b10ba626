//! Writes whose payload has been received into slots of the pool.
//!
//! A long payload is received into slots of the pool, which saves a copy. The slots are detached:
//! readers do not find them and the policy does not know them, so an incomplete payload is never
//! visible. The write then makes each of them the slot of its line. The line's old slot is
//! detached, and stays allocated as long as it is pinned. Sectors that the payload does not cover
//! are copied from the old slot.
//!
//! The price: while a payload is being received, each resident line that it overwrites takes two
//! slots.

use super::{ByteSource, Effective, PartWriter, Through, WriteOutcome, WriteTerms};
use crate::index::prepare_lookups;
use crate::index::shares;
use crate::line::key::{LinePart, line_parts};
use crate::line::meta::{DETACHED, LineTable};
use crate::ops::OpKind;
use crate::sabotage::PlantedBug;
use crate::{Attempt, LineHits, Outbox, Part, Slot, Uncached};
use forebay_policy::Hint;
use forebay_types::ByteRange;

impl<M: LineTable> PartWriter<'_, M> {
    /// See [`crate::Shard::stage`].
    pub(crate) fn stage(&mut self, range: ByteRange, staged: &mut Vec<Slot>) -> bool {
        let before = staged.len();
        for line in line_parts(self.lines.id, range) {
            let Some(slot) = self.lines.index.reserve_detached(line.key, self.lines.id) else {
                while staged.len() > before {
                    let slot = staged.pop().expect("the list is longer than before");
                    self.lines.index.unpin(slot);
                }
                return false;
            };
            staged.push(slot);
        }
        true
    }

    /// See [`crate::Shard::write_staged`].
    pub(crate) fn write_staged(
        &mut self,
        part: &Part,
        terms: WriteTerms,
        attempt: Attempt,
        staged: &[Slot],
        out: &mut Outbox,
    ) -> WriteOutcome {
        self.lines.advance_epoch(terms.epoch);
        prepare_lookups(self.lines.index, part.volume, part.range);
        let fua = self.disk_fua(part, terms);
        match self.effective(part, terms, attempt) {
            Effective::WriteBack => {
                let outcome = self.write_back_staged(part, fua, attempt, staged, terms.now_ms, out);
                self.record(part, staged, terms.record, outcome, out)
            }
            Effective::WriteThrough(Through::DirtyLimit)
                if self.throttle(part, terms.now_ms, attempt, out) =>
            {
                WriteOutcome::Waiting
            }
            Effective::WriteThrough(why) => self.write_through_staged(
                part,
                (fua, Some(why)),
                attempt,
                staged,
                terms.now_ms,
                out,
            ),
            Effective::Bypass => {
                self.write_through_staged(part, (fua, None), attempt, staged, terms.now_ms, out)
            }
        }
    }

    fn write_back_staged(
        &mut self,
        part: &Part,
        fua: bool,
        attempt: Attempt,
        staged: &[Slot],
        now_ms: u64,
        out: &mut Outbox,
    ) -> WriteOutcome {
        let may_wait = !self.lines.planted.is(PlantedBug::IgnoreBusyInWriteBack);
        if self.wait_if_busy(part, |kind| may_wait && kind != OpKind::Destage, out) {
            return WriteOutcome::Waiting;
        }
        if !self.make_room(part) {
            if self.throttle(part, now_ms, attempt, out) {
                return WriteOutcome::Waiting;
            }
            let through = (fua, Some(Through::NoRoom));
            return self.write_through_staged(part, through, attempt, staged, now_ms, out);
        }
        let mut hits = 0;
        // In descending order, so that freed slots are reused in ascending order.
        for (line, slot) in self.staged_lines(part, staged) {
            hits += usize::from(self.install(&line, slot, out));
            self.lines.mark_dirty(slot, line.mask, now_ms);
            self.lines.index.unpin(slot);
        }
        self.count_staged(part, hits, staged.len(), (None, 0), out);
        self.boost(part);
        self.finish_write_back(part, now_ms, out);
        // ACKNOWLEDGED: as in `write_back.rs`.
        WriteOutcome::Done
    }

    /// Evicts lines of the volume, if the lines of a part exceed its largest share. Returns false
    /// if there are too few that can be evicted.
    fn make_room(&mut self, part: &Part) -> bool {
        let lines = line_parts(part.volume, part.range).size_hint().0;
        if !shares::is_full(self.lines.index, self.lines.id, lines - 1) {
            return true;
        }
        let hits = self.look_up_pinned(part);
        let has_room = shares::make_room(self.lines.index, self.lines.id, hits.misses.into());
        for at in 0..self.scratch.lines.len() {
            if let Some(slot) = self.scratch.lines[at].1 {
                self.lines.index.unpin(slot);
            }
        }
        has_room
    }

    /// Whether a write to the disk makes a staged slot the place of its line, unless the pool has
    /// the line already. If the volume is at its largest share, evicts another line of it.
    fn may_install(&mut self, why: Through) -> bool {
        self.admits_write(why) && shares::make_room(self.lines.index, self.lines.id, 1)
    }

    /// Writes the staged slots to the disk: through the cache if there is a reason (`why`),
    /// otherwise past it.
    fn write_through_staged(
        &mut self,
        part: &Part,
        (fua, why): (bool, Option<Through>),
        attempt: Attempt,
        staged: &[Slot],
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
        if let Some(why) = why {
            self.count_through(why);
            self.scratch.lines.clear();
            let mut hits = 0;
            for (line, slot) in self.staged_lines(part, staged) {
                // An absent line of a held-out region or a frozen volume is not added to the pool,
                // nor one for which the volume has no room. Its slot is only the source of the
                // write.
                let is_new = self.lines.index.find(line.key).is_none();
                if !is_new || self.may_install(why) {
                    hits += usize::from(self.install(&line, slot, out));
                }
                self.scratch.lines.push((line, Some(slot)));
            }
            self.scratch.lines.reverse();
            let held_out = self.pure_lines(part, why, attempt);
            let uncached = (Some(why.reason()), held_out);
            self.count_staged(part, hits, staged.len(), uncached, out);
        } else {
            self.forget_lines(part, out);
            // A slot that is kept for dirty sectors elsewhere in its line is not the source of the
            // write.
            for (at, line) in line_parts(part.volume, part.range).enumerate() {
                if let Some(old) = self.scratch.lines[at].1 {
                    self.lines.index.unpin(old);
                }
                self.scratch.lines[at] = (line, Some(staged[at]));
            }
        }
        self.start_write(part, fua, ByteSource::Slots, now_ms, out);
        // NOT YET ACKNOWLEDGED: `complete` does that when the disk has the data.
        WriteOutcome::Started
    }

    fn count_staged(
        &mut self,
        part: &Part,
        hits: usize,
        lines: usize,
        (uncached, held_out): (Option<Uncached>, u16),
        out: &mut Outbox,
    ) {
        let (hits, misses) = (hits as u16, (lines - hits) as u16);
        self.count_write(part, LineHits { hits, misses, uncached, held_out }, out);
    }

    /// The lines of a part with their slots, in descending order.
    fn staged_lines<'a>(
        &self,
        part: &Part,
        staged: &'a [Slot],
    ) -> impl Iterator<Item = (LinePart, Slot)> + use<'a, M> {
        let lines = line_parts(part.volume, part.range);
        assert_eq!(lines.size_hint().0, staged.len());
        lines.rev().zip(staged.iter().rev().copied())
    }

    /// Makes a staged slot the place of its line, and detaches the old slot. The caller releases
    /// the pin of the staged slot. Returns whether the line was resident.
    fn install(&mut self, line: &LinePart, slot: Slot, out: &mut Outbox) -> bool {
        let payload = *self.lines.index.get(slot);
        assert!(payload.key == line.key && payload.has(DETACHED), "{payload:?} for {line:?}");
        let Some(old) = self.lines.index.find(line.key) else {
            self.lines.index.adopt(slot);
            self.mark_buffered(slot);
            return false;
        };
        self.lines.index.pin(old);
        self.lines.index.touch(old, Hint::Write);
        self.lines.move_to(old, slot, line.mask, out);
        true
    }
}
