//! The writing side of the journal.

mod batches;
mod error;
mod extent;
mod mirror;
mod samples;
mod space;
mod volumes;

pub(crate) use mirror::{encode_for_members, targets_of};

use batches::Batches;
use extent::{LogExtent, RESERVED_SEGMENTS};
use forebay_format::journal::{
    BLOCK_BYTES, BatchHeader, DiskInfo, GENERATIONS_MAX, GenerationStart, Geometry, JournalId,
    LogKind, MEMBERS_MAX, Members, Record, RecordKind, SUPERBLOCK_BYTES, Superblock, VOLUMES_MAX,
    VolumeEntry, seal_batch,
};
use forebay_types::{ByteRange, IoError, IoResult};
use mirror::Mirror;
use samples::SampleTracker;
use volumes::LogVolumes;

pub use error::LogError;
pub use space::{
    Checkpoint, RecordOutcome, checkpoints_in_progress, distance, needs_checkpoint_for_starts,
};
pub use volumes::Mark;

/// Copies of the superblock on each device.
const COPIES: usize = 2;

/// A change to record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogEntry {
    /// The kind of change.
    pub kind: RecordKind,
    /// The volume's number in this journal.
    pub volume: u16,
    /// The changed range: whole sectors, not empty.
    pub range: ByteRange,
}

/// Whether the log admits a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogAdmission {
    /// Admitted: [`Log::append`] or [`Log::withdraw`] must follow.
    Granted,
    /// No buffer is free, or a checkpoint must end first: the log notifies the waiter with
    /// [`Notification::Retry`].
    Wait,
    /// There is no space until a checkpoint, or the write is longer than a batch: write through to
    /// the disk.
    Full,
    /// The log has failed: write through to the disk.
    Failed,
}

/// What the log reports to a waiter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notification {
    /// The waiter's record, or everything before its barrier, is durable.
    Durable,
    /// The log failed before the waiter's record, or everything before its barrier, was durable.
    Lost(IoError),
    /// The waiter may try again.
    Retry,
}

/// A write to the journal's device, or to both devices of a mirrored journal. It must be durable
/// before the driver reports it with [`Log::complete`] or [`Log::complete_on`].
#[derive(Debug)]
pub struct LogWrite<B> {
    /// Position on the device in bytes.
    pub position: u64,
    /// The memory, of which the first `len` bytes are written.
    pub bytes: LogBytes<B>,
    /// Length in bytes; whole blocks.
    pub len: usize,
    targets: [bool; MEMBERS_MAX],
}

/// The memory of a write.
#[derive(Debug)]
pub enum LogBytes<B> {
    /// A batch in one of the log's buffers. Completion returns the buffer.
    Batch(B),
    /// A copy of the superblock for each target device.
    Superblock([Vec<u8>; MEMBERS_MAX]),
}

impl<B: AsRef<[u8]>> LogWrite<B> {
    /// The bytes to write on the first device.
    pub fn bytes(&self) -> &[u8] {
        self.bytes_for(0)
    }

    /// The bytes of a batch, which lie in an aligned buffer; `None` for a superblock.
    pub fn batch(&self) -> Option<&[u8]> {
        matches!(self.bytes, LogBytes::Batch(_)).then(|| self.bytes())
    }
}

/// The space that a log uses, and its counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogUsage {
    /// Total length of all segments in bytes.
    pub capacity_bytes: u64,
    /// Total length of the segments still needed in bytes.
    pub used_bytes: u64,
    /// Records made durable by this process.
    pub records: u64,
    /// Batches made durable by this process.
    pub batches: u64,
    /// Bytes written for these batches, without superblocks.
    pub written_bytes: u64,
    /// Payload bytes in these batches.
    pub payload_bytes: u64,
    /// Checkpoints begun.
    pub checkpoints: u64,
}

/// The write in flight.
#[derive(Debug)]
enum BatchWrite<W> {
    Nothing,
    Batch { header: BatchHeader, waiters: Vec<W>, records: Vec<Record> },
    Superblock { first_segment: u64 },
}

