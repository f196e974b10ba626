//! The reading side of the journal: walks the log that a process left behind.

use forebay_format::journal::{
    BLOCK_BYTES, BatchHeader, BatchInvalid, HEADER_BYTES, JournalId, LogKind, MEMBERS_MAX, Record,
    RecordKind, SUPERBLOCK_BYTES, Superblock, SuperblockInvalid, VolumeEntry, check_batch,
};
use forebay_types::{ByteRange, IoError};
use std::fmt;

use crate::image::retain_newest;
use crate::mirror::Copy;

/// As many records are kept before those are looked for that others have overwritten.
const RECORDS_MIN: usize = 1 << 18;

/// A device to be read. Whoever implements it knows how.
pub trait ReadAt {
    /// Reads `buffer` full from `position`; both are multiples of a block.
    ///
    /// # Errors
    /// When the device does.
    fn read_at(&mut self, position: u64, buffer: &mut [u8]) -> Result<(), IoError>;
}

/// A record that was found, and where its payload is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FoundRecord {
    /// The record.
    pub record: Record,
    /// Where its payload begins on the device, in bytes.
    pub position: u64,
    /// The payload is not what was written.
    pub is_damaged: bool,
}

/// Something that had been durable and can't be read any more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Damage {
    /// The payload of some records of a batch; which, they say themselves.
    Payload {
        /// The batch's number.
        batch: u64,
    },
    /// Whole batches: what they recorded is not known.
    Batches {
        /// The first one lost.
        first: u64,
        /// The first one behind them that is there, if there is any.
        next: Option<u64>,
        /// Where the first one lay on the device, in bytes.
        position: u64,
    },
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Payload { batch } => write!(f, "batch {batch} has damaged payload"),
            Self::Batches { first, next: Some(next), position } => {
                write!(f, "batches {first} to {} at byte {position} are damaged", next - 1)
            }
            Self::Batches { first, next: None, position } => {
                write!(f, "batch {first} at byte {position} can't be read")
            }
        }
    }
}

/// What a journal holds.
#[derive(Clone, Debug)]
pub struct Found {
    /// Its newest superblock.
    pub superblock: Superblock,
    /// Everything that may be missing on a disk, in order. Of a long log, records that later ones
    /// have overwritten are left out.
    pub records: Vec<FoundRecord>,
    /// The number of the next batch, and what its chain is to be.
    pub next_batch: u64,
    /// See above.
    pub chain: u32,
    /// The number of the next record.
    pub next_record: u64,
    /// The segment of the last batch, if there is one.
    pub last_segment: Option<u64>,
    /// What had been there.
    pub damage: Vec<Damage>,
}

impl Found {
    /// What a new journal holds.
    pub const fn nothing(superblock: Superblock) -> Self {
        Self {
            superblock,
            records: Vec::new(),
            next_batch: 0,
            chain: 0,
            next_record: 0,
            last_segment: None,
            damage: Vec::new(),
        }
    }

    /// Every record is on its disk, on stable storage: the log goes on without them.
    pub fn drained(&mut self) {
        self.records.clear();
    }
}

/// Why a journal can't be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RecoverError {
    /// The device can't be read where the superblock is.
    Io(IoError),
    /// It holds no usable superblock.
    Superblock(SuperblockInvalid),
    /// It is for something else.
    Kind(LogKind),
    /// The device is smaller than the journal that was made on it, in bytes.
    Truncated {
        /// As it was made.
        expected: u64,
        /// As it is.
        found: u64,
    },
    /// One device of a mirrored journal can't be used.
    On {
        /// Which one, by its index.
        device: usize,
        /// Why not.
        error: Box<RecoverError>,
    },
    /// One device of a mirrored journal is missing, and the other holds nothing.
    Missing,
    /// One device of a mirrored journal is missing, and nothing says that the other one is not
    /// older.
    MayBeStale {
        /// Which journal.
        journal: JournalId,
        /// The device that is there, by its index.
        device: usize,
    },
    /// The devices belong to different journals.
    TwoJournals {
        /// Which ones.
        journals: [JournalId; MEMBERS_MAX],
    },
    /// Each device says that it went on without the other.
    Split {
        /// Which journal.
        journal: JournalId,
    },
}

