//! Batches: records and their payload, written and made durable as a unit.

use super::{BATCH_BYTES_MAX, BLOCK_BYTES, COUNT_MAX, JournalId};
use crate::checksum;
use forebay_types::{ByteRange, SECTOR_BYTES};
use std::fmt;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

const MAGIC: u32 = u32::from_le_bytes(*b"FBJB");
/// Length of a batch header in bytes; the payload follows.
pub const HEADER_BYTES: usize = 96;
/// Length of a record in bytes.
pub const RECORD_BYTES: usize = 32;

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct BatchFields {
    magic: U32,
    /// Checksum of the header with this field zero, seeded with the journal's identity.
    checksum: U32,
    /// The checksum of the previous batch's header, of any generation.
    chain: U32,
    /// Checksum of the records, seeded with the batch number.
    records_checksum: U32,
    generation: U64,
    batch: U64,
    segment: U64,
    first_record: U64,
    offset: U32,
    payload_bytes: U32,
    records: U32,
    reserved: [u8; 36],
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawRecord {
    kind: u8,
    reserved: u8,
    volume: U16,
    /// Checksum of the payload, seeded with volume and offset.
    checksum: U32,
    sector: U64,
    sectors: U64,
    payload_offset: U32,
    reserved_too: U32,
}

const _: () = assert!(size_of::<BatchFields>() == HEADER_BYTES);
const _: () = assert!(size_of::<RawRecord>() == RECORD_BYTES);

/// The kind of change that a record describes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RecordKind {
    /// The range was written; the payload has the data.
    Write,
    /// The range reads as zeroes.
    Zero {
        /// Whether a hole is acceptable.
        unmap: bool,
    },
    /// The range was discarded.
    Discard,
    /// The disk has the newest content of the range on stable storage: earlier records are void.
    Forget,
}

impl RecordKind {
    const fn number(self) -> u8 {
        match self {
            Self::Write => 1,
            Self::Zero { unmap: false } => 2,
            Self::Zero { unmap: true } => 3,
            Self::Discard => 4,
            Self::Forget => 5,
        }
    }

    const fn from_number(number: u8) -> Option<Self> {
        Some(match number {
            1 => Self::Write,
            2 => Self::Zero { unmap: false },
            3 => Self::Zero { unmap: true },
            4 => Self::Discard,
            5 => Self::Forget,
            _ => return None,
        })
    }
}

/// A record of one change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// The kind of change.
    pub kind: RecordKind,
    /// The number of the volume in the superblock.
    pub volume: u16,
    /// The range; whole sectors.
    pub range: ByteRange,
    /// Offset of a write's data in the batch's payload.
    pub payload_offset: u32,
    /// The checksum of this data, from [`Record::checksum_of`].
    pub checksum: u32,
}

impl Record {
    /// The checksum of a write's data, seeded with its volume and offset.
    pub fn checksum_of(volume: u16, offset: u64, bytes: &[u8]) -> u32 {
        checksum(u64::from(volume) << 48 ^ offset, bytes)
    }

    fn encode(&self, payload_bytes: u32) -> RawRecord {
        let range = self.range;
        assert!(range.len > 0 && range.is_sector_aligned(), "{range} is not whole sectors");
        let payload_end = u64::from(self.payload_offset) + self.payload_len();
        assert!(payload_end <= u64::from(payload_bytes), "the data lies within the payload");
        RawRecord {
            kind: self.kind.number(),
            reserved: 0,
            volume: self.volume.into(),
            checksum: self.checksum.into(),
            sector: (self.range.offset / SECTOR_BYTES).into(),
            sectors: (self.range.len / SECTOR_BYTES).into(),
            payload_offset: self.payload_offset.into(),
            reserved_too: 0.into(),
        }
    }

    fn decode(raw: &RawRecord, payload_bytes: u32) -> Option<Self> {
        let kind = RecordKind::from_number(raw.kind)?;
        let offset = raw.sector.get().checked_mul(SECTOR_BYTES)?;
        let len = raw.sectors.get().checked_mul(SECTOR_BYTES)?;
        let end = offset.checked_add(len)?;
        let payload_offset = raw.payload_offset.get();
        let record = Self {
            kind,
            volume: raw.volume.get(),
            range: ByteRange::new(offset, len),
            payload_offset,
            checksum: raw.checksum.get(),
        };
        let payload_end = u64::from(payload_offset) + record.payload_len();
        let is_valid = len > 0 && end < u64::MAX / 2 && payload_end <= u64::from(payload_bytes);
        is_valid.then_some(record)
    }

