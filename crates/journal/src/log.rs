//! The writing side of the journal.

mod guard;
mod mirror;
mod room;

pub(crate) use mirror::{encode_for_members, targets_of};

use forebay_format::journal::{
    BatchHeader, GENERATIONS_MAX, GenerationStart, Geometry, Guard, HEADER_BYTES, JournalId,
    LogKind, MEMBERS_MAX, Members, RECORD_BYTES, Record, RecordKind, SUPERBLOCK_BYTES, Superblock,
    VOLUMES_MAX, VolumeEntry, batch_bytes, seal_batch,
};
use forebay_types::{ByteRange, IoError, IoResult, SECTOR_BYTES};
use guard::Guards;
use std::collections::VecDeque;
use std::fmt;

use mirror::Mirror;
use room::Fence;
pub use room::{Checkpoint, Mark, Noted};

/// Copies of the superblock on each device.
const COPIES: usize = 2;

/// A record to be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// What happened.
    pub kind: RecordKind,
    /// To which volume, by its number in this journal.
    pub volume: u16,
    /// Where; whole sectors, not empty.
    pub range: ByteRange,
}

/// Whether a write may be recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// It may, and must be followed by [`Log::append`] or [`Log::withdraw`].
    Granted,
    /// Not now: the waiter is told when there is room in memory again.
    Wait,
    /// The log is full until a checkpoint: write through to the disk.
    Full,
    /// The log has failed: write through to the disk.
    Failed,
}

/// What a waiter is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Told {
    /// Its record, or all before its barrier, are durable.
    Durable,
    /// They are not, and won't be: the log has failed.
    Lost(IoError),
    /// There is room in memory again.
    Room,
}

/// Something to be written to the journal's device, or to both where it is mirrored, and to be made
/// durable there before it is reported with [`Log::complete`] or [`Log::complete_on`].
#[derive(Debug)]
pub struct LogWrite<B> {
    /// Where, in bytes.
    pub position: u64,
    /// What: the first `len` bytes of it.
    pub bytes: LogBytes<B>,
    /// How many; whole blocks.
    pub len: usize,
    targets: [bool; MEMBERS_MAX],
}

/// The memory of a write.
#[derive(Debug)]
pub enum LogBytes<B> {
    /// A batch in one of the log's buffers, to be handed back.
    Batch(B),
    /// A copy of the superblock for each device that is to be written.
    Superblock([Vec<u8>; MEMBERS_MAX]),
}

impl<B: AsRef<[u8]>> LogWrite<B> {
    /// The bytes to be written, where there is one device.
    pub fn bytes(&self) -> &[u8] {
        self.bytes_for(0)
    }

    /// The same where they are in one of the log's buffers, which are aligned.
    pub fn batch(&self) -> Option<&[u8]> {
        matches!(self.bytes, LogBytes::Batch(_)).then(|| self.bytes())
    }
}

/// Why a log can't be opened or changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogError {
    /// It knows as many volumes as it can.
    Volumes,
    /// It has been taken over too often, or is full: its records must be brought to the disks
    /// first.
    DrainFirst,
    /// A volume is to be forgotten that has records.
    InUse,
    /// It is divided into segments that can't hold the longest batch: no process of this program
    /// has made it so.
    ShortSegments {
        /// Bytes of one.
        segment_bytes: u64,
    },
}

impl fmt::Display for LogError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Volumes => write!(f, "a journal serves at most {VOLUMES_MAX} volumes"),
            Self::DrainFirst => f.write_str(
                "the journal has no room for another start before its records are on disk",
            ),
            Self::InUse => f.write_str("the journal still holds writes of the volume"),
            Self::ShortSegments { segment_bytes } => write!(
                f,
                "its superblock divides it into segments of {segment_bytes} bytes, which is less \
                 than a batch can take"
            ),
        }
    }
}

impl std::error::Error for LogError {}

/// How full a log is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogUsage {
    /// Bytes of all segments.
    pub capacity_bytes: u64,
    /// Bytes of segments that are still needed.
    pub used_bytes: u64,
    /// Records made durable by this process.
    pub records: u64,
    /// Batches made durable by this process.
    pub batches: u64,
    /// Bytes written for them, superblocks not counted.
    pub written_bytes: u64,
    /// Payload bytes in them.
    pub payload_bytes: u64,
    /// Checkpoints begun.
    pub checkpoints: u64,
}

