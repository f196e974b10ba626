//! What is dirty, for those who save it elsewhere than on its disk.

use crate::Slot;
use crate::index::key::mask_runs;
use forebay_types::SECTOR_BYTES;

/// A line with dirty sectors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirtyLine {
    /// Where its data is, until the next call of the shard.
    pub slot: Slot,
    mask: u8,
}

impl DirtyLine {
    pub(crate) const fn new(slot: Slot, mask: u8) -> Self {
        Self { slot, mask }
    }

    /// Its dirty sectors in runs: first byte within the line, and bytes.
    pub fn runs(&self) -> impl Iterator<Item = (u32, u32)> + use<> {
        let sector = SECTOR_BYTES as u32;
        mask_runs(self.mask).map(move |(first, count)| (first * sector, count * sector))
    }

    /// Whether all sectors of a part of the line are dirty, given in bytes.
    pub fn covers(&self, offset: u32, len: u32) -> bool {
        let inside = |(start, count): (u32, u32)| start <= offset && offset + len <= start + count;
        self.runs().any(inside)
    }
}
