//! Room in the log: checkpoints, and what is done where they give none back.
//!
//! The log begins at the oldest record that a disk may lack. So a disk that hangs or fails, or one
//! bad sector, holds it there for all volumes, and what goes past a full log would still need room
//! for the word that it did. Three ways lead out, so that nobody waits for somebody else's disk:
//!
//! - A volume whose disk has everything is **blank** from the superblock on that says that all its
//!   records so far are void. Nothing of it is to be forgotten then, so its writes through need no
//!   record, and no room.
//! - What a disk does not take is dirty in the pool. It is recorded once more, **forward**, and the
//!   old records may go.
//! - Where there is no room for that, a **fence** is recorded: the disk has everything but these
//!   ranges. Writes through anywhere else need no record from then on.
//!
//! The last free segment is kept for the latter two: before it is used up, writes of volumes that
//! would need room wait for the checkpoint that brings one of the three. Where several bring none,
//! as the disk does not flush, they go on; but what would take the room of the fence itself fails.

use super::{Admission, Entry, Log, Told};
use forebay_format::journal::{RECORD_BYTES, Record, RecordKind, batch_bytes};
use forebay_types::{ByteRange, IoResult};

/// Free segments that what goes past the log leaves to what gives room back.
pub(super) const GATE_SEGMENTS: u64 = 1;
/// Checkpoints in a row that may bring a volume no room before its writes wait for no more of them.
const FUTILE_MAX: u8 = 3;

/// Volumes of which everything recorded so far is to be brought to their disks, and the disks' own
/// caches emptied. Each is then reported with [`Log::checkpointed`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checkpoint {
    /// The volumes concerned, by their number in this journal.
    pub volumes: Vec<u16>,
}

/// What became of a note.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Noted {
    /// It is recorded, and whoever waits for it is told when that is durable.
    Recorded,
    /// Nothing older is held of the place, so there is nothing to record.
    Needless,
    /// It is not recorded. The disk must have the change on stable storage.
    Refused,
    /// There is no room to record the change, which the disk has, so what is held would undo it: it
    /// has failed.
    NoRoom,
}

/// Where something began that makes older records void: with this record, in this segment.
#[derive(Clone, Copy, Debug)]
pub struct Mark {
    segment: u64,
    record: u64,
}

/// What the log still holds of a volume.
#[derive(Debug)]
pub(super) struct Fence {
    /// Sorted and disjoint.
    kept: Vec<ByteRange>,
    /// It counts once all records before this one are durable.
    from: u64,
}

impl<B: AsRef<[u8]> + AsMut<[u8]>, W> Log<B, W> {
    /// Records what has no payload, and fails where there is no room although something older is
    /// held: that a range was erased, or that the disk has it.
    pub fn note(&mut self, entry: Entry, waiter: Option<W>) -> Noted {
        assert!(entry.kind != RecordKind::Write && entry.range.len > 0);
        if self.failed.is_some() {
            return Noted::Refused;
        }
        if self.holds_nothing(entry.volume, entry.range) {
            let is_void = self.superblock_is_durable() && !self.must_hold();
            match (entry.kind, waiter) {
                (RecordKind::Forget, _) if is_void => return Noted::Needless,
                (RecordKind::Forget, Some(waiter)) => {
                    self.unrecorded.push(waiter);
                    return Noted::Recorded;
                }
                _ if is_void && self.is_tight() => return Noted::Refused,
                _ if !self.has_room_for_note(entry.volume) => return Noted::NoRoom,
                (_, waiter) => self.put_note(&entry, waiter),
            }
        } else {
            if !self.has_room_for_note(entry.volume) {
                return Noted::NoRoom;
            }
            if entry.kind == RecordKind::Forget {
                self.narrow_fence(&entry);
            }
            self.put_note(&entry, waiter);
        }
        Noted::Recorded
    }

    /// Whether there is room to say something of a volume, and for a fence after it.
    fn has_room_for_note(&self, number: u16) -> bool {
        let fence = match self.volume(number).and_then(|volume| volume.fence.as_ref()) {
            // The next one keeps less: what was not on the disk when this one was made.
            Some(fence) => self.fence_bytes(fence.kept.len()),
            None => self.superblock.geometry.segment_bytes / 2,
        };
        batch_bytes(0, 1) + fence <= self.room_bytes()
    }

    /// What a fence takes that keeps so many ranges, in bytes.
    fn fence_bytes(&self, kept: usize) -> u64 {
        let (records, batch) = (kept as u64 + 1, self.limits.records as u64);
        let begun = if self.queue.is_empty() { 0 } else { batch_bytes(0, 1) };
        let last = batch_bytes(0, records % batch);
        records / batch * batch_bytes(0, batch) + last + begun
    }

