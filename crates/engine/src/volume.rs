//! The volumes of a shard: their settings, counters, and state.

use crate::index::Slots;
use crate::index::miniatures::miniatures;
use crate::line::meta::{BUFFERED, LineTable};
use crate::ops::trial::Trial;
use crate::ops::{OpKind, Ops};
use crate::sabotage::{Planted, PlantedBug};
use crate::sampling::AccessSamples;
use crate::writeback::Writeback;
use crate::{Elevator, LineKey, Slot, VolumeCounters};
use forebay_policy::{CurveConfig, CurveEstimator, MissRatioCurve, Pace, SizePrediction};
use forebay_types::{ByteRange, HoldOut, Mode, REGION_BYTES, Stripes, UnsafeUps, VolumeId};
use std::sync::Arc;

/// What preserves acknowledged data that is not on the disk yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Protection {
    /// Nothing. Data that must be on stable storage is written to the disk.
    #[default]
    None,
    /// A journal. It records every change, and counts as stable storage.
    Journal,
    /// A UPS that bridges a power failure. The pool counts as stable storage.
    Power,
}

/// A volume in one shard: its settings, its counters, and its dirty lines. Borrowed from
/// [`crate::Shard::volume`] or [`crate::Shard::volume_mut`].
#[derive(Debug)]
pub struct ShardVolume {
    id: VolumeId,
    size_bytes: u64,
    mode: Mode,
    /// The regions served as if there were no cache.
    hold_out: HoldOut,
    /// Whether nothing is admitted into the pool, except pinned ranges and dirty data.
    is_frozen: bool,
    /// Whether lines of the volume may have the flag [`BUFFERED`].
    has_buffered: bool,
    protection: Protection,
    /// For a volume that a UPS protects: how a write that the UPS does not cover is acknowledged.
    unsafe_ups: UnsafeUps,
    /// Writes shorter than this, in bytes, may be held back, and are not boosted.
    gather_below: u64,
    /// Decides whether holding back writes is worthwhile.
    trial: Trial,
    /// Owns the dirty lines and their destages.
    writeback: Writeback,
    /// Operations in flight.
    operations: u32,
    /// Lost sectors of the dirty lines.
    lost_sectors: u64,
    counters: VolumeCounters,
    /// Observes the accesses of clients.
    curve: CurveEstimator,
    /// What they tell about other sizes of the pool.
    samples: AccessSamples,
}

impl ShardVolume {
    fn new(id: VolumeId, size_bytes: u64, mode: Mode, curve: CurveConfig) -> Self {
        Self {
            id,
            size_bytes,
            mode,
            hold_out: HoldOut::NONE,
            is_frozen: false,
            has_buffered: false,
            protection: Protection::None,
            unsafe_ups: UnsafeUps::Stable,
            gather_below: u64::MAX,
            trial: Trial::default(),
            writeback: Writeback::new(id, size_bytes),
            operations: 0,
            lost_sectors: 0,
            counters: VolumeCounters::default(),
            curve: CurveEstimator::new(curve),
            samples: AccessSamples::default(),
        }
    }

    /// The cache mode.
    pub const fn mode(&self) -> Mode {
        self.mode
    }

    /// Changes the cache mode, from the next request on. If the new mode keeps no dirty lines,
    /// ticks destage them all and ignore the pace. Clean lines stay until
    /// [`crate::Shard::drop_clean`] or an eviction removes them. In bypass, a dirty or busy line is
    /// removed once it is clean and idle.
    pub const fn set_mode(&mut self, mode: Mode) {
        self.mode = mode;
    }

    /// Sets which regions are served as if there were no cache, from the next request on. Their
    /// reads go to the disk, except for dirty sectors, which only the pool has. Their writes are
    /// acknowledged from the disk, except in a write-back volume unless all regions are held out: a
    /// write past the pool would wait for the destages of the others. In an ordered one, it would
    /// even have to wait for all earlier epochs, so there they are never held out. Their lines are
    /// not prefetched, and only pinned ones are preloaded.
    pub const fn set_hold_out(&mut self, hold_out: HoldOut) {
        self.hold_out = hold_out;
    }

