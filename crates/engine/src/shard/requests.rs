//! Requests of clients, part by part, and the ends of I/Os.

use super::Shard;
use crate::index::meta::LineTable;
use crate::lines::VolumeLines;
use crate::modes::Writer;
use crate::modes::read::Reader;
use crate::ops::complete::Completion;
use crate::{
    Attempt, EraseKind, EraseOutcome, IoId, Outbox, Part, ReadOutcome, Segment, Slot, Touched,
    WriteOutcome, WriteTerms,
};
use forebay_types::{ByteRange, IoResult, VolumeId};

impl<M: LineTable> Shard<M> {
    /// Reads a part. Its bytes are described in `segments`, which must come empty.
    pub fn read(
        &mut self,
        part: &Part,
        attempt: Attempt,
        segments: &mut Vec<Segment>,
        out: &mut Outbox,
    ) -> (ReadOutcome, Touched) {
        self.assert_part(part);
        Reader::new(self.on(part.volume)).read(part, attempt, segments, out)
    }

    /// Reads ahead: fills the absent lines of `range`, which lies in one region, without anybody
    /// waiting for them. `mark` is the line whose first use asks for more. Returns the number of
    /// lines being fetched.
    pub fn prefetch(
        &mut self,
        volume: VolumeId,
        range: ByteRange,
        mark: Option<u64>,
        out: &mut Outbox,
    ) -> u64 {
        Reader::new(self.on(volume)).prefetch(range, mark, out)
    }

    /// Writes a part.
    pub fn write(
        &mut self,
        part: &Part,
        terms: WriteTerms,
        attempt: Attempt,
        out: &mut Outbox,
    ) -> WriteOutcome {
        self.assert_part(part);
        self.writer(part.volume).write(part, terms, attempt, out)
    }

    /// Takes a slot for each line of `range` and appends them to `staged`. Returns whether there
    /// was room; if not, `staged` is as it was. The driver fills the slots, the first from the
    /// range's offset within its line on, and then writes from them with [`Shard::write_staged`],
    /// or lets go of each with [`Shard::release`].
    pub fn stage(&mut self, volume: VolumeId, range: ByteRange, staged: &mut Vec<Slot>) -> bool {
        self.writer(volume).stage(range, staged)
    }

    /// Writes a part whose payload is in slots of [`Shard::stage`]. If the part has to wait, the
    /// slots stay with the driver; otherwise they are the shard's from here on.
    pub fn write_staged(
        &mut self,
        part: &Part,
        terms: WriteTerms,
        attempt: Attempt,
        staged: &[Slot],
        out: &mut Outbox,
    ) -> WriteOutcome {
        self.assert_part(part);
        self.writer(part.volume).write_staged(part, terms, attempt, staged, out)
    }

    /// Erases a part.
    ///
    /// Dirty data in the range stays dirty until the disk has done its part, so that nothing is
    /// lost if it fails. Clean sectors are forgotten at once.
    pub fn erase(
        &mut self,
        part: &Part,
        kind: EraseKind,
        attempt: Attempt,
        out: &mut Outbox,
    ) -> EraseOutcome {
        self.assert_part(part);
        self.writer(part.volume).erase(part, kind, attempt, out)
    }

    /// Brings what the pool holds of a part to the disk: what protects the volume has failed to
    /// keep it. Done means that the disk has it, in its own cache at least.
    pub fn settle(&mut self, part: &Part, attempt: Attempt, out: &mut Outbox) -> WriteOutcome {
        self.writer(part.volume).settle(part, attempt, out)
    }

    /// The memory steps of the call have been carried out: what it has marked is true from here
    /// on. To be called after each call to the shard, before it is let go of.
    pub fn settle_steps(&mut self) {
        self.index.settle();
    }

    /// One I/O has ended. To be called once for each [`crate::IoAction`].
    pub fn complete(&mut self, id: IoId, result: IoResult, now_ms: u64, out: &mut Outbox) {
        let volume = self.ops.volume_of(id);
        Completion::new(self.on(volume)).complete(id, result, now_ms, out);
    }

    /// Lets go of a slot that a segment handed out by [`Shard::read`] named.
    pub fn release(&mut self, slot: Slot) {
        self.index.unpin(slot);
    }

    fn writer(&mut self, volume: VolumeId) -> Writer<'_, M> {
        let Self { volumes, quota, index, ops, integrity, planted, scratch, .. } = self;
        let volume_state = volumes.get_mut(volume);
        let lines = VolumeLines {
            id: volume,
            volume: volume_state,
            quota,
            index,
            ops,
            integrity,
            planted: *planted,
        };
        Writer::new(lines, scratch)
    }

    fn assert_part(&self, part: &Part) {
        let range = part.range;
        assert!(range.len > 0 && range.is_sector_aligned(), "a part of {range}");
        let size_bytes = self.volumes.get(part.volume).size_bytes();
        assert!(range.fits(size_bytes), "{range} outside of the volume");
        assert!(self.index.is_settled(), "the memory steps of the last call were not settled");
    }
}