    /// What may be written until the log is full, in bytes, beside all that is queued.
    fn room_bytes(&self) -> u64 {
        let bytes = |batch: &super::Batch<B, W>| {
            batch_bytes(batch.payload_bytes as u64, batch.records.len() as u64)
        };
        let queued: u64 = self.queue.iter().map(bytes).sum();
        let writing = match &self.writing {
            super::Writing::Batch { header, .. } => header.len_bytes(),
            _ => 0,
        };
        let segment_bytes = self.superblock.geometry.segment_bytes;
        let left = match self.free_segments() {
            0 => segment_bytes - self.offset,
            // The next batch may not fit where this one ends.
            free => free * segment_bytes,
        };
        left.saturating_sub(queued + writing)
    }

    fn put_note(&mut self, entry: &Entry, waiter: Option<W>) {
        if self.queue.back().is_none_or(|batch| batch.records.len() == self.limits.records) {
            self.open_batch();
        }
        let batch = self.queue.back_mut().expect("there is a batch that grows");
        let Entry { kind, volume, range } = *entry;
        batch.records.push(Record { kind, volume, range, payload_offset: 0, checksum: 0 });
        batch.waiters.extend(waiter);
        self.note_record(entry);
    }

    pub(super) fn note_record(&mut self, entry: &Entry) {
        self.guards.mark(entry.volume, entry.range);
        let segment = self.segment;
        let number = self.next_record;
        self.next_record += 1;
        let volume = self.volumes.iter_mut().find(|volume| volume.number == entry.volume);
        let volume = volume.expect("records are of volumes that were added");
        volume.needed.get_or_insert(segment);
        volume.records_end = number + 1;
        if entry.kind != RecordKind::Forget {
            volume.changes_end = number + 1;
            volume.fence = None;
        }
    }

    /// Whether nothing that the log holds says anything of a range.
    fn holds_nothing(&self, number: u16, range: ByteRange) -> bool {
        if self.is_blank(number) {
            return true;
        }
        let fence = self.volume(number).and_then(|volume| volume.fence.as_ref());
        fence.is_some_and(|fence| {
            let overlaps = |kept: &ByteRange| kept.overlaps(range);
            fence.from <= self.first_pending_record() && !fence.kept.iter().any(overlaps)
        })
    }

    /// What the fence keeps of a range is forgotten by the record that is about to be made.
    fn narrow_fence(&mut self, entry: &Entry) {
        let from = self.next_record + 1;
        let volume = self.volumes.iter_mut().find(|volume| volume.number == entry.volume);
        let Some(fence) = volume.and_then(|volume| volume.fence.as_mut()) else { return };
        let (start, end) = (entry.range.offset, entry.range.end());
        let rest = fence.kept.iter().flat_map(|kept| {
            let before =
                ByteRange::new(kept.offset, start.clamp(kept.offset, kept.end()) - kept.offset);
            let behind = end.clamp(kept.offset, kept.end());
            [before, ByteRange::new(behind, kept.end() - behind)]
        });
        fence.kept = rest.filter(|range| range.len > 0).collect();
        fence.from = from;
    }

    fn volume(&self, number: u16) -> Option<&super::Volume> {
        self.volumes.iter().find(|volume| volume.number == number)
    }

    /// Whether all that was ever recorded of a volume is void.
    fn is_blank(&self, number: u16) -> bool {
        let Some(volume) = self.volume(number) else { return false };
        let entry = self.superblock.volume(number);
        let void_before = entry.map_or(0, |entry| entry.void_before);
        volume.needed.is_none() && volume.records_end <= void_before
    }

    /// The volume's disk has everything that was ever recorded of it, on stable storage.
    fn make_blank(&mut self, number: u16) {
        let void_before = self.next_record;
        for volume in self.volumes.iter_mut().filter(|volume| volume.number == number) {
            (volume.needed, volume.fence) = (None, None);
        }
        let mut entries = self.superblock.volumes.iter_mut();
        if let Some(entry) = entries.find(|entry| entry.number == number) {
            entry.void_before = void_before;
            self.change_superblock();
        }
    }

    /// Where what is recorded from now on begins.
    pub const fn mark(&self) -> Mark {
        // It lands in the segment at hand or a later one.
        Mark { segment: self.segment, record: self.next_record }
    }

    /// What is known of the volume is on its disk's stable storage, or was recorded since the mark
    /// and is durable. From the superblock on that says so, what was recorded before is void; where
    /// some of that had never become durable, it would undo what was recorded after it.
    pub fn recorded_again(&mut self, number: u16, mark: Mark) {
        for volume in self.volumes.iter_mut().filter(|volume| volume.number == number) {
            volume.needed = (volume.records_end > mark.record).then_some(mark.segment);
            volume.fence = None;
        }
        let mut entries = self.superblock.volumes.iter_mut();
        if let Some(entry) = entries.find(|entry| entry.number == number) {
            entry.void_before = mark.record;
            self.change_superblock();
        }
    }

