//! The volumes of a shard: their settings, counters, and state.

use crate::ops::OpKind;
use crate::ops::trial::Trial;
use crate::sabotage::{Planted, PlantedBug};
use crate::writeback::Writeback;
use crate::{Protection, VolumeCounters};
use forebay_types::{ByteRange, Mode, UnsafeSupply, VolumeId};

/// A volume in one shard. Its [`Writeback`] owns its dirty lines and destages.
#[derive(Debug)]
pub(crate) struct VolumeState {
    size_bytes: u64,
    mode: Mode,
    protection: Protection,
    /// For a volume that a UPS protects: how a write that the UPS does not cover is acknowledged.
    unsafe_supply: UnsafeSupply,
    /// Writes shorter than this, in bytes, may be held back, and are not boosted.
    gather_below: u64,
    /// Decides whether holding back writes is worthwhile.
    trial: Trial,
    writeback: Writeback,
    /// Operations in flight.
    operations: u32,
    /// Sectors in dirty lines whose content is lost.
    lost_sectors: u64,
    counters: VolumeCounters,
}

impl VolumeState {
    fn new(size_bytes: u64, mode: Mode) -> Self {
        Self {
            size_bytes,
            mode,
            protection: Protection::None,
            unsafe_supply: UnsafeSupply::Stable,
            gather_below: u64::MAX,
            trial: Trial::default(),
            writeback: Writeback::new(size_bytes),
            operations: 0,
            lost_sectors: 0,
            counters: VolumeCounters::default(),
        }
    }

    pub(crate) const fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    pub(crate) const fn mode(&self) -> Mode {
        self.mode
    }

    pub(crate) const fn set_mode(&mut self, mode: Mode) {
        self.mode = mode;
    }

    pub(crate) const fn protection(&self) -> Protection {
        self.protection
    }

    /// # Panics
    /// If dirty data would lose the protection under which it was acknowledged.
    pub(crate) fn set_protection(&mut self, protection: Protection) {
        let is_kept = protection != Protection::None || self.protection == Protection::None;
        let is_clean = self.writeback.dirty().is_empty();
        assert!(is_kept || is_clean, "dirty data would lose its protection");
        self.protection = protection;
    }

    /// Whether writes that the UPS does not cover are acknowledged only from the disk's stable
    /// storage.
    #[inline]
    pub(crate) fn promises_stable(&self, planted: Planted) -> bool {
        self.mode == Mode::WriteBack
            && !planted.is(PlantedBug::AcknowledgeFromDiskCache)
            && self.protection == Protection::Power
            && self.unsafe_supply == UnsafeSupply::Stable
    }

    pub(crate) const fn set_unsafe_supply(&mut self, choice: UnsafeSupply) {
        self.unsafe_supply = choice;
    }

    pub(crate) const fn gather_below(&self) -> u64 {
        self.gather_below
    }

    pub(crate) const fn set_gather_below(&mut self, bytes: u64) {
        self.gather_below = bytes;
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

    pub(crate) const fn counters(&self) -> &VolumeCounters {
        &self.counters
    }

    pub(crate) const fn counters_mut(&mut self) -> &mut VolumeCounters {
        &mut self.counters
    }

    pub(crate) const fn operations(&self) -> u32 {
        self.operations
    }

    pub(crate) const fn lost_sectors(&self) -> u64 {
        self.lost_sectors
    }

    pub(crate) const fn add_lost_sectors(&mut self, sectors: u64) {
        self.lost_sectors += sectors;
    }

    pub(crate) const fn remove_lost_sectors(&mut self, sectors: u64) {
        assert!(self.lost_sectors >= sectors, "more lost sectors were recovered than there are");
        self.lost_sectors -= sectors;
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
    pub(crate) const fn count_end(&mut self) {
        assert!(self.operations > 0, "more operations completed than started");
        self.operations -= 1;
    }
}

/// The volumes, indexed by their numbers.
#[derive(Debug, Default)]
pub(crate) struct Volumes {
    states: Vec<Option<VolumeState>>,
}

impl Volumes {
    /// # Panics
    /// If the number is in use.
    pub(crate) fn add(&mut self, volume: VolumeId, size_bytes: u64, mode: Mode) {
        let at = usize::from(volume.0);
        if self.states.len() <= at {
            self.states.resize_with(at + 1, || None);
        }
        assert!(self.states[at].is_none(), "{volume} is served already");
        self.states[at] = Some(VolumeState::new(size_bytes, mode));
    }

    /// # Panics
    /// If the volume is not served.
    pub(crate) fn remove(&mut self, volume: VolumeId) {
        let state = self.states[usize::from(volume.0)].take();
        assert!(state.is_some(), "{volume} is not served");
    }

    #[inline]
    pub(crate) fn has(&self, volume: VolumeId) -> bool {
        self.states.get(usize::from(volume.0)).is_some_and(Option::is_some)
    }

    #[inline]
    pub(crate) fn get(&self, volume: VolumeId) -> &VolumeState {
        self.states[usize::from(volume.0)].as_ref().expect("the volume is served")
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, volume: VolumeId) -> &mut VolumeState {
        self.states[usize::from(volume.0)].as_mut().expect("the volume is served")
    }

    /// One more than the highest number ever served.
    pub(crate) const fn end(&self) -> usize {
        self.states.len()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (VolumeId, &VolumeState)> {
        let states = self.states.iter().enumerate();
        states.filter_map(|(at, state)| Some((VolumeId(at as u16), state.as_ref()?)))
    }

    pub(crate) fn metadata_bytes(&self) -> usize {
        let volumes = self.states.iter().flatten();
        self.states.capacity() * size_of::<Option<VolumeState>>()
            + volumes.map(|volume| volume.writeback.metadata_bytes()).sum::<usize>()
    }
}
