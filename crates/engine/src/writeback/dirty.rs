//! What is dirty, for those who save it elsewhere than on its disk.

use crate::index::key::mask_runs;
use crate::index::meta::LineTable;
use crate::{LineKey, Shard, Slot};
use forebay_types::{SECTOR_BYTES, VolumeId};

/// A line with dirty sectors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirtyLine {
    /// Where its data is, until the next call of the shard.
    pub slot: Slot,
    mask: u8,
}

impl DirtyLine {
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

impl<M: LineTable> Shard<M> {
    /// Appends the dirty lines of a volume, in order. Lines and not slots: a line may move as soon as
    /// the shard is let go.
    pub fn dirty_keys(&self, volume: VolumeId, keys: &mut Vec<LineKey>) {
        let lines = self.volume(volume).writeback().dirty().iter();
        keys.extend(lines.map(|line| LineKey::new(volume, line)));
    }

    /// The slots of the dirty lines of a volume, in order of their places.
    pub(crate) fn dirty_slots(&self, volume: VolumeId) -> impl Iterator<Item = Slot> {
        let lines = self.volume(volume).writeback().dirty().iter();
        let keys = lines.map(move |line| LineKey::new(volume, line));
        keys.map(|key| self.index.find(key).expect("a dirty line is in the pool"))
    }

    /// A line, if it is dirty. Sectors of it that are lost are left out.
    pub fn dirty_line(&self, key: LineKey) -> Option<DirtyLine> {
        let slot = self.index.find(key)?;
        let mask = self.index.get(slot).destageable();
        (mask != 0).then_some(DirtyLine { slot, mask })
    }
}