/// The writing side of one journal.
///
/// `B` is a batch buffer, aligned for the device. All buffers have the same length: whole blocks,
/// at most a segment. `W` identifies a waiter. There must be more buffers than permits in use at
/// any time, so that a waiter for a buffer always waits for the completion of a write.
#[derive(Debug)]
pub struct Log<B, W> {
    extent: LogExtent,
    batches: Batches<B, W>,
    volumes: LogVolumes,
    next_batch: u64,
    chain: u32,
    writing: BatchWrite<W>,
    /// Waiters for a checkpoint, because the log may have no space for their records.
    checkpoint_waiters: Vec<W>,
    /// Whether a checkpoint that `checkpoint_waiters` wait for has ended.
    has_checkpoint_ended: bool,
    /// Waiters whose change needs no record once the superblock is durable.
    superblock_waiters: Vec<W>,
    samples: SampleTracker<W>,
    failed: Option<IoError>,
    mirror: Mirror<W>,
    usage: LogUsage,
}

impl<B: AsRef<[u8]> + AsMut<[u8]>, W> Log<B, W> {
    /// Creates a log on a device whose content is discarded. Its first write is the superblock;
    /// nothing may be acknowledged before the superblock is durable.
    pub fn format(
        journal: JournalId,
        size_bytes: u64,
        geometry: Geometry,
        buffers: Vec<B>,
    ) -> Self {
        let superblock = Superblock {
            kind: LogKind::Journal,
            journal,
            sequence: 0,
            size_bytes,
            geometry,
            is_clean: false,
            first_segment: 0,
            starts: vec![GenerationStart { generation: 1, batch: 0, segment: 0 }],
            next_volume: 0,
            volumes: Vec::new(),
            members: Members::default(),
            beat_ms: 0,
        };
        Self::new(superblock, 0, (0, 0), 0, buffers)
    }

    /// Resumes a log that [`crate::recover`] has walked, as a new generation. The log keeps its
    /// records until a checkpoint of their volume, which begins only after [`Log::end_restore`].
    ///
    /// # Errors
    /// If the records must be written to the disks first, or the segments are too short.
    pub fn resume(found: &crate::Found, buffers: Vec<B>) -> Result<Self, LogError> {
        let segment_bytes = found.superblock.geometry.segment_bytes;
        if buffers.first().is_some_and(|buffer| segment_bytes < buffer.as_ref().len() as u64) {
            return Err(LogError::ShortSegments { segment_bytes });
        }
        let mut superblock = found.superblock.clone();
        // The numbers of released volumes are not reused, so their records stay void.
        superblock.volumes.retain(VolumeEntry::has_valid_records);
        superblock.is_clean = false;
        let generation = superblock.generation() + 1;
        let batch = found.next_batch;
        // Drop generations without a valid batch: they completed none, or began after lost batches.
        while superblock.starts.last().is_some_and(|last| last.batch >= batch) {
            superblock.starts.pop();
        }
        // Begin after the first segment of the newest generation, even if all of its batches are
        // lost.
        let after_start = superblock.starts.last().map_or(0, |start| start.segment + 1);
        let segment = found.last_segment.map_or(superblock.first_segment, |last| last + 1);
        let segment = segment.max(after_start);
        if found.records.is_empty() {
            // Recovery never reads earlier segments again, so volume numbers may start over.
            superblock.first_segment = segment;
            superblock.volumes.clear();
            superblock.next_volume = 0;
        }
        // A log that resumes without space for a fence might never free any space.
        let used = segment - superblock.first_segment + 1 + RESERVED_SEGMENTS;
        if used > superblock.geometry.segments {
            return Err(LogError::DrainFirst);
        }
        // Forget generations that began at or before the first segment, except the newest of them.
        let first_segment = superblock.first_segment;
        while superblock.starts.get(1).is_some_and(|next| next.segment <= first_segment) {
            superblock.starts.remove(0);
        }
        if superblock.starts.len() == GENERATIONS_MAX {
            return Err(LogError::DrainFirst);
        }
        let start = GenerationStart { generation, batch, segment };
        assert!(
            superblock.starts.last().is_none_or(|last| {
                last.generation < generation && last.batch < batch && last.segment < segment
            }),
            "the new generation starts after the others: {start:?} after {:?}",
            superblock.starts
        );
        superblock.starts.push(start);
        // Number new records from the highest `void_before` on: records up to it may have been
        // created but never written.
        let void_before = superblock.volumes.iter().map(|volume| volume.void_before).max();
        let next_record = found.next_record.max(void_before.unwrap_or(0));
        let mut log = Self::new(superblock, segment, (batch, found.chain), next_record, buffers);
        for Record { volume, range, .. } in found.records.iter().map(|found| found.record) {
            // The restore writes the range to the disk without calling `invalidate_samples`.
            let covered = log.samples.in_range(volume, range);
            let entry = log.extent.entry_mut(volume).expect("recovery drops unknown volumes");
            entry.disk.samples.valid &= !covered;
            log.volumes.mark_recovered(volume, first_segment);
        }
        log.self_check();
        Ok(log)
    }

