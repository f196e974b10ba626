//! Walks a log from batch to batch, on one or two devices, and determines where it ends.

use super::{Damage, Found, FoundRecord, ReadAt};
use crate::image::retain_newest;
use forebay_format::journal::{
    BLOCK_BYTES, BatchHeader, BatchInvalid, HEADER_BYTES, LogKind, MEMBERS_MAX, Record, RecordKind,
    Superblock, VolumeEntry, check_batch,
};
use forebay_types::{ByteRange, IoError};

/// Number of records at which the walk first removes overwritten records.
const RECORDS_MIN: usize = 1 << 18;

/// Positions and lengths of the log's batches on the device, merged and in order.
type Extents = Vec<(u64, u64)>;

/// A range to copy from one device to the same position of another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyRange {
    /// The index of the source device.
    pub from: usize,
    /// The index of the target device.
    pub to: usize,
    /// Position in bytes, a multiple of a block.
    pub position: u64,
    /// Length in bytes, a multiple of a block.
    pub len: u64,
}

/// Walks the log that `superblock` describes, on one or two devices that are in sync except for
/// damage. Also returns the extents of the log, and the batches that one device lacks and the other
/// has.
pub(crate) fn walk(
    devices: [Option<&mut dyn ReadAt>; MEMBERS_MAX],
    superblock: Superblock,
) -> (Found, Extents, Vec<CopyRange>) {
    let mut walk = LogWalk::new(devices, superblock);
    walk.run();
    walk.record_missing_tail();
    let LogWalk { mut found, extents, mut lags, .. } = walk;
    let Found { records, superblock, .. } = &mut found;
    let counts = |number| superblock.volume(number).is_some_and(VolumeEntry::has_valid_records);
    records.retain(|found| counts(found.record.volume));
    records.shrink_to_fit();
    if found.superblock.is_clean {
        // A clean log has nothing to recover; only its end is needed.
        found.records.clear();
        found.damage.clear();
        lags.clear();
    }
    (found, extents, lags)
}

/// The result of inspecting a log in use.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogInspection {
    /// Positions of damaged data on the device, in bytes.
    pub damaged: Vec<u64>,
    /// Ranges that one device lacks and the other has.
    pub lags: Vec<CopyRange>,
    /// Total length of the readable batches in bytes.
    pub bytes: u64,
}

/// Reads a log in use, which `superblock` describes. Segments that are written or released
/// meanwhile may look damaged; the caller filters them out.
pub fn inspect(
    devices: [Option<&mut dyn ReadAt>; MEMBERS_MAX],
    superblock: Superblock,
) -> LogInspection {
    let mut walk = LogWalk::new(devices, superblock);
    walk.keeps_damaged_only = true;
    walk.run();
    let LogWalk { found, extents, lags, .. } = walk;
    let lost = found.damage.iter().filter_map(|damage| match damage {
        Damage::Batches { position, .. } => Some(*position),
        Damage::Payload { .. } => None,
    });
    let damaged = lost.chain(found.records.iter().map(|found| found.position)).collect();
    LogInspection { damaged, lags, bytes: extents.iter().map(|(_, len)| len).sum() }
}

struct LogWalk<'a> {
    devices: [Option<&'a mut dyn ReadAt>; MEMBERS_MAX],
    /// The current batch.
    buffer: Vec<u8>,
    /// The same batch from the other device.
    other: Vec<u8>,
    found: Found,
    extents: Extents,
    lags: Vec<CopyRange>,
    /// The expected place of the next batch.
    segment: u64,
    offset: u64,
    /// Whether to collect damaged records only.
    keeps_damaged_only: bool,
    /// Number of records at which to remove overwritten ones.
    records_max: usize,
}

/// The content of a place in the log.
enum PlaceContent {
    /// A batch with this header, intact or with damaged payload.
    Batch(BatchHeader, Result<(), BatchInvalid>),
    /// No valid batch.
    Nothing,
    /// The device cannot be read there, or has a batch with a number that no journal writes.
    Unreadable,
}