/// Some records on their way: growing, waiting, or being written.
#[derive(Debug)]
struct Batch<B, W> {
    /// None while it has no payload and waits for a buffer.
    buffer: Option<B>,
    payload_bytes: usize,
    records: Vec<Record>,
    writes: usize,
    waiters: Vec<W>,
}

#[derive(Debug)]
struct Volume {
    number: u16,
    /// The oldest segment that may hold a record that a disk lacks.
    needed: Option<u64>,
    /// One more than the number of its newest record, and of the newest one that is not a mere word
    /// that the disk has something newer.
    records_end: u64,
    changes_end: u64,
    /// What was found of it is not all in the pool yet, so a flush of the pool does not say that
    /// the disk has it.
    is_restoring: bool,
    /// Where its checkpoint began, while one is under way.
    checkpoint: Option<Mark>,
    /// Its disk did not take all that the last checkpoint asked for.
    is_failing: bool,
    /// Checkpoints of it in a row that gave back no room.
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

/// What is on its way to the device.
#[derive(Debug)]
enum Writing<W> {
    Nothing,
    Batch { header: BatchHeader, waiters: Vec<W>, records: Vec<Record> },
    Superblock { first_segment: u64 },
}

/// What a batch of this log can hold, and how much of the log is kept free.
#[derive(Clone, Copy, Debug)]
struct Limits {
    payload_bytes: usize,
    records: usize,
    /// Records that may be writes; the others are kept for what can't be refused.
    writes: usize,
    /// Free segments below which no write is taken: one for what can't be refused, one for a
    /// process that has to take over, and those that the batches on their way may need.
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
        Self { payload_bytes, records, writes: records / 2, free_segments }
    }
}

/// The writing side of one journal. `B` is memory for a batch, aligned as the device wants it, all
/// of one length: whole blocks, of which a segment holds at least one buffer's. `W` names whoever
/// waits. There must be more buffers than permits are ever out at once, so that whoever waits for
/// memory waits for a write to end.
#[derive(Debug)]
pub struct Log<B, W> {
    limits: Limits,
    superblock: Superblock,
    /// Copies of the superblock on the device that are not as it is now.
    superblock_stale: usize,
    next_batch: u64,
    chain: u32,
    segment: u64,
    offset: u64,
    /// The oldest segment that each copy of the superblock on the device needs.
    durable_first_segments: [u64; 2],
    next_record: u64,
    queue: VecDeque<Batch<B, W>>,
    writing: Writing<W>,
    spare: Vec<B>,
    buffers: usize,
    permits: usize,
    starved: Vec<W>,
    /// They wait until a checkpoint has ended, as what they leave behind may find no room.
    gated: Vec<W>,
    /// Such a checkpoint has ended.
    has_news: bool,
    /// What they have done needs no record once the superblock is durable.
    unrecorded: Vec<W>,
    volumes: Vec<Volume>,
    guards: Guards<W>,
    failed: Option<IoError>,
    mirror: Mirror<W>,
    usage: LogUsage,
    /// Kept for their capacity.
    old_records: Vec<Vec<Record>>,
    old_waiters: Vec<Vec<W>>,
}

impl<B: AsRef<[u8]> + AsMut<[u8]>, W> Log<B, W> {
    /// A log on a device that holds nothing of value, divided by `geometry`. The first write it
    /// asks for is its superblock; nothing may be acknowledged before that is durable.
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

