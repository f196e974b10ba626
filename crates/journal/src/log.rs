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
use extent::{Extent, RESERVED_SEGMENTS};
use forebay_format::journal::{
    BatchHeader, DiskInfo, GENERATIONS_MAX, GenerationStart, Geometry, JournalId, LogKind,
    MEMBERS_MAX, Members, Record, RecordKind, SUPERBLOCK_BYTES, Superblock, VOLUMES_MAX,
    VolumeEntry, seal_batch,
};
use forebay_types::{ByteRange, IoError, IoResult};
use mirror::Mirror;
use samples::SampleTracker;
use volumes::Volumes;

pub use error::LogError;
pub use space::{Checkpoint, Mark, RecordOutcome};

/// Copies of the superblock on each device.
const COPIES: usize = 2;

/// A change to record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The kind of change.
    pub kind: RecordKind,
    /// The volume's number in this journal.
    pub volume: u16,
    /// The changed range: whole sectors, not empty.
    pub range: ByteRange,
}

/// Whether the log admits a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// Admitted: [`Log::append`] or [`Log::withdraw`] must follow.
    Granted,
    /// No buffer is free, or a checkpoint must end first: the log notifies the waiter with
    /// [`Notification::Retry`].
    Wait,
    /// The log is full until a checkpoint: write through to the disk.
    Full,
    /// The log has failed: write through to the disk.
    Failed,
}

/// The notification of a waiter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notification {
    /// The waiter's record, or everything before its barrier, is durable.
    Durable,
    /// The log has failed, and the waiter's record is lost.
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

/// How full a log is, and counters of its work.
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
enum Writing<W> {
    Nothing,
    Batch { header: BatchHeader, waiters: Vec<W>, records: Vec<Record> },
    Superblock { first_segment: u64 },
}