    /// A log whose first batch is at the beginning of `segment`. No copy of `superblock` is on the
    /// device yet.
    fn new(
        superblock: Superblock,
        segment: u64,
        (next_batch, chain): (u64, u32),
        next_record: u64,
        buffers: Vec<B>,
    ) -> Self {
        let (count, len) = (buffers.len(), buffers.first().map_or(0, |first| first.as_ref().len()));
        Self {
            batches: Batches::new(buffers),
            volumes: LogVolumes::new(&superblock, next_record),
            samples: SampleTracker::new(&superblock),
            extent: LogExtent::new(superblock, segment, count, len),
            next_batch,
            chain,
            writing: BatchWrite::Nothing,
            checkpoint_waiters: Vec::new(),
            has_checkpoint_ended: false,
            superblock_waiters: Vec::new(),
            failed: None,
            mirror: Mirror::default(),
            usage: LogUsage::default(),
        }
    }

    /// The current superblock, which may not be on the device yet.
    pub const fn superblock(&self) -> &Superblock {
        self.extent.superblock()
    }

    /// Adds a volume, or returns its number if the journal already has it. Batches wait for the
    /// superblock with the new volume to become durable.
    ///
    /// # Errors
    /// If the journal has the maximum number of volumes, or has used up its volume numbers.
    pub fn add_volume(
        &mut self,
        name: &str,
        size_bytes: u64,
        identity: [u8; 32],
    ) -> Result<u16, LogError> {
        let is_same =
            |volume: &&VolumeEntry| volume.identity == identity && volume.size_bytes == size_bytes;
        let superblock = self.extent.superblock();
        if let Some(volume) = superblock.volumes.iter().find(is_same) {
            return Ok(volume.number);
        }
        if superblock.volumes.len() == VOLUMES_MAX {
            return Err(LogError::TooManyVolumes);
        }
        let number = superblock.next_volume;
        let next_volume = number.checked_add(1).ok_or(LogError::NoMoreNumbers)?;
        let name = name.to_owned();
        let disk = DiskInfo::default();
        let void_before = 0;
        let entry = VolumeEntry { number, name, size_bytes, identity, disk, void_before };
        let superblock = self.extent.superblock_mut();
        superblock.next_volume = next_volume;
        superblock.volumes.push(entry);
        self.volumes.add(number);
        self.samples.add(superblock, number);
        Ok(number)
    }

    /// Whether the current superblock is durable.
    pub const fn is_superblock_durable(&self) -> bool {
        self.extent.is_written() && !matches!(self.writing, BatchWrite::Superblock { .. })
    }

    /// Removes a volume that has no records, for example after a checkpoint.
    ///
    /// # Errors
    /// If the volume has records.
    pub fn remove_volume(&mut self, number: u16) -> Result<(), LogError> {
        if !self.is_clean(number) {
            return Err(LogError::InUse);
        }
        self.volumes.remove(number);
        self.samples.remove(number);
        self.extent.superblock_mut().volumes.retain(|volume| volume.number != number);
        Ok(())
    }

    /// Whether the disk of the volume has everything that the log holds of it.
    pub fn is_clean(&self, number: u16) -> bool {
        self.volumes.is_clean(number)
    }

    /// Requests a permit for a write of `len` bytes, before the write changes anything.
    pub fn admit(&mut self, number: u16, len: u64, waiter: W) -> LogAdmission {
        if self.failed.is_some() {
            return LogAdmission::Failed;
        }
        if len > self.batches.write_bytes_max() || self.extent.is_low() {
            return self.admit_write_through(number, waiter);
        }
        if !self.batches.take_permit() {
            self.batches.wait_for_buffer(waiter);
            return LogAdmission::Wait;
        }
        LogAdmission::Granted
    }