    /// Whether something of a volume may be erased, which is noted when the disk has done so. If
    /// not, a full log waits for a checkpoint, and the waiter is told when to ask again.
    pub fn admit_erase(&mut self, number: u16, waiter: W) -> bool {
        let has_room = self.failed.is_some() || !self.is_tight();
        has_room || self.admit_through(number, waiter) != Admission::Wait
    }

    /// A write is to go past the log, which has no room for it: whether it may, or has to wait for
    /// a checkpoint, so that what it leaves behind does not take the last room there is.
    pub(super) fn admit_through(&mut self, number: u16, waiter: W) -> Admission {
        let Some(volume) = self.volume(number) else { return Admission::Full };
        if volume.needed.is_none() {
            if self.is_tight() && !self.is_blank(number) {
                self.make_blank(number);
            }
            return Admission::Full;
        }
        let is_futile = volume.futile >= FUTILE_MAX || volume.is_restoring;
        if self.free_segments() > GATE_SEGMENTS || volume.fence.is_some() || is_futile {
            return Admission::Full;
        }
        self.gated.push(waiter);
        Admission::Wait
    }

    /// Those whose changes need no record are told so: the superblock that says it is durable.
    pub(super) fn tell_unrecorded(&mut self, told: &mut Vec<(W, Told)>) {
        // DURABLE: whatever was recorded of the place is void.
        told.extend(self.unrecorded.drain(..).map(|waiter| (waiter, Told::Durable)));
    }

    /// Everything that was found of a volume has been given to the pool or its disk.
    pub fn restored(&mut self, number: u16) {
        for volume in self.volumes.iter_mut().filter(|volume| volume.number == number) {
            volume.is_restoring = false;
        }
    }

    /// The volume's disk has everything on stable storage, and nothing more is recorded of it.
    pub fn settled(&mut self, number: u16) {
        for volume in self.volumes.iter_mut().filter(|volume| volume.number == number) {
            volume.needed = None;
        }
    }

    /// Whether a checkpoint is due: less than half of the log is free, or no write is taken, and
    /// there is a volume that one can be begun of.
    pub fn wants_checkpoint(&self) -> bool {
        let has_half = 2 * self.free_segments() >= self.superblock.geometry.segments;
        self.failed.is_none()
            && (!has_half || self.is_tight())
            && self.volumes.iter().any(super::Volume::may_begin)
    }

    /// Whether a disk that fails, or takes long, keeps the log from being reclaimed; then a
    /// checkpoint of the others gives back little.
    pub fn is_held_up(&self) -> bool {
        self.gated.is_empty()
            && self.volumes.iter().any(|volume| volume.is_failing || volume.checkpoint.is_some())
    }

    /// Begins a checkpoint of everything recorded so far of the volumes of which none is under way.
    /// `None` when there is nothing to bring to a disk.
    pub fn begin_checkpoint(&mut self) -> Option<Checkpoint> {
        if self.failed.is_some() {
            return None;
        }
        let begun = self.mark();
        let mut volumes = Vec::new();
        for volume in self.volumes.iter_mut().filter(|volume| volume.may_begin()) {
            volume.checkpoint = Some(begun);
            volumes.push(volume.number);
        }
        if volumes.is_empty() {
            return None;
        }
        self.usage.checkpoints += 1;
        self.guards.begin(&volumes);
        Some(Checkpoint { volumes })
    }

    /// A volume's disk has, on stable storage, everything that was recorded before the checkpoint;
    /// or could not take it. Whoever waited for that is told with the next write that ends, or by
    /// [`Log::poll_told`].
    pub fn checkpointed(&mut self, number: u16, result: IoResult) {
        let counts = self.guards.counts_for(number) && result.is_ok();
        let volume = self.volumes.iter_mut().find(|volume| volume.number == number);
        // It may have been removed since.
        let Some(volume) = volume else { return };
        let begun = volume.checkpoint.take().expect("a checkpoint of it is under way");
        volume.is_failing = !counts;
        let is_futile = !counts && volume.fence.is_none();
        volume.futile = if is_futile { volume.futile.saturating_add(1) } else { 0 };
        if counts && volume.needed.is_some() {
            let has_changed = volume.changes_end > begun.record;
            volume.needed = (volume.records_end > begun.record).then_some(begun.segment);
            if self.is_tight() && !has_changed {
                self.make_blank(number);
            }
        }
        self.reclaim();
        self.has_news |= !self.gated.is_empty();
    }

    /// Begins the log at the oldest record that a disk may lack.
    pub fn reclaim(&mut self) {
        let needed = self.volumes.iter().filter_map(|volume| volume.needed).min();
        let first_segment = needed.unwrap_or(self.segment);
        if first_segment > self.superblock.first_segment && self.failed.is_none() {
            self.superblock.first_segment = first_segment;
            self.change_superblock();
        }
    }

