//! Bypass: nothing new is kept; what the pool still holds of the range is let go.

use super::{Source, WriteOutcome, Writer};
use crate::index::meta::LineTable;
use crate::sabotage::PlantedBug;
use crate::{Attempt, Outbox, Part};

impl<M: LineTable> Writer<'_, M> {
    pub(super) fn write_bypass(
        &mut self,
        part: &Part,
        fua: bool,
        attempt: Attempt,
        now_ms: u64,
        out: &mut Outbox,
    ) -> WriteOutcome {
        if let Some(dirty) = self.is_held(part, attempt) {
            return WriteOutcome::Held { dirty };
        }
        if self.wait_if_busy(part, |_| true) {
            return WriteOutcome::Waiting;
        }
        // Dirty lines remain for a while when the mode was changed from write-back.
        if let Some(outcome) = self.destage_under(part, attempt, out) {
            return outcome;
        }
        self.forget_lines(part);
        self.start_write(part, fua, Source::Payload, now_ms, out);
        // NOT YET ACKNOWLEDGED: `complete` does it, when the disk has said that it has the data.
        WriteOutcome::Started
    }

    /// Takes the part's lines out of the pool; what the scratch list has of them after that is as
    /// [`Shard::forget_sectors`] says.
    pub(super) fn forget_lines(&mut self, part: &Part) {
        let touched = self.look_up_pinned(part);
        self.count_write(touched);
        for at in 0..self.scratch.lines.len() {
            if let Some(slot) = self.scratch.lines[at].1.take() {
                if self.lines.planted.is(PlantedBug::KeepLinesInBypass) {
                    self.lines.index.unpin(slot);
                } else {
                    self.scratch.lines[at].1 = self.forget_sectors(at, slot);
                }
            }
        }
    }
}