    /// Sets whether the volume is frozen, from the next request on. The lines of a frozen volume
    /// that are in the pool are read and overwritten, but none is added, except of pinned ranges
    /// and for dirty data; the latter are dropped once they are clean. Reads of other lines go to
    /// the disk. Nothing is prefetched or preloaded, except for pinned ranges.
    pub const fn set_frozen(&mut self, is_frozen: bool) {
        self.has_buffered |= is_frozen;
        self.is_frozen = is_frozen;
    }

    /// Whether the volume is frozen.
    pub const fn is_frozen(&self) -> bool {
        self.is_frozen
    }

    /// Whether data at this byte may be read ahead or preloaded, unless it is pinned.
    pub fn admits(&self, offset: u64) -> bool {
        self.mode != Mode::Bypass && !self.is_frozen && !self.holds_out(offset)
    }

    /// Whether lines of the volume may wait to be dropped; see [`BUFFERED`].
    pub(crate) const fn has_buffered(&self) -> bool {
        self.has_buffered
    }

    /// Records that no line of the volume waits to be dropped, unless it is frozen.
    pub(crate) const fn forget_buffered(&mut self) {
        self.has_buffered = self.is_frozen;
    }

    /// Whether the region of a byte is held out. In bypass, none is.
    #[inline]
    pub fn holds_out(&self, offset: u64) -> bool {
        !self.hold_out.is_none() && self.is_held_out(offset)
    }

    #[cold]
    fn is_held_out(&self, offset: u64) -> bool {
        let stripes = self.writeback.dirty().stripes();
        self.mode != Mode::Bypass && self.hold_out.holds(stripes.region_of(offset))
    }

    /// Sets what preserves acknowledged data that is not on the disk yet, from the next request on.
    ///
    /// # Panics
    /// If dirty data would lose the protection under which it was acknowledged.
    pub fn set_protection(&mut self, protection: Protection) {
        let is_kept = protection != Protection::None || self.protection == Protection::None;
        let is_clean = self.writeback.dirty().is_empty();
        assert!(is_kept || is_clean, "dirty data would lose its protection");
        self.protection = protection;
    }

    /// Sets how writes that the UPS does not cover are acknowledged, from the next request on.
    pub const fn set_unsafe_ups(&mut self, choice: UnsafeUps) {
        self.unsafe_ups = choice;
    }

    /// Sets the stripes of the disk. Call it after adding the volume.
    pub fn set_stripes(&mut self, stripes: Stripes) {
        self.writeback.set_stripes(stripes);
    }

    /// Makes the volume's shards share one elevator, in which this shard has number `shard`. Call
    /// it after adding the volume.
    ///
    /// # Panics
    /// If a destage of the volume is in flight.
    pub fn set_elevator(&mut self, elevator: Arc<Elevator>, shard: usize) {
        self.writeback.scheduler_mut().set_elevator(elevator, shard);
    }

    /// Makes the volume ordered: only [`crate::Shard::destage_epoch`] destages its lines from now
    /// on. Lines that are dirty already belong to the current epoch. Call it after adding the
    /// volume.
    pub fn set_ordered(&mut self) {
        self.writeback.set_ordered();
    }

    /// Sets whether reads of the disk are in flight. Background writeback then slows down; see
    /// [`ShardVolume::set_pace`]. A read that a shard starts for a client counts at once; the
    /// driver knows when reads end, and calls this before each tick.
    pub fn set_reading(&mut self, reading: bool) {
        self.writeback.scheduler_mut().set_reading(reading);
    }

    /// Counts a read of the disk for a client, or for a prefetch.
    pub(crate) fn count_read(&self) {
        self.writeback.scheduler().count_read();
    }

    pub(crate) const fn is_ordered(&self) -> bool {
        self.writeback.epochs().is_some()
    }

    /// Sets the rate of writeback from this shard. Beside reads, the rate rises as the shard nears
    /// the dirty limit. A flush or a change of mode ignores the pace. While writers are throttled,
    /// and in an ordered volume, only the limits on I/Os and bytes apply; a part that waits for an
    /// epoch lifts these as well.
    pub fn set_pace(&mut self, pace: Pace) {
        self.writeback.scheduler_mut().set_pace(pace);
    }