    /// Returns an unused permit.
    ///
    /// # Panics
    /// If no permit is in use.
    pub fn withdraw(&mut self) {
        self.batches.return_permit();
    }

    /// Records an admitted write, with its data in pieces. The log notifies the waiter once the
    /// record is durable. Returns false, and records nothing, if the log has failed since the
    /// write was admitted.
    #[must_use]
    pub fn append<'a>(
        &mut self,
        entry: LogEntry,
        pieces: impl Iterator<Item = &'a [u8]>,
        waiter: Option<W>,
    ) -> bool {
        assert!(entry.kind == RecordKind::Write, "only writes have a payload");
        assert!(entry.range.is_sector_aligned(), "{} is not whole sectors", entry.range);
        self.batches.return_permit();
        if self.failed.is_some() {
            return false;
        }
        self.batches.append_write(entry, pieces, waiter);
        self.count_record(&entry);
        true
    }

    /// Makes a waiter wait until everything recorded so far is durable. Returns true if it already
    /// is; otherwise the log notifies the waiter.
    ///
    /// # Errors
    /// If the log has failed: records that were not durable are lost.
    pub fn barrier(&mut self, waiter: W) -> Result<bool, IoError> {
        if let Some(error) = self.failed {
            return Err(error);
        }
        let is_recorded = self.is_membership_recorded();
        let waiters = match (self.batches.newest_waiters(), &mut self.writing) {
            (Some(waiters), _) => waiters,
            (None, BatchWrite::Batch { waiters, .. }) => waiters,
            (None, _) if !is_recorded => {
                self.mirror.defer([waiter]);
                return Ok(false);
            }
            (None, _) => return Ok(true),
        };
        waiters.push(waiter);
        Ok(false)
    }

    /// The next write, unless one is in flight.
    pub fn poll_write(&mut self) -> Option<LogWrite<B>> {
        let is_busy = !matches!(self.writing, BatchWrite::Nothing);
        if is_busy || self.failed.is_some() || self.mirror.is_unrecorded() {
            return None;
        }
        let targets = self.devices();
        // Write the copies one after the other, so that one of them is always intact. Writes that
        // depend on the new superblock wait for both copies, because either may be lost later.
        if self.extent.begin_copy() {
            self.extent.self_check(self.volumes.needed());
            let superblock = self.extent.superblock();
            self.writing = BatchWrite::Superblock { first_segment: superblock.first_segment };
            self.samples.begin_superblock_write(superblock);
            return Some(LogWrite {
                position: superblock.position(),
                len: SUPERBLOCK_BYTES,
                bytes: LogBytes::Superblock(encode_for_members(superblock)),
                targets,
            });
        }
        let len = self.batches.next_len()?;
        if !self.extent.make_space(len) {
            return None;
        }
        let (batch, mut buffer) = self.batches.pop()?;
        self.extent.self_check(self.volumes.needed());
        let superblock = self.extent.superblock();
        let (generation, number) = (superblock.generation(), self.next_batch);
        let (segment, offset) = self.extent.head();
        let mut header = BatchHeader::new(generation, number, segment, offset, self.chain);
        header.payload_bytes = batch.payload_bytes as u32;
        header.first_record = self.first_pending_record();
        let header = seal_batch(superblock.journal, header, &batch.records, buffer.as_mut());
        assert_eq!(header.len_bytes(), len, "the batch has the length that space was made for");
        let is_valid = superblock.is_valid_batch(generation, number);
        assert!(is_valid, "recovery accepts batch {number} of generation {generation}");
        let size_bytes = superblock.size_bytes;
        let (waiters, records) = (batch.waiters, batch.records);
        self.writing = BatchWrite::Batch { header, waiters, records };
        let (position, bytes) = (self.extent.position(), LogBytes::Batch(buffer));
        assert!(position.is_multiple_of(BLOCK_BYTES), "a batch at byte {position}");
        assert!(position + len <= size_bytes, "a batch lies within its device");
        Some(LogWrite { position, len: len as usize, bytes, targets })
    }

    /// Completes a write, which is durable or has failed. Appends the notifications to deliver.
    pub fn complete(
        &mut self,
        write: LogWrite<B>,
        result: IoResult,
        notifications: &mut Vec<(W, Notification)>,
    ) {
        let is_of_batch = matches!(write.bytes, LogBytes::Batch(_));
        let is_in_flight = match &self.writing {
            BatchWrite::Nothing => false,
            BatchWrite::Batch { header, .. } => {
                is_of_batch && write.len as u64 == header.len_bytes()
            }
            BatchWrite::Superblock { .. } => !is_of_batch,
        };
        assert!(is_in_flight, "the completed write is not the one in flight");
        if let LogBytes::Batch(buffer) = write.bytes {
            self.batches.return_buffer(buffer);
        }
        let writing = std::mem::replace(&mut self.writing, BatchWrite::Nothing);
        if let Err(error) = result {
            self.fail(writing, error, notifications);
            return;
        }
        match writing {
            BatchWrite::Nothing => unreachable!("no write is in flight"),
            BatchWrite::Superblock { first_segment } => {
                self.extent.complete_copy(first_segment);
                if self.extent.is_written() {
                    self.complete_superblock(notifications);
                }
            }
            BatchWrite::Batch { header, mut waiters, records } => {
                assert_eq!(header.batch, self.next_batch, "batches complete in order");
                self.next_batch += 1;
                self.chain = header.checksum;
                self.extent.advance(&header);
                self.usage.batches += 1;
                self.usage.records += records.len() as u64;
                self.usage.written_bytes += header.len_bytes();
                self.usage.payload_bytes += u64::from(header.payload_bytes);
                if !self.is_membership_recorded() {
                    self.mirror.defer(waiters.drain(..));
                }
                // DURABLE: the batch and all before it are on the journal's stable storage.
                notifications
                    .extend(waiters.drain(..).map(|waiter| (waiter, Notification::Durable)));
                self.batches.complete_batch(records, waiters);
                let end = header.first_record + u64::from(header.records);
                assert_eq!(self.first_pending_record(), end, "records become durable in order");
            }
        }
        if self.batches.has_buffer() {
            retry(self.batches.take_waiters(), notifications);
        }
    }

    /// Notifies the waiters for a superblock, all copies of which are durable.
    fn complete_superblock(&mut self, notifications: &mut Vec<(W, Notification)>) {
        // DURABLE: the batch is on the remaining device, and its superblock lists no other member.
        let deferred = self.mirror.superblock_durable();
        notifications.extend(deferred.map(|waiter| (waiter, Notification::Durable)));
        // The superblock may have freed space: the waiters retry without another checkpoint.
        retry(self.checkpoint_waiters.drain(..), notifications);
        retry(self.samples.complete_superblock(self.extent.superblock()), notifications);
        // DURABLE: all older records of the range are void.
        let waiters = self.superblock_waiters.drain(..);
        notifications.extend(waiters.map(|waiter| (waiter, Notification::Durable)));
    }

    fn fail(
        &mut self,
        writing: BatchWrite<W>,
        error: IoError,
        notifications: &mut Vec<(W, Notification)>,
    ) {
        assert!(self.failed.is_none(), "a log fails once");
        self.failed = Some(error);
        let lost = |waiter| (waiter, Notification::Lost(error));
        notifications.extend(self.mirror.take_deferred().map(lost));
        if let BatchWrite::Batch { waiters, .. } = writing {
            notifications.extend(waiters.into_iter().map(lost));
        }
        notifications.extend(self.batches.clear().map(lost));
        retry(self.batches.take_waiters(), notifications);
        retry(self.checkpoint_waiters.drain(..), notifications);
        notifications.extend(self.superblock_waiters.drain(..).map(lost));
        retry(self.samples.take_waiters(), notifications);
        assert!(self.is_idle() && !self.mirror.has_deferred(), "a failed log has nothing queued");
    }

    /// The error that made the log fail, if it has failed.
    pub const fn failed(&self) -> Option<IoError> {
        self.failed
    }

    /// Marks the log as clean if the disks have everything and no write is in flight; the next
    /// write is then the clean superblock. Recovery ignores anything recorded after that. Returns
    /// whether the log is clean.
    pub fn close(&mut self) -> bool {
        let is_clean = self.volumes.needed().is_none()
            && self.batches.is_empty()
            && matches!(self.writing, BatchWrite::Nothing)
            && self.is_membership_recorded()
            && self.failed.is_none();
        if is_clean {
            self.extent.superblock_mut().is_clean = true;
        }
        is_clean
    }

    /// Whether no write is in flight or queued.
    pub fn is_idle(&self) -> bool {
        self.batches.is_empty()
            && matches!(self.writing, BatchWrite::Nothing)
            && (self.extent.is_written() || self.failed.is_some())
    }

    /// The current usage.
    pub fn usage(&self) -> LogUsage {
        let is_clean = self.volumes.needed().is_none();
        LogUsage {
            capacity_bytes: self.superblock().geometry.log_bytes(),
            used_bytes: if is_clean { 0 } else { self.extent.used_bytes() },
            ..self.usage
        }
    }

    /// Panics if the log is inconsistent. For tests, the lab and the start.
    pub fn self_check(&self) {
        self.batches.self_check(usize::from(matches!(self.writing, BatchWrite::Batch { .. })));
        self.volumes.self_check();
        self.extent.self_check(self.volumes.needed());
        let superblock = self.superblock();
        self.mirror.self_check(superblock);
        for volume in &superblock.volumes {
            let number = volume.number;
            assert!(self.volumes.get(number).is_some(), "records of volume {number} are tracked");
            assert!(volume.void_before <= self.next_record(), "void records exist: {volume:?}");
        }
        let count = superblock.volumes.len();
        assert_eq!(self.volumes.count(), count, "every tracked volume is in the superblock");
        match &self.writing {
            BatchWrite::Nothing => {}
            BatchWrite::Superblock { first_segment } => {
                let is_older = *first_segment <= superblock.first_segment;
                assert!(is_older, "the log's beginning never moves back");
            }
            BatchWrite::Batch { header, records, .. } => {
                assert_eq!(header.batch, self.next_batch, "batches are numbered without gaps");
                assert_eq!(header.chain, self.chain, "a batch is chained to the previous one");
                assert_eq!((header.segment, header.offset), self.extent.head());
                assert_eq!(header.records as usize, records.len());
                assert_eq!(header.first_record, self.first_pending_record());
            }
        }
        if self.failed.is_some() {
            assert!(matches!(self.writing, BatchWrite::Nothing), "a failed log writes nothing");
            assert!(self.batches.is_empty(), "a failed log has no queue");
        }
    }
}

