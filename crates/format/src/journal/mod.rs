//! The layout of a journal.
//!
//! ```text
//! 0        64 KiB    128 KiB                                                  size
//! | superblock | superblock | segment 0 | segment 1 | ... | segment n-1 | rest |
//!
//! segment:  | batch | batch | batch |  older content  |
//! batch:    | header 96 B | payload | records, 32 B each | zeroes up to 4 KiB |
//! ```
//!
//! **Superblock.** Two copies, written alternately, so that one is intact at any time; the one with
//! the higher sequence number is current. A change is durable in both copies before anything that
//! depends on it is written, so that either copy may be lost. The superblock holds the journal's
//! identity, its geometry, the volumes by number, and the start of each generation. A generation is
//! the period in which one process writes the log.
//!
//! **Batch.** The unit that is written and made durable: records and their payload. The payload
//! precedes the records, so that each write is copied only once, to its final place, while the
//! batch still grows. Batches are numbered without gaps. The log is a ring of segments; segment
//! numbers ascend without wrapping, and segment `s` lies at index `s % n`. A batch lies within one
//! segment; if it does not fit into the rest of a segment, it begins the next one.
//!
//! **Validity of a batch.** A batch is valid if it is the expected one, at the expected place: the
//! checksum of its header matches (it is seeded with the journal's identity and covers segment,
//! offset, batch number and generation, which detects stale, misplaced and foreign batches), its
//! chain equals the checksum of the previous header, and the checksums of its records and payload
//! match. Only one batch is in flight at a time, so the first invalid batch is the end of the log
//! if no valid batch follows. If one follows, the invalid batch is damage: it had been durable
//! before the next was begun. An invalid batch before the start of the newest generation is damage
//! as well, as long as the log begins before that generation's first segment.
//!
//! **Beginning of the log.** The superblock names the first segment still needed. A segment is
//! overwritten only after a superblock that no longer needs it is durable.
//!
//! **Void records.** For each volume, the superblock stores a record number; records of the volume
//! with a lower number are void. So once a disk has everything, the volume's records are void
//! although the log still contains them. Record numbers ascend in the order of creation and never
//! wrap.
//!
//! **Generations.** A process that resumes a log continues in a fresh segment with a higher
//! generation, and stores the number of its first batch. A batch of an older generation with that
//! or a higher number is void even if it becomes readable later: it was never acknowledged, or was
//! lost and the operator accepted the loss.
//!
//! **Mirror.** A log may lie on two devices, at the same positions on both. Their superblocks
//! differ in one field, the device's own member number. The superblock lists the members, which
//! hold every acknowledged record; a device that is not in the newest list is stale, whatever its
//! own superblock says.
//!
//! **Disk samples.** For each volume, the superblock has checksums of up to 64 blocks of the disk,
//! at places derived from the journal's identity and the volume's number (for a vault, from its
//! member number), and a mask of the valid ones. A sample becomes invalid before its block is
//! written: the write begins only once no durable copy of the superblock has the sample. So if a
//! block with a valid sample differs from it, and no record covers the block, another program has
//! changed the block. The volume's entry also says whether the operator has applied or discarded
//! its records, which voids them.
//!
//! **Vault.** The same layout, with another kind in the superblock. A dump writes all dirty data to
//! it in one go, as write records, with several batches in flight; so the batches after an invalid
//! one may be valid. Once all batches are on stable storage, the superblock stores their number:
//! the dump is *sealed*. An unsealed dump is incomplete. Each dump has an identity of its own,
//! which invalidates earlier dumps; the vault keeps its member number. If the device fails to write
//! a batch, a new generation begins with that batch, in the segment named by the superblock.

mod batch;
mod disk_info;
mod superblock;

pub use batch::{
    BatchHeader, BatchInvalid, HEADER_BYTES, RECORD_BYTES, Record, RecordKind, batch_bytes,
    check_batch, seal_batch,
};
pub use disk_info::{
    DiskInfo, Released, SAMPLES_MAX, Samples, hardware_sum, sample_of, sample_places,
};
pub use superblock::{
    GENERATIONS_MAX, GenerationStart, LogKind, MEMBERS_MAX, Members, Superblock, SuperblockInvalid,
    VOLUMES_MAX, VolumeEntry,
};