    /// Sets how far the volume's journal is from admitting no more writes because of this volume's
    /// records, and the maximum of that distance, in any unit. Below the maximum, which is the
    /// initial value, background writeback beside reads speeds up as near the dirty limit. Below a
    /// sixteenth of it, checkpoints are as urgent as flushes.
    ///
    /// # Panics
    /// If `left` exceeds `all`, or `all` is zero.
    pub fn set_log_distance(&mut self, left: u64, all: u64) {
        self.writeback.scheduler_mut().set_log_distance(left, all);
    }

    /// The size set by [`ShardVolume::set_gather_below`], in bytes.
    pub const fn gather_below(&self) -> u64 {
        self.gather_below
    }

    /// Sets the size in bytes from which gathering a write saves next to nothing: such writes are
    /// not held back, and their lines are boosted. A write of a whole region is never held back.
    pub fn set_gather_below(&mut self, bytes: u64) {
        self.gather_below = bytes.min(REGION_BYTES);
    }

    /// Lines with dirty sectors.
    pub const fn dirty_lines(&self) -> usize {
        self.writeback.dirty().len()
    }

    /// A time, as given to [`crate::Shard::tick`], before which none of its dirty lines became
    /// dirty. `None` if there are none, or if there was no tick since.
    pub fn dirty_since_ms(&self) -> Option<u64> {
        self.writeback.since_ms()
    }

    /// The lines with dirty sectors, in ascending order. Keys instead of slots, because a line may
    /// be relocated once the shard is unlocked.
    pub fn dirty_keys(&self) -> impl Iterator<Item = LineKey> {
        let id = self.id;
        self.writeback.dirty().iter().map(move |line| LineKey::new(id, line))
    }

    /// Lost sectors. Reads of them fail until they are rewritten or erased.
    pub const fn lost_sectors(&self) -> u64 {
        self.lost_sectors
    }

    /// Dirty lines whose last destage failed: at most 64.
    pub fn refused_lines(&self) -> usize {
        self.writeback.refused_lines()
    }

    /// Operations in flight.
    pub const fn operations(&self) -> u32 {
        self.operations
    }

    /// Destages in flight.
    pub const fn destaging(&self) -> u32 {
        self.writeback.scheduler().destaging()
    }

    pub const fn counters(&self) -> &VolumeCounters {
        &self.counters
    }

    /// The miss-ratio curve of the lines that this shard owns, over the accesses of clients: all
    /// lines of their reads and writes, counted once each, in every mode. For a frozen volume, only
    /// those of hits are counted. `None` if the shard has too little memory for a curve of each of
    /// its volumes.
    pub fn curve(&self) -> Option<MissRatioCurve> {
        self.curve.curve()
    }

    /// Multiplies the counts of the miss-ratio curve by `keep`, so that later accesses weigh more.
    /// To be called at equal intervals.
    ///
    /// # Panics
    /// If `keep` is not between 0 and 1.
    pub fn decay_curve(&mut self, keep: f64) {
        self.curve.decay(keep);
    }

    /// The memory of the miss-ratio curve in bytes.
    pub fn curve_bytes(&self) -> usize {
        self.curve.bytes()
    }

    /// Records that `seconds` have passed, for the prediction of [`crate::size_prediction`]: later
    /// accesses weigh more. To be called every few seconds.
    pub fn pass_time(&mut self, seconds: f64) {
        let counts = self.samples.counts(&self.counters);
        self.samples.sizes.pass_time(seconds, counts);
    }

    /// The samples for other sizes of the pool, and the curve, which reports sampled lines.
    pub(crate) const fn sampling_mut(&mut self) -> (&mut AccessSamples, &mut CurveEstimator) {
        (&mut self.samples, &mut self.curve)
    }

    /// Whether lines that are not in the pool come into it when clients access them.
    pub fn admits_accesses(&self) -> bool {
        self.mode != Mode::Bypass && !self.is_frozen
    }

