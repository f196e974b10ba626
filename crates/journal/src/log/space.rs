//! Log space: checkpoints free it, and three fallbacks apply when a checkpoint cannot.
//!
//! The log begins at the oldest record that a disk may lack. A disk that hangs or fails, or a
//! single bad sector, therefore pins the log's beginning for all volumes. When the log is full,
//! writes go through to their disks, but each still needs a `Forget` record if the log has older
//! records of its range. Three mechanisms keep one volume from waiting for another volume's disk:
//!
//! - **Void**: if the disk of a volume has everything, a superblock voids all of the volume's
//!   records so far. Its writes through then need no record, and no space.
//! - **Forward**: data that the disk does not take is still dirty in the pool. The log records it
//!   again at its head, and the old records may go.
//! - **Fence**: if there is no space for that, the log records that the disk has everything except
//!   some ranges. Writes through outside these ranges then need no record.
//!
//! The last free segment is reserved for forwarding and fences. Before it is used up, writes of
//! volumes that need space wait for a checkpoint, which results in one of the three. If several
//! checkpoints in a row do not help because the disk does not flush, the writes continue; but a
//! record that would take the space of the fence itself fails.

use super::{Admission, Entry, Log, Notification};
use forebay_format::journal::{RECORD_BYTES, Record, RecordKind, batch_bytes};
use forebay_types::{ByteRange, IoResult};

/// Free segments reserved for forwarding and fences.
pub(super) const RESERVED_SEGMENTS: u64 = 1;
/// Consecutive checkpoints without freed space after which a volume's writes no longer wait.
const FUTILE_MAX: u8 = 3;

/// A checkpoint: the driver destages everything recorded so far for these volumes, flushes their
/// disks, and reports each volume with [`Log::checkpointed`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checkpoint {
    /// The numbers of the volumes in this journal.
    pub volumes: Vec<u16>,
}

/// The outcome of [`Log::record`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum RecordOutcome {
    /// Recorded. The log notifies the waiter once the record is durable.
    Recorded,
    /// The log has no older records of the range, so no record is needed.
    Unneeded,
    /// Not recorded. The change is valid only if the disk has it on stable storage.
    Refused,
    /// The disk has the change, but the log has no space to record it. The request must fail,
    /// because older records of the range would undo the change after a crash.
    NoSpace,
}

/// A position in the log: the next record, and the segment in which it lies at the earliest.
#[derive(Clone, Copy, Debug)]
pub struct Mark {
    segment: u64,
    record: u64,
}

/// The ranges of a volume whose records are still needed; the disk has everything else.
#[derive(Debug)]
pub(super) struct Fence {
    /// Sorted and disjoint.
    kept: Vec<ByteRange>,
    /// The fence is effective once all records before this one are durable.
    from: u64,
}

impl<B: AsRef<[u8]> + AsMut<[u8]>, W> Log<B, W> {
    /// Records a change without payload: an erase, or that the disk has a range.
    pub fn record(&mut self, entry: Entry, waiter: Option<W>) -> RecordOutcome {
        assert!(entry.kind != RecordKind::Write, "a write has a payload");
        let range = entry.range;
        assert!(range.len > 0 && range.is_sector_aligned(), "{range} is not whole sectors");
        if self.failed.is_some() {
            return RecordOutcome::Refused;
        }
        if self.has_no_records_of(entry.volume, entry.range) {
            let is_void = self.superblock_is_durable() && !self.must_defer();
            match (entry.kind, waiter) {
                (RecordKind::Forget, _) if is_void => return RecordOutcome::Unneeded,
                (RecordKind::Forget, Some(waiter)) => {
                    self.superblock_waiters.push(waiter);
                    return RecordOutcome::Recorded;
                }
                _ if is_void && self.is_low_on_space() => return RecordOutcome::Refused,
                _ if !self.has_space_for_record(entry.volume) => return RecordOutcome::NoSpace,
                (_, waiter) => self.append_record(&entry, waiter),
            }
        } else {
            if !self.has_space_for_record(entry.volume) {
                return RecordOutcome::NoSpace;
            }
            if entry.kind == RecordKind::Forget {
                self.narrow_fence(&entry);
            }
            self.append_record(&entry, waiter);
        }
        RecordOutcome::Recorded
    }

