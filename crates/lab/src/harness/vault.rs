//! The vault of a simulated machine: dirty data that a UPS has bridged.

use super::journal::Restored;
use super::shard::PooledShard;
use forebay_engine::LineKey;
use forebay_journal::Piece;
use forebay_types::{ByteRange, SECTOR_BYTES};
use std::collections::BTreeMap;

/// The content of the sectors of one volume that a dump has saved.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct VaultContent(BTreeMap<u64, u64>);

impl VaultContent {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }

    /// Saves the dirty sectors of a line, if it has any.
    pub(crate) fn dump(&mut self, one: &PooledShard, key: LineKey) {
        let Some(line) = one.shard.dirty_line(key) else { return };
        for (offset, len) in line.runs() {
            for at in (offset..offset + len).step_by(SECTOR_BYTES as usize) {
                let sector = (key.offset() + u64::from(at)) / SECTOR_BYTES;
                self.0.insert(sector, one.stamp(line.slot, at));
            }
        }
    }

    /// The content in pieces, as a start restores it.
    pub(crate) fn image(&self) -> Vec<Restored> {
        let mut image: Vec<Restored> = Vec::new();
        for (&sector, &stamp) in &self.0 {
            let offset = sector * SECTOR_BYTES;
            match image.last_mut() {
                Some((piece, stamps)) if piece.range.end() == offset => {
                    piece.range.len += SECTOR_BYTES;
                    stamps.push(stamp);
                }
                _ => {
                    let range = ByteRange::new(offset, SECTOR_BYTES);
                    image.push((Piece { range, position: Some(0) }, vec![stamp]));
                }
            }
        }
        image
    }
}