    /// Those who waited for a checkpoint that has ended.
    pub fn poll_told(&mut self, told: &mut Vec<(W, Told)>) {
        if std::mem::take(&mut self.has_news) {
            told.extend(self.gated.drain(..).map(|waiter| (waiter, Told::Room)));
        }
    }

    /// Whether so much can be recorded forward: `bytes` in so many pieces.
    pub fn has_room_forward(&self, bytes: u64, pieces: u64) -> bool {
        let segments = self.free_segments().saturating_sub(GATE_SEGMENTS);
        // Batches are padded, and leave up to half a segment where the next one does not fit.
        2 * (bytes + pieces * RECORD_BYTES as u64)
            <= segments * self.superblock.geometry.segment_bytes
    }

    /// As [`Log::admit`], for what a disk does not take and the log has to keep. The caller waits
    /// by itself, for a write of the log to end.
    pub fn admit_forward(&mut self) -> Admission {
        if self.failed.is_some() {
            return Admission::Failed;
        }
        if self.free_segments() <= GATE_SEGMENTS {
            return Admission::Full;
        }
        if self.spare.len() <= self.permits {
            return Admission::Wait;
        }
        self.permits += 1;
        Admission::Granted
    }

    /// Says that the volume's disk has everything on stable storage but the ranges in `kept`, which
    /// are sorted and disjoint, as far as it was recorded before the record `since`. Returns
    /// whether that is so on record; it is not where there is no room, or where something was
    /// changed meanwhile. Unless it is the `last` one, as all of `kept` is lost in memory and on no
    /// disk, it leaves room for another, which keeps what is lost alone.
    pub fn fence(&mut self, number: u16, since: u64, kept: &[ByteRange], last: bool) -> bool {
        let size_bytes = self.superblock.volume(number).map(|volume| volume.size_bytes);
        let (Some(size_bytes), Some(volume)) = (size_bytes, self.volume(number)) else {
            return false;
        };
        if self.failed.is_some() || volume.changes_end > since {
            return false;
        }
        if volume.fence.as_ref().is_some_and(|fence| fence.kept == kept) {
            return true;
        }
        let bytes = self.fence_bytes(kept.len());
        if bytes + if last { 0 } else { bytes } > self.room_bytes() {
            return false;
        }
        let mut start = 0;
        let ends = kept.iter().map(|range| (range.offset, range.end()));
        for (end, next) in ends.chain([(size_bytes, size_bytes)]) {
            if end > start {
                let range = ByteRange::new(start, end - start);
                let entry = Entry { kind: RecordKind::Forget, volume: number, range };
                self.put_note(&entry, None);
            }
            start = next;
        }
        kept.iter().for_each(|range| self.guards.mark(number, *range));
        let fence = Fence { kept: kept.to_vec(), from: self.next_record };
        for volume in self.volumes.iter_mut().filter(|volume| volume.number == number) {
            volume.fence = Some(Fence { kept: fence.kept.clone(), ..fence });
        }
        true
    }

    /// Where the next batch goes, if it fits: a segment, and the first byte in it. All before it is
    /// on the device.
    pub const fn head(&self) -> (u64, u64) {
        (self.segment, self.offset)
    }

    /// Whether a place on the device, before a head that was seen earlier, is still needed.
    pub fn is_needed(&self, position: u64, head: (u64, u64)) -> bool {
        let geometry = self.superblock.geometry;
        let segments = self.superblock.first_segment..=head.0;
        segments.into_iter().any(|segment| {
            let start = geometry.position(segment);
            let end = if segment == head.0 { head.1 } else { geometry.segment_bytes };
            (start..start + end).contains(&position)
        })
    }

    /// The next batch begins another segment, so that a checkpoint lets go of the one at hand.
    pub fn leave_segment(&mut self) {
        let is_writing = !matches!(self.writing, super::Writing::Nothing);
        if self.offset > 0 && !is_writing && self.free_segments() > GATE_SEGMENTS {
            self.segment += 1;
            self.offset = 0;
        }
    }

    /// Whether no write is taken for want of room.
    pub(super) fn is_tight(&self) -> bool {
        self.free_segments() < self.limits.free_segments
    }

    /// Segments that may be begun before the durable superblock forbids it.
    pub(super) fn free_segments(&self) -> u64 {
        let used = self.segment - self.durable_first_segment() + 1;
        self.superblock.geometry.segments - used
    }
}

impl super::Volume {
    /// Whether a checkpoint of it can be begun.
    const fn may_begin(&self) -> bool {
        self.needed.is_some() && !self.is_restoring && self.checkpoint.is_none()
    }
}
