//! A dirty line, for journals and vaults.

use crate::Slot;
use crate::line::key::mask_runs;
use forebay_types::SECTOR_BYTES;

/// A line with dirty sectors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirtyLine {
    /// The slot of its data, until the next call to the shard.
    pub slot: Slot,
    mask: u8,
}

impl DirtyLine {
    pub(crate) const fn new(slot: Slot, mask: u8) -> Self {
        Self { slot, mask }
    }

    /// Runs of dirty sectors: first byte within the line, and length in bytes.
    pub fn runs(&self) -> impl Iterator<Item = (u32, u32)> + use<> {
        let sector = SECTOR_BYTES as u32;
        mask_runs(self.mask).map(move |(first, count)| (first * sector, count * sector))
    }

    /// Whether all sectors in a byte range of the line are dirty.
    pub fn covers(&self, offset: u32, len: u32) -> bool {
        let inside = |(start, count): (u32, u32)| start <= offset && offset + len <= start + count;
        self.runs().any(inside)
    }
}
