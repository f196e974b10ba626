//! One batch of a dump while it is put together, and while it is on its way.

use forebay_backend::AlignedBuffer;
use forebay_format::journal::{BATCH_BYTES_MAX, HEADER_BYTES, RECORD_BYTES, Record, RecordKind};
use forebay_types::ByteRange;

/// Bytes of a batch with all that belongs to it: a power of two of them fills a segment well,
/// however small the segment is.
const BYTES_MAX: usize = 1 << 20;
const _: () = assert!(BYTES_MAX as u64 <= BATCH_BYTES_MAX);
/// One for every 512 bytes at worst.
const RECORDS_MAX: usize = BYTES_MAX / (512 + RECORD_BYTES);

pub(super) struct Batch {
    pub(super) bytes: AlignedBuffer,
    payload_bytes: usize,
    pub(super) records: Vec<Record>,
}

impl Batch {
    pub(super) fn new() -> Self {
        Self {
            bytes: AlignedBuffer::new(BYTES_MAX),
            payload_bytes: 0,
            records: Vec::with_capacity(RECORDS_MAX),
        }
    }

    pub(super) fn clear(&mut self) {
        self.payload_bytes = 0;
        self.records.clear();
    }

    pub(super) const fn payload_bytes(&self) -> u32 {
        self.payload_bytes as u32
    }

    /// Whether so many bytes in so many records fit as well.
    pub(super) const fn has_room(&self, bytes: usize, records: usize) -> bool {
        let records = self.records.len() + records;
        HEADER_BYTES + self.payload_bytes + bytes + records * RECORD_BYTES <= BYTES_MAX
    }

    /// Adds bytes of a volume, known by its number in the vault, for which there is room.
    pub(super) fn add(&mut self, volume: u16, offset: u64, bytes: &[u8]) {
        let at = HEADER_BYTES + self.payload_bytes;
        self.bytes[at..at + bytes.len()].copy_from_slice(bytes);
        self.records.push(Record {
            kind: RecordKind::Write,
            volume,
            range: ByteRange::new(offset, bytes.len() as u64),
            payload_offset: self.payload_bytes as u32,
            checksum: 0,
        });
        self.payload_bytes += bytes.len();
    }

    /// Computes the checksums of all records: not while a shard is locked.
    pub(super) fn sum_up(&mut self) {
        for record in &mut self.records {
            let at = HEADER_BYTES + record.payload_offset as usize;
            let bytes = &self.bytes[at..at + record.range.len as usize];
            record.checksum = Record::checksum_of(record.volume, record.range.offset, bytes);
        }
    }
}