    /// Counts a read of one line that was a hit. Returns whether the line may be sampled.
    #[inline]
    pub(crate) fn count_read_hit(&mut self, key: LineKey) -> bool {
        self.counters.read_hit_lines += 1;
        self.curve.record(key.hash())
    }

    /// Records that a line is read before a client needs it.
    pub(crate) fn count_preload(&mut self, key: LineKey) {
        self.curve.record_preload(key.hash());
    }

    /// Records a line of a client's part as accessed. Returns whether the line may be sampled.
    pub(crate) fn record_access(&mut self, key: LineKey) -> bool {
        self.curve.record(key.hash())
    }

    pub(crate) const fn counters_mut(&mut self) -> &mut VolumeCounters {
        &mut self.counters
    }

    pub(crate) const fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// Makes the volume larger, because its disk has grown to `size_bytes`. Requests may reach that
    /// far from now on.
    ///
    /// # Panics
    /// If that is less than before.
    pub fn grow(&mut self, size_bytes: u64) {
        assert!(size_bytes >= self.size_bytes, "{} does not shrink", self.id);
        self.size_bytes = size_bytes;
        self.writeback.dirty_mut().grow(size_bytes);
    }

    pub(crate) const fn protection(&self) -> Protection {
        self.protection
    }

    /// See [`crate::Shard::promises_stable`].
    #[inline]
    pub(crate) fn promises_stable(&self, planted: Planted) -> bool {
        self.mode == Mode::WriteBack
            && !planted.is(PlantedBug::AcknowledgeFromDiskCache)
            && self.protection == Protection::Power
            && self.unsafe_ups == UnsafeUps::Stable
    }

    pub(crate) const fn trial(&self) -> &Trial {
        &self.trial
    }

    pub(crate) const fn trial_mut(&mut self) -> &mut Trial {
        &mut self.trial
    }

    pub(crate) const fn writeback(&self) -> &Writeback {
        &self.writeback
    }

    pub(crate) const fn writeback_mut(&mut self) -> &mut Writeback {
        &mut self.writeback
    }

    pub(crate) const fn add_lost_sectors(&mut self, sectors: u64) {
        self.lost_sectors += sectors;
    }

    pub(crate) const fn remove_lost_sectors(&mut self, sectors: u64) {
        assert!(self.lost_sectors >= sectors, "more lost sectors were recovered than there are");
        self.lost_sectors -= sectors;
    }

