//! The part of a volume that the smallest machines use: few sectors on both sides of a region
//! border, so that requests are split, and a disk is small.

use forebay_types::{ByteRange, LINE_BYTES, REGION_BYTES, SECTOR_BYTES, Stripes};

/// Sectors that workloads use: two lines on each side of the border between the first two regions.
pub(crate) const SECTORS: usize = 32;
/// The first of them.
pub(crate) const FIRST: u64 = REGION_BYTES / SECTOR_BYTES - 16;

/// The size of a volume that ends with them.
pub(crate) const VOLUME_BYTES: u64 = (FIRST + SECTORS as u64) * SECTOR_BYTES;
/// A stripe is two lines; the border between the regions is the border of two stripes.
pub(crate) const STRIPES: Stripes = Stripes::new(2 * LINE_BYTES, 0);

/// The sectors of a byte range, counted from the first one that workloads use.
pub(crate) fn places(range: ByteRange) -> std::ops::Range<usize> {
    let first = (range.offset / SECTOR_BYTES - FIRST) as usize;
    first..first + (range.len / SECTOR_BYTES) as usize
}

/// A byte range of sectors, counted in the same way.
pub(crate) const fn sectors(first: u64, count: u64) -> ByteRange {
    ByteRange::new((FIRST + first) * SECTOR_BYTES, count * SECTOR_BYTES)
}

/// The range that workloads use.
pub(crate) const fn all_sectors() -> ByteRange {
    sectors(0, SECTORS as u64)
}
