//! The space in the log: checkpoints free it, with three fallbacks if a checkpoint cannot.
//!
//! The log begins at the oldest record that a disk may lack. So a disk that hangs or fails, or a
//! single bad sector, keeps the log from freeing space for all volumes. When the log is full,
//! writes become write-throughs, but each still needs a `Forget` record if the log has older
//! records of its range. Three mechanisms keep one volume from waiting for another volume's disk:
//!
//! - **Void**: if the disk of a volume has everything, a superblock voids all of the volume's
//!   records so far. Its write-throughs then need no records, and so no space.
//! - **Forward**: data that cannot be destaged is still dirty in the pool. It is recorded again at
//!   the head of the log, so the old records are no longer needed.
//! - **Fence**: if there is no space for that, the log records that the disk has everything except
//!   some ranges. Write-throughs outside these ranges then need no record.
//!
//! The last free segment is reserved for forwarding and fences. Writes that would use it wait for a
//! checkpoint, which frees space or ends in one of the three mechanisms. If several checkpoints of
//! a volume in a row free nothing, because its disk fails flushes, its writes no longer wait; but a
//! record that would take the space of the volume's next fence is refused. Forwarding uses the last
//! segment only if that frees other segments, and leaves space for a fence of any volume.

use super::extent::RESERVED_SEGMENTS;
use super::volumes::{Fence, LogVolume, Mark};
use super::{BatchWrite, Log, LogAdmission, LogEntry, Notification, retry};
use forebay_format::journal::{GENERATIONS_MAX, RECORD_BYTES, RecordKind, batch_bytes};
use forebay_types::{ByteRange, IoResult};

/// Consecutive checkpoints without freed space after which a volume's writes no longer wait.
const FUTILE_MAX: u8 = 3;

/// A checkpoint: the driver destages everything recorded so far for these volumes, flushes their
/// disks, and reports each volume with [`Log::end_checkpoint`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checkpoint {
    /// The numbers of the volumes in this journal.
    pub volumes: Vec<u16>,
}

/// The outcome of [`Log::record`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum RecordOutcome {
    /// Recorded. The log notifies the waiter once the record, or a superblock that replaces it, is
    /// durable.
    Recorded,
    /// The log has no older records of the range, so no record is needed.
    Unneeded,
    /// Not recorded, because the log has failed, or has little space and no older records of the
    /// volume or range. The change survives a crash only if the disk has it on stable storage.
    Refused,
    /// The disk has the change, but the log has no space to record it. The request must fail,
    /// because older records of the range would undo the change after a crash.
    NoSpace,
}

/// Whether several starts in a row have ended before a checkpoint did. Each begins a generation in
/// a segment of its own, and the superblock has space for few: a log with too many is not resumed.
pub fn needs_checkpoint_for_starts<B: AsRef<[u8]> + AsMut<[u8]>, W>(log: &Log<B, W>) -> bool {
    let superblock = log.superblock();
    let starts = superblock.starts.iter();
    starts.filter(|start| start.segment > superblock.first_segment).count() >= GENERATIONS_MAX / 4
}

impl<B: AsRef<[u8]> + AsMut<[u8]>, W> Log<B, W> {
    /// Records a change without payload: an erase, or a range whose newest content is on the disk.
    pub fn record(&mut self, entry: LogEntry, mut waiter: Option<W>) -> RecordOutcome {
        assert!(entry.kind != RecordKind::Write, "a write has a payload");
        let range = entry.range;
        assert!(range.len > 0 && range.is_sector_aligned(), "{range} is not whole sectors");
        if self.failed.is_some() {
            return RecordOutcome::Refused;
        }
        let first_pending = self.first_pending_record();
        let has_no_records = self.volumes.is_void(entry.volume, self.superblock())
            || self.volumes.is_fenced_off(entry.volume, range, first_pending);
        let is_forget = entry.kind == RecordKind::Forget;
        if has_no_records {
            let is_void = self.is_superblock_durable() && self.is_membership_recorded();
            if is_forget && is_void {
                return RecordOutcome::Unneeded;
            }
            if let Some(waiter) = waiter.take_if(|_| is_forget) {
                self.superblock_waiters.push(waiter);
                return RecordOutcome::Recorded;
            }
            if is_void && self.extent.is_low() {
                return RecordOutcome::Refused;
            }
        }
        if batch_bytes(0, 1) > self.free_bytes_beside_fence(entry.volume) {
            return RecordOutcome::NoSpace;
        }
        if is_forget && !has_no_records {
            self.volumes.narrow_fence(&entry);
        }
        self.batches.append_record(&entry, waiter);
        self.count_record(&entry);
        RecordOutcome::Recorded
    }