impl<'a> LogWalk<'a> {
    fn new(devices: [Option<&'a mut dyn ReadAt>; MEMBERS_MAX], superblock: Superblock) -> Self {
        let next_batch = superblock.starts.last().map_or(0, |start| start.batch);
        Self {
            devices,
            buffer: Vec::new(),
            other: Vec::new(),
            found: Found { next_batch, ..Found::empty(superblock) },
            segment: 0,
            offset: 0,
            extents: Vec::new(),
            lags: Vec::new(),
            keeps_damaged_only: false,
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
                PlaceContent::Batch(header, sound) => {
                    // A damaged payload at the end of a journal is a torn write that was never
                    // acknowledged. In a vault it is damage: its batches are written in parallel.
                    let is_journal = self.found.superblock.kind == LogKind::Journal;
                    let may_be_torn =
                        is_journal && sound.is_err() && header.batch >= self.known_batches();
                    if may_be_torn && self.find_beyond(header.batch + 1).is_none() {
                        return;
                    }
                    self.take(&header, sound, &records);
                }
                PlaceContent::Nothing | PlaceContent::Unreadable => {
                    let expected = self.found.next_batch;
                    let position = self.position(self.segment, self.offset);
                    let beyond = self.find_beyond(if is_first { 0 } else { expected + 1 });
                    let unreadable = matches!(here, PlaceContent::Unreadable);
                    let known = self.known_batches();
                    let missing = expected < known || is_first && known > 0;
                    if beyond.is_none() && !unreadable && !missing {
                        return;
                    }
                    let next = beyond.map(|header| header.batch);
                    // If the first batch is lost, the next readable batch bounds the loss.
                    // If that is batch 0, none is lost, but the log does not begin at its start.
                    let last = next.map(|next| next.saturating_sub(1));
                    let last = last.or(missing.then(|| known - 1));
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

    /// The number of batches that are known to have been durable: all before the first batch of the
    /// newest generation, if the log begins before that generation's segment; otherwise zero.
    fn known_batches(&self) -> u64 {
        let Superblock { starts, first_segment, .. } = &self.found.superblock;
        let later = starts.last().filter(|start| start.segment > *first_segment);
        later.map_or(0, |start| start.batch)
    }

    /// Records damage if a sealed dump has more batches than the walk found.
    fn record_missing_tail(&mut self) {
        let LogKind::Vault { sealed: Some(batches) } = self.found.superblock.kind else { return };
        let first = self.found.next_batch;
        if first < batches {
            let position = self.position(self.segment, self.offset);
            let next = None;
            self.found.damage.push(Damage::Batches { first, next, position });
        }
    }

    /// The batch that continues the log: at the current place, at the start of the next segment, or
    /// at the start of the generation that begins with the batch's number.
    fn next_batch(&mut self, is_first: bool, records: &mut Vec<Record>) -> PlaceContent {
        let here = self.batch_at(self.segment, self.offset, is_first, records);
        if is_first || self.offset == 0 || matches!(here, PlaceContent::Batch(..)) {
            return here;
        }
        let starts = &self.found.superblock.starts;
        let start = starts.iter().find(|start| start.batch == self.found.next_batch);
        let places = [Some(self.segment + 1), start.map(|start| start.segment)];
        let mut best = here;
        for segment in places.into_iter().flatten() {
            match self.batch_at(segment, 0, false, records) {
                PlaceContent::Nothing => {}
                there @ PlaceContent::Batch(..) => return there,
                there => best = there,
            }
        }
        best
    }

    /// The batch at a place that continues the log, from the first device that has it undamaged.
    fn batch_at(
        &mut self,
        segment: u64,
        offset: u64,
        is_first: bool,
        records: &mut Vec<Record>,
    ) -> PlaceContent {
        let mut best: Option<(usize, PlaceContent)> = None;
        for device in self.present() {
            if let Some((from, PlaceContent::Batch(header, Ok(())))) = &best {
                let (from, header) = (*from, *header);
                self.compare(&header, from, device);
                continue;
            }
            let mut theirs = Vec::new();
            let at = self.batch_on(device, segment, offset, is_first, &mut theirs);
            let is_better = match (&best, &at) {
                (None, _) | (_, PlaceContent::Batch(_, Ok(()))) => true,
                (Some((_, PlaceContent::Batch(..))), _) => false,
                (_, PlaceContent::Batch(..)) => true,
                // A readable device without a batch there shows the end of the log, because each
                // device has every acknowledged batch.
                (Some((_, first)), PlaceContent::Nothing) => {
                    matches!(first, PlaceContent::Unreadable)
                }
                (Some(_), PlaceContent::Unreadable) => false,
            };
            if !is_better {
                continue;
            }
            if let (Some((lacks, _)), PlaceContent::Batch(header, Ok(()))) = (&best, &at) {
                self.record_lag(&header.clone(), device, *lacks);
            }
            std::mem::swap(&mut self.buffer, &mut self.other);
            *records = theirs;
            best = Some((device, at));
        }
        best.map_or(PlaceContent::Unreadable, |(_, at)| at)
    }

    fn present(&self) -> impl Iterator<Item = usize> + use<> {
        let there = self.devices.each_ref().map(Option::is_some);
        (0..MEMBERS_MAX).filter(move |&device| there[device])
    }

    fn read(&mut self, device: usize, position: u64, buffer: &mut [u8]) -> Result<(), IoError> {
        let device = self.devices[device].as_mut().expect("the device is present");
        device.read_at(position, buffer)
    }

    /// Records a lag if another device does not have the batch in the buffer.
    fn compare(&mut self, header: &BatchHeader, from: usize, device: usize) {
        let position = self.position(header.segment, header.offset);
        let mut other = std::mem::take(&mut self.other);
        other.resize(self.buffer.len(), 0);
        let is_same = self.read(device, position, &mut other).is_ok() && other == self.buffer;
        self.other = other;
        if !is_same {
            self.record_lag(header, from, device);
        }
    }

    fn record_lag(&mut self, header: &BatchHeader, from: usize, to: usize) {
        let position = self.position(header.segment, header.offset);
        self.lags.push(CopyRange { from, to, position, len: header.len_bytes() });
    }

    fn batch_on(
        &mut self,
        device: usize,
        segment: u64,
        offset: u64,
        is_first: bool,
        records: &mut Vec<Record>,
    ) -> PlaceContent {
        let header = match self.header_at(device, segment, offset) {
            Ok(Some(header)) => header,
            Ok(None) => return PlaceContent::Nothing,
            Err(_) => return PlaceContent::Unreadable,
        };
        let continues = header.batch == self.found.next_batch && header.chain == self.found.chain;
        if !continues && !is_first {
            return PlaceContent::Nothing;
        }
        let mut bytes = std::mem::take(&mut self.other);
        bytes.resize(header.len_bytes() as usize, 0);
        let at = self.check(device, &header, &mut bytes, records);
        self.other = bytes;
        at
    }

    /// Reads a whole batch and checks it against its header.
    fn check(
        &mut self,
        device: usize,
        header: &BatchHeader,
        bytes: &mut [u8],
        records: &mut Vec<Record>,
    ) -> PlaceContent {
        let position = self.position(header.segment, header.offset);
        if self.read(device, position, bytes).is_err() {
            return PlaceContent::Unreadable;
        }
        // The header was read twice; the second read must agree.
        let journal = self.found.superblock.journal;
        if BatchHeader::decode(journal, header.segment, header.offset, bytes) != Ok(*header) {
            return PlaceContent::Nothing;
        }
        let sound = match check_batch(header, bytes, records) {
            Err(BatchInvalid::Payload(_)) => Err(BatchInvalid::Payload(0)),
            Err(_) => return PlaceContent::Nothing,
            Ok(()) => Ok(()),
        };
        PlaceContent::Batch(*header, sound)
    }

    /// The header of the batch at a place, if it is valid.
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
        let journal = superblock.journal;
        let position = self.position(segment, offset);
        let mut block = [0; BLOCK_BYTES as usize];
        self.read(device, position, &mut block)?;
        // The header is valid except for a number, so this is not the end of the log.
        match BatchHeader::decode(journal, segment, offset, &block) {
            Err(BatchInvalid::Number) => Err(IoError::Io),
            _ => Ok(self.header_in(segment, offset, &block)),
        }
    }

    fn header_in(&self, segment: u64, offset: u64, block: &[u8]) -> Option<BatchHeader> {
        let superblock = &self.found.superblock;
        let header = BatchHeader::decode(superblock.journal, segment, offset, block).ok()?;
        let fits = offset + header.len_bytes() <= superblock.geometry.segment_bytes;
        (fits && superblock.is_valid_batch(header.generation, header.batch)).then_some(header)
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
            if self.keeps_damaged_only && !is_damaged {
                continue;
            }
            let position = payload_at + u64::from(record.payload_offset);
            self.found.records.push(FoundRecord { record: *record, position, is_damaged });
        }
        if self.found.records.len() >= self.records_max && !self.keeps_damaged_only {
            retain_newest(&mut self.found.records);
            // Doubling the threshold makes the cost per record constant on average.
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

    /// The first batch with at least this number after the current place: in the rest of the
    /// segment, anywhere in the next segment (whose first batch may be the missing one), or at the
    /// start of a later segment.
    fn find_beyond(&mut self, batch: u64) -> Option<BatchHeader> {
        let found = self.present().map(|device| self.find_beyond_on(device, batch));
        found.collect::<Vec<_>>().into_iter().flatten().min_by_key(|header| header.batch)
    }

    fn find_beyond_on(&mut self, device: usize, batch: u64) -> Option<BatchHeader> {
        let geometry = self.found.superblock.geometry;
        let here = self.scan_segment(device, self.segment, self.offset + BLOCK_BYTES, batch);
        let near = here.or_else(|| self.scan_segment(device, self.segment + 1, 0, batch));
        if near.is_some() {
            return near;
        }
        let first = self.found.superblock.first_segment;
        (self.segment + 1..first + geometry.segments).find_map(|segment| {
            let header = self.header_at(device, segment, 0).ok().flatten();
            header.filter(|header| header.batch >= batch)
        })
    }

    /// The first batch with at least this number in a segment, at or after offset `at`.
    fn scan_segment(
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
            // If a chunk is unreadable, retry block by block.
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
