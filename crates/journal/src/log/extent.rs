//! The superblock, and where the log begins and ends on the device.

use super::COPIES;
use forebay_format::journal::{BLOCK_BYTES, BatchHeader, Superblock, VolumeEntry};

/// The number of free segments that are reserved for forwarding and fences.
pub(super) const RESERVED_SEGMENTS: u64 = 1;

/// The superblock with the state of its copies on the device, and the segments from the oldest one
/// that is needed to the head.
#[derive(Debug)]
pub(super) struct LogExtent {
    superblock: Superblock,
    /// The number of copies on the device that are older than `superblock` and not being written.
    stale_copies: usize,
    /// The oldest segment needed according to each copy of the superblock on the device.
    durable_first_segments: [u64; COPIES],
    /// The head: where the next batch goes, if it fits there.
    segment: u64,
    offset: u64,
    /// Number of free segments below which the log admits no writes.
    free_segments_min: u64,
}

impl LogExtent {
    /// A log whose head is at the beginning of `segment`. No copy of `superblock` is on the device
    /// yet; the older copies there need the segments from `superblock.first_segment` on.
    ///
    /// Up to `buffers` batches of `buffer_bytes` may be queued.
    pub(super) fn new(
        superblock: Superblock,
        segment: u64,
        buffers: usize,
        buffer_bytes: usize,
    ) -> Self {
        assert!(!superblock.starts.is_empty(), "a log has a generation that writes");
        let per_segment = superblock.geometry.segment_bytes / buffer_bytes as u64;
        assert!(per_segment > 0, "a segment holds the longest batch");
        // One segment for records that cannot be refused, one for the next process to resume in,
        // and as many as the queued batches may need.
        let free_segments_min = 2 + (buffers as u64).div_ceil(per_segment);
        assert!(superblock.first_segment <= segment, "the log begins at or before its head");
        Self {
            durable_first_segments: [superblock.first_segment; COPIES],
            superblock,
            stale_copies: COPIES,
            segment,
            offset: 0,
            free_segments_min,
        }
    }

    /// The newest superblock, which may not be on the device yet.
    pub(super) const fn superblock(&self) -> &Superblock {
        &self.superblock
    }

    /// The superblock, to change it. Marks its copies on the device as stale.
    pub(super) const fn superblock_mut(&mut self) -> &mut Superblock {
        self.stale_copies = COPIES;
        &mut self.superblock
    }

    /// Makes the older copy on the device stale, unless one is stale already.
    pub(super) const fn renew_copy(&mut self) {
        if self.stale_copies == 0 {
            self.stale_copies = 1;
        }
    }

    /// The entry of a volume in the superblock, to change it.
    pub(super) fn entry_mut(&mut self, number: u16) -> Option<&mut VolumeEntry> {
        self.superblock.volume(number)?;
        self.superblock_mut().volumes.iter_mut().find(|entry| entry.number == number)
    }

    /// Whether no copy of the superblock is stale: each one is on the device or being written.
    pub(super) const fn is_written(&self) -> bool {
        self.stale_copies == 0
    }

    /// Begins the write of the next stale copy. Returns false if none is stale.
    pub(super) const fn begin_copy(&mut self) -> bool {
        if self.stale_copies == 0 {
            return false;
        }
        self.stale_copies -= 1;
        self.superblock.sequence += 1;
        true
    }

    /// Completes the write of the copy begun last, which is durable and has this first segment.
    pub(super) fn complete_copy(&mut self, first_segment: u64) {
        assert!(first_segment <= self.superblock.first_segment, "the copy is not newer");
        let copy = self.superblock.sequence as usize % COPIES;
        let before = std::mem::replace(&mut self.durable_first_segments[copy], first_segment);
        assert!(before <= first_segment, "the log's beginning never moves back");
    }

    /// The oldest segment needed according to any copy of the superblock on the device.
    fn durable_first_segment(&self) -> u64 {
        let [one, other] = self.durable_first_segments;
        one.min(other)
    }

    /// Number of segments that no copy of the superblock on the device needs.
    pub(super) fn free_segments(&self) -> u64 {
        let used = self.segment - self.durable_first_segment() + 1;
        let segments = self.superblock.geometry.segments;
        assert!(used <= segments, "{used} segments in use of {segments}");
        segments - used
    }

    /// Whether the log admits no writes for lack of space.
    pub(super) fn is_low(&self) -> bool {
        self.free_segments() < self.free_segments_min
    }