    /// The slots of the dirty lines, in ascending order of the lines.
    pub(crate) fn dirty_slots<'a, M: LineTable>(
        &'a self,
        index: &'a Slots<M>,
    ) -> impl Iterator<Item = Slot> + 'a {
        index.slots_of(self.id, self.writeback.dirty().iter())
    }

    /// Takes over the volume's `expected` dirty lines of an adopted table.
    fn claim<M: LineTable>(&mut self, index: &Slots<M>, expected: u64) {
        for line in index.dirty_slots().map(|slot| index.get(slot)) {
            if line.key.volume() == self.id {
                self.writeback.insert(line.key.line());
                self.lost_sectors += u64::from(line.lost().count_ones());
                self.has_buffered |= line.has(BUFFERED);
            }
        }
        assert_eq!(self.dirty_lines() as u64, expected, "dirty lines found for {}", self.id);
    }

    /// The stripe that contains a byte, if all of the stripe is inside the volume.
    pub(crate) fn stripe_at(&self, offset: u64) -> Option<ByteRange> {
        let stripe = self.writeback.dirty().stripes().stripe_at(offset);
        stripe.filter(|stripe| stripe.fits(self.size_bytes))
    }

    /// Counts an operation over `lines` lines as started.
    pub(crate) fn count_start(&mut self, kind: OpKind, lines: usize) {
        self.operations += 1;
        if kind == OpKind::Destage {
            self.writeback.scheduler_mut().count_start(lines);
        }
    }

    /// Counts an operation as completed.
    pub(crate) fn count_end(&mut self, kind: OpKind, now_ms: u64) {
        assert!(self.operations > 0, "more operations completed than started");
        self.operations -= 1;
        if matches!(kind, OpKind::Fill | OpKind::DirectRead) {
            self.writeback.scheduler().count_read_end(now_ms);
        }
    }

    /// Leaves the elevator before the volume is removed. Returns the number of throttled parts,
    /// which are not answered.
    ///
    /// # Panics
    /// If the volume has dirty or lost sectors or operations in flight.
    fn leave(&self) -> usize {
        assert_eq!(self.dirty_lines(), 0, "{} is removed with dirty lines", self.id);
        assert_eq!(self.writeback.frozen_lines(), 0, "{} is removed with frozen lines", self.id);
        assert_eq!(self.operations, 0, "{} is removed with operations in flight", self.id);
        assert_eq!(self.lost_sectors, 0, "{} is removed with lost sectors", self.id);
        let scheduler = self.writeback.scheduler();
        scheduler.leave_elevator();
        scheduler.throttled()
    }

    fn heap_bytes(&self) -> usize {
        self.writeback.metadata_bytes() + self.curve.heap_bytes()
    }

    /// Panics if the state of the volume is inconsistent with the slots or the operations.
    pub(crate) fn self_check<M: LineTable>(&self, index: &Slots<M>, ops: &Ops) {
        self.writeback.self_check(index);
        self.curve.self_check();
        let mut lost = 0;
        for line in self.dirty_slots(index).map(|slot| index.get(slot)) {
            assert!(line.dirty != 0, "clean {line:?} in the dirty set of {}", self.id);
            lost += u64::from(line.lost().count_ones());
            let is_owed = self.writeback.is_owed_to_flushes(line.key.line());
            assert!(!is_owed || line.destageable() != 0, "flushes wait for ever for {line:?}");
        }
        assert_eq!(lost, self.lost_sectors, "lost sectors of {}", self.id);
        self.check_in_destage(ops);
    }

    /// Panics unless each line marked as in a destage is in one. Not every dirty line in a destage
    /// has this mark: a clean line that is being written with its stripe may have become dirty
    /// since, and waits for its own destage.
    fn check_in_destage(&self, ops: &Ops) {
        let dirty = self.writeback.dirty();
        for line in dirty.iter().filter(|&line| !dirty.is_waiting(line)) {
            let busy = ops.busy(LineKey::new(self.id, line)).map(|(_, kind)| kind);
            assert_eq!(busy, Some(OpKind::Destage), "line {line} of {} is in a destage", self.id);
        }
        let destages = ops.iter().filter(|op| op.kind == OpKind::Destage);
        let count = destages.filter(|op| op.volume == self.id).count();
        assert_eq!(count, self.destaging() as usize, "destages in flight on {}", self.id);
    }
}

/// Whether writes of held-out regions of a volume are acknowledged from the disk.
pub(crate) fn holds_out_writes(volume: &ShardVolume) -> bool {
    volume.mode != Mode::WriteBack || (volume.hold_out.is_all() && !volume.is_ordered())
}

/// What a volume misses in a shard now, and would miss with other sizes of the pool. A sampled
/// access stands for `1 / rate` accesses.
pub(crate) fn predict_sizes(volume: &ShardVolume, rate: f64) -> SizePrediction {
    volume.samples.prediction(rate, &volume.counters)
}

/// The volumes, indexed by their numbers.
#[derive(Debug)]
pub(crate) struct ShardVolumes {
    states: Vec<Option<ShardVolume>>,
    /// The lines of the shard.
    capacity: usize,
    /// For each volume not yet added, the number of its dirty lines found in an adopted table.
    unclaimed: Vec<u64>,
}

impl ShardVolumes {
    /// No volumes, in a shard of `capacity` lines.
    pub(crate) const fn new(capacity: usize) -> Self {
        Self { states: Vec::new(), capacity, unclaimed: Vec::new() }
    }

