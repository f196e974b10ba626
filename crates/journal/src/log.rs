//! The writing side of the journal.

mod error;
mod mirror;
mod samples;
mod space;

pub(crate) use mirror::{encode_for_members, targets_of};

use forebay_format::journal::{
    BLOCK_BYTES, BatchHeader, DiskInfo, GENERATIONS_MAX, GenerationStart, Geometry, HEADER_BYTES,
    JournalId, LogKind, MEMBERS_MAX, Members, RECORD_BYTES, Record, RecordKind, SUPERBLOCK_BYTES,
    Superblock, VOLUMES_MAX, VolumeEntry, batch_bytes, seal_batch,
};
use forebay_types::{ByteRange, IoError, IoResult, SECTOR_BYTES};
use samples::SampleTracker;
use std::collections::VecDeque;

pub use error::LogError;
use mirror::Mirror;
use space::Fence;
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

/// A queued batch, which grows until it is written.
#[derive(Debug)]
struct Batch<B, W> {
    /// `None` while the batch has no payload.
    buffer: Option<B>,
    payload_bytes: usize,
    records: Vec<Record>,
    writes: usize,
    waiters: Vec<W>,
}

#[derive(Debug)]
struct Volume {
    number: u16,
    /// The oldest segment that may hold a record which the disk lacks.
    needed: Option<u64>,
    /// One more than the number of the volume's newest record.
    records_end: u64,
    /// One more than the number of its newest record that is not a [`RecordKind::Forget`].
    changes_end: u64,
    /// Recovered records are not all in the pool yet, so a flush of the pool does not cover them.
    is_restoring: bool,
    /// The start of the checkpoint in progress, if any.
    checkpoint: Option<Mark>,
    /// The disk failed to take everything at the last checkpoint.
    is_failing: bool,
    /// Consecutive checkpoints of the volume that freed no log space.
    futile: u8,
    fence: Option<Fence>,
}

impl Volume {
    const fn new(number: u16) -> Self {
        Self {
            number,
            needed: None,
            records_end: 0,
            changes_end: 0,
            is_restoring: false,
            checkpoint: None,
            is_failing: false,
            futile: 0,
            fence: None,
        }
    }
}

/// The write in flight.
#[derive(Debug)]
enum Writing<W> {
    Nothing,
    Batch { header: BatchHeader, waiters: Vec<W>, records: Vec<Record> },
    Superblock { first_segment: u64 },
}

/// The capacity of a batch, and the reserve of free segments.
#[derive(Clone, Copy, Debug)]
struct Limits {
    payload_bytes: usize,
    records: usize,
    /// Maximum number of writes; the rest is reserved for records that cannot be refused.
    writes: usize,
    /// Number of free segments below which no write is admitted: one for records that cannot be
    /// refused, one for the next process to resume, and those that the queued batches may need.
    free_segments: u64,
}

impl Limits {
    fn new(buffer_bytes: usize, buffers: usize, segment_bytes: u64) -> Self {
        let batch = buffer_bytes - HEADER_BYTES;
        let payload_bytes = batch / 16 * 15 / SECTOR_BYTES as usize * SECTOR_BYTES as usize;
        let records = (batch - payload_bytes) / RECORD_BYTES;
        let per_segment = segment_bytes / buffer_bytes as u64;
        assert!(per_segment > 0, "a segment holds the longest batch");
        let free_segments = 2 + (buffers as u64).div_ceil(per_segment);
        let writes = records / 2;
        assert!(writes > 0 && payload_bytes > 0, "a buffer of {buffer_bytes} bytes holds a write");
        let longest = batch_bytes(payload_bytes as u64, records as u64);
        assert!(longest <= buffer_bytes as u64, "a full batch fits a buffer");
        Self { payload_bytes, records, writes, free_segments }
    }
}

