//! The shard: its components, and the calls that manage volumes and report usage.

mod integrity;
mod lines;
pub(crate) mod pins;
mod requests;
mod resize;
mod shares;
mod writeback;

pub use lines::{abandon_unclaimed, dirty_lines_in};
pub use requests::{begin_forecast, end_former_forecasts, erasable_until, erase_long};
pub use resize::limits_of_size;
pub use shares::{pool_share_lines, set_dirty_lines_max, set_pool_share};
pub use writeback::checkpoint;

use crate::index::Slots;
use crate::index::miniatures::miniatures;
use crate::index::warm::forget_counts;
use crate::integrity::ShardIntegrity;
use crate::line::key::LineKey;
use crate::line::meta::{BUFFERED, DETACHED, LineTable, NO_SLOT};
use crate::lines::{VolumeLines, drop_clean};
use crate::modes::Scratch;
use crate::ops::Ops;
use crate::sabotage::Planted;
use crate::volume::{ShardVolume, ShardVolumes, predict_sizes};
use crate::writeback::quota::DirtyQuota;
use crate::{Attempt, LineMeta, SLOTS_MAX, ShardConfig, Slot};
use forebay_policy::{Eviction, SizePrediction};
use forebay_types::{Mode, PoolShare, VolumeId};
use std::sync::Arc;

/// The usage of a shard, and counts since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ShardUsage {
    /// Lines it can hold now.
    pub capacity_lines: u64,
    /// Slots whose memory is given back or about to be.
    pub given_back_lines: u64,
    /// Lines it holds.
    pub resident_lines: u64,
    /// Lines with dirty sectors.
    pub dirty_lines: u64,
    /// The dirty limit in lines.
    pub dirty_lines_max: u64,
    /// Lines evicted since the start.
    pub evicted_lines: u64,
    /// Operations in flight.
    pub operations: u64,
    /// Memory for everything except the data, in bytes.
    pub metadata_bytes: u64,
    /// Dirty lines that have parity.
    pub parity_lines: u64,
    /// Slots that hold parity instead of a line.
    pub parity_slots: u64,
    /// Slots that the patrol has yet to seal. Some may hold no line any more.
    pub unsealed_slots: u64,
    /// The counters of the patrol.
    pub patrol: crate::PatrolCounters,
}

/// One shard of the cache: its components, each of which owns its state.
pub struct Shard<M> {
    /// The line table, the slots and the eviction policy.
    index: Slots<M>,
    /// Operations in flight.
    ops: Ops,
    volumes: ShardVolumes,
    integrity: ShardIntegrity,
    /// The amount of dirty data, and its limits.
    quota: DirtyQuota,
    scratch: Scratch,
    planted: Planted,
}

impl<M: LineTable> Shard<M> {
    /// An empty shard over a table of free lines, one for each slot of data.
    ///
    /// # Panics
    /// If the table is longer than [`SLOTS_MAX`] or, in debug builds, a line in it is not free.
    pub fn new(lines: M, policy: Box<dyn Eviction>, config: ShardConfig) -> Self {
        assert!(lines.len() <= SLOTS_MAX, "a shard indexes at most {SLOTS_MAX} lines");
        debug_assert!(lines.iter().all(|line| *line == LineMeta::FREE));
        over(lines, policy, config)
    }

    /// Starts to serve a volume. The volume takes over its lines found in an adopted table.
    ///
    /// # Panics
    /// If the volume is already served.
    pub fn add_volume(&mut self, volume: VolumeId, size_bytes: u64, mode: Mode) {
        self.index.release_orphan_pins(volume);
        self.volumes.add(volume, size_bytes, mode, &self.index);
    }

    /// Forgets a volume and its lines.
    ///
    /// # Panics
    /// If the volume has dirty or lost sectors or operations in flight: flush it and wait first.
    pub fn remove_volume(&mut self, volume: VolumeId) {
        let throttled = self.volumes.remove(volume);
        self.quota.count_admitted(throttled);
        self.drop_clean(volume, 0, Slot::MAX);
        forget_counts(&mut self.index, volume);
        set_pool_share(self, volume, PoolShare::NONE);
        set_dirty_lines_max(self, volume, None);
        self.pinned().set(volume, &Arc::default(), 0);
        assert_eq!(self.index.resident_lines(volume), 0, "lines of {volume}, which is removed");
    }

    /// Whether the volume is served.
    pub fn has_volume(&self, volume: VolumeId) -> bool {
        self.volumes.has(volume)
    }

    /// The settings, counters and dirty lines of a volume.
    ///
    /// # Panics
    /// If the volume is not served.
    pub fn volume(&self, volume: VolumeId) -> &ShardVolume {
        self.volumes.get(volume)
    }

    /// As [`Shard::volume`], to change the settings.
    ///
    /// # Panics
    /// If the volume is not served.
    pub fn volume_mut(&mut self, volume: VolumeId) -> &mut ShardVolume {
        self.volumes.get_mut(volume)
    }

    /// The slots and the lines in them.
    pub const fn slots(&self) -> &Slots<M> {
        &self.index
    }

    /// Whether a UPS alone protects the volume, and writes that it does not cover are acknowledged
    /// only from the disk's stable storage. A volume that is not write-back promises no more than
    /// its disk.
    pub fn promises_stable(&self, volume: VolumeId) -> bool {
        self.volumes.get(volume).promises_stable(self.planted)
    }

