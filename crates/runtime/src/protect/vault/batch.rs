//! The buffer of one batch of a dump.

use forebay_backend::AlignedBuffer;
use forebay_format::journal::{BATCH_BYTES_MAX, HEADER_BYTES, RECORD_BYTES, Record, RecordKind};
use forebay_types::ByteRange;

/// The size of a batch with its header and records. As a power of two, it fills segments of any
/// size with little waste.
const BYTES_MAX: usize = 1 << 20;
const _: () = assert!(BYTES_MAX as u64 <= BATCH_BYTES_MAX);
/// At worst one record per sector.
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

    /// Whether this much more payload, in this many records, fits.
    pub(super) const fn has_room(&self, bytes: usize, records: usize) -> bool {
        let records = self.records.len() + records;
        HEADER_BYTES + self.payload_bytes + bytes + records * RECORD_BYTES <= BYTES_MAX
    }

    /// Adds bytes of a volume, given by its number in the vault. They must fit.
    pub(super) fn add(&mut self, volume: u16, offset: u64, bytes: &[u8]) {
        assert!(self.has_room(bytes.len(), 1), "the caller has asked for room");
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

    /// Computes the checksums of all records. Must be called without a shard's lock.
    pub(super) fn compute_checksums(&mut self) {
        for record in &mut self.records {
            let at = HEADER_BYTES + record.payload_offset as usize;
            let bytes = &self.bytes[at..at + record.range.len as usize];
            record.checksum = Record::checksum_of(record.volume, record.range.offset, bytes);
        }
    }
}