    /// Adds a volume. It takes over its dirty lines found in an adopted table.
    ///
    /// # Panics
    /// If the number is in use.
    pub(crate) fn add<M: LineTable>(
        &mut self,
        volume: VolumeId,
        size_bytes: u64,
        mode: Mode,
        index: &Slots<M>,
    ) {
        let at = usize::from(volume.0);
        if self.states.len() <= at {
            self.states.resize_with(at + 1, || None);
        }
        assert!(self.states[at].is_none(), "{volume} is served already");
        let curve = CurveConfig::for_shard(self.capacity);
        let state = self.states[at].insert(ShardVolume::new(volume, size_bytes, mode, curve));
        state.samples = AccessSamples::new(miniatures(index).threshold(), &mut state.curve);
        let unclaimed = self.unclaimed.get_mut(at).map_or(0, std::mem::take);
        if unclaimed > 0 {
            state.claim(index, unclaimed);
        }
        self.share_out_curve_memory();
    }

    /// Removes a volume. Returns the number of its throttled parts.
    ///
    /// # Panics
    /// If the volume is not served, or has dirty or lost sectors or operations in flight.
    pub(crate) fn remove(&mut self, volume: VolumeId) -> usize {
        let throttled = self.get(volume).leave();
        self.states[usize::from(volume.0)] = None;
        self.share_out_curve_memory();
        throttled
    }

    /// Divides the memory for curves among the volumes.
    fn share_out_curve_memory(&mut self) {
        let limits =
            CurveConfig::for_shard(self.capacity).limits(self.capacity, self.iter().count());
        for (volume, limit) in self.states.iter_mut().flatten().zip(limits) {
            volume.curve.set_limit(limit);
        }
    }

    /// Counts a dirty line found in an adopted table.
    pub(crate) fn add_unclaimed(&mut self, volume: VolumeId) {
        let at = usize::from(volume.0);
        if self.unclaimed.len() <= at {
            self.unclaimed.resize(at + 1, 0);
        }
        self.unclaimed[at] += 1;
    }

    /// Dirty lines found in an adopted table for a volume that has not been added yet.
    pub(crate) fn unclaimed(&self, volume: VolumeId) -> u64 {
        self.unclaimed.get(usize::from(volume.0)).copied().unwrap_or_default()
    }

    /// Forgets the dirty lines found for a volume, which are no longer dirty. Returns their number.
    ///
    /// # Panics
    /// If the volume has been added.
    pub(crate) fn take_unclaimed(&mut self, volume: VolumeId) -> u64 {
        let at = usize::from(volume.0);
        assert!(self.states.get(at).is_none_or(Option::is_none), "{volume} is served");
        self.unclaimed.get_mut(at).map_or(0, std::mem::take)
    }

    /// Dirty lines of all volumes, including frozen slots and lines that are not claimed yet.
    pub(crate) fn dirty_lines(&self) -> usize {
        let writebacks = self.iter().map(ShardVolume::writeback);
        let dirty = writebacks.map(|of| of.dirty().len() + of.frozen_lines()).sum::<usize>();
        dirty + self.unclaimed.iter().sum::<u64>() as usize
    }

    /// Throttled parts of all volumes.
    pub(crate) fn throttled(&self) -> usize {
        self.iter().map(|volume| volume.writeback.scheduler().throttled()).sum()
    }

    #[inline]
    pub(crate) fn has(&self, volume: VolumeId) -> bool {
        self.states.get(usize::from(volume.0)).is_some_and(Option::is_some)
    }

    #[inline]
    pub(crate) fn get(&self, volume: VolumeId) -> &ShardVolume {
        self.states[usize::from(volume.0)].as_ref().expect("the volume is served")
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, volume: VolumeId) -> &mut ShardVolume {
        self.states[usize::from(volume.0)].as_mut().expect("the volume is served")
    }

    /// One more than the highest number ever served.
    pub(crate) const fn end(&self) -> usize {
        self.states.len()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &ShardVolume> {
        self.states.iter().flatten()
    }

    /// Records that the shard now has `times` as many lines.
    pub(crate) fn count_resize(&mut self, times: f64) {
        for volume in self.states.iter_mut().flatten() {
            let counts = volume.samples.counts(&volume.counters);
            volume.samples.sizes.resize(times, counts);
        }
    }

    pub(crate) fn metadata_bytes(&self) -> usize {
        self.states.capacity() * size_of::<Option<ShardVolume>>()
            + self.iter().map(ShardVolume::heap_bytes).sum::<usize>()
    }
}