impl fmt::Display for RecoverError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io(error) => write!(f, "its superblock can't be read: {error}"),
            Self::Superblock(error) => error.fmt(f),
            Self::Kind(LogKind::Journal) => f.write_str("holds a journal, not a vault"),
            Self::Kind(LogKind::Vault { .. }) => f.write_str("holds a vault, not a journal"),
            Self::Truncated { expected, found } => {
                write!(f, "was made {expected} bytes long and has {found}")
            }
            Self::On { error, .. } => error.fmt(f),
            Self::Missing => f.write_str("has no device that holds a journal"),
            Self::MayBeStale { .. } => f.write_str(
                "has one of its two devices, and nothing says that the missing one is not newer",
            ),
            Self::TwoJournals { journals: [a, b] } => {
                write!(f, "has devices of different journals, {a} and {b}")
            }
            Self::Split { .. } => {
                f.write_str("has two devices of which each went on without the other")
            }
        }
    }
}

impl std::error::Error for RecoverError {}

/// Walks the journal on a device of `size_bytes`.
///
/// # Errors
/// When there is no log that could be walked. Damage in it is no error here: what to do about it
/// depends on what else holds the data.
pub fn recover(device: &mut dyn ReadAt, size_bytes: u64) -> Result<Found, RecoverError> {
    let found = recover_any(device, size_bytes)?;
    match found.superblock.kind {
        LogKind::Journal => Ok(found),
        kind => Err(RecoverError::Kind(kind)),
    }
}

/// Walks the vault on a device of `size_bytes`. One that was not sealed gives what it has; its
/// superblock says that it was not.
///
/// # Errors
/// As [`recover`].
pub fn recover_vault(device: &mut dyn ReadAt, size_bytes: u64) -> Result<Found, RecoverError> {
    let found = recover_any(device, size_bytes)?;
    match found.superblock.kind {
        LogKind::Vault { .. } => Ok(found),
        kind => Err(RecoverError::Kind(kind)),
    }
}

/// Walks whichever log is on a device of `size_bytes`; its superblock says which it is.
///
/// # Errors
/// As [`recover`].
pub fn recover_any(device: &mut dyn ReadAt, size_bytes: u64) -> Result<Found, RecoverError> {
    let superblock = read_superblock(device)?;
    if size_bytes < superblock.size_bytes {
        let expected = superblock.size_bytes;
        return Err(RecoverError::Truncated { expected, found: size_bytes });
    }
    Ok(walk([Some(device), None], superblock).0)
}

/// Where the log lies: position and length, in order.
type Extents = Vec<(u64, u64)>;

/// Walks the log that `superblock` describes, on one or two devices that both hold all of it but
/// for damage. Says also where it lies, and what one device lacks that the other has.
pub(crate) fn walk(
    devices: [Option<&mut dyn ReadAt>; MEMBERS_MAX],
    superblock: Superblock,
) -> (Found, Extents, Vec<Copy>) {
    let mut walk = Walk::new(devices, superblock);
    walk.run();
    walk.miss_the_rest();
    let Walk { mut found, extents, mut lags, .. } = walk;
    let Found { records, superblock, .. } = &mut found;
    let counts = |number| superblock.volume(number).is_some_and(VolumeEntry::counts);
    records.retain(|found| counts(found.record.volume));
    records.shrink_to_fit();
    if found.superblock.clean {
        // The walk was for its end alone.
        found.records.clear();
        found.damage.clear();
        lags.clear();
    }
    (found, extents, lags)
}

