//! Units of storage and ranges of bytes.

use std::fmt;

/// The smallest unit that is read, written, valid or dirty, in bytes.
pub const SECTOR_BYTES: u64 = 512;
/// The unit of caching, in bytes.
pub const LINE_BYTES: u64 = 4096;
/// Sectors in one line: eight, so that a mask of valid or dirty sectors takes one byte.
pub const SECTORS_PER_LINE: u32 = (LINE_BYTES / SECTOR_BYTES) as u32;
/// The size of a region in bytes; approximate if the disk has stripes, see [`crate::Stripes`].
/// Regions are distributed over the shards. All lines of a region are in one shard, so that
/// adjacent lines can be read and written by one I/O. No part of a request is longer than this.
pub const REGION_BYTES: u64 = 1 << 20;
/// Lines in a region of [`REGION_BYTES`].
pub const LINES_PER_REGION: u64 = REGION_BYTES / LINE_BYTES;

/// The number of a volume, unique among the served volumes. Requests carry the number instead of
/// the name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VolumeId(pub u16);

impl fmt::Display for VolumeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "volume {}", self.0)
    }
}

/// A range of bytes of a volume or a backing store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ByteRange {
    /// First byte.
    pub offset: u64,
    /// Number of bytes.
    pub len: u64,
}

impl ByteRange {
    /// The range of `len` bytes from `offset`.
    pub const fn new(offset: u64, len: u64) -> Self {
        Self { offset, len }
    }

    /// The first byte after the range. Front ends check ranges against the size of the volume; for
    /// a checked range the sum does not overflow.
    pub const fn end(self) -> u64 {
        self.offset + self.len
    }

    /// Whether both ends lie on sector boundaries.
    pub const fn is_sector_aligned(self) -> bool {
        self.offset.is_multiple_of(SECTOR_BYTES) && self.len.is_multiple_of(SECTOR_BYTES)
    }

    /// Whether the range lies inside the first `size` bytes. Does not overflow for any range.
    pub const fn fits(self, size: u64) -> bool {
        match self.offset.checked_add(self.len) {
            Some(end) => end <= size,
            None => false,
        }
    }

    /// Whether the two ranges share a byte.
    pub const fn overlaps(self, other: Self) -> bool {
        self.offset < other.end() && other.offset < self.end()
    }
}

impl fmt::Display for ByteRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}+{}", self.offset, self.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_at_the_end_of_the_address_space_does_not_overflow() {
        assert!(!ByteRange::new(u64::MAX, 1).fits(u64::MAX));
        assert!(!ByteRange::new(u64::MAX - 4, 512).fits(1 << 40));
        assert!(ByteRange::new(0, 0).fits(0));
        assert!(ByteRange::new(512, 512).fits(1024));
        assert!(!ByteRange::new(512, 513).fits(1024));
    }

    #[test]
    fn adjacent_ranges_do_not_overlap() {
        let a = ByteRange::new(0, 512);
        assert!(!a.overlaps(ByteRange::new(512, 512)));
        assert!(a.overlaps(ByteRange::new(511, 1)));
    }
}