/// The unit of all I/O on a journal, in bytes.
pub const BLOCK_BYTES: u64 = 4096;
/// Length of one copy of the superblock in bytes.
pub const SUPERBLOCK_BYTES: usize = 64 << 10;
/// Position of the first segment in bytes.
pub const LOG_OFFSET: u64 = 2 * SUPERBLOCK_BYTES as u64;
/// Longest batch in bytes: header, 1 MiB of payload (the longest part of a request), and records.
pub const BATCH_BYTES_MAX: u64 = (1 << 20) + (72 << 10);
/// Smallest segment of a new journal in bytes: it holds three of the longest batches.
pub const SEGMENT_BYTES_MIN: u64 = 4 << 20;
/// Largest segment in bytes.
pub const SEGMENT_BYTES_MAX: u64 = 64 << 20;
/// Minimum number of segments: with fewer, a log could not be reclaimed while it is written.
pub const SEGMENTS_MIN: u64 = 8;
/// Upper limit of all counters: no journal reaches it, and sums of such values do not overflow. It
/// is the same for batches and superblocks, because a superblock later contains the numbers of
/// batches and records.
const COUNT_MAX: u64 = 1 << 56;
/// Smallest journal in bytes.
pub const JOURNAL_BYTES_MIN: u64 = LOG_OFFSET + SEGMENTS_MIN * SEGMENT_BYTES_MIN;

// Superblocks, segments and the longest batch are whole blocks, so that all I/O is aligned, and a
// header fits the first block of its batch.
const _: () = assert!((SUPERBLOCK_BYTES as u64).is_multiple_of(BLOCK_BYTES));
const _: () = assert!(LOG_OFFSET.is_multiple_of(BLOCK_BYTES));
const _: () = assert!(BATCH_BYTES_MAX.is_multiple_of(BLOCK_BYTES));
const _: () = assert!(SEGMENT_BYTES_MIN.is_power_of_two() && SEGMENT_BYTES_MAX.is_power_of_two());
const _: () = assert!(SEGMENT_BYTES_MIN >= 3 * BATCH_BYTES_MAX);
const _: () = assert!((HEADER_BYTES as u64) < BLOCK_BYTES);
const _: () = assert!(SEGMENT_BYTES_MAX <= u32::MAX as u64, "offsets in a segment have 32 bits");

/// The division of a journal's device into segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Length of a segment in bytes, a power of two.
    pub segment_bytes: u64,
    /// Number of segments.
    pub segments: u64,
}

impl Geometry {
    /// Divides a device of `size_bytes` into about 64 segments. `None` if it is too small.
    pub const fn for_size(size_bytes: u64) -> Option<Self> {
        if size_bytes < JOURNAL_BYTES_MIN {
            return None;
        }
        let log_bytes = size_bytes - LOG_OFFSET;
        let mut segment_bytes = SEGMENT_BYTES_MIN;
        while segment_bytes < SEGMENT_BYTES_MAX && log_bytes / segment_bytes > 64 {
            segment_bytes *= 2;
        }
        let geometry = Self { segment_bytes, segments: log_bytes / segment_bytes };
        assert!(geometry.is_valid(size_bytes));
        Some(geometry)
    }

    /// Whether a device of `size_bytes` may have this geometry. Segments shorter than
    /// [`SEGMENT_BYTES_MIN`] are valid: the lab uses them to fill a log quickly.
    pub const fn is_valid(&self, size_bytes: u64) -> bool {
        self.segment_bytes.is_power_of_two()
            && self.segment_bytes >= BLOCK_BYTES
            && self.segment_bytes <= SEGMENT_BYTES_MAX
            && self.segments >= SEGMENTS_MIN
            && size_bytes > LOG_OFFSET
            && self.segments <= (size_bytes - LOG_OFFSET) / self.segment_bytes
    }

    /// The position of a segment on the device in bytes.
    pub const fn position(&self, segment: u64) -> u64 {
        debug_assert!(self.segments > 0, "a log has segments");
        LOG_OFFSET + segment % self.segments * self.segment_bytes
    }

    /// Total length of all segments in bytes.
    pub const fn log_bytes(&self) -> u64 {
        self.segments * self.segment_bytes
    }
}

/// The identity of a journal: 128 random bits, drawn at its creation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct JournalId(pub [u8; 16]);

impl JournalId {
    /// The seed of the journal's checksums.
    pub const fn seed(self) -> u64 {
        let [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p] = self.0;
        u64::from_le_bytes([a, b, c, d, e, f, g, h])
            ^ u64::from_le_bytes([i, j, k, l, m, n, o, p]).rotate_left(17)
    }
}

impl std::fmt::Display for JournalId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn geometry_is_valid_for_every_size() {
        assert_eq!(Geometry::for_size(JOURNAL_BYTES_MIN - 1), None);
        for size in [JOURNAL_BYTES_MIN, 64 << 20, 1 << 30, (1 << 30) + 4096, 1 << 40] {
            let geometry = Geometry::for_size(size).unwrap();
            assert!(geometry.is_valid(size), "{size}: {geometry:?}");
            assert!(geometry.position(geometry.segments - 1) + geometry.segment_bytes <= size);
        }
        assert_eq!(Geometry::for_size(1 << 30).unwrap().segment_bytes, 16 << 20);
    }
}