/// What was seen of a log that is in use.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Inspection {
    /// Where something can't be read as it was written, in bytes on the device.
    pub damaged: Vec<u64>,
    /// What one device lacks that the other has.
    pub lags: Vec<Copy>,
    /// Bytes of the batches that are there.
    pub bytes: u64,
}

/// Reads a log that is in use, as `superblock` says that it is just now. What is written, or given
/// free, while this goes on may look like damage: the caller knows where that is.
pub fn inspect(
    devices: [Option<&mut dyn ReadAt>; MEMBERS_MAX],
    superblock: Superblock,
) -> Inspection {
    let mut walk = Walk::new(devices, superblock);
    walk.forgets = true;
    walk.run();
    let Walk { found, extents, lags, .. } = walk;
    let lost = found.damage.iter().filter_map(|damage| match damage {
        Damage::Batches { position, .. } => Some(*position),
        Damage::Payload { .. } => None,
    });
    let damaged = lost.chain(found.records.iter().map(|found| found.position)).collect();
    Inspection { damaged, lags, bytes: extents.iter().map(|(_, len)| len).sum() }
}

fn read_superblock(device: &mut dyn ReadAt) -> Result<Superblock, RecoverError> {
    let mut copies = [vec![0; SUPERBLOCK_BYTES], vec![0; SUPERBLOCK_BYTES]];
    let mut failed = [None; 2];
    for (at, copy) in copies.iter_mut().enumerate() {
        failed[at] = device.read_at((at * SUPERBLOCK_BYTES) as u64, copy).err();
    }
    match Superblock::newest([&copies[0], &copies[1]]) {
        Ok(superblock) => Ok(superblock),
        Err(error) => {
            let io = failed[0].or(failed[1]).map(RecoverError::Io);
            Err(io.unwrap_or(RecoverError::Superblock(error)))
        }
    }
}

struct Walk<'a> {
    devices: [Option<&'a mut dyn ReadAt>; MEMBERS_MAX],
    /// The batch at hand, and memory for the same from the other device.
    buffer: Vec<u8>,
    other: Vec<u8>,
    found: Found,
    extents: Extents,
    lags: Vec<Copy>,
    /// Where the next batch is looked for.
    segment: u64,
    offset: u64,
    /// Only records that are damaged are kept.
    forgets: bool,
    /// With so many records, those that are overwritten are taken out.
    records_max: usize,
}

/// What lies at a place in the log.
enum At {
    /// The batch with this header, whole or with damaged payload.
    Batch(BatchHeader, Result<(), BatchInvalid>),
    /// Nothing that counts.
    Nothing,
    /// The device can't be read there.
    Unreadable,
}