    /// Length of the record's data in the payload in bytes; zero except for a write.
    const fn payload_len(&self) -> u64 {
        match self.kind {
            RecordKind::Write => self.range.len,
            _ => 0,
        }
    }
}

/// The header of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchHeader {
    /// The generation that wrote the batch.
    pub generation: u64,
    /// The batch number.
    pub batch: u64,
    /// The segment of the batch.
    pub segment: u64,
    /// The offset within the segment in bytes.
    pub offset: u64,
    /// The number of the first record.
    pub first_record: u64,
    /// Length of the payload in bytes.
    pub payload_bytes: u32,
    /// Number of records.
    pub records: u32,
    /// The checksum of the previous header.
    pub chain: u32,
    /// The checksum of this header, which is the chain of the next batch.
    pub checksum: u32,
    records_checksum: u32,
}

/// Why bytes are not a valid batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BatchInvalid {
    /// No batch of this journal, or a damaged header.
    NoHeader,
    /// The batch belongs to another place.
    Misplaced,
    /// The batch is too long or truncated, or has no records.
    Length,
    /// The batch or one of its records has a number that no superblock may contain.
    Number,
    /// The records are damaged.
    Records,
    /// The payload of this record is damaged; the records are intact.
    Payload(u32),
}

impl fmt::Display for BatchInvalid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoHeader => f.write_str("no batch"),
            Self::Misplaced => f.write_str("misplaced batch"),
            Self::Length => f.write_str("invalid batch length"),
            Self::Number => f.write_str("number of a batch or record out of range"),
            Self::Records => f.write_str("damaged records"),
            Self::Payload(record) => write!(f, "damaged payload of record {record}"),
        }
    }
}

impl std::error::Error for BatchInvalid {}

/// Length of a batch on the device in bytes.
pub const fn batch_bytes(payload_bytes: u64, records: u64) -> u64 {
    (HEADER_BYTES as u64 + payload_bytes + records * RECORD_BYTES as u64)
        .next_multiple_of(BLOCK_BYTES)
}

impl BatchHeader {
    /// A header for a batch at the head of the log, to be completed by [`seal_batch`].
    pub const fn new(generation: u64, batch: u64, segment: u64, offset: u64, chain: u32) -> Self {
        Self {
            generation,
            batch,
            segment,
            offset,
            first_record: 0,
            payload_bytes: 0,
            records: 0,
            chain,
            checksum: 0,
            records_checksum: 0,
        }
    }

    /// Length of the batch on the device in bytes.
    pub const fn len_bytes(&self) -> u64 {
        batch_bytes(self.payload_bytes as u64, self.records as u64)
    }

    fn encode(&self) -> BatchFields {
        assert!(self.offset <= u64::from(u32::MAX), "offset {} fits 32 bits", self.offset);
        BatchFields {
            magic: MAGIC.into(),
            checksum: self.checksum.into(),
            chain: self.chain.into(),
            records_checksum: self.records_checksum.into(),
            generation: self.generation.into(),
            batch: self.batch.into(),
            segment: self.segment.into(),
            first_record: self.first_record.into(),
            offset: (self.offset as u32).into(),
            payload_bytes: self.payload_bytes.into(),
            records: self.records.into(),
            reserved: [0; 36],
        }
    }

    /// Decodes the header of the batch at `offset` of `segment` from its first [`HEADER_BYTES`] or
    /// more bytes.
    ///
    /// # Errors
    /// If there is no valid header, it belongs to another place, or a length or number in it is out
    /// of range. The caller checks whether the batch continues the log: its chain, number and
    /// generation.
    pub fn decode(
        journal: JournalId,
        segment: u64,
        offset: u64,
        bytes: &[u8],
    ) -> Result<Self, BatchInvalid> {
        let Ok((raw, _)) = BatchFields::read_from_prefix(bytes) else {
            return Err(BatchInvalid::NoHeader);
        };
        let covered = BatchFields { checksum: 0.into(), ..raw };
        let sum = checksum(journal.seed(), covered.as_bytes());
        if raw.magic.get() != MAGIC || sum != raw.checksum.get() {
            return Err(BatchInvalid::NoHeader);
        }
        if raw.segment.get() != segment || u64::from(raw.offset.get()) != offset {
            return Err(BatchInvalid::Misplaced);
        }
        let header = Self {
            generation: raw.generation.get(),
            batch: raw.batch.get(),
            segment,
            offset,
            first_record: raw.first_record.get(),
            payload_bytes: raw.payload_bytes.get(),
            records: raw.records.get(),
            chain: raw.chain.get(),
            checksum: raw.checksum.get(),
            records_checksum: raw.records_checksum.get(),
        };
        if header.len_bytes() > BATCH_BYTES_MAX || header.records == 0 {
            return Err(BatchInvalid::Length);
        }
        // A superblock may later contain the numbers after those of the batch and its records.
        let next_record = header.first_record.saturating_add(header.records.into());
        if header.batch >= COUNT_MAX || next_record > COUNT_MAX {
            return Err(BatchInvalid::Number);
        }
        Ok(header)
    }
}

