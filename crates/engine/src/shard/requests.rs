//! The shard's calls for client requests, part by part, and for I/O completions.

use super::Shard;
use crate::complete::OpCompletion;
use crate::index::warm;
use crate::line::key::only_line;
use crate::line::meta::LineTable;
use crate::lines::sample_line;
use crate::modes::PartWriter;
use crate::modes::read::PartReader;
use crate::{
    Attempt, EraseKind, EraseOutcome, IoId, LineHits, Outbox, Part, Place, PreloadKind,
    PreloadOutcome, ReadOutcome, Segment, Slot, WriteOutcome, WriteTerms,
};
use forebay_policy::Hint;
use forebay_types::{ByteRange, GRANULE_BYTES, IoResult, VolumeId};

/// Begins a forecast in a shard. Lines that are preloaded for a forecast from now on belong to it.
pub fn begin_forecast<M: LineTable>(shard: &mut Shard<M>) {
    warm::begin_forecast(&mut shard.index);
}

/// Stops protecting up to `lines_max` lines of a shard that were preloaded for earlier forecasts
/// and have not been used: they are the next to be evicted. Returns whether there may be more of
/// them.
pub fn end_former_forecasts<M: LineTable>(shard: &mut Shard<M>, lines_max: usize) -> bool {
    warm::end_former_forecasts(&mut shard.index, lines_max)
}

/// The first byte of a part from which on no long erase can erase it: a line there is busy, or
/// dirty in an ordered volume, or there are too many. The end of the part if there is none.
/// `regions` are the pieces of the part that the shard owns, in order.
pub fn erasable_until<M: LineTable>(
    shard: &mut Shard<M>,
    part: &Part,
    regions: &[ByteRange],
) -> u64 {
    shard.assert_part(part);
    shard.writer(part.volume).erasable_until(part, regions)
}

/// Begins a long erase of a part, of which the shard owns `regions`. Each shard that owns some
/// begins one, with the same range. One of them `leads`: it has the I/O, the journal record and the
/// answer to the part, and is the last to begin. When it answers, the driver ends the operations of
/// the others, which they return, with [`Shard::complete`]. `None` if the part is not erasable to
/// its end.
///
/// For an ordered volume, the caller guarantees what [`Attempt::in_order`] says.
pub fn erase_long<M: LineTable>(
    shard: &mut Shard<M>,
    part: &Part,
    regions: &[ByteRange],
    leads: Option<EraseKind>,
    out: &mut Outbox,
) -> Option<IoId> {
    shard.assert_part(part);
    shard.writer(part.volume).erase_long(part, regions, leads, out)
}

impl<M: LineTable> Shard<M> {
    /// Reads a part. Appends the location of its bytes to `segments`, which must be empty.
    pub fn read(
        &mut self,
        part: &Part,
        attempt: Attempt,
        segments: &mut Vec<Segment>,
        out: &mut Outbox,
    ) -> (ReadOutcome, LineHits) {
        self.assert_part(part);
        assert!(segments.is_empty(), "`segments` is not empty");
        // Fast path: such a read is so short that borrowing the components for a `Reader` would
        // cost a tenth of its time.
        if attempt == Attempt::default()
            && !self.volumes.get(part.volume).holds_out(part.range.offset)
            && let Some(line) = only_line(part.volume, part.range)
            && let Some(slot) = self.index.pin_hit(line.key, line.mask)
        {
            let volume = self.volumes.get_mut(part.volume);
            if volume.count_read_hit(line.key) {
                let lines = line.key.line()..line.key.line() + 1;
                sample_line(&mut self.index, volume, line.key, (Hint::Normal, &lines));
            }
            let place = Place::Slot { slot, offset: line.offset };
            segments.push(Segment { place, len: line.len });
            return (ReadOutcome::Ready, LineHits::ONE_HIT);
        }
        PartReader::new(self.on(part.volume)).read(part, attempt, segments, out)
    }

