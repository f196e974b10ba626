//! The shard's calls that adopt the table of a killed process, and that list lines for journals,
//! vaults and tests.

use super::Shard;
use crate::index::recover::{Fate, Recovery, TableDamage};
use crate::line::key::LineKey;
use crate::line::meta::LineTable;
use crate::lines::forget_clean;
use crate::{DirtyLine, MemoryStep, Outbox, SLOTS_MAX, ShardConfig, Slot};
use forebay_policy::Eviction;
use forebay_types::{ByteRange, LINE_BYTES, VolumeId};

impl<M: LineTable> Shard<M> {
    /// A shard over the table of a process that has ended, in whatever state it left the table.
    /// `fate` determines what happens to each volume's lines. Lines are kept whether their volume
    /// is served or not: clean ones until they are evicted, dirty ones until the volume is added
    /// and destages them. The driver carries out `steps` and calls [`Shard::finish_call`] before
    /// any other call.
    ///
    /// # Errors
    /// If the table cannot come from a killed process. No dirty data in it has been changed.
    ///
    /// # Panics
    /// If the table is longer than [`SLOTS_MAX`].
    pub fn recover(
        lines: M,
        policy: Box<dyn Eviction>,
        config: ShardConfig,
        fate: &dyn Fn(VolumeId) -> Fate,
        steps: &mut Vec<MemoryStep>,
    ) -> Result<(Self, Recovery), TableDamage> {
        assert!(lines.len() <= SLOTS_MAX, "a shard indexes at most {SLOTS_MAX} lines");
        let mut shard = super::over(lines, policy, config);
        let mut found = shard.index.recover(fate, steps)?;
        for slot in shard.index.dirty_slots() {
            let volume = shard.index.get(slot).key.volume();
            shard.volumes.add_unclaimed(volume);
            shard.quota.add_dirty(volume);
        }
        found.lines = shard.index.resident() as u64;
        found.dirty_lines = shard.quota.dirty_lines() as u64;
        super::resize::resizer(&mut shard).apply_size();
        Ok((shard, found))
    }

    /// Dirty lines found in the table for a volume that has not been added yet.
    pub fn unclaimed(&self, volume: VolumeId) -> u64 {
        self.volumes.unclaimed(volume)
    }

    /// The dirty sectors of a volume that are not lost, as lines in ascending order with a mask
    /// each.
    pub fn dirty_sectors(&self, volume: VolumeId) -> Vec<(LineKey, u8)> {
        let dirty = self.volume(volume).dirty_slots(&self.index).map(|slot| self.index.get(slot));
        let places = dirty.map(|line| (line.key, line.destageable()));
        places.filter(|(_, mask)| *mask != 0).collect()
    }

    /// Drops all clean data of a volume, because its disk has been replaced by another one. In
    /// lines that are clean in part, the dirty sectors are verified first. The volume need not be
    /// served.
    pub fn forget_clean(&mut self, volume: VolumeId, out: &mut Outbox) {
        forget_clean(&mut self.index, &self.ops, &self.integrity, volume, out);
    }

    /// The dirty lines of a volume in ascending order, each with the masks of its dirty and of its
    /// lost sectors.
    pub fn dirty_lines_of(&self, volume: VolumeId) -> Vec<(LineKey, u8, u8)> {
        let dirty = self.volume(volume).dirty_slots(&self.index).map(|slot| self.index.get(slot));
        dirty.map(|line| (line.key, line.destageable(), line.lost())).collect()
    }

    /// A line's slot and its dirty sectors that are not lost, if it has any.
    pub fn dirty_line(&self, key: LineKey) -> Option<DirtyLine> {
        let slot = self.index.find(key)?;
        let mask = self.index.get(slot).destageable();
        (mask != 0).then_some(DirtyLine::new(slot, mask))
    }
}

/// Drops all lines of a volume that has not been added, dirty ones too, because its disk has newer
/// data. Returns the number of dirty ones.
///
/// # Panics
/// If the volume has been added.
pub fn abandon_unclaimed<M: LineTable>(shard: &mut Shard<M>, volume: VolumeId) -> u64 {
    let mut dirty: Vec<Slot> = shard.index.dirty_slots().collect();
    dirty.retain(|&slot| shard.index.get(slot).key.volume() == volume);
    for slot in dirty {
        shard.index.clean(slot, u8::MAX);
        shard.integrity.free_parity(slot, &mut shard.index);
        shard.quota.count_cleaned(volume);
    }
    let count = shard.volumes.take_unclaimed(volume);
    shard.drop_clean(volume, 0, Slot::MAX);
    count
}

/// The first lines of a volume in `range` that are dirty, at most `count`, in ascending order, each
/// with the mask of its dirty sectors, lost ones included.
pub fn dirty_lines_in<M: LineTable>(
    shard: &Shard<M>,
    volume: VolumeId,
    range: ByteRange,
    count: usize,
) -> Vec<(LineKey, u8)> {
    let (first, end) = (range.offset / LINE_BYTES, range.end().div_ceil(LINE_BYTES));
    let dirty = shard.volume(volume).writeback().dirty();
    let lines = dirty.iter_from(first).take_while(move |&line| line < end).take(count);
    let lines = shard.index.slots_of(volume, lines).map(|slot| shard.index.get(slot));
    lines.map(|line| (line.key, line.dirty)).collect()
}