    /// Space for further batches in bytes, less the space of the volume's next fence.
    fn free_bytes_beside_fence(&self, number: u16) -> u64 {
        let fence_bytes = next_fence_bytes(self, self.volumes.get(number));
        self.extent.free_bytes().saturating_sub(fence_bytes + self.batches.len_bytes())
    }

    /// Numbers a record that was just added to a batch.
    pub(super) fn count_record(&mut self, entry: &LogEntry) {
        self.samples.mark_touched(entry.volume, entry.range);
        // A log that admits no writes records data only to forward it.
        self.volumes.count_record(entry, self.extent.head().0, self.extent.is_low());
    }

    /// Voids all records of a volume, because its disk has everything on stable storage. They are
    /// void once the superblock is durable.
    pub fn void_all_records(&mut self, number: u16) {
        let void_before = self.next_record();
        if let Some(volume) = self.volumes.get_mut(number) {
            (volume.needed, volume.fence) = (None, None);
        }
        if let Some(entry) = self.extent.entry_mut(number) {
            assert!(entry.void_before <= void_before, "void records stay void");
            entry.void_before = void_before;
        }
        self.reclaim();
    }

    /// The position of the next record.
    pub const fn mark(&self) -> Mark {
        // The next record lies in the current segment or a later one.
        Mark { segment: self.extent.head().0, record: self.volumes.next_record() }
    }

    /// Voids the records of a volume before the mark. The caller guarantees that all data of the
    /// volume is on its disk's stable storage, or was recorded after the mark and is durable.
    ///
    /// Otherwise, if such a record never became durable, the replay of the older record that it
    /// superseded would undo newer data.
    pub fn void_records_before(&mut self, number: u16, mark: Mark) {
        assert!(mark.record <= self.next_record(), "the mark belongs to this log");
        assert!(mark.segment <= self.extent.head().0, "the mark is not ahead of the log");
        let first_segment = self.superblock().first_segment;
        if let Some(volume) = self.volumes.get_mut(number) {
            volume.need_since(mark, first_segment);
            volume.fence = None;
        }
        if let Some(entry) = self.extent.entry_mut(number) {
            entry.void_before = mark.record;
        }
        self.reclaim();
    }

    /// Whether an erase may start, which is recorded once the disk has completed it. If not, the
    /// log notifies the waiter after the next checkpoint.
    pub fn admit_erase(&mut self, number: u16, waiter: W) -> bool {
        let has_space = self.failed.is_some() || !self.extent.is_low();
        has_space || self.admit_write_through(number, waiter) != LogAdmission::Wait
    }

    /// Admits a write as a write-through, because the log has no space for its data; or makes it
    /// wait for a checkpoint, so that its `Forget` record does not take the last space.
    pub(super) fn admit_write_through(&mut self, number: u16, waiter: W) -> LogAdmission {
        let Some(volume) = self.volumes.get(number) else { return LogAdmission::Full };
        if volume.needed.is_none() {
            if self.extent.is_low() && !self.volumes.is_void(number, self.superblock()) {
                self.void_all_records(number);
            }
            return LogAdmission::Full;
        }
        let is_futile = volume.futile >= FUTILE_MAX || volume.is_restoring;
        if self.extent.free_segments() > RESERVED_SEGMENTS || volume.fence.is_some() || is_futile {
            return LogAdmission::Full;
        }
        self.checkpoint_waiters.push(waiter);
        LogAdmission::Wait
    }

    /// Ends the restore of a volume: all its recovered records are in the pool or on its disk.
    pub fn end_restore(&mut self, number: u16) {
        if let Some(volume) = self.volumes.get_mut(number) {
            volume.is_restoring = false;
        }
    }

    /// Marks a volume as clean: its disk has everything on stable storage, and the caller records
    /// nothing more.
    pub fn mark_clean(&mut self, number: u16) {
        if let Some(volume) = self.volumes.get_mut(number) {
            volume.needed = None;
        }
        self.reclaim();
    }

    /// Whether a checkpoint is due: less than half of the log is free, the log admits no writes, or
    /// it [needs one for starts](needs_checkpoint_for_starts), and there is a volume to
    /// checkpoint.
    pub fn wants_checkpoint(&self) -> bool {
        let has_half_free = 2 * self.extent.free_segments() >= self.superblock().geometry.segments;
        self.failed.is_none()
            && (!has_half_free || self.extent.is_low() || needs_checkpoint_for_starts(self))
            && self.volumes.may_begin_checkpoint()
    }

