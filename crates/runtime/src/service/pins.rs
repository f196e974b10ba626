//! Pins and unpins ranges of volumes.

use super::VolumeService;
use crate::error::VolumeResult;
use crate::pins::{PinError, Pins, check, shard_lines_min};
use crate::resize::ResizeError;
use crate::shared::Volume;
use forebay_types::{Fault, LINE_BYTES, PinnedRanges, VolumeConfig};
use std::sync::Arc;

impl VolumeService {
    /// See [`crate::Runtime::set_pins`].
    pub(crate) fn set_pins(&self, name: &str, ranges: &PinnedRanges) -> VolumeResult {
        let config = self.shared.volumes.named(name)?.config.read().clone();
        self.change(name, VolumeConfig { pin: ranges.clone(), ..config }, true)
    }

    /// Pins the ranges with which a volume was added. If that is refused, the volume is served
    /// without them, because no data depends on a pin.
    pub(super) fn pin_added(&self, volume: &Arc<Volume>, ranges: &PinnedRanges) {
        if ranges.is_empty() {
            return;
        }
        let _changing = self.changes.lock();
        let served = self.shared.volumes.named(&volume.name);
        if !served.is_ok_and(|served| Arc::ptr_eq(&served, volume)) {
            // It was removed meanwhile.
            return;
        }
        match self.check_pins(volume, ranges) {
            Ok(pins) => self.apply_pins(volume, pins),
            Err(error) => {
                let (name, reason) = (&volume.name, error.with_causes());
                tracing::warn!(volume = %name, error = reason, "serving without pinned ranges");
                volume.pins.set_refused(error);
            }
        }
    }

    /// Calls `change` while no volume is added, removed or changed.
    pub(crate) fn without_changes<T>(&self, change: impl FnOnce() -> T) -> T {
        let _changing = self.changes.lock();
        change()
    }

    /// The smallest shard, in lines, with which all pinned ranges may stay pinned.
    pub(crate) fn pinned_shard_lines(&self) -> usize {
        let volumes = self.shared.volumes.all();
        let pins: Vec<_> = volumes.iter().map(|volume| volume.pins.get()).collect();
        shard_lines_min(&self.shared.pool, &pins)
    }

    /// Refuses a size of the memory that is too small for the pinned ranges.
    pub(crate) fn check_pins_fit(
        &self,
        memory_bytes: u64,
        least_bytes: u64,
    ) -> Result<(), ResizeError> {
        if memory_bytes >= least_bytes {
            return Ok(());
        }
        let volumes = self.shared.volumes.all();
        let pinned = volumes
            .iter()
            .map(|volume| (volume.name.clone(), volume.pins.get().ranges.lines() * LINE_BYTES));
        let pinned = pinned.filter(|(_, bytes)| *bytes > 0).collect();
        Err(ResizeError::Pinned { memory_bytes, pinned, least_bytes })
    }

    /// Checks whether ranges of a volume may replace its pinned ones. The caller holds the lock of
    /// changes until it has called [`VolumeService::apply_pins`].
    pub(super) fn check_pins(
        &self,
        volume: &Arc<Volume>,
        ranges: &PinnedRanges,
    ) -> Result<Pins, PinError> {
        let shared = &self.shared;
        let volumes = shared.volumes.all();
        let others = volumes.iter().filter(|other| other.id != volume.id);
        let others: Vec<_> = others.map(|other| other.pins.get()).collect();
        check(&shared.pool, shared.shards.len(), volume, ranges, &others)
    }

    /// Replaces the pinned ranges of a volume.
    pub(super) fn apply_pins(&self, volume: &Arc<Volume>, pins: Pins) {
        self.shared.shards.set_pinned(volume.id, &pins.ranges, &pins.lines_by_shard);
        volume.pins.set(pins);
        self.warm_ups.load_pins(volume);
    }
}