/// The writing side of one journal.
///
/// `B` is a batch buffer, aligned for the device. All buffers have the same length: whole blocks,
/// at most a segment. `W` identifies a waiter. There must be more buffers than permits in use at
/// any time, so that a waiter for a buffer always waits for a write in flight.
#[derive(Debug)]
pub struct Log<B, W> {
    extent: Extent,
    batches: Batches<B, W>,
    volumes: Volumes,
    next_batch: u64,
    chain: u32,
    writing: Writing<W>,
    /// Waiters for a checkpoint, because the log may have no space for the records they cause.
    checkpoint_waiters: Vec<W>,
    /// A checkpoint that `checkpoint_waiters` wait for has ended.
    checkpoint_ended: bool,
    /// Waiters for the superblock that makes a record of their change unnecessary.
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
            clean: false,
            first_segment: 0,
            starts: vec![GenerationStart { generation: 1, batch: 0, segment: 0 }],
            next_volume: 0,
            volumes: Vec::new(),
            members: Members::default(),
        };
        Self::with(superblock, 0, (0, 0), 0, buffers)
    }

    /// Resumes a log that [`crate::recover`] has walked, as a new generation. Its records stay
    /// needed until a checkpoint; a volume has no checkpoint before [`Log::restored`].
    ///
    /// # Errors
    /// If the records must be written to the disks first, or the segments are too short.
    pub fn resume(found: &crate::Found, buffers: Vec<B>) -> Result<Self, LogError> {
        let segment_bytes = found.superblock.geometry.segment_bytes;
        if buffers.first().is_some_and(|buffer| segment_bytes < buffer.as_ref().len() as u64) {
            return Err(LogError::ShortSegments { segment_bytes });
        }
        let mut superblock = found.superblock.clone();
        // Volume numbers are never reused, so the records of released volumes stay void.
        superblock.volumes.retain(VolumeEntry::has_valid_records);
        superblock.clean = false;
        let generation = superblock.generation() + 1;
        let batch = found.next_batch;
        // Drop generations without a valid batch: they completed none, or began after lost batches.
        while superblock.starts.last().is_some_and(|last| last.batch >= batch) {
            superblock.starts.pop();
        }
        // Even if all batches of a generation are lost, the next one begins after its segment.
        let after_start = superblock.starts.last().map_or(0, |start| start.segment + 1);
        let segment = found.last_segment.map_or(superblock.first_segment, |last| last + 1);
        let segment = segment.max(after_start);
        if found.records.is_empty() {
            // Earlier segments are never walked again, so volume numbers may start over.
            superblock.first_segment = segment;
            superblock.volumes.clear();
            superblock.next_volume = 0;
        }
        // A log that starts without space for a fence might never free any.
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
        superblock.starts.push(GenerationStart { generation, batch, segment });
        // New records must have numbers above every `void_before`, even of records never written.
        let void_before = superblock.volumes.iter().map(|volume| volume.void_before).max();
        let next_record = found.next_record.max(void_before.unwrap_or(0));
        let mut log = Self::with(superblock, segment, (batch, found.chain), next_record, buffers);
        for Record { volume, range, .. } in found.records.iter().map(|found| found.record) {
            // The restore writes it to the disk without calling `invalidate_samples`.
            let covered = log.samples.in_range(volume, range);
            let entry = log.extent.entry_mut(volume).expect("recovery drops unknown volumes");
            entry.disk.samples.valid &= !covered;
            log.volumes.recovered(volume, first_segment);
        }
        log.self_check();
        Ok(log)
    }

    /// A log whose first batch begins `segment`. No copy of the superblock is on the device.
    fn with(
        superblock: Superblock,
        segment: u64,
        (next_batch, chain): (u64, u32),
        next_record: u64,
        buffers: Vec<B>,
    ) -> Self {
        let (count, len) = (buffers.len(), buffers.first().map_or(0, |first| first.as_ref().len()));
        Self {
            batches: Batches::new(buffers),
            volumes: Volumes::new(&superblock, next_record),
            samples: SampleTracker::new(&superblock),
            extent: Extent::new(superblock, segment, count, len),
            next_batch,
            chain,
            writing: Writing::Nothing,
            checkpoint_waiters: Vec::new(),
            checkpoint_ended: false,
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
        let same =
            |volume: &&VolumeEntry| volume.identity == identity && volume.size_bytes == size_bytes;
        let superblock = self.extent.superblock();
        if let Some(volume) = superblock.volumes.iter().find(same) {
            return Ok(volume.number);
        }
        if superblock.volumes.len() == VOLUMES_MAX {
            return Err(LogError::Volumes);
        }
        let number = superblock.next_volume;
        let next_volume = number.checked_add(1).ok_or(LogError::Numbers)?;
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
    pub const fn superblock_is_durable(&self) -> bool {
        self.extent.is_written() && !matches!(self.writing, Writing::Superblock { .. })
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
    pub fn admit(&mut self, number: u16, len: u64, waiter: W) -> Admission {
        if self.failed.is_some() {
            return Admission::Failed;
        }
        if len > self.batches.write_bytes_max() || self.extent.is_low() {
            return self.admit_write_through(number, waiter);
        }
        if !self.batches.take_permit() {
            self.batches.wait_for_buffer(waiter);
            return Admission::Wait;
        }
        Admission::Granted
    }

    /// Returns an unused permit.
    ///
    /// # Panics
    /// If no permit is in use.
    pub fn withdraw(&mut self) {
        self.batches.return_permit();
    }

    /// Records an admitted write, with its data in pieces. The log notifies the waiter once the
    /// record is durable. Returns false, without a record, if the log has failed since.
    #[must_use]
    pub fn append<'a>(
        &mut self,
        entry: Entry,
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

    /// Waits until everything recorded so far is durable. Returns true if it already is, or false
    /// if the log will notify the waiter.
    ///
    /// # Errors
    /// If the log has failed: records that were not durable are lost.
    pub fn barrier(&mut self, waiter: W) -> Result<bool, IoError> {
        if let Some(error) = self.failed {
            return Err(error);
        }
        let waiters = match (self.batches.newest_waiters(), &mut self.writing) {
            (Some(waiters), _) => waiters,
            (None, Writing::Batch { waiters, .. }) => waiters,
            (None, _) if self.mirror.has_deferred() => {
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
        let is_busy = !matches!(self.writing, Writing::Nothing);
        if is_busy || self.failed.is_some() || self.mirror.is_unrecorded() {
            return None;
        }
        let targets = self.devices();
        // Write the copies one after the other, so that one is intact at any time. Nothing that
        // depends on the new superblock follows before both are durable: either may be lost later.
        if self.extent.begin_copy() {
            self.extent.self_check(self.volumes.needed());
            let superblock = self.extent.superblock();
            self.writing = Writing::Superblock { first_segment: superblock.first_segment };
            self.samples.superblock_in_flight(superblock);
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
        assert_eq!(header.len_bytes(), len, "the batch has its computed length");
        let is_valid = superblock.is_valid_batch(generation, number);
        assert!(is_valid, "a batch of the writing generation");
        let (waiters, records) = (batch.waiters, batch.records);
        self.writing = Writing::Batch { header, waiters, records };
        let (position, bytes) = (self.extent.position(), LogBytes::Batch(buffer));
        Some(LogWrite { position, len: len as usize, bytes, targets })
    }

    /// Completes a write, which is durable or has failed. Appends the notifications to deliver.
    pub fn complete(
        &mut self,
        write: LogWrite<B>,
        result: IoResult,
        notifications: &mut Vec<(W, Notification)>,
    ) {
        if let LogBytes::Batch(buffer) = write.bytes {
            self.batches.return_buffer(buffer);
        }
        let writing = std::mem::replace(&mut self.writing, Writing::Nothing);
        if let Err(error) = result {
            self.fail(writing, error, notifications);
            return;
        }
        match writing {
            Writing::Nothing => unreachable!("no write is in flight"),
            Writing::Superblock { first_segment } => {
                self.extent.copy_is_durable(first_segment);
                if self.extent.is_written() {
                    self.complete_superblock(notifications);
                }
            }
            Writing::Batch { header, mut waiters, records } => {
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
                self.batches.written(records, waiters);
            }
        }
        if self.batches.has_buffer() {
            retry(self.batches.take_waiters(), notifications);
        }
    }

    /// Notifies the waiters for a superblock, as all copies of it are durable.
    fn complete_superblock(&mut self, notifications: &mut Vec<(W, Notification)>) {
        // DURABLE: the batch is on the remaining device, whose superblock lists it alone.
        let deferred = self.mirror.take_deferred();
        notifications.extend(deferred.map(|waiter| (waiter, Notification::Durable)));
        // The superblock may have freed space, so they retry without another checkpoint.
        retry(self.checkpoint_waiters.drain(..), notifications);
        if self.is_membership_recorded() {
            retry(self.samples.superblock_durable(self.extent.superblock()), notifications);
            // DURABLE: all older records of the range are void.
            let waiters = self.superblock_waiters.drain(..);
            notifications.extend(waiters.map(|waiter| (waiter, Notification::Durable)));
        }
    }

    fn fail(
        &mut self,
        writing: Writing<W>,
        error: IoError,
        notifications: &mut Vec<(W, Notification)>,
    ) {
        assert!(self.failed.is_none(), "a log fails once");
        self.failed = Some(error);
        let lost = |waiter| (waiter, Notification::Lost(error));
        notifications.extend(self.mirror.take_deferred().map(lost));
        if let Writing::Batch { waiters, .. } = writing {
            notifications.extend(waiters.into_iter().map(lost));
        }
        notifications.extend(self.batches.clear().map(lost));
        retry(self.batches.take_waiters(), notifications);
        retry(self.checkpoint_waiters.drain(..), notifications);
        notifications.extend(self.superblock_waiters.drain(..).map(lost));
        retry(self.samples.take_waiting(), notifications);
    }

    /// The error that made the log fail, if it has failed.
    pub const fn failed(&self) -> Option<IoError> {
        self.failed
    }

    /// Marks the log as clean if the disks have everything and no write is in flight; the next
    /// write is the clean superblock. Anything recorded after that is lost.
    pub fn close(&mut self) -> bool {
        let clean = self.volumes.needed().is_none()
            && self.batches.is_empty()
            && matches!(self.writing, Writing::Nothing)
            && self.is_membership_recorded()
            && self.failed.is_none();
        if clean {
            self.extent.superblock_mut().clean = true;
        }
        clean
    }

    /// Whether no write is in flight or queued.
    pub fn is_idle(&self) -> bool {
        self.batches.is_empty()
            && matches!(self.writing, Writing::Nothing)
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

    /// Panics if the log is inconsistent. For tests and the lab.
    pub fn self_check(&self) {
        self.batches.self_check(usize::from(matches!(self.writing, Writing::Batch { .. })));
        self.volumes.self_check();
        self.extent.self_check(self.volumes.needed());
    }
}

fn retry<W>(waiters: impl Iterator<Item = W>, notifications: &mut Vec<(W, Notification)>) {
    notifications.extend(waiters.map(|waiter| (waiter, Notification::Retry)));
}
