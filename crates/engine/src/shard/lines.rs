//! The shard's calls that adopt the table of a killed process, and that list lines for journals,
//! vaults and tests.

use super::Shard;
use crate::index::key::LineKey;
use crate::index::meta::{DETACHED, LineTable};
use crate::index::recover::{Fate, Recovery, TableDamage};
use crate::{DirtyLine, LineMeta, MemoryStep, SLOTS_MAX, ShardConfig, Slot};
use forebay_policy::Eviction;
use forebay_types::VolumeId;

impl<M: LineTable> Shard<M> {
    /// A shard over the table of a process that has ended, in whatever state it left the table.
    /// `fate` determines what happens to each volume's lines. Lines are kept whether their volume
    /// is served or not: clean ones until they are evicted, dirty ones until the volume is added
    /// and destages them. The driver carries out `steps` and calls [`Shard::settle_steps`] before
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
        let mut shard = Self::over(lines, policy, config);
        let mut found = shard.index.recover(fate, steps)?;
        for slot in shard.index.dirty_slots() {
            let volume = usize::from(shard.index.get(slot).key.volume().0);
            if shard.unclaimed.len() <= volume {
                shard.unclaimed.resize(volume + 1, 0);
            }
            shard.unclaimed[volume] += 1;
            shard.quota.add_dirty(1);
        }
        found.lines = shard.index.resident() as u64;
        found.dirty_lines = shard.quota.dirty_lines() as u64;
        Ok((shard, found))
    }

    /// Dirty lines found in the table for a volume that has not been added yet.
    pub fn unclaimed(&self, volume: VolumeId) -> u64 {
        self.unclaimed.get(usize::from(volume.0)).copied().unwrap_or_default()
    }

    /// Assigns the dirty lines found in the table to a volume that is being added.
    pub(super) fn claim(&mut self, volume: VolumeId) {
        self.index.release_orphan_pins(volume);
        let expected = std::mem::take(match self.unclaimed.get_mut(usize::from(volume.0)) {
            Some(lines) if *lines > 0 => lines,
            _ => return,
        });
        let Self { index, volumes, .. } = self;
        let state = volumes.get_mut(volume);
        for line in index.dirty_slots().map(|slot| index.get(slot)) {
            if line.key.volume() == volume {
                state.writeback_mut().insert(line.key.line());
                state.add_lost_sectors(u64::from(line.lost().count_ones()));
            }
        }
        let claimed = state.writeback().dirty().len() as u64;
        assert_eq!(claimed, expected, "dirty lines found for {volume}");
    }

    /// The dirty sectors of a volume that are not lost, as lines in ascending order with a mask
    /// each.
    pub fn dirty_sectors(&self, volume: VolumeId) -> Vec<(LineKey, u8)> {
        let dirty = self.dirty_slots(volume).map(|slot| self.index.get(slot));
        let places = dirty.map(|line| (line.key, line.destageable()));
        places.filter(|(_, mask)| *mask != 0).collect()
    }

    /// Up to `count` clean lines of a volume, spread over all of its clean lines, each with the
    /// mask of its valid sectors. While no operation is in flight, the disk has the same data.
    pub fn clean_lines(&self, volume: VolumeId, count: usize) -> Vec<(LineKey, Slot, u8)> {
        let is_clean = |slot: &Slot| {
            let line = self.index.get(*slot);
            line.volume() == Some(volume)
                && line.valid != 0
                && line.dirty == 0
                && self.index.find(line.key) == Some(*slot)
        };
        let slots = || (0..self.index.used()).filter(is_clean);
        let step = slots().count().div_ceil(count.max(1)).max(1);
        let chosen = slots().step_by(step).take(count);
        chosen.map(|slot| (self.index.get(slot).key, slot, self.index.get(slot).valid)).collect()
    }

    /// Drops all clean data of a volume, because its disk has been replaced by another one.
    pub fn forget_clean(&mut self, volume: VolumeId) {
        self.drop_clean(volume, 0, Slot::MAX);
        for slot in 0..self.index.used() {
            let line = *self.index.get(slot);
            if line.volume() == Some(volume) && line.dirty != 0 && !line.has(DETACHED) {
                self.index.change(slot, line.destageable());
            }
        }
    }

    /// The dirty lines of a volume in ascending order, each with the masks of its dirty and of its
    /// lost sectors.
    pub fn dirty_lines_of(&self, volume: VolumeId) -> Vec<(LineKey, u8, u8)> {
        let dirty = self.dirty_slots(volume).map(|slot| self.index.get(slot));
        dirty.map(|line| (line.key, line.destageable(), line.lost())).collect()
    }

    /// The dirty sectors of a line that are not lost.
    pub fn dirty_of(&self, key: LineKey) -> u8 {
        self.index.find(key).map_or(0, |slot| self.index.get(slot).destageable())
    }

    /// The table of lines, for tests and the lab.
    pub fn table(&self) -> &[LineMeta] {
        self.index.table()
    }

    /// The slot of a line, if all sectors in `mask` are valid.
    pub fn slot_of(&self, key: LineKey, mask: u8) -> Option<Slot> {
        self.index.find(key).filter(|&slot| self.index.get(slot).valid & mask == mask)
    }

    /// Appends the dirty lines of a volume in ascending order. Keys instead of slots, because a
    /// line may be relocated once the shard is unlocked.
    pub fn dirty_keys(&self, volume: VolumeId, keys: &mut Vec<LineKey>) {
        let lines = self.volumes.get(volume).writeback().dirty().iter();
        keys.extend(lines.map(|line| LineKey::new(volume, line)));
    }

    /// The slots of a volume's dirty lines, in ascending order of the lines.
    pub(super) fn dirty_slots(&self, volume: VolumeId) -> impl Iterator<Item = Slot> + '_ {
        let lines = self.volumes.get(volume).writeback().dirty().iter();
        self.index.slots_of(volume, lines)
    }

    /// A line's slot and its dirty sectors that are not lost, if it has any.
    pub fn dirty_line(&self, key: LineKey) -> Option<DirtyLine> {
        let slot = self.index.find(key)?;
        let mask = self.index.get(slot).destageable();
        (mask != 0).then_some(DirtyLine::new(slot, mask))
    }
}