/// Whether all records of a log before `end` are durable.
///
/// # Errors
/// If the log has failed. No record counts as pending then: those that were pending are lost, and
/// older ones may not replace them.
pub fn is_durable_before<B, W>(log: &Log<B, W>, end: u64) -> Result<bool, IoError>
where
    B: AsRef<[u8]> + AsMut<[u8]>,
{
    log.failed.map_or_else(|| Ok(log.first_pending_record() >= end), Err)
}

/// Promises in the superblock that [`beat`] is called so often, in milliseconds; zero promises
/// nothing. The promise is on the device once [`Log::is_superblock_durable`] returns true.
pub fn promise_beats<B, W>(log: &mut Log<B, W>, every_ms: u32)
where
    B: AsRef<[u8]> + AsMut<[u8]>,
{
    if log.superblock().beat_ms != every_ms {
        log.extent.superblock_mut().beat_ms = every_ms;
    }
}

/// Has a copy of the superblock written again with the next sequence number, by which other hosts
/// see that this one lives. A write that is due anyway serves as well.
pub const fn beat<B, W>(log: &mut Log<B, W>) {
    log.extent.renew_copy();
}

/// Whether all records of a volume are void, durably.
pub fn is_void<B, W>(log: &Log<B, W>, number: u16) -> bool
where
    B: AsRef<[u8]> + AsMut<[u8]>,
{
    log.volumes.is_void(number, log.superblock()) && log.is_superblock_durable()
}

fn retry<W>(waiters: impl Iterator<Item = W>, notifications: &mut Vec<(W, Notification)>) {
    notifications.extend(waiters.map(|waiter| (waiter, Notification::Retry)));
}
