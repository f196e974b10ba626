//! Bypass: a write goes to the disk, and the pool keeps nothing of its range.

use super::{ByteSource, PartWriter, WriteOutcome};
use crate::line::meta::LineTable;
use crate::sabotage::PlantedBug;
use crate::{Attempt, Outbox, Part, Uncached};

impl<M: LineTable> PartWriter<'_, M> {
    pub(super) fn write_bypass(
        &mut self,
        part: &Part,
        fua: bool,
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
        // Dirty lines remain for a while after a change of mode from write-back.
        if self.destage_under(part, attempt, out) {
            return WriteOutcome::Waiting;
        }
        self.forget_lines(part, out);
        self.start_write(part, fua, ByteSource::Payload, now_ms, out);
        // NOT YET ACKNOWLEDGED: `complete` does that when the disk has the data.
        WriteOutcome::Started
    }

    /// Removes the lines of a part from the pool. The scratch list then holds the result of
    /// [`PartWriter::forget_sectors`] for each line.
    pub(super) fn forget_lines(&mut self, part: &Part, out: &mut Outbox) {
        let line_hits = self.look_up_pinned(part);
        self.count_write(part, line_hits.past_cache(Uncached::Bypass), out);
        for at in 0..self.scratch.lines.len() {
            if let Some(slot) = self.scratch.lines[at].1.take() {
                if self.lines.planted.is(PlantedBug::KeepLinesInBypass) {
                    self.lines.index.unpin(slot);
                } else {
                    self.scratch.lines[at].1 = self.forget_sectors(at, slot, out);
                }
            }
        }
    }
}