impl<'a> Walk<'a> {
    fn new(devices: [Option<&'a mut dyn ReadAt>; MEMBERS_MAX], superblock: Superblock) -> Self {
        let next_batch = superblock.starts.last().map_or(0, |start| start.batch);
        Self {
            devices,
            buffer: Vec::new(),
            other: Vec::new(),
            found: Found { next_batch, ..Found::nothing(superblock) },
            segment: 0,
            offset: 0,
            extents: Vec::new(),
            lags: Vec::new(),
            forgets: false,
            records_max: RECORDS_MIN,
        }
    }

    fn run(&mut self) {
        self.segment = self.found.superblock.first_segment;
        let mut is_first = true;
        loop {
            let mut records = Vec::new();
            let here = self.next_batch(is_first, &mut records);
            match here {
                At::Batch(header, sound) => {
                    // A damaged payload at the end of a journal is a batch that was not finished.
                    // Nobody has acknowledged a vault batch by batch, so it has no such end.
                    let is_journal = self.found.superblock.kind == LogKind::Journal;
                    let may_be_torn = is_journal && sound.is_err() && header.batch >= self.sealed();
                    if may_be_torn && self.look_beyond(header.batch + 1).is_none() {
                        return;
                    }
                    self.take(&header, sound, &records);
                }
                At::Nothing | At::Unreadable => {
                    let expected = self.found.next_batch;
                    let position = self.position(self.segment, self.offset);
                    let beyond = self.look_beyond(if is_first { 0 } else { expected + 1 });
                    let unreadable = matches!(here, At::Unreadable);
                    let sealed = self.sealed();
                    let missing = expected < sealed || is_first && sealed > 0;
                    if beyond.is_none() && !unreadable && !missing {
                        return;
                    }
                    let next = beyond.map(|header| header.batch);
                    // Where the log begins, only what is left says where it began.
                    let last = next.map(|next| next - 1).or(missing.then(|| sealed - 1));
                    let first = last.map_or(expected, |last| expected.min(last));
                    self.found.damage.push(Damage::Batches { first, next, position });
                    let Some(header) = beyond else { return };
                    self.segment = header.segment;
                    self.offset = header.offset;
                    self.found.next_batch = header.batch;
                    self.found.chain = header.chain;
                }
            }
            is_first = false;
        }
    }

    /// The number of batches that are known to have been there: those that a later process found
    /// when it took over, as long as the log still begins before its own.
    fn sealed(&self) -> u64 {
        let Superblock { starts, first_segment, .. } = &self.found.superblock;
        let later = starts.last().filter(|start| start.segment > *first_segment);
        later.map_or(0, |start| start.batch)
    }

    /// Notes what a sealed dump has and was not found.
    fn miss_the_rest(&mut self) {
        let LogKind::Vault { sealed: Some(batches) } = self.found.superblock.kind else { return };
        let first = self.found.next_batch;
        if first < batches {
            let position = self.position(self.segment, self.offset);
            let next = None;
            self.found.damage.push(Damage::Batches { first, next, position });
        }
    }

    /// The batch that continues the log: here, at the beginning of the next segment, or where its
    /// number began a generation.
    fn next_batch(&mut self, is_first: bool, records: &mut Vec<Record>) -> At {
        let here = self.batch_at(self.segment, self.offset, is_first, records);
        if is_first || self.offset == 0 || matches!(here, At::Batch(..)) {
            return here;
        }
        let starts = &self.found.superblock.starts;
        let start = starts.iter().find(|start| start.batch == self.found.next_batch);
        let places = [Some(self.segment + 1), start.map(|start| start.segment)];
        let mut best = here;
        for segment in places.into_iter().flatten() {
            match self.batch_at(segment, 0, false, records) {
                At::Nothing => {}
                there @ At::Batch(..) => return there,
                there => best = there,
            }
        }
        best
    }

    /// The batch at a place that continues the log, from whichever device has it whole.
    fn batch_at(
        &mut self,
        segment: u64,
        offset: u64,
        is_first: bool,
        records: &mut Vec<Record>,
    ) -> At {
        let mut best: Option<(usize, At)> = None;
        for device in self.present() {
            if let Some((from, At::Batch(header, Ok(())))) = &best {
                let (from, header) = (*from, *header);
                self.compare(&header, from, device);
                continue;
            }
            let mut theirs = Vec::new();
            let at = self.batch_on(device, segment, offset, is_first, &mut theirs);
            let is_better = match (&best, &at) {
                (None, _) | (_, At::Batch(_, Ok(()))) => true,
                (Some((_, At::Batch(..))), _) => false,
                (_, At::Batch(..)) => true,
                // One that is read and holds nothing knows where the log ends.
                (Some((_, first)), At::Nothing) => matches!(first, At::Unreadable),
                (Some(_), At::Unreadable) => false,
            };
            if !is_better {
                continue;
            }
            if let (Some((lacks, _)), At::Batch(header, Ok(()))) = (&best, &at) {
                self.note_lag(&header.clone(), device, *lacks);
            }
            std::mem::swap(&mut self.buffer, &mut self.other);
            *records = theirs;
            best = Some((device, at));
        }
        best.map_or(At::Unreadable, |(_, at)| at)
    }

    fn present(&self) -> impl Iterator<Item = usize> + use<> {
        let there = self.devices.each_ref().map(Option::is_some);
        (0..MEMBERS_MAX).filter(move |&device| there[device])
    }

    fn read(&mut self, device: usize, position: u64, buffer: &mut [u8]) -> Result<(), IoError> {
        let device = self.devices[device].as_mut().expect("it is among those present");
        device.read_at(position, buffer)
    }

    /// Whether another device has the batch in the buffer as well.
    fn compare(&mut self, header: &BatchHeader, from: usize, device: usize) {
        let position = self.position(header.segment, header.offset);
        let mut other = std::mem::take(&mut self.other);
        other.resize(self.buffer.len(), 0);
        let is_same = self.read(device, position, &mut other).is_ok() && other == self.buffer;
        self.other = other;
        if !is_same {
            self.note_lag(header, from, device);
        }
    }

    fn note_lag(&mut self, header: &BatchHeader, from: usize, to: usize) {
        let position = self.position(header.segment, header.offset);
        self.lags.push(Copy { from, to, position, len: header.len_bytes() });
    }

    fn batch_on(
        &mut self,
        device: usize,
        segment: u64,
        offset: u64,
        is_first: bool,
        records: &mut Vec<Record>,
    ) -> At {
        let header = match self.header_at(device, segment, offset) {
            Ok(Some(header)) => header,
            Ok(None) => return At::Nothing,
            Err(_) => return At::Unreadable,
        };
        let continues = header.batch == self.found.next_batch && header.chain == self.found.chain;
        if !continues && !is_first {
            return At::Nothing;
        }
        let mut bytes = std::mem::take(&mut self.other);
        bytes.resize(header.len_bytes() as usize, 0);
        let at = self.check(device, &header, &mut bytes, records);
        self.other = bytes;
        at
    }

    /// Reads a batch whose header was seen, and checks it.
    fn check(
        &mut self,
        device: usize,
        header: &BatchHeader,
        bytes: &mut [u8],
        records: &mut Vec<Record>,
    ) -> At {
        let position = self.position(header.segment, header.offset);
        if self.read(device, position, bytes).is_err() {
            return At::Unreadable;
        }
        // What was read the second time is what counts.
        let journal = self.found.superblock.journal;
        if BatchHeader::decode(journal, header.segment, header.offset, bytes) != Ok(*header) {
            return At::Nothing;
        }
        let sound = match check_batch(header, bytes, records) {
            Err(BatchInvalid::Payload(_)) => Err(BatchInvalid::Payload(0)),
            Err(_) => return At::Nothing,
            Ok(()) => Ok(()),
        };
        At::Batch(*header, sound)
    }

    /// The header of a batch that counts.
    fn header_at(
        &mut self,
        device: usize,
        segment: u64,
        offset: u64,
    ) -> Result<Option<BatchHeader>, IoError> {
        let superblock = &self.found.superblock;
        if offset + BLOCK_BYTES > superblock.geometry.segment_bytes {
            return Ok(None);
        }
        let position = self.position(segment, offset);
        let mut block = [0; BLOCK_BYTES as usize];
        self.read(device, position, &mut block)?;
        Ok(self.header_in(segment, offset, &block))
    }

    fn header_in(&self, segment: u64, offset: u64, block: &[u8]) -> Option<BatchHeader> {
        let superblock = &self.found.superblock;
        let header = BatchHeader::decode(superblock.journal, segment, offset, block).ok()?;
        let fits = offset + header.len_bytes() <= superblock.geometry.segment_bytes;
        (fits && superblock.counts(header.generation, header.batch)).then_some(header)
    }

    fn take(&mut self, header: &BatchHeader, sound: Result<(), BatchInvalid>, records: &[Record]) {
        let payload_at = self.position(header.segment, header.offset) + HEADER_BYTES as u64;
        for (number, record) in (header.first_record..).zip(records) {
            let volume = self.found.superblock.volume(record.volume);
            if volume.is_some_and(|volume| number < volume.void_before) {
                continue;
            }
            let at = HEADER_BYTES + record.payload_offset as usize;
            let is_damaged = sound.is_err() && record.kind == RecordKind::Write && {
                let bytes = &self.buffer[at..at + record.range.len as usize];
                let ByteRange { offset, .. } = record.range;
                Record::checksum_of(record.volume, offset, bytes) != record.checksum
            };
            if self.forgets && !is_damaged {
                continue;
            }
            let position = payload_at + u64::from(record.payload_offset);
            self.found.records.push(FoundRecord { record: *record, position, is_damaged });
        }
        if self.found.records.len() >= self.records_max && !self.forgets {
            retain_newest(&mut self.found.records);
            // Each record is looked at twice, on average, however long the log is.
            self.records_max = RECORDS_MIN.max(2 * self.found.records.len());
        }
        if sound.is_err() {
            self.found.damage.push(Damage::Payload { batch: header.batch });
        }
        let (position, len) = (self.position(header.segment, header.offset), header.len_bytes());
        match self.extents.last_mut() {
            Some((start, bytes)) if *start + *bytes == position => *bytes += len,
            _ => self.extents.push((position, len)),
        }
        self.found.next_batch = header.batch + 1;
        self.found.chain = header.checksum;
        self.found.next_record = header.first_record + u64::from(header.records);
        self.found.last_segment = Some(header.segment);
        self.segment = header.segment;
        self.offset = header.offset + header.len_bytes();
    }

    /// The first batch with at least this number behind the place at hand: in the rest of the
    /// segment, in the next one, as the batch that is missing may be its first, or at the beginning
    /// of a later one.
    fn look_beyond(&mut self, batch: u64) -> Option<BatchHeader> {
        let found = self.present().map(|device| self.look_beyond_on(device, batch));
        found.collect::<Vec<_>>().into_iter().flatten().min_by_key(|header| header.batch)
    }

    fn look_beyond_on(&mut self, device: usize, batch: u64) -> Option<BatchHeader> {
        let geometry = self.found.superblock.geometry;
        let here = self.look_into(device, self.segment, self.offset + BLOCK_BYTES, batch);
        let near = here.or_else(|| self.look_into(device, self.segment + 1, 0, batch));
        if near.is_some() {
            return near;
        }
        let first = self.found.superblock.first_segment;
        (self.segment + 1..first + geometry.segments).find_map(|segment| {
            let header = self.header_at(device, segment, 0).ok().flatten();
            header.filter(|header| header.batch >= batch)
        })
    }

    /// The first batch with at least this number in a segment, from `at` on.
    fn look_into(
        &mut self,
        device: usize,
        segment: u64,
        mut at: u64,
        batch: u64,
    ) -> Option<BatchHeader> {
        const CHUNK_BYTES: u64 = 1 << 20;
        let segment_bytes = self.found.superblock.geometry.segment_bytes;
        let mut chunk = Vec::new();
        while at < segment_bytes {
            // What can't be read in one piece is read block by block.
            let len = (segment_bytes - at).min(CHUNK_BYTES);
            chunk.resize(len as usize, 0);
            let position = self.position(segment, at);
            let whole = self.read(device, position, &mut chunk).is_ok();
            for (index, block) in chunk.chunks_exact_mut(BLOCK_BYTES as usize).enumerate() {
                let from = index as u64 * BLOCK_BYTES;
                if !whole && self.read(device, position + from, block).is_err() {
                    continue;
                }
                let header = self.header_in(segment, at + from, block);
                if header.is_some_and(|header| header.batch >= batch) {
                    return header;
                }
            }
            at += len;
        }
        None
    }

    fn position(&self, segment: u64, offset: u64) -> u64 {
        self.found.superblock.geometry.position(segment) + offset
    }
}
