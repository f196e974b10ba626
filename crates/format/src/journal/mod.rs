//! The journal's layout, in one place.
//!
//! ```text
//! 0        64 KiB    128 KiB                                                  size
//! | superblock | superblock | segment 0 | segment 1 | ... | segment n-1 | rest |
//!
//! segment:  | batch | batch | batch |  what was here before  |
//! batch:    | header 96 B | payload | records, 32 B each | zeroes up to 4 KiB |
//! ```
//!
//! **Superblock.** Two copies, written in turn, so that one is whole at any time; the one with the
//! higher sequence counts. A change goes to both before anything that relies on it, so that either
//! may be lost. It holds the journal's identity, its geometry, the volumes by number,
//! and where each generation began. A generation is one life of the process that writes.
//!
//! **Batch.** What is written and made durable in one piece: some records and their payload. The
//! payload comes first, so that it is copied once, to its place, while the batch still grows.
//! Batches are numbered without a gap. The log runs through the segments in order
//! and round again; segments are numbered without end, and number `s` lies in place `s % n`. A
//! batch lies in one segment; where it does not fit in the rest, it begins the next one.
//!
//! **Which batch is valid.** The one expected next, at the place where it is expected: its header's
//! checksum agrees (it is seeded with the journal's identity and covers segment, offset, batch
//! number and generation, so a stale, misplaced or foreign batch is seen), its chain is the
//! checksum of the header before, and the checksums of its records and of their payload agree.
//! One batch is written at a time, so the first batch that is not valid is the end of the log if
//! nothing valid follows it. If something does, it is damage, not the end: it had been durable
//! before the next was begun. The same holds for a batch before the one that the newest generation
//! began with, as long as the log begins before that generation's first segment.
//!
//! **Where the log begins.** The superblock says which segment is the first still needed. A segment
//! is overwritten only after a superblock that no longer needs it is durable.
//!
//! **Generations.** A process that takes over continues in a fresh segment with a higher
//! generation, and writes down with which batch it began. A batch of an older generation with that
//! number or a higher one was never acknowledged, and is void even if it reads well later.
//!
//! **Mirror.** A log may lie on two devices, each with all of the above at the same places. They
//! differ in one field, the number of the device at hand among the members. The superblock lists
//! the members that hold everything that was acknowledged; one that is not on the newest list is
//! stale, whatever it says of itself.
//!
//! **Guard.** With each volume the superblock keeps sums of up to 64 blocks of its disk, at places
//! that journal and volume determine, and which of them count: those that no write was let at
//! since they were read, by superblocks that are durable before the write. A block that counts,
//! that no record covers and that differs was changed by somebody else. Beside it stands
//! whether the volume's records have been applied or discarded by hand: then they are void.
//!
//! **Vault.** The same layout with another kind in its superblock, so that neither is taken for
//! the other. A vault is written in one go: what is dirty, as records of writes, with several
//! batches on their way at once; so a batch that does not read well says nothing of those behind
//! it. When all of it is on stable storage, the superblock says how many batches the dump has:
//! it is *sealed*. One that is not is incomplete. Each dump has an identity of its own, so that
//! nothing of an earlier one counts; the vault itself is known by its number as a member, which
//! stays. A batch that the device did not take begins a generation, in
//! the segment that the superblock says.

mod batch;
mod guard;
mod superblock;

pub use batch::{
    BatchHeader, BatchInvalid, HEADER_BYTES, RECORD_BYTES, Record, RecordKind, batch_bytes,
    check_batch, seal_batch,
};
pub use guard::{Guard, Released, SAMPLES_MAX, Samples, hardware_sum, places, sample_of};
pub use superblock::{
    GENERATIONS_MAX, GenerationStart, LogKind, MEMBERS_MAX, Members, Superblock, SuperblockInvalid,
    VOLUMES_MAX, VolumeEntry,
};

/// The unit of all I/O on a journal, in bytes.
pub const BLOCK_BYTES: u64 = 4096;
/// Bytes of one copy of the superblock.
pub const SUPERBLOCK_BYTES: usize = 64 << 10;
/// Where the segments begin, in bytes.
pub const LOG_OFFSET: u64 = 2 * SUPERBLOCK_BYTES as u64;
/// Longest batch with all that belongs to it, in bytes: a payload of 1 MiB, which is the longest
/// piece of a request, and records for it.
pub const BATCH_BYTES_MAX: u64 = (1 << 20) + (72 << 10);
/// Smallest segment that a journal is divided into, in bytes: three of the longest batches fit.
pub const SEGMENT_BYTES_MIN: u64 = 4 << 20;
/// Largest segment, in bytes.
pub const SEGMENT_BYTES_MAX: u64 = 64 << 20;
/// A log of fewer segments could not be reclaimed while it is being written.
pub const SEGMENTS_MIN: u64 = 8;
/// Smallest journal, in bytes.
pub const JOURNAL_BYTES_MIN: u64 = LOG_OFFSET + SEGMENTS_MIN * SEGMENT_BYTES_MIN;

/// What a journal's superblock says of where things are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Bytes of a segment; a power of two.
    pub segment_bytes: u64,
    /// Segments.
    pub segments: u64,
}

impl Geometry {
    /// How a device of `size_bytes` is divided: into about 64 segments. `None` when it is too
    /// small.
    pub const fn for_size(size_bytes: u64) -> Option<Self> {
        if size_bytes < JOURNAL_BYTES_MIN {
            return None;
        }
        let log_bytes = size_bytes - LOG_OFFSET;
        let mut segment_bytes = SEGMENT_BYTES_MIN;
        while segment_bytes < SEGMENT_BYTES_MAX && log_bytes / segment_bytes > 64 {
            segment_bytes *= 2;
        }
        Some(Self { segment_bytes, segments: log_bytes / segment_bytes })
    }

    /// Whether a superblock may say this of a device of `size_bytes`. Smaller segments than
    /// [`SEGMENT_BYTES_MIN`] are sound: the lab fills a log of them quickly.
    pub const fn is_sound(&self, size_bytes: u64) -> bool {
        self.segment_bytes.is_power_of_two()
            && self.segment_bytes >= BLOCK_BYTES
            && self.segment_bytes <= SEGMENT_BYTES_MAX
            && self.segments >= SEGMENTS_MIN
            && size_bytes > LOG_OFFSET
            && self.segments <= (size_bytes - LOG_OFFSET) / self.segment_bytes
    }

    /// The first byte of a segment on the device.
    pub const fn position(&self, segment: u64) -> u64 {
        LOG_OFFSET + segment % self.segments * self.segment_bytes
    }

    /// Bytes of all segments.
    pub const fn log_bytes(&self) -> u64 {
        self.segments * self.segment_bytes
    }
}

/// Names a journal: 128 random bits, drawn when it is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct JournalId(pub [u8; 16]);

impl JournalId {
    /// What its checksums start from.
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
    fn every_size_is_divided_soundly() {
        assert_eq!(Geometry::for_size(JOURNAL_BYTES_MIN - 1), None);
        for size in [JOURNAL_BYTES_MIN, 64 << 20, 1 << 30, (1 << 30) + 4096, 1 << 40] {
            let geometry = Geometry::for_size(size).unwrap();
            assert!(geometry.is_sound(size), "{size}: {geometry:?}");
            assert!(geometry.position(geometry.segments - 1) + geometry.segment_bytes <= size);
        }
        assert_eq!(Geometry::for_size(1 << 30).unwrap().segment_bytes, 16 << 20);
    }
}