    /// Whether there is space for a record of a volume, and for a fence after it.
    fn has_space_for_record(&self, number: u16) -> bool {
        let fence = match self.volume(number).and_then(|volume| volume.fence.as_ref()) {
            // The next fence keeps no more ranges than this one.
            Some(fence) => self.fence_bytes(fence.kept.len()),
            None => self.superblock.geometry.segment_bytes / 2,
        };
        batch_bytes(0, 1) + fence <= self.free_bytes()
    }

    /// Log space, in bytes, of a fence with this number of kept ranges.
    fn fence_bytes(&self, kept: usize) -> u64 {
        let (records, batch) = (kept as u64 + 1, self.limits.records as u64);
        let begun = if self.queue.is_empty() { 0 } else { batch_bytes(0, 1) };
        let last = batch_bytes(0, records % batch);
        records / batch * batch_bytes(0, batch) + last + begun
    }

    /// Free log space in bytes, beyond everything queued.
    fn free_bytes(&self) -> u64 {
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
            // The next batch may not fit into the rest of this segment.
            free => free * segment_bytes,
        };
        left.saturating_sub(queued + writing)
    }

    fn append_record(&mut self, entry: &Entry, waiter: Option<W>) {
        if self.queue.back().is_none_or(|batch| batch.records.len() == self.limits.records) {
            self.open_batch();
        }
        let batch = self.queue.back_mut().expect("a batch is open");
        let Entry { kind, volume, range } = *entry;
        batch.records.push(Record { kind, volume, range, payload_offset: 0, checksum: 0 });
        batch.waiters.extend(waiter);
        assert!(batch.records.len() <= self.limits.records, "records lie within their batch");
        self.count_record(entry);
    }

    /// Numbers a record that was just added to a batch.
    pub(super) fn count_record(&mut self, entry: &Entry) {
        self.samples.touch(entry.volume, entry.range);
        let segment = self.segment;
        let number = self.next_record;
        self.next_record += 1;
        let volume = self.volumes.iter_mut().find(|volume| volume.number == entry.volume);
        let volume = volume.expect("the volume was added");
        volume.needed.get_or_insert(segment);
        assert!(volume.records_end <= number, "record numbers ascend");
        volume.records_end = number + 1;
        if entry.kind != RecordKind::Forget {
            volume.changes_end = number + 1;
            volume.fence = None;
        }
    }

    /// Whether the log has no valid records of a range.
    fn has_no_records_of(&self, number: u16, range: ByteRange) -> bool {
        if self.is_void(number) {
            return true;
        }
        let fence = self.volume(number).and_then(|volume| volume.fence.as_ref());
        fence.is_some_and(|fence| {
            let overlaps = |kept: &ByteRange| kept.overlaps(range);
            fence.from <= self.first_pending_record() && !fence.kept.iter().any(overlaps)
        })
    }

    /// Removes a range from the fence, because the next record forgets it.
    fn narrow_fence(&mut self, entry: &Entry) {
        let from = self.next_record + 1;
        let volume = self.volumes.iter_mut().find(|volume| volume.number == entry.volume);
        let Some(fence) = volume.and_then(|volume| volume.fence.as_mut()) else { return };
        let (start, end) = (entry.range.offset, entry.range.end());
        let rest = fence.kept.iter().flat_map(|kept| {
            let before =
                ByteRange::new(kept.offset, start.clamp(kept.offset, kept.end()) - kept.offset);
            let after = end.clamp(kept.offset, kept.end());
            [before, ByteRange::new(after, kept.end() - after)]
        });
        fence.kept = rest.filter(|range| range.len > 0).collect();
        fence.from = from;
    }

    fn volume(&self, number: u16) -> Option<&super::Volume> {
        self.volumes.iter().find(|volume| volume.number == number)
    }

    /// Whether all records of a volume are void.
    fn is_void(&self, number: u16) -> bool {
        let Some(volume) = self.volume(number) else { return false };
        let entry = self.superblock.volume(number);
        let void_before = entry.map_or(0, |entry| entry.void_before);
        volume.needed.is_none() && volume.records_end <= void_before
    }

    /// Voids all records of a volume, because its disk has everything on stable storage.
    fn void_all_records(&mut self, number: u16) {
        let void_before = self.next_record;
        for volume in self.volumes.iter_mut().filter(|volume| volume.number == number) {
            (volume.needed, volume.fence) = (None, None);
        }
        let mut entries = self.superblock.volumes.iter_mut();
        if let Some(entry) = entries.find(|entry| entry.number == number) {
            assert!(entry.void_before <= void_before, "void records stay void");
            entry.void_before = void_before;
            self.change_superblock();
        }
    }

    /// The position of the next record.
    pub const fn mark(&self) -> Mark {
        // The next record lies in the current segment or a later one.
        Mark { segment: self.segment, record: self.next_record }
    }

    /// Voids the records of a volume before the mark. The caller guarantees that everything known
    /// of the volume is on its disk's stable storage, or was recorded after the mark and is
    /// durable.
    ///
    /// If some records before the mark never became durable, the remaining ones could otherwise
    /// undo records after it.
    pub fn void_records_before(&mut self, number: u16, mark: Mark) {
        assert!(mark.record <= self.next_record, "the mark is of this log");
        let first_segment = self.superblock.first_segment;
        for volume in self.volumes.iter_mut().filter(|volume| volume.number == number) {
            let needed = mark.segment.max(first_segment);
            volume.needed = (volume.records_end > mark.record).then_some(needed);
            volume.fence = None;
        }
        let mut entries = self.superblock.volumes.iter_mut();
        if let Some(entry) = entries.find(|entry| entry.number == number) {
            entry.void_before = mark.record;
            self.change_superblock();
        }
    }

    /// Whether an erase may start, which is recorded once the disk has completed it. If not, the
    /// log notifies the waiter after the next checkpoint.
    pub fn admit_erase(&mut self, number: u16, waiter: W) -> bool {
        let has_space = self.failed.is_some() || !self.is_low_on_space();
        has_space || self.admit_write_through(number, waiter) != Admission::Wait
    }

    /// Admits a write through to the disk when the log has no space for it, or makes it wait for a
    /// checkpoint, so that its record does not take the last space.
    pub(super) fn admit_write_through(&mut self, number: u16, waiter: W) -> Admission {
        let Some(volume) = self.volume(number) else { return Admission::Full };
        if volume.needed.is_none() {
            if self.is_low_on_space() && !self.is_void(number) {
                self.void_all_records(number);
            }
            return Admission::Full;
        }
        let is_futile = volume.futile >= FUTILE_MAX || volume.is_restoring;
        if self.free_segments() > RESERVED_SEGMENTS || volume.fence.is_some() || is_futile {
            return Admission::Full;
        }
        self.checkpoint_waiters.push(waiter);
        Admission::Wait
    }

    /// Notifies the waiters whose changes need no record, now that the superblock is durable.
    pub(super) fn notify_superblock_waiters(&mut self, notifications: &mut Vec<(W, Notification)>) {
        // DURABLE: all older records of the range are void.
        let waiters = self.superblock_waiters.drain(..);
        notifications.extend(waiters.map(|waiter| (waiter, Notification::Durable)));
    }

    /// Ends the restore of a volume: all its recovered records are in the pool or on its disk.
    pub fn restored(&mut self, number: u16) {
        for volume in self.volumes.iter_mut().filter(|volume| volume.number == number) {
            volume.is_restoring = false;
        }
    }

    /// Marks a volume as clean: its disk has everything on stable storage, and nothing more is
    /// recorded.
    pub fn mark_clean(&mut self, number: u16) {
        for volume in self.volumes.iter_mut().filter(|volume| volume.number == number) {
            volume.needed = None;
        }
    }

    /// Whether a checkpoint is due: less than half of the log is free, or the log admits no writes,
    /// and there is a volume to checkpoint.
    pub fn wants_checkpoint(&self) -> bool {
        let has_half = 2 * self.free_segments() >= self.superblock.geometry.segments;
        self.failed.is_none()
            && (!has_half || self.is_low_on_space())
            && self.volumes.iter().any(super::Volume::may_begin)
    }

    /// Whether a failing or slow disk pins the log, so that a checkpoint of the other volumes frees
    /// little space.
    pub fn is_blocked(&self) -> bool {
        self.checkpoint_waiters.is_empty()
            && self.volumes.iter().any(|volume| volume.is_failing || volume.checkpoint.is_some())
    }

    /// Begins a checkpoint of all volumes that have records and no checkpoint in progress. Returns
    /// `None` if there are none.
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
        self.samples.begin_checkpoint(&volumes);
        Some(Checkpoint { volumes })
    }

    /// Ends the checkpoint of a volume. On success its disk has everything recorded before the
    /// checkpoint, on stable storage. The next completed write or [`Log::poll_notifications`]
    /// notifies the waiters.
    pub fn checkpointed(&mut self, number: u16, result: IoResult) {
        let is_valid = self.samples.is_checkpoint_valid(number) && result.is_ok();
        let first_segment = self.superblock.first_segment;
        let next_record = self.next_record;
        let volume = self.volumes.iter_mut().find(|volume| volume.number == number);
        // The volume may have been removed meanwhile.
        let Some(volume) = volume else { return };
        let begun = volume.checkpoint.take().expect("a checkpoint of the volume is in progress");
        assert!(begun.record <= next_record, "a checkpoint covers only records already made");
        volume.is_failing = !is_valid;
        let is_futile = !is_valid && volume.fence.is_none();
        volume.futile = if is_futile { volume.futile.saturating_add(1) } else { 0 };
        if is_valid && volume.needed.is_some() {
            let has_changed = volume.changes_end > begun.record;
            let needed = begun.segment.max(first_segment);
            volume.needed = (volume.records_end > begun.record).then_some(needed);
            if self.is_low_on_space() && !has_changed {
                self.void_all_records(number);
            }
        }
        self.reclaim();
        self.checkpoint_ended |= !self.checkpoint_waiters.is_empty();
    }

    /// Moves the beginning of the log to the oldest record that a disk may lack.
    pub fn reclaim(&mut self) {
        let needed = self.volumes.iter().filter_map(|volume| volume.needed).min();
        let first_segment = needed.unwrap_or(self.segment);
        assert!(first_segment <= self.segment, "needed records are on the device or queued");
        if first_segment > self.superblock.first_segment && self.failed.is_none() {
            self.superblock.first_segment = first_segment;
            self.change_superblock();
        }
    }

    /// Notifies the waiters for a checkpoint, if one has ended.
    pub fn poll_notifications(&mut self, notifications: &mut Vec<(W, Notification)>) {
        if std::mem::take(&mut self.checkpoint_ended) {
            super::notify_retry(&mut self.checkpoint_waiters, notifications);
        }
    }

    /// Whether the log has space to forward `bytes` in this number of pieces.
    pub fn can_forward(&self, bytes: u64, pieces: u64) -> bool {
        let segments = self.free_segments().saturating_sub(RESERVED_SEGMENTS);
        // Batches are padded, and up to half a segment is lost where the next batch does not fit.
        2 * (bytes + pieces * RECORD_BYTES as u64)
            <= segments * self.superblock.geometry.segment_bytes
    }

    /// As [`Log::admit`], for data that the log forwards. On [`Admission::Wait`] the caller retries
    /// when a write of the log completes; the log sends no notification.
    pub fn admit_forward(&mut self) -> Admission {
        if self.failed.is_some() {
            return Admission::Failed;
        }
        if self.free_segments() <= RESERVED_SEGMENTS {
            return Admission::Full;
        }
        if self.spare.len() <= self.permits {
            return Admission::Wait;
        }
        self.permits += 1;
        Admission::Granted
    }

    /// Records a fence: of everything recorded before `since`, the volume's disk has all ranges but
    /// those in `kept` on stable storage. `kept` is sorted and disjoint.
    ///
    /// Returns false if there is no space, or if the volume was changed since. Leaves space for
    /// another, smaller fence, unless this is the `last` one: the data in `kept` is lost in memory
    /// and on the disk, so that no later fence can be smaller.
    pub fn fence(&mut self, number: u16, since: u64, kept: &[ByteRange], last: bool) -> bool {
        let size_bytes = self.superblock.volume(number).map(|volume| volume.size_bytes);
        let (Some(size_bytes), Some(volume)) = (size_bytes, self.volume(number)) else {
            return false;
        };
        let is_sorted = kept.windows(2).all(|pair| pair[0].end() <= pair[1].offset);
        assert!(is_sorted, "kept ranges are sorted and disjoint");
        assert!(since <= self.next_record, "a fence covers only records already made");
        if self.failed.is_some() || volume.changes_end > since {
            return false;
        }
        if volume.fence.as_ref().is_some_and(|fence| fence.kept == kept) {
            return true;
        }
        let bytes = self.fence_bytes(kept.len());
        if bytes + if last { 0 } else { bytes } > self.free_bytes() {
            return false;
        }
        let mut start = 0;
        let ends = kept.iter().map(|range| (range.offset, range.end()));
        for (end, next) in ends.chain([(size_bytes, size_bytes)]) {
            if end > start {
                let range = ByteRange::new(start, end - start);
                let entry = Entry { kind: RecordKind::Forget, volume: number, range };
                self.append_record(&entry, None);
            }
            start = next;
        }
        kept.iter().for_each(|range| self.samples.touch(number, *range));
        let fence = Fence { kept: kept.to_vec(), from: self.next_record };
        for volume in self.volumes.iter_mut().filter(|volume| volume.number == number) {
            volume.fence = Some(Fence { kept: fence.kept.clone(), ..fence });
        }
        true
    }

    /// The head of the log: the segment and offset of the next batch, if it fits there. Everything
    /// before the head is on the device.
    pub const fn head(&self) -> (u64, u64) {
        (self.segment, self.offset)
    }

    /// Whether a position on the device, before an earlier `head`, is still needed.
    pub fn is_needed(&self, position: u64, head: (u64, u64)) -> bool {
        let geometry = self.superblock.geometry;
        let segments = self.superblock.first_segment..=head.0;
        segments.into_iter().any(|segment| {
            let start = geometry.position(segment);
            let end = if segment == head.0 { head.1 } else { geometry.segment_bytes };
            (start..start + end).contains(&position)
        })
    }

    /// Moves the head to the next segment, so that a checkpoint can release the current one.
    pub fn skip_to_next_segment(&mut self) {
        let is_writing = !matches!(self.writing, super::Writing::Nothing);
        if self.offset > 0 && !is_writing && self.free_segments() > RESERVED_SEGMENTS {
            self.segment += 1;
            self.offset = 0;
        }
    }

    /// Whether the log admits no writes for lack of space.
    pub(super) fn is_low_on_space(&self) -> bool {
        self.free_segments() < self.limits.free_segments
    }

    /// Number of further segments that may be used under the durable superblock.
    pub(super) fn free_segments(&self) -> u64 {
        let used = self.segment - self.durable_first_segment() + 1;
        let segments = self.superblock.geometry.segments;
        assert!(used <= segments, "{used} segments in use of {segments}");
        segments - used
    }
}

impl super::Volume {
    /// Whether a checkpoint of the volume may begin.
    const fn may_begin(&self) -> bool {
        self.needed.is_some() && !self.is_restoring && self.checkpoint.is_none()
    }
}