    /// Drops the clean and idle lines of a volume in `count` slots from `first` on. Returns the
    /// next slot, or `None` at the end. The driver unlocks the shard between calls, because a large
    /// pool takes long to scan.
    pub fn drop_clean(&mut self, volume: VolumeId, first: Slot, count: Slot) -> Option<Slot> {
        drop_clean(&mut self.index, &self.ops, volume, first, count)
    }

    /// Pins held by operations and replies, over all lines. Scans the whole table.
    pub fn pins(&self) -> u64 {
        let held = self.index.table().iter().filter(|line| line.key != LineKey::NONE);
        held.map(|line| u64::from(line.pins)).sum()
    }

    /// The usage of the shard.
    pub fn usage(&self) -> ShardUsage {
        let parity = self.integrity.parity();
        let metadata_bytes = self.index.metadata_bytes()
            + self.ops.metadata_bytes()
            + self.volumes.metadata_bytes()
            + parity.metadata_bytes();
        ShardUsage {
            capacity_lines: u64::from(self.index.slabs().usable()),
            given_back_lines: (self.index.capacity() as u64)
                .saturating_sub(self.index.slabs().usable().into()),
            resident_lines: self.index.resident() as u64,
            dirty_lines: self.quota.dirty_lines() as u64,
            dirty_lines_max: self.quota.config().dirty_lines_max as u64,
            evicted_lines: self.index.evictions(),
            operations: self.ops.in_flight() as u64,
            metadata_bytes: metadata_bytes as u64,
            parity_lines: parity.lines() as u64,
            parity_slots: parity.slots() as u64,
            unsealed_slots: self.index.unsealed() as u64,
            patrol: self.integrity.counters(),
        }
    }

    /// The lines of a volume, with the components that describe them.
    fn on(&mut self, volume: VolumeId) -> VolumeLines<'_, M> {
        self.on_with_scratch(volume).0
    }

    fn on_with_scratch(&mut self, id: VolumeId) -> (VolumeLines<'_, M>, &mut Scratch) {
        let Self { volumes, quota, index, ops, integrity, scratch, planted } = self;
        let (volume, planted) = (volumes.get_mut(id), *planted);
        (VolumeLines { id, volume, quota, index, ops, integrity, planted }, scratch)
    }

    /// Panics if the components of the shard are inconsistent. For tests and the lab: it scans
    /// every line.
    pub fn self_check(&self) {
        self.index.self_check();
        self.ops.self_check();
        self.integrity.parity().self_check(&self.index);
        for volume in self.volumes.iter() {
            volume.self_check(&self.index, &self.ops);
        }
        let dirty = self.volumes.dirty_lines();
        let dirty_in_table = self.index.table().iter().filter(|line| line.dirty != 0).count();
        assert_eq!(dirty, dirty_in_table, "dirty lines in the sets of volumes, and in the table");
        assert_eq!(dirty, self.quota.dirty_lines());
        self.quota.self_check();
        assert_eq!(self.volumes.throttled(), self.quota.throttled());
        let is_waiting = |line: &LineMeta| {
            line.dirty != 0 || self.ops.busy(line.key).is_some() || !line.has(BUFFERED)
        };
        for line in self.index.table().iter().filter(|line| line.volume().is_some()) {
            assert!(line.has(DETACHED) || is_waiting(line), "not dropped: {line:?}");
            let is_erased = !line.has(DETACHED) && self.ops.is_erased_unnamed(line.key);
            assert!(!is_erased, "came into the pool during a long erase: {line:?}");
        }
        for op in self.ops.iter() {
            for line in &op.lines {
                let pinned = line.slot == NO_SLOT || self.index.get(line.slot).pins > 0;
                assert!(pinned, "{line:?} of an operation is not pinned");
            }
        }
    }
}

/// What a volume misses in a shard now, and would miss with other sizes of the pool.
pub fn size_prediction<M: LineTable>(shard: &Shard<M>, volume: VolumeId) -> SizePrediction {
    predict_sizes(shard.volume(volume), miniatures(&shard.index).rate())
}

/// A shard over a table that need not be empty.
fn over<M: LineTable>(lines: M, policy: Box<dyn Eviction>, config: ShardConfig) -> Shard<M> {
    Shard {
        volumes: ShardVolumes::new(lines.len()),
        quota: DirtyQuota::new(config, lines.len()),
        index: Slots::new(lines, policy, config.slab_lines),
        ops: Ops::default(),
        integrity: ShardIntegrity::default(),
        scratch: Scratch::default(),
        planted: Planted::default(),
    }
}

#[cfg(feature = "sabotage")]
impl<M> Shard<M> {
    /// Plants a bug, from now on.
    pub const fn plant(&mut self, bug: crate::PlantedBug) {
        self.planted = Planted::of(bug);
        crate::index::shares::plant(&mut self.index, self.planted);
    }
}

impl Attempt {
    /// The next attempt, after a wait that ended with `error`.
    #[must_use]
    pub fn after(self, error: Option<forebay_types::IoError>) -> Self {
        Self { count: self.count.saturating_add(1), error: error.or(self.error), ..self }
    }
}