    /// Goes on with a log that [`crate::recover`] has walked, as a new generation. Its records
    /// stay needed until a checkpoint, and there is none of a volume before [`Log::restored`].
    ///
    /// # Errors
    /// When its records must be brought to the disks first, or its segments are too short.
    pub fn resume(found: &crate::Found, buffers: Vec<B>) -> Result<Self, LogError> {
        let segment_bytes = found.superblock.geometry.segment_bytes;
        if buffers.first().is_some_and(|buffer| segment_bytes < buffer.as_ref().len() as u64) {
            return Err(LogError::ShortSegments { segment_bytes });
        }
        let mut superblock = found.superblock.clone();
        // Numbers are not used again, so the records of those that were released stay void.
        superblock.volumes.retain(VolumeEntry::counts);
        superblock.clean = false;
        let generation = superblock.generation() + 1;
        let batch = found.next_batch;
        // A generation that finished no batch has none that counts, nor has one that began behind
        // batches that are lost.
        while superblock.starts.last().is_some_and(|last| last.batch >= batch) {
            superblock.starts.pop();
        }
        // Where all batches of a generation are lost, the next one still begins behind it.
        let behind = superblock.starts.last().map_or(0, |start| start.segment + 1);
        let segment = found.last_segment.map_or(superblock.first_segment, |last| last + 1);
        let segment = segment.max(behind);
        if found.records.is_empty() {
            // What was written before is not walked any more, so its numbers are free.
            superblock.first_segment = segment;
            superblock.volumes.clear();
            superblock.next_volume = 0;
        }
        // A log that begins without the room that a fence needs may never get any.
        let used = segment - superblock.first_segment + 1 + room::GATE_SEGMENTS;
        if used > superblock.geometry.segments {
            return Err(LogError::DrainFirst);
        }
        // A generation is remembered while the log may hold batches of an earlier one.
        let first_segment = superblock.first_segment;
        while superblock.starts.get(1).is_some_and(|next| next.segment <= first_segment) {
            superblock.starts.remove(0);
        }
        if superblock.starts.len() == GENERATIONS_MAX {
            return Err(LogError::DrainFirst);
        }
        superblock.starts.push(GenerationStart { generation, batch, segment });
        let mut log = Self::with(superblock, batch, found.chain, buffers);
        // What is void is so by its number, also if it was never written.
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
                None => unreachable!("records of volumes that are not known are void"),
            }
        }
        Ok(log)
    }

    fn with(superblock: Superblock, next_batch: u64, chain: u32, buffers: Vec<B>) -> Self {
        assert!(buffers.len() > 1, "one batch grows while another is written");
        let len = buffers[0].as_ref().len();
        assert!(buffers.iter().all(|buffer| buffer.as_ref().len() == len));
        let limits = Limits::new(len, buffers.len(), superblock.geometry.segment_bytes);
        let volumes = superblock.volumes.iter().map(|volume| Volume::new(volume.number));
        Self {
            limits,
            volumes: volumes.collect(),
            durable_first_segments: [superblock.first_segment; 2],
            segment: superblock.first_segment,
            guards: Guards::new(&superblock),
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
            starved: Vec::new(),
            gated: Vec::new(),
            has_news: false,
            unrecorded: Vec::new(),
            failed: None,
            mirror: Mirror::default(),
            usage: LogUsage::default(),
            old_records: Vec::new(),
            old_waiters: Vec::new(),
        }
    }

    /// The superblock as it is or will be on the device.
    pub const fn superblock(&self) -> &Superblock {
        &self.superblock
    }

    /// Begins to record a volume, or finds the number it is known by. Its records count only once
    /// the superblock that this asks for is durable; batches wait for it.
    ///
    /// # Errors
    /// When there is no room for another.
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
        let guard = Guard::default();
        let void_before = 0;
        let entry = VolumeEntry { number, name, size_bytes, identity, guard, void_before };
        self.superblock.volumes.push(entry);
        self.volumes.push(Volume::new(number));
        self.guards.add(&self.superblock, number);
        self.change_superblock();
        Ok(number)
    }

    /// Whether the superblock on the device is the newest one.
    pub const fn superblock_is_durable(&self) -> bool {
        self.superblock_stale == 0 && !self.writes_superblock()
    }

    /// Forgets a volume that has no records: after a checkpoint, that is.
    ///
    /// # Errors
    /// When it has.
    pub fn remove_volume(&mut self, number: u16) -> Result<(), LogError> {
        if self.volumes.iter().any(|volume| volume.number == number && volume.needed.is_some()) {
            return Err(LogError::InUse);
        }
        self.volumes.retain(|volume| volume.number != number);
        self.superblock.volumes.retain(|volume| volume.number != number);
        self.change_superblock();
        Ok(())
    }

    /// Whether the log holds nothing of the volume that its disk may lack.
    pub fn is_clean(&self, number: u16) -> bool {
        self.volumes.iter().all(|volume| volume.number != number || volume.needed.is_none())
    }

    /// Asks to record a write of `len` bytes of a volume, before anything is changed on its behalf.
    pub fn admit(&mut self, number: u16, len: u64, waiter: W) -> Admission {
        if self.failed.is_some() {
            return Admission::Failed;
        }
        if len > self.limits.payload_bytes as u64 || self.is_tight() {
            return self.admit_through(number, waiter);
        }
        // Each permit may come to need a buffer of its own.
        if self.spare.len() <= self.permits {
            self.starved.push(waiter);
            return Admission::Wait;
        }
        self.permits += 1;
        Admission::Granted
    }

    /// Gives a permit back.
    pub fn withdraw(&mut self) {
        self.permits -= 1;
    }

    /// Records a write that was granted, its bytes in pieces. The waiter is told when it is
    /// durable. Returns false when the log has failed since; the record is not made then.
    #[must_use]
    pub fn append<'a>(
        &mut self,
        entry: Entry,
        pieces: impl Iterator<Item = &'a [u8]>,
        waiter: Option<W>,
    ) -> bool {
        let len = entry.range.len as usize;
        assert!(entry.kind == RecordKind::Write);
        assert!(len <= self.limits.payload_bytes, "no longer than was admitted");
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
        let batch = self.queue.back_mut().expect("there is a batch that grows");
        if batch.buffer.is_none() {
            let buffer = self.spare.pop();
            batch.buffer = Some(buffer.expect("each permit keeps a buffer spare"));
        }
        let buffer = batch.buffer.as_mut().expect("given just now").as_mut();
        let start = HEADER_BYTES + batch.payload_bytes;
        let mut at = start;
        for piece in pieces {
            buffer[at..at + piece.len()].copy_from_slice(piece);
            at += piece.len();
        }
        assert_eq!(at - start, len, "the pieces make the whole");
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
        self.note_record(&entry);
        true
    }

    /// Waits until everything recorded so far is durable. True when it is already; false when the
    /// waiter will be told.
    ///
    /// # Errors
    /// When the log has failed, and with it what was not durable.
    pub fn barrier(&mut self, waiter: W) -> Result<bool, IoError> {
        if let Some(error) = self.failed {
            return Err(error);
        }
        let waiters = match (self.queue.back_mut(), &mut self.writing) {
            (Some(batch), _) => &mut batch.waiters,
            (None, Writing::Batch { waiters, .. }) => waiters,
            (None, _) if self.mirror.is_holding() => {
                self.mirror.hold([waiter]);
                return Ok(false);
            }
            (None, _) => return Ok(true),
        };
        waiters.push(waiter);
        Ok(false)
    }

    /// What to write next, if nothing is being written.
    pub fn poll_write(&mut self) -> Option<LogWrite<B>> {
        let is_busy = !matches!(self.writing, Writing::Nothing);
        if is_busy || self.failed.is_some() || self.mirror.is_unrecorded() {
            return None;
        }
        let targets = targets_of(&self.superblock.members);
        // One after the other, so that one is whole at any time. Only when both are on the device
        // does anything follow that needs what they say: either of them may be lost later.
        if self.superblock_stale > 0 {
            self.superblock_stale -= 1;
            self.superblock.sequence += 1;
            let first_segment = self.superblock.first_segment;
            self.writing = Writing::Superblock { first_segment };
            self.guards.written(&self.superblock);
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
        // A batch without payload takes no buffer that was promised to a write.
        if batch.buffer.is_none() && self.spare.len() <= self.permits {
            return None;
        }
        let batch = self.queue.pop_front().expect("looked at just now");
        let buffer = batch.buffer.or_else(|| self.spare.pop());
        let mut buffer = buffer.expect("made sure of just now");
        let generation = self.superblock.generation();
        let (number, chain) = (self.next_batch, self.chain);
        let mut header = BatchHeader::new(generation, number, self.segment, self.offset, chain);
        header.payload_bytes = batch.payload_bytes as u32;
        header.first_record = self.next_record - self.unwritten_records(&batch.records);
        let journal = self.superblock.journal;
        let header = seal_batch(journal, header, &batch.records, buffer.as_mut());
        let position = geometry.position(self.segment) + self.offset;
        let (waiters, records) = (batch.waiters, batch.records);
        self.writing = Writing::Batch { header, waiters, records };
        Some(LogWrite { position, len: len as usize, bytes: LogBytes::Batch(buffer), targets })
    }

    /// A write has ended: it is durable, or it has failed. Says what waiters are to be told.
    pub fn complete(&mut self, write: LogWrite<B>, result: IoResult, told: &mut Vec<(W, Told)>) {
        if let LogBytes::Batch(buffer) = write.bytes {
            self.spare.push(buffer);
        }
        let writing = std::mem::replace(&mut self.writing, Writing::Nothing);
        if let Err(error) = result {
            self.fail(writing, error, told);
            return;
        }
        match writing {
            Writing::Nothing => unreachable!("a write ends that was begun"),
            Writing::Superblock { first_segment } => {
                let copy = self.superblock.sequence as usize % COPIES;
                self.durable_first_segments[copy] = first_segment;
                self.superblock_written(told);
                if self.superblock_stale == 0 {
                    // There may be room now, and no checkpoint is needed that would tell them.
                    told.extend(self.gated.drain(..).map(|waiter| (waiter, Told::Room)));
                }
                if self.superblock_stale == 0 && !self.must_hold() {
                    let waiting = self.guards.durable(&self.superblock);
                    told.extend(waiting.map(|waiter| (waiter, Told::Room)));
                    self.tell_unrecorded(told);
                }
            }
            Writing::Batch { header, mut waiters, mut records } => {
                self.next_batch += 1;
                self.chain = header.checksum;
                self.offset += header.len_bytes();
                self.usage.batches += 1;
                self.usage.records += records.len() as u64;
                self.usage.written_bytes += header.len_bytes();
                self.usage.payload_bytes += u64::from(header.payload_bytes);
                if self.must_hold() {
                    self.mirror.hold(waiters.drain(..));
                }
                // DURABLE: the batch and all before it are on the journal's stable storage.
                told.extend(waiters.drain(..).map(|waiter| (waiter, Told::Durable)));
                records.clear();
                self.old_records.push(records);
                self.old_waiters.push(waiters);
            }
        }
        if self.spare.len() > self.permits {
            told.extend(self.starved.drain(..).map(|waiter| (waiter, Told::Room)));
        }
    }

    fn fail(&mut self, writing: Writing<W>, error: IoError, told: &mut Vec<(W, Told)>) {
        self.failed = Some(error);
        let lost = |waiter| (waiter, Told::Lost(error));
        told.extend(self.mirror.release().map(lost));
        if let Writing::Batch { waiters, .. } = writing {
            told.extend(waiters.into_iter().map(lost));
        }
        for mut batch in self.queue.drain(..) {
            self.spare.extend(batch.buffer.take());
            told.extend(batch.waiters.into_iter().map(lost));
        }
        told.extend(self.starved.drain(..).map(|waiter| (waiter, Told::Room)));
        told.extend(self.gated.drain(..).map(|waiter| (waiter, Told::Room)));
        told.extend(self.unrecorded.drain(..).map(lost));
        told.extend(self.guards.fail().map(|waiter| (waiter, Told::Room)));
    }

    /// Why the log takes nothing more, if so.
    pub const fn failed(&self) -> Option<IoError> {
        self.failed
    }

    /// Marks the log as holding nothing that a disk lacks, when that is so and nothing is on its
    /// way; the superblock that says it is written next. Anything recorded after that is lost.
    pub fn close(&mut self) -> bool {
        let clean = self.volumes.iter().all(|volume| volume.needed.is_none())
            && self.queue.is_empty()
            && matches!(self.writing, Writing::Nothing)
            && !self.must_hold()
            && self.failed.is_none();
        if clean {
            self.superblock.clean = true;
            self.change_superblock();
        }
        clean
    }

    /// Whether nothing is on its way to the device or waits to be.
    pub fn is_idle(&self) -> bool {
        self.queue.is_empty()
            && matches!(self.writing, Writing::Nothing)
            && (self.superblock_stale == 0 || self.failed.is_some())
    }

    /// How full it is, and what it has done.
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

    /// The oldest segment that a copy of the superblock on the device needs.
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

    /// Records that are numbered and not written, `first` being the ones at hand.
    fn unwritten_records(&self, first: &[Record]) -> u64 {
        let rest: usize = self.queue.iter().map(|batch| batch.records.len()).sum();
        (first.len() + rest) as u64
    }

    /// Panics where the log contradicts itself. For tests and the lab.
    pub fn self_check(&self) {
        let held = self.queue.iter().filter(|batch| batch.buffer.is_some()).count();
        let writing = usize::from(matches!(self.writing, Writing::Batch { .. }));
        assert_eq!(held + writing + self.spare.len(), self.buffers, "no buffer is lost");
        assert!(self.permits <= self.spare.len(), "each permit keeps a buffer spare");
        assert!(self.durable_first_segment() <= self.superblock.first_segment);
        assert!(self.superblock.first_segment <= self.segment);
        let used = self.segment - self.durable_first_segment() + 1;
        assert!(used <= self.superblock.geometry.segments, "no needed segment is overwritten");
    }
}