    /// Whether the next checkpoint may begin later: no writer waits for one, and the checkpoint of
    /// some volume has failed or is in progress, so that one of other volumes frees little space.
    pub fn is_blocked(&self) -> bool {
        self.checkpoint_waiters.is_empty() && self.volumes.is_blocked()
    }

    /// Begins a checkpoint of all volumes that have records and no checkpoint in progress. Returns
    /// `None` if there are none.
    pub fn begin_checkpoint(&mut self) -> Option<Checkpoint> {
        if self.failed.is_some() {
            return None;
        }
        let volumes = self.volumes.begin_checkpoint(self.mark());
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
    pub fn end_checkpoint(&mut self, number: u16, result: IoResult) {
        let is_valid = self.samples.take_checkpoint_validity(number) && result.is_ok();
        let first_segment = self.superblock().first_segment;
        let next_record = self.next_record();
        // The volume may have been removed meanwhile.
        let Some(volume) = self.volumes.get_mut(number) else { return };
        let begun = volume.checkpoint.take().expect("a checkpoint of the volume is in progress");
        assert!(begun.record <= next_record, "a checkpoint covers only existing records");
        assert!(volume.records_end <= next_record, "a volume's records have been numbered");
        volume.is_failing = !is_valid;
        let is_futile = !is_valid && volume.fence.is_none();
        volume.futile = if is_futile { volume.futile.saturating_add(1) } else { 0 };
        if is_valid && volume.needed.is_some() {
            let has_changed = volume.changes_end > begun.record;
            volume.need_since(begun, first_segment);
            if self.extent.is_low() && !has_changed {
                self.void_all_records(number);
            }
        }
        self.reclaim();
        self.has_checkpoint_ended |= !self.checkpoint_waiters.is_empty();
    }

    /// Moves the beginning of the log to the oldest record that a disk may lack. Called whenever a
    /// volume needs fewer records than before.
    fn reclaim(&mut self) {
        if self.failed.is_none() {
            self.extent.release(self.volumes.needed());
        }
    }

    /// Notifies the waiters for a checkpoint, if one has ended.
    pub fn poll_notifications(&mut self, notifications: &mut Vec<(W, Notification)>) {
        if std::mem::take(&mut self.has_checkpoint_ended) {
            retry(self.checkpoint_waiters.drain(..), notifications);
        }
    }

    /// Whether the log has space to forward `bytes` of a volume in this number of pieces: in free
    /// segments that are not reserved; or, if the log begins with records of this volume, in the
    /// reserved segment beside a fence. Without the second case, a log whose unreserved segments
    /// are used up could never free any.
    pub fn can_forward(&self, number: u16, bytes: u64, pieces: u64) -> bool {
        let segments = self.extent.free_segments().saturating_sub(RESERVED_SEGMENTS);
        let unreserved = segments * self.superblock().geometry.segment_bytes;
        // Batches are padded, and up to half a segment is lost where the next batch does not fit.
        // A fence takes one more batch if another one is queued.
        2 * (bytes + pieces * RECORD_BYTES as u64) <= unreserved
            || bytes + (pieces + 1) * batch_bytes(0, 1) <= reserve_bytes_to_forward(self, number)
    }

    /// As [`Log::admit`], for `len` bytes of a volume that the log forwards. On
    /// [`LogAdmission::Wait`] the caller retries when a write of the log completes; the log sends
    /// no notification.
    pub fn admit_forward(&mut self, number: u16, len: u64) -> LogAdmission {
        if self.failed.is_some() {
            return LogAdmission::Failed;
        }
        if self.extent.free_segments() <= RESERVED_SEGMENTS {
            if batch_bytes(len, 1) > reserve_bytes_to_forward(self, number) {
                return LogAdmission::Full;
            }
            // An earlier write with a permit may yet need this space.
            if self.batches.has_permits() {
                return LogAdmission::Wait;
            }
        }
        if self.batches.take_permit() { LogAdmission::Granted } else { LogAdmission::Wait }
    }

    /// Records a fence: the volume's disk has everything recorded before `since` on stable storage,
    /// except the ranges in `kept`, which are sorted and disjoint.
    ///
    /// Returns false if there is no space, or if the volume has changed since `since`. Leaves space
    /// for another fence with at most as many ranges, unless `is_last` is set: then memory has lost
    /// the data in `kept`, so it is never destaged, and no smaller fence follows.
    pub fn fence(&mut self, number: u16, since: u64, kept: &[ByteRange], is_last: bool) -> bool {
        let size_bytes = self.superblock().volume(number).map(|volume| volume.size_bytes);
        let (Some(size_bytes), Some(volume)) = (size_bytes, self.volumes.get(number)) else {
            return false;
        };
        let is_sorted = kept.windows(2).all(|pair| pair[0].end() <= pair[1].offset);
        assert!(is_sorted, "kept ranges are sorted and disjoint");
        assert!(since <= self.next_record(), "a fence covers only existing records");
        if self.failed.is_some() || volume.changes_end > since {
            return false;
        }
        if volume.fence.as_ref().is_some_and(|fence| fence.kept == kept) {
            return true;
        }
        let bytes = self.batches.fence_bytes(kept.len());
        let bytes = if is_last { bytes } else { 2 * bytes };
        if bytes + self.batches.len_bytes() > self.extent.free_bytes() {
            return false;
        }
        let mut start = 0;
        let ends = kept.iter().map(|range| (range.offset, range.end()));
        for (end, next) in ends.chain([(size_bytes, size_bytes)]) {
            if end > start {
                let range = ByteRange::new(start, end - start);
                let entry = LogEntry { kind: RecordKind::Forget, volume: number, range };
                self.batches.append_record(&entry, None);
                self.count_record(&entry);
            }
            start = next;
        }
        kept.iter().for_each(|range| self.samples.mark_touched(number, *range));
        let from = self.next_record();
        if let Some(volume) = self.volumes.get_mut(number) {
            volume.fence = Some(Fence { kept: kept.to_vec(), from });
        }
        true
    }

    /// The head of the log: the segment and offset of the next batch, if it fits there. Everything
    /// before the head is on the device.
    pub const fn head(&self) -> (u64, u64) {
        self.extent.head()
    }

    /// Whether a position on the device lies between the current beginning of the log and `head`,
    /// an earlier result of [`Log::head`].
    pub fn is_needed(&self, position: u64, head: (u64, u64)) -> bool {
        self.extent.is_needed(position, head)
    }

    /// Moves the head to the next segment, so that a checkpoint can release the current one.
    pub fn skip_to_next_segment(&mut self) {
        if matches!(self.writing, BatchWrite::Nothing) {
            self.extent.skip_segment();
        }
        // If no record is needed, the log begins at its head.
        self.reclaim();
    }
}

/// The space to leave for the next fence of a volume, in bytes.
fn next_fence_bytes<B: AsRef<[u8]> + AsMut<[u8]>, W>(
    log: &Log<B, W>,
    volume: Option<&LogVolume>,
) -> u64 {
    match volume.and_then(|volume| volume.fence.as_ref()) {
        // The next fence keeps no more ranges than this one.
        Some(fence) => log.batches.fence_bytes(fence.kept.len()),
        None => log.superblock().geometry.segment_bytes / 2,
    }
}

/// Space in one segment for forwarded data of a volume, in bytes, less the space of the largest
/// next fence. Zero if forwarding would free no segment, because then each checkpoint would use up
/// a part of the reserve.
fn reserve_bytes_to_forward<B: AsRef<[u8]> + AsMut<[u8]>, W>(log: &Log<B, W>, number: u16) -> u64 {
    if !log.volumes.pins_beginning(number) {
        return 0;
    }
    let fences = log.volumes.with_records().map(|volume| next_fence_bytes(log, Some(volume)));
    let fence_bytes = fences.max().unwrap_or(0);
    let free_bytes = log.extent.free_bytes().min(log.superblock().geometry.segment_bytes);
    free_bytes.saturating_sub(fence_bytes + log.batches.len_bytes())
}

/// How far a log is from admitting no more writes because of a volume's oldest record, and the
/// maximum of that distance, in segments. The maximum is three quarters of the log, less what is
/// reserved: a checkpoint frees its space only at its end, when as much has been written again, so
/// checkpoints that speed up only in the second half of the log would be too late.
pub fn distance<B, W>(log: &Log<B, W>, number: u16) -> (u64, u64) {
    let (used_max, all) = log.extent.distance();
    let Some(needed) = log.volumes.get(number).and_then(|volume| volume.needed) else {
        return (all, all);
    };
    // Writes of any volume may wait for a checkpoint of this one.
    if log.extent.is_low() {
        return (0, all);
    }
    let used = log.extent.head().0 - needed + 1;
    (used_max.saturating_sub(used).min(all), all)
}

/// The numbers of the volumes with a checkpoint in progress.
pub fn checkpoints_in_progress<B, W>(log: &Log<B, W>) -> impl Iterator<Item = u16> {
    log.volumes.checkpoints_in_progress()
}