/// The writing side of one journal.
///
/// `B` is a batch buffer, aligned for the device. All buffers have the same length: whole blocks,
/// at most a segment. `W` identifies a waiter. There must be more buffers than permits in use at
/// any time, so that a waiter for a buffer always waits for a write in flight.
#[derive(Debug)]
pub struct Log<B, W> {
    limits: Limits,
    superblock: Superblock,
    /// Copies of the superblock on the device that are older than `superblock`.
    superblock_stale: usize,
    next_batch: u64,
    chain: u32,
    segment: u64,
    offset: u64,
    /// The oldest segment needed according to each copy of the superblock on the device.
    durable_first_segments: [u64; COPIES],
    next_record: u64,
    queue: VecDeque<Batch<B, W>>,
    writing: Writing<W>,
    spare: Vec<B>,
    buffers: usize,
    permits: usize,
    /// Waiters for a free buffer.
    buffer_waiters: Vec<W>,
    /// Waiters for a checkpoint, because the log may have no space for the records they cause.
    checkpoint_waiters: Vec<W>,
    /// A checkpoint that `checkpoint_waiters` wait for has ended.
    checkpoint_ended: bool,
    /// Waiters for the superblock that makes a record of their change unnecessary.
    superblock_waiters: Vec<W>,
    volumes: Vec<Volume>,
    samples: SampleTracker<W>,
    failed: Option<IoError>,
    mirror: Mirror<W>,
    usage: LogUsage,
    /// Empty vectors, reused for their capacity.
    old_records: Vec<Vec<Record>>,
    old_waiters: Vec<Vec<W>>,
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
        Self::with(superblock, 0, 0, buffers)
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
        let used = segment - superblock.first_segment + 1 + space::RESERVED_SEGMENTS;
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
        let mut log = Self::with(superblock, batch, found.chain, buffers);
        // New records must have numbers above every `void_before`, even of records never written.
        let void_before = log.superblock.volumes.iter().map(|volume| volume.void_before).max();
        log.next_record = found.next_record.max(void_before.unwrap_or(0));
        log.segment = segment;
        for found in &found.records {
            let number = found.record.volume;
            log.void_covered(number, found.record.range);
            let (needed, end) = (Some(log.superblock.first_segment), log.next_record);
            match log.volumes.iter_mut().find(|volume| volume.number == number) {
                Some(volume) => {
                    let new = Volume::new(number);
                    let (records_end, changes_end) = (end, end);
                    *volume =
                        Volume { needed, records_end, changes_end, is_restoring: true, ..new };
                }
                None => unreachable!("recovery drops records of unknown volumes"),
            }
        }
        log.check_space();
        Ok(log)
    }

    fn with(superblock: Superblock, next_batch: u64, chain: u32, buffers: Vec<B>) -> Self {
        assert!(buffers.len() > 1, "one batch grows while another is written");
        let len = buffers[0].as_ref().len();
        assert!(
            buffers.iter().all(|buffer| buffer.as_ref().len() == len),
            "buffers differ in length"
        );
        assert!(
            (len as u64).is_multiple_of(BLOCK_BYTES),
            "a buffer of {len} bytes is whole blocks"
        );
        assert!(!superblock.starts.is_empty(), "a log has a generation that writes");
        let limits = Limits::new(len, buffers.len(), superblock.geometry.segment_bytes);
        let volumes = superblock.volumes.iter().map(|volume| Volume::new(volume.number));
        Self {
            limits,
            volumes: volumes.collect(),
            durable_first_segments: [superblock.first_segment; 2],
            segment: superblock.first_segment,
            samples: SampleTracker::new(&superblock),
            superblock,
            superblock_stale: COPIES,
            next_batch,
            chain,
            offset: 0,
            next_record: 0,
            queue: VecDeque::new(),
            writing: Writing::Nothing,
            buffers: buffers.len(),
            spare: buffers,
            permits: 0,
            buffer_waiters: Vec::new(),
            checkpoint_waiters: Vec::new(),
            checkpoint_ended: false,
            superblock_waiters: Vec::new(),
            failed: None,
            mirror: Mirror::default(),
            usage: LogUsage::default(),
            old_records: Vec::new(),
            old_waiters: Vec::new(),
        }
    }

    /// The current superblock, which may not be on the device yet.
    pub const fn superblock(&self) -> &Superblock {
        &self.superblock
    }

    /// Adds a volume, or returns its number if the journal already has it. Batches wait for the
    /// superblock with the new volume to become durable.
    ///
    /// # Errors
    /// If the journal has the maximum number of volumes.
    pub fn add_volume(
        &mut self,
        name: &str,
        size_bytes: u64,
        identity: [u8; 32],
    ) -> Result<u16, LogError> {
        let same =
            |volume: &&VolumeEntry| volume.identity == identity && volume.size_bytes == size_bytes;
        if let Some(volume) = self.superblock.volumes.iter().find(same) {
            return Ok(volume.number);
        }
        if self.superblock.volumes.len() == VOLUMES_MAX {
            return Err(LogError::Volumes);
        }
        let number = self.superblock.next_volume;
        self.superblock.next_volume = number.checked_add(1).ok_or(LogError::Volumes)?;
        let name = name.to_owned();
        let disk = DiskInfo::default();
        let void_before = 0;
        let entry = VolumeEntry { number, name, size_bytes, identity, disk, void_before };
        self.superblock.volumes.push(entry);
        self.volumes.push(Volume::new(number));
        self.samples.add(&self.superblock, number);
        self.change_superblock();
        Ok(number)
    }

    /// Whether the current superblock is durable.
    pub const fn superblock_is_durable(&self) -> bool {
        self.superblock_stale == 0 && !self.writes_superblock()
    }

    /// Removes a volume that has no records, for example after a checkpoint.
    ///
    /// # Errors
    /// If the volume has records.
    pub fn remove_volume(&mut self, number: u16) -> Result<(), LogError> {
        if self.volumes.iter().any(|volume| volume.number == number && volume.needed.is_some()) {
            return Err(LogError::InUse);
        }
        self.volumes.retain(|volume| volume.number != number);
        self.superblock.volumes.retain(|volume| volume.number != number);
        self.change_superblock();
        Ok(())
    }

    /// Whether the disk of the volume has everything that the log holds of it.
    pub fn is_clean(&self, number: u16) -> bool {
        self.volumes.iter().all(|volume| volume.number != number || volume.needed.is_none())
    }

    /// Requests a permit for a write of `len` bytes, before the write changes anything.
    pub fn admit(&mut self, number: u16, len: u64, waiter: W) -> Admission {
        if self.failed.is_some() {
            return Admission::Failed;
        }
        if len > self.limits.payload_bytes as u64 || self.is_low_on_space() {
            return self.admit_write_through(number, waiter);
        }
        // Each permit may need a buffer of its own.
        if self.spare.len() <= self.permits {
            self.buffer_waiters.push(waiter);
            return Admission::Wait;
        }
        self.permits += 1;
        Admission::Granted
    }

    /// Returns an unused permit.
    ///
    /// # Panics
    /// If no permit is in use.
    pub fn withdraw(&mut self) {
        self.permits = self.permits.checked_sub(1).expect("a permit is in use");
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
        let len = entry.range.len as usize;
        assert!(entry.kind == RecordKind::Write, "only writes have a payload");
        assert!(
            len > 0 && len <= self.limits.payload_bytes,
            "write of {len} bytes was not admitted"
        );
        assert!(entry.range.is_sector_aligned(), "{} is not whole sectors", entry.range);
        self.permits = self.permits.checked_sub(1).expect("a write is admitted first");
        if self.failed.is_some() {
            return false;
        }
        let fits = self.queue.back().is_some_and(|batch| {
            batch.payload_bytes + len <= self.limits.payload_bytes
                && batch.writes < self.limits.writes
        });
        if !fits {
            self.open_batch();
        }
        let batch = self.queue.back_mut().expect("a batch is open");
        if batch.buffer.is_none() {
            let buffer = self.spare.pop();
            batch.buffer = Some(buffer.expect("each permit reserves a spare buffer"));
        }
        let buffer = batch.buffer.as_mut().expect("the batch has a buffer").as_mut();
        let start = HEADER_BYTES + batch.payload_bytes;
        let mut at = start;
        for piece in pieces {
            buffer[at..at + piece.len()].copy_from_slice(piece);
            at += piece.len();
        }
        assert_eq!(at - start, len, "the pieces add up to the range");
        let checksum = Record::checksum_of(entry.volume, entry.range.offset, &buffer[start..at]);
        batch.records.push(Record {
            kind: entry.kind,
            volume: entry.volume,
            range: entry.range,
            payload_offset: batch.payload_bytes as u32,
            checksum,
        });
        batch.payload_bytes += len;
        batch.writes += 1;
        batch.waiters.extend(waiter);
        assert!(batch.records.len() <= self.limits.records, "records lie within their batch");
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
        let waiters = match (self.queue.back_mut(), &mut self.writing) {
            (Some(batch), _) => &mut batch.waiters,
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
        let targets = targets_of(&self.superblock.members);
        // Write the copies one after the other, so that one is intact at any time. Nothing that
        // depends on the new superblock follows before both are durable: either may be lost later.
        if self.superblock_stale > 0 {
            self.superblock_stale -= 1;
            self.superblock.sequence += 1;
            let first_segment = self.superblock.first_segment;
            self.check_space();
            self.writing = Writing::Superblock { first_segment };
            self.samples.superblock_in_flight(&self.superblock);
            return Some(LogWrite {
                position: self.superblock.position(),
                len: SUPERBLOCK_BYTES,
                bytes: LogBytes::Superblock(encode_for_members(&self.superblock)),
                targets,
            });
        }
        let batch = self.queue.front()?;
        let len = batch_bytes(batch.payload_bytes as u64, batch.records.len() as u64);
        let geometry = self.superblock.geometry;
        if self.offset + len > geometry.segment_bytes {
            if self.free_segments() == 0 {
                return None;
            }
            self.segment += 1;
            self.offset = 0;
        }
        // A batch without payload must not take a buffer that is reserved by a permit.
        if batch.buffer.is_none() && self.spare.len() <= self.permits {
            return None;
        }
        self.check_space();
        let batch = self.queue.pop_front().expect("the queue is not empty");
        assert!(
            batch.payload_bytes <= self.limits.payload_bytes
                && batch.records.len() <= self.limits.records,
            "a batch within its limits"
        );
        let buffer = batch.buffer.or_else(|| self.spare.pop());
        let mut buffer = buffer.expect("a spare buffer beyond the permits");
        let generation = self.superblock.generation();
        let (number, chain) = (self.next_batch, self.chain);
        let mut header = BatchHeader::new(generation, number, self.segment, self.offset, chain);
        header.payload_bytes = batch.payload_bytes as u32;
        header.first_record = self.next_record - self.unwritten_records(&batch.records);
        let journal = self.superblock.journal;
        let header = seal_batch(journal, header, &batch.records, buffer.as_mut());
        assert_eq!(header.len_bytes(), len, "the batch has its computed length");
        assert!(
            self.superblock.is_valid_batch(generation, number),
            "a batch of the writing generation"
        );
        let position = geometry.position(self.segment) + self.offset;
        let (waiters, records) = (batch.waiters, batch.records);
        self.writing = Writing::Batch { header, waiters, records };
        Some(LogWrite { position, len: len as usize, bytes: LogBytes::Batch(buffer), targets })
    }

    /// Completes a write, which is durable or has failed. Appends the notifications to deliver.
    pub fn complete(
        &mut self,
        write: LogWrite<B>,
        result: IoResult,
        notifications: &mut Vec<(W, Notification)>,
    ) {
        if let LogBytes::Batch(buffer) = write.bytes {
            self.spare.push(buffer);
        }
        assert!(self.spare.len() <= self.buffers, "a buffer was returned twice");
        let writing = std::mem::replace(&mut self.writing, Writing::Nothing);
        if let Err(error) = result {
            self.fail(writing, error, notifications);
            return;
        }
        match writing {
            Writing::Nothing => unreachable!("no write is in flight"),
            Writing::Superblock { first_segment } => {
                let copy = self.superblock.sequence as usize % COPIES;
                let before =
                    std::mem::replace(&mut self.durable_first_segments[copy], first_segment);
                assert!(before <= first_segment, "the log's beginning never moves back");
                self.complete_superblock(notifications);
                if self.superblock_stale == 0 {
                    // The superblock may have freed space, so retry without another checkpoint.
                    notify_retry(&mut self.checkpoint_waiters, notifications);
                }
                if self.superblock_stale == 0 && !self.must_defer() {
                    let waiting = self.samples.superblock_durable(&self.superblock);
                    notifications.extend(waiting.map(|waiter| (waiter, Notification::Retry)));
                    self.notify_superblock_waiters(notifications);
                }
            }
            Writing::Batch { header, mut waiters, mut records } => {
                assert_eq!(header.batch, self.next_batch, "batches complete in order");
                assert_eq!((header.segment, header.offset), (self.segment, self.offset));
                self.next_batch += 1;
                self.chain = header.checksum;
                self.offset += header.len_bytes();
                assert!(
                    self.offset <= self.superblock.geometry.segment_bytes,
                    "a batch lies in one segment"
                );
                self.usage.batches += 1;
                self.usage.records += records.len() as u64;
                self.usage.written_bytes += header.len_bytes();
                self.usage.payload_bytes += u64::from(header.payload_bytes);
                if self.must_defer() {
                    self.mirror.defer(waiters.drain(..));
                }
                // DURABLE: the batch and all before it are on the journal's stable storage.
                notifications
                    .extend(waiters.drain(..).map(|waiter| (waiter, Notification::Durable)));
                records.clear();
                self.old_records.push(records);
                self.old_waiters.push(waiters);
            }
        }
        if self.spare.len() > self.permits {
            notify_retry(&mut self.buffer_waiters, notifications);
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
        for mut batch in self.queue.drain(..) {
            self.spare.extend(batch.buffer.take());
            notifications.extend(batch.waiters.into_iter().map(lost));
        }
        notify_retry(&mut self.buffer_waiters, notifications);
        notify_retry(&mut self.checkpoint_waiters, notifications);
        notifications.extend(self.superblock_waiters.drain(..).map(lost));
        let sample_waiters = self.samples.take_waiting();
        notifications.extend(sample_waiters.map(|waiter| (waiter, Notification::Retry)));
    }

    /// The error that made the log fail, if it has failed.
    pub const fn failed(&self) -> Option<IoError> {
        self.failed
    }

    /// Marks the log as clean if the disks have everything and no write is in flight; the next
    /// write is the clean superblock. Anything recorded after that is lost.
    pub fn close(&mut self) -> bool {
        let clean = self.volumes.iter().all(|volume| volume.needed.is_none())
            && self.queue.is_empty()
            && matches!(self.writing, Writing::Nothing)
            && !self.must_defer()
            && self.failed.is_none();
        if clean {
            self.superblock.clean = true;
            self.change_superblock();
        }
        clean
    }

    /// Whether no write is in flight or queued.
    pub fn is_idle(&self) -> bool {
        self.queue.is_empty()
            && matches!(self.writing, Writing::Nothing)
            && (self.superblock_stale == 0 || self.failed.is_some())
    }

    /// The current usage.
    pub fn usage(&self) -> LogUsage {
        let geometry = self.superblock.geometry;
        let clean = self.volumes.iter().all(|volume| volume.needed.is_none());
        let used = self.segment - self.superblock.first_segment;
        LogUsage {
            capacity_bytes: geometry.log_bytes(),
            used_bytes: if clean { 0 } else { used * geometry.segment_bytes + self.offset },
            ..self.usage
        }
    }

    fn change_superblock(&mut self) {
        self.superblock_stale = COPIES;
    }

    /// The oldest segment needed according to any copy of the superblock on the device.
    fn durable_first_segment(&self) -> u64 {
        let [one, other] = self.durable_first_segments;
        one.min(other)
    }

    fn open_batch(&mut self) {
        self.queue.push_back(Batch {
            buffer: None,
            payload_bytes: 0,
            records: self.old_records.pop().unwrap_or_default(),
            writes: 0,
            waiters: self.old_waiters.pop().unwrap_or_default(),
        });
    }

    /// The number of queued records, plus those in `first`.
    fn unwritten_records(&self, first: &[Record]) -> u64 {
        let rest: usize = self.queue.iter().map(|batch| batch.records.len()).sum();
        (first.len() + rest) as u64
    }

    /// Panics if the log is inconsistent. For tests and the lab.
    pub fn self_check(&self) {
        let queued = self.queue.iter().filter(|batch| batch.buffer.is_some()).count();
        let writing = usize::from(matches!(self.writing, Writing::Batch { .. }));
        assert_eq!(queued + writing + self.spare.len(), self.buffers, "a buffer is missing");
        assert!(self.permits <= self.spare.len(), "each permit reserves a spare buffer");
        for volume in &self.volumes {
            assert!(volume.changes_end <= volume.records_end, "{volume:?}");
            assert!(volume.records_end <= self.next_record, "{volume:?}");
        }
        self.check_space();
    }

    /// Panics if the log would overwrite a segment that is still needed, or release one too early.
    fn check_space(&self) {
        let superblock = &self.superblock;
        let durable = self.durable_first_segment();
        assert!(durable <= superblock.first_segment, "only durable superblocks release segments");
        assert!(superblock.first_segment <= self.segment, "the log ends after its beginning");
        let used = self.segment - durable + 1;
        assert!(used <= superblock.geometry.segments, "a needed segment is never overwritten");
        assert!(self.offset <= superblock.geometry.segment_bytes, "the head is in its segment");
        let needed = self.volumes.iter().filter_map(|volume| volume.needed).min();
        assert!(
            needed.is_none_or(|needed| superblock.first_segment <= needed),
            "a segment with needed records is never released"
        );
    }
}

fn notify_retry<W>(waiters: &mut Vec<W>, notifications: &mut Vec<(W, Notification)>) {
    notifications.extend(waiters.drain(..).map(|waiter| (waiter, Notification::Retry)));
}