    /// Prefetches the absent lines of `range`, which lies in one region. No part waits for them.
    /// The first use of the line `mark` requests the next window. Returns the number of lines being
    /// fetched.
    pub fn prefetch(
        &mut self,
        volume: VolumeId,
        range: ByteRange,
        mark: Option<u64>,
        out: &mut Outbox,
    ) -> u64 {
        PartReader::new(self.on(volume)).prefetch(range, mark, out)
    }

    /// Preloads lines of a part, which lies in one granule: those in `mask`, one bit for each line
    /// of the granule. `kind` determines which of them are read. Lines in an operation are skipped.
    pub fn preload(
        &mut self,
        part: &Part,
        mask: u32,
        kind: PreloadKind,
        out: &mut Outbox,
    ) -> PreloadOutcome {
        self.assert_part(part);
        let granule = |byte: u64| byte / GRANULE_BYTES;
        let is_one = granule(part.range.offset) == granule(part.range.end() - 1);
        assert!(is_one, "{} spans granules", part.range);
        PartReader::new(self.on(part.volume)).preload(part, mask, kind, out)
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
        // Looked up before a `Writer` borrows the components: the stores of the borrow would delay
        // these loads behind the copy of the previous write. Saves a seventh of a write hit's time.
        let found = only_line(part.volume, part.range).and_then(|line| {
            let slot = self.index.find(line.key)?;
            Some((slot, *self.index.get(slot)))
        });
        self.writer(part.volume).write(part, found, terms, attempt, out)
    }

    /// Reserves a slot for each line of `range` and appends them to `staged`. Returns whether there
    /// were enough; if not, `staged` is unchanged. The driver receives the payload into the slots,
    /// starting at the range's offset within its first line. It then calls [`Shard::write_staged`],
    /// or [`Shard::release`] for each slot.
    pub fn stage(&mut self, volume: VolumeId, range: ByteRange, staged: &mut Vec<Slot>) -> bool {
        self.writer(volume).stage(range, staged)
    }

    /// Writes a part whose payload is in slots of [`Shard::stage`]. The shard takes over the slots,
    /// unless the part has to wait or is held.
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
    /// Dirty sectors in the range stay dirty until the disk has erased them, so that no data is
    /// lost if it fails. Clean sectors are invalidated at once.
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

    /// Destages the dirty sectors of a part, because the volume's protection failed to preserve
    /// them. `Done` means that the disk has them, at least in its own cache.
    pub fn destage_part(
        &mut self,
        part: &Part,
        attempt: Attempt,
        out: &mut Outbox,
    ) -> WriteOutcome {
        self.writer(part.volume).destage_part(part, attempt, out)
    }

    /// Makes the changes of a call final. The driver calls it after it has carried out the memory
    /// steps of each call, before it unlocks the shard.
    pub fn finish_call(&mut self) {
        self.index.finish_call();
    }

    /// Completes one I/O. Called once for each [`crate::IoAction`].
    pub fn complete(&mut self, id: IoId, result: IoResult, now_ms: u64, out: &mut Outbox) {
        let volume = self.ops.volume_of(id);
        OpCompletion::new(self.on(volume)).complete(id, result, now_ms, out);
    }

    /// Releases the pin of a slot that [`Shard::read`] or [`Shard::stage`] handed out.
    pub fn release(&mut self, slot: Slot) {
        self.index.unpin(slot);
    }

    fn writer(&mut self, volume: VolumeId) -> PartWriter<'_, M> {
        let (lines, scratch) = self.on_with_scratch(volume);
        PartWriter::new(lines, scratch)
    }

    fn assert_part(&self, part: &Part) {
        let range = part.range;
        assert!(
            range.len > 0 && range.is_sector_aligned(),
            "{range} is empty or not sector-aligned"
        );
        let size_bytes = self.volumes.get(part.volume).size_bytes();
        assert!(range.fits(size_bytes), "{range} is outside of the volume");
        assert!(self.index.is_call_finished(), "the last call was not finished");
    }
}