/// Completes a batch whose payload lies in `buffer` at [`HEADER_BYTES`]: writes the records, the
/// padding and the header. Returns the header with its checksum.
///
/// # Panics
/// If the buffer is too short, the batch is empty or longer than [`BATCH_BYTES_MAX`], a record is
/// invalid or refers to data outside the payload, or the payload is not as long as the data of the
/// records.
pub fn seal_batch(
    journal: JournalId,
    header: BatchHeader,
    records: &[Record],
    buffer: &mut [u8],
) -> BatchHeader {
    let mut header = BatchHeader { records: records.len() as u32, checksum: 0, ..header };
    let len = header.len_bytes();
    assert!(header.records > 0, "a batch has at least one record");
    assert!(len <= BATCH_BYTES_MAX, "batch of {len} bytes");
    assert!(header.offset.is_multiple_of(BLOCK_BYTES), "batch at offset {}", header.offset);
    assert!(len <= buffer.len() as u64, "batch of {len} bytes in a buffer of {}", buffer.len());
    let data: u64 = records.iter().map(Record::payload_len).sum();
    assert_eq!(data, u64::from(header.payload_bytes), "the payload is the data of the records");
    let records_at = HEADER_BYTES + header.payload_bytes as usize;
    let padding_at = records_at + records.len() * RECORD_BYTES;
    for (to, record) in buffer[records_at..padding_at].chunks_exact_mut(RECORD_BYTES).zip(records) {
        to.copy_from_slice(record.encode(header.payload_bytes).as_bytes());
    }
    buffer[padding_at..len as usize].fill(0);
    header.records_checksum = checksum(header.batch, &buffer[records_at..padding_at]);
    header.checksum = checksum(journal.seed(), header.encode().as_bytes());
    buffer[..HEADER_BYTES].copy_from_slice(header.encode().as_bytes());
    header
}

/// Checks the rest of a batch against its header, and appends its records to `records`. `bytes`
/// begins with the header.
///
/// # Errors
/// If `bytes` is too short, or a record or its payload is damaged. If only payload is damaged, all
/// records are still appended, so that the lost ranges are known.
pub fn check_batch(
    header: &BatchHeader,
    bytes: &[u8],
    records: &mut Vec<Record>,
) -> Result<(), BatchInvalid> {
    let payload_end = HEADER_BYTES + header.payload_bytes as usize;
    let records_end = payload_end + header.records as usize * RECORD_BYTES;
    let raw = bytes.get(payload_end..records_end).ok_or(BatchInvalid::Length)?;
    if checksum(header.batch, raw) != header.records_checksum {
        return Err(BatchInvalid::Records);
    }
    let payload = &bytes[HEADER_BYTES..payload_end];
    let first = records.len();
    let raw = <[RawRecord]>::ref_from_bytes(raw).map_err(|_| BatchInvalid::Records)?;
    for raw in raw {
        let Some(record) = Record::decode(raw, header.payload_bytes) else {
            records.truncate(first);
            return Err(BatchInvalid::Records);
        };
        records.push(record);
    }
    assert_eq!(records.len() - first, header.records as usize, "every record is decoded");
    let damaged = records[first..].iter().position(|record| {
        record.kind == RecordKind::Write && {
            let from = record.payload_offset as usize;
            let bytes = &payload[from..from + record.range.len as usize];
            Record::checksum_of(record.volume, record.range.offset, bytes) != record.checksum
        }
    });
    damaged.map_or(Ok(()), |at| Err(BatchInvalid::Payload(at as u32)))
}

#[cfg(test)]
#[path = "batch_tests.rs"]
mod tests;