    /// The number of used segments up to which the log admits writes, and how many of these exceed
    /// a quarter of the log, at least one.
    pub(super) fn distance(&self) -> (u64, u64) {
        let segments = self.superblock.geometry.segments;
        let used_max = segments.saturating_sub(self.free_segments_min);
        (used_max, used_max.saturating_sub(segments / 4).max(1))
    }

    /// Space for further batches in bytes.
    pub(super) fn free_bytes(&self) -> u64 {
        let segment_bytes = self.superblock.geometry.segment_bytes;
        match self.free_segments() {
            0 => segment_bytes - self.offset,
            // The next batch may not fit into the rest of this segment.
            free => free * segment_bytes,
        }
    }

    /// Bytes between the log's beginning and its head.
    pub(super) const fn used_bytes(&self) -> u64 {
        let segments = self.segment - self.superblock.first_segment;
        segments * self.superblock.geometry.segment_bytes + self.offset
    }

    /// The segment and offset of the next batch, if it fits there. Everything before is on the
    /// device.
    pub(super) const fn head(&self) -> (u64, u64) {
        (self.segment, self.offset)
    }

    /// Position of the head on the device in bytes.
    pub(super) const fn position(&self) -> u64 {
        self.superblock.geometry.position(self.segment) + self.offset
    }

    /// Moves the head to where a batch of `len` bytes fits. Returns false if there is no space.
    pub(super) fn make_space(&mut self, len: u64) -> bool {
        if self.offset + len > self.superblock.geometry.segment_bytes {
            if self.free_segments() == 0 {
                return false;
            }
            self.begin_segment();
        }
        true
    }

    /// Moves the head to the next segment, so that a checkpoint can release the current one.
    pub(super) fn skip_segment(&mut self) {
        if self.offset > 0 && self.free_segments() > RESERVED_SEGMENTS {
            self.begin_segment();
        }
    }

    fn begin_segment(&mut self) {
        assert!(self.free_segments() > 0, "a segment that is still needed is not overwritten");
        self.segment += 1;
        self.offset = 0;
    }

    /// Moves the head past a batch that is durable.
    pub(super) fn advance(&mut self, header: &BatchHeader) {
        assert_eq!((header.segment, header.offset), self.head(), "the batch is at the head");
        self.offset += header.len_bytes();
        let segment_bytes = self.superblock.geometry.segment_bytes;
        assert!(self.offset <= segment_bytes, "a batch lies in one segment");
    }

    /// Moves the log's beginning to `needed`, or to the head if nothing is needed.
    pub(super) fn release(&mut self, needed: Option<u64>) {
        let first_segment = needed.unwrap_or(self.segment);
        assert!(first_segment <= self.segment, "no record lies beyond the head");
        if first_segment > self.superblock.first_segment {
            self.superblock_mut().first_segment = first_segment;
        }
    }

    /// Whether a position on the device lies between the current beginning of the log and `head`,
    /// an earlier head.
    pub(super) fn is_needed(&self, position: u64, head: (u64, u64)) -> bool {
        let geometry = self.superblock.geometry;
        let segments = self.superblock.first_segment..=head.0;
        segments.into_iter().any(|segment| {
            let start = geometry.position(segment);
            let end = if segment == head.0 { head.1 } else { geometry.segment_bytes };
            (start..start + end).contains(&position)
        })
    }

    /// Panics if the log would overwrite a segment that is still needed, or release one too early.
    /// `needed` is the oldest segment with a needed record.
    pub(super) fn self_check(&self, needed: Option<u64>) {
        let superblock = &self.superblock;
        let durable = self.durable_first_segment();
        assert!(durable <= superblock.first_segment, "only durable superblocks release segments");
        assert!(superblock.first_segment <= self.segment, "the log begins at or before its head");
        let used = self.segment - durable + 1;
        assert!(used <= superblock.geometry.segments, "a needed segment is never overwritten");
        assert!(self.offset <= superblock.geometry.segment_bytes, "the head is in its segment");
        assert!(self.offset.is_multiple_of(BLOCK_BYTES), "batches are whole blocks");
        assert!(self.stale_copies <= COPIES, "{} stale copies", self.stale_copies);
        let start = superblock.starts.last().map_or(0, |start| start.segment);
        assert!(start <= self.segment, "the head is in the segments of its generation");
        let is_kept = needed.is_none_or(|needed| superblock.first_segment <= needed);
        assert!(is_kept, "a segment with needed records is never released");
    }
}
