//! The shard: its components, and the calls that manage volumes and report usage.

mod integrity;
mod lines;
mod requests;
mod writeback;

use crate::index::Slots;
use crate::index::key::LineKey;
use crate::index::meta::{LineTable, NO_SLOT};
use crate::integrity::Integrity;
use crate::lines::{VolumeLines, drop_if_idle};
use crate::modes::Scratch;
use crate::ops::{OpKind, Ops};
use crate::sabotage::Planted;
use crate::volume::Volumes;
use crate::writeback::elevator::Elevator;
use crate::writeback::quota::Quota;
use crate::{Attempt, LineMeta, Protection, SLOTS_MAX, ShardConfig, Slot, VolumeCounters};
use forebay_policy::{Eviction, Pace};
use forebay_types::{Mode, REGION_BYTES, Stripes, UnsafeSupply, VolumeId};
use std::sync::Arc;

/// How full a shard is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ShardUsage {
    /// Lines it can hold.
    pub capacity_lines: u64,
    /// Lines it holds.
    pub resident_lines: u64,
    /// Lines with dirty sectors.
    pub dirty_lines: u64,
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
    volumes: Volumes,
    integrity: Integrity,
    /// The amount of dirty data, and its limits.
    quota: Quota,
    /// For each volume not yet added, the number of its dirty lines found in an adopted table.
    unclaimed: Vec<u64>,
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
        Self::over(lines, policy, config)
    }

    fn over(lines: M, policy: Box<dyn Eviction>, config: ShardConfig) -> Self {
        Self {
            index: Slots::new(lines, policy),
            ops: Ops::default(),
            volumes: Volumes::default(),
            integrity: Integrity::default(),
            quota: Quota::new(config),
            unclaimed: Vec::new(),
            scratch: Scratch::default(),
            planted: Planted::default(),
        }
    }

    /// Starts to serve a volume. It takes over its lines found in an adopted table.
    ///
    /// # Panics
    /// If the volume is already served.
    pub fn add_volume(&mut self, volume: VolumeId, size_bytes: u64, mode: Mode) {
        self.volumes.add(volume, size_bytes, mode);
        self.claim(volume);
    }

    /// Sets the stripes of a volume. Call it after adding the volume.
    pub fn set_stripes(&mut self, volume: VolumeId, stripes: Stripes) {
        self.volumes.get_mut(volume).writeback_mut().set_stripes(stripes);
    }

    /// Makes the volume's shards share one elevator, in which this shard has number `shard`. Call
    /// it after adding the volume.
    ///
    /// # Panics
    /// If a destage of the volume is in flight.
    pub fn set_elevator(&mut self, volume: VolumeId, elevator: Arc<Elevator>, shard: usize) {
        self.volumes.get_mut(volume).writeback_mut().scheduler_mut().set_elevator(elevator, shard);
    }

    /// Forgets a volume and its lines.
    ///
    /// # Panics
    /// If the volume has dirty or lost sectors or operations in flight: flush it and wait first.
    pub fn remove_volume(&mut self, volume: VolumeId) {
        let state = self.volumes.get(volume);
        assert!(state.writeback().dirty().is_empty(), "{volume} is removed with dirty lines");
        assert_eq!(state.operations(), 0, "{volume} is removed with operations in flight");
        assert_eq!(state.lost_sectors(), 0, "{volume} is removed with lost sectors");
        let scheduler = state.writeback().scheduler();
        scheduler.leave_elevator();
        let throttled = scheduler.throttled();
        self.quota.count_admitted(throttled);
        self.drop_clean(volume, 0, Slot::MAX);
        self.volumes.remove(volume);
    }

    /// Changes the cache mode of a volume, from the next request on. If the new mode keeps no dirty
    /// lines, they are destaged in the background. Clean lines stay until [`Shard::drop_clean`] or
    /// an eviction removes them. In bypass, a dirty or busy line is removed once it is clean and
    /// idle.
    pub fn set_mode(&mut self, volume: VolumeId, mode: Mode) {
        self.volumes.get_mut(volume).set_mode(mode);
    }

    /// Sets whether reads of a volume's disk are in flight. Background writeback then slows down;
    /// see [`Shard::set_pace`].
    pub fn set_reading(&mut self, volume: VolumeId, reading: bool) {
        self.volumes.get_mut(volume).writeback_mut().scheduler_mut().set_reading(reading);
    }

    /// Sets the rate of a volume's writeback from this shard. Beside reads, the rate rises as the
    /// shard nears the dirty limit. A flush or a change of mode ignores it. Throttled writers are
    /// subject only to the limits that apply at all times.
    pub fn set_pace(&mut self, volume: VolumeId, pace: Pace) {
        self.volumes.get_mut(volume).writeback_mut().scheduler_mut().set_pace(pace);
    }

    /// Sets the size in bytes from which writes of a volume are not held back and are boosted,
    /// because gathering them saves next to nothing. A write of a whole region is never held back.
    pub fn set_gather_below(&mut self, volume: VolumeId, bytes: u64) {
        self.volumes.get_mut(volume).set_gather_below(bytes.min(REGION_BYTES));
    }

    /// The size set by [`Shard::set_gather_below`], in bytes.
    pub fn gather_below(&self, volume: VolumeId) -> u64 {
        self.volumes.get(volume).gather_below()
    }

    /// Sets what preserves the volume's dirty data besides the pool, from the next request on.
    ///
    /// # Panics
    /// If dirty data would lose the protection under which it was acknowledged.
    pub fn set_protection(&mut self, volume: VolumeId, protection: Protection) {
        self.volumes.get_mut(volume).set_protection(protection);
    }

    /// Sets how writes that the UPS does not cover are acknowledged, from the next request on.
    pub fn set_unsafe_supply(&mut self, volume: VolumeId, choice: UnsafeSupply) {
        self.volumes.get_mut(volume).set_unsafe_supply(choice);
    }

    /// Whether a UPS alone protects the volume, and writes that it does not cover are acknowledged
    /// only from the disk's stable storage. A volume that is not write-back promises no more than
    /// its disk.
    pub fn promises_stable(&self, volume: VolumeId) -> bool {
        self.volumes.get(volume).promises_stable(self.planted)
    }

    /// The mode of a volume.
    pub fn mode(&self, volume: VolumeId) -> Mode {
        self.volumes.get(volume).mode()
    }

    /// Drops the clean and idle lines of a volume in `count` slots from `first` on. Returns the
    /// next slot, or `None` at the end. The driver unlocks the shard between calls, because a large
    /// pool takes long to scan.
    pub fn drop_clean(&mut self, volume: VolumeId, first: Slot, count: Slot) -> Option<Slot> {
        let end = self.index.used();
        let next = first.saturating_add(count).min(end);
        for slot in first..next {
            if self.index.residents(volume) == 0 {
                return None;
            }
            let line = *self.index.get(slot);
            let ours = line.key != LineKey::NONE && line.key.volume() == volume;
            if ours && self.index.find(line.key) == Some(slot) {
                drop_if_idle(&mut self.index, &self.ops, slot);
            }
        }
        (next < end).then_some(next)
    }

    /// Lines of the volume with dirty sectors.
    pub fn dirty_lines(&self, volume: VolumeId) -> usize {
        self.volumes.get(volume).writeback().dirty().len()
    }

    /// Operations in flight on the volume.
    pub fn operations(&self, volume: VolumeId) -> u32 {
        self.volumes.get(volume).operations()
    }

    /// Destages in flight on the volume.
    pub fn destaging(&self, volume: VolumeId) -> u32 {
        self.volumes.get(volume).writeback().scheduler().destaging()
    }

    /// The counters of the volume in this shard.
    pub fn counters(&self, volume: VolumeId) -> &VolumeCounters {
        self.volumes.get(volume).counters()
    }

    /// Whether the volume is served.
    pub fn has_volume(&self, volume: VolumeId) -> bool {
        self.volumes.has(volume)
    }

    /// Resident lines of the volume.
    pub fn resident_lines(&self, volume: VolumeId) -> u64 {
        self.index.residents(volume).into()
    }

    /// Pins held by operations and replies, over all lines. Scans the whole table.
    pub fn pins(&self) -> u64 {
        let held = self.index.table().iter().filter(|line| line.key != LineKey::NONE);
        held.map(|line| u64::from(line.pins)).sum()
    }

    /// Slots that were ever used. Slots are first used in ascending order, so the memory of all
    /// others is untouched.
    pub const fn used_slots(&self) -> Slot {
        self.index.used()
    }

    /// A view of the index for lookups without the lock.
    pub fn hints(&self) -> crate::Hints {
        self.index.hints()
    }

    /// The usage of the shard.
    pub fn usage(&self) -> ShardUsage {
        let parity = self.integrity.parity();
        let metadata_bytes = self.index.metadata_bytes()
            + self.ops.metadata_bytes()
            + self.volumes.metadata_bytes()
            + parity.metadata_bytes();
        ShardUsage {
            capacity_lines: self.index.capacity() as u64,
            resident_lines: self.index.resident() as u64,
            dirty_lines: self.quota.dirty_lines() as u64,
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
        let Self { volumes, quota, index, ops, integrity, scratch, planted, .. } = self;
        let (volume, planted) = (volumes.get_mut(id), *planted);
        (VolumeLines { id, volume, quota, index, ops, integrity, planted }, scratch)
    }

    /// Panics if the components of the shard are inconsistent. For tests and the lab: it scans
    /// every line.
    pub fn self_check(&self) {
        self.index.self_check();
        self.ops.self_check();
        let mut dirty = self.unclaimed.iter().sum::<u64>() as usize;
        let mut throttled = 0;
        for (id, state) in self.volumes.iter() {
            let writeback = state.writeback();
            writeback.self_check(&self.index);
            for slot in self.dirty_slots(id) {
                let is_dirty = self.index.get(slot).dirty != 0;
                assert!(is_dirty, "clean slot {slot} in the dirty set of {id}");
            }
            self.check_away(id);
            dirty += writeback.dirty().len() + writeback.frozen_lines();
            throttled += writeback.scheduler().throttled();
        }
        let dirty_in_table = self.index.table().iter().filter(|line| line.dirty != 0).count();
        assert_eq!(dirty, dirty_in_table, "dirty lines in the sets of volumes, and in the table");
        assert_eq!(dirty, self.quota.dirty_lines());
        assert_eq!(throttled, self.quota.throttled());
        self.check_integrity();
        for op in self.ops.iter() {
            for line in &op.lines {
                let pinned = line.slot == NO_SLOT || self.index.get(line.slot).pins > 0;
                assert!(pinned, "{line:?} of an operation is not pinned");
            }
        }
    }

    /// Panics unless each line marked as in a destage is in one. A line that was clean when it went
    /// along with its stripe may have become dirty since; it waits.
    fn check_away(&self, volume: VolumeId) {
        let dirty = self.volumes.get(volume).writeback().dirty();
        for line in dirty.iter().filter(|&line| !dirty.is_waiting(line)) {
            let busy = self.ops.busy(LineKey::new(volume, line)).map(|(_, kind)| kind);
            assert_eq!(busy, Some(OpKind::Destage), "line {line} of {volume} is away");
        }
        let destages = self.ops.iter().filter(|op| op.kind == OpKind::Destage);
        let count = destages.filter(|op| op.volume == volume).count();
        assert_eq!(count, self.destaging(volume) as usize, "destages in flight on {volume}");
    }
}

#[cfg(feature = "sabotage")]
impl<M> Shard<M> {
    /// Plants a bug, from now on.
    pub const fn plant(&mut self, bug: crate::PlantedBug) {
        self.planted = Planted::of(bug);
    }
}

impl Attempt {
    /// The next attempt, after a wait that ended with `error`.
    #[must_use]
    pub const fn after(self, error: Option<forebay_types::IoError>) -> Self {
        Self { count: self.count.saturating_add(1), error, ..self }
    }
}
