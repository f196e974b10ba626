//! Pins and unpins ranges of volumes, and decides how much may be pinned: half of the pool for all
//! volumes together, and in no shard more than it retains. Both limits scale with the pool, and the
//! pool is not shrunk below the size that the pinned ranges need.

use super::VolumeService;
use crate::error::VolumeResult;
use crate::pool::{Pool, SLAB_BYTES};
use crate::resize::ResizeError;
use crate::shared::{PinError, Pins, Volume};
use forebay_engine::retained_lines_max;
use forebay_types::{Fault, LINE_BYTES, PinnedRanges, VolumeConfig};
use forebay_volume::pinned_lines_by_shard;
use std::sync::Arc;

impl VolumeService {
    /// Replaces the pinned ranges of a volume: their lines stay in the pool. Lines that are not
    /// there are read in the background, if [`crate::Runtime::keep_warm_lists`] was called.
    ///
    /// # Errors
    /// When there is no such volume, a range is not inside it, or the pinned ranges of all volumes
    /// would take more than half of the pool, or too much of one of its shards. Nothing has changed
    /// then.
    pub fn set_pins(&self, name: &str, ranges: &PinnedRanges) -> VolumeResult {
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

/// The lines of the pool that all volumes together may pin.
pub(crate) fn pinned_lines_max(pool: &Pool) -> u64 {
    pool.recorded_lines() as u64 * pool.shards() as u64 / 2
}

/// The smallest shard, in lines of whole slabs, with which all these ranges may be pinned; zero if
/// there are none.
fn shard_lines_min(pool: &Pool, pins: &[Pins]) -> usize {
    let shards = pool.shards();
    let half = pins.iter().map(|pins| pins.ranges.lines()).sum::<u64>();
    let lines_in = |shard| pins.iter().map(|pins| pins.lines_in(shard)).sum::<u64>();
    // A shard of whole slabs retains five eighths of its lines.
    let most = (0..shards).map(|shard| (lines_in(shard) * 8).div_ceil(5)).max().unwrap_or(0);
    let lines = (half * 2).div_ceil(shards as u64).max(most);
    (lines.next_multiple_of(SLAB_BYTES / LINE_BYTES) as usize).min(pool.shard_slots())
}

/// Checks whether these ranges may replace the pinned ranges of a volume, beside the pinned ranges
/// of the other volumes. Ranges that take no more than before are accepted, even beyond the quota.
/// `shards` is the number of shards.
fn check(
    pool: &Pool,
    shards: usize,
    volume: &Volume,
    ranges: &PinnedRanges,
    others: &[Pins],
) -> Result<Pins, PinError> {
    let size_bytes = volume.size_bytes();
    let mut ranges = ranges.clone();
    if ranges.is_all() {
        ranges.clip(size_bytes);
    }
    let name = volume.name.clone();
    if !ranges.fits(size_bytes) {
        return Err(PinError::BeyondEnd { name, size_bytes });
    }
    let (before, lines) = (volume.pins.get(), ranges.lines());
    let others_lines = others.iter().map(|pins| pins.ranges.lines()).sum::<u64>();
    let lines_max = pinned_lines_max(pool);
    if lines > before.ranges.lines() && others_lines + lines > lines_max {
        return Err(PinError::Quota {
            name,
            needed_bytes: lines.saturating_mul(LINE_BYTES),
            others_bytes: others_lines * LINE_BYTES,
            bytes_max: lines_max * LINE_BYTES,
        });
    }
    let lines_by_shard = pinned_lines_by_shard((volume.id, volume.stripes), &ranges, shards);
    let lines_max = retained_lines_max(pool.recorded_lines()) as u64;
    for (shard, &lines) in lines_by_shard.iter().enumerate() {
        let all = lines + others.iter().map(|pins| pins.lines_in(shard)).sum::<u64>();
        if lines > before.lines_in(shard) && all > lines_max {
            let (needed_bytes, bytes_max) = (all * LINE_BYTES, lines_max * LINE_BYTES);
            return Err(PinError::Uneven { name, needed_bytes, bytes_max });
        }
    }
    Ok(Pins::new(ranges, lines_by_shard))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rig::{MIB, quiet_config, volume};
    use crate::{Runtime, VolumeError};
    use forebay_backend::MemoryBackend;
    use forebay_types::{ByteRange, Stripes};
    use forebay_volume::shard_of;

    #[test]
    fn a_shard_that_would_get_too_much_refuses() {
        let server = forebay_frontend_nbd::NbdServer::new();
        let runtime = Runtime::start(quiet_config(256 * MIB), &server).unwrap();
        let (shards, pool) = (runtime.shared().shards.len(), &runtime.shared().pool);
        assert!(shards > 1, "all lines are in one shard");
        let disk = Arc::new(MemoryBackend::new(1 << 30).unwrap());
        runtime.volumes().add(volume("v", disk)).unwrap();
        let id = runtime.named("v").unwrap().id;
        // Rows of four regions that belong to the first shard.
        let row_bytes = 4 * MIB;
        let mut rows = (0..1 << 30)
            .step_by(row_bytes as usize)
            .filter(|&offset| shard_of(id, Stripes::NONE, offset, shards) == 0);
        let fits = retained_lines_max(pool.shard_slots()) as u64 * LINE_BYTES / row_bytes;
        let mut pins = PinnedRanges::default();
        for offset in rows.by_ref().take(fits as usize) {
            pins.add(ByteRange::new(offset, row_bytes));
            runtime.volumes().set_pins("v", &pins).unwrap();
        }
        let before = runtime.status().unwrap().memory.pinned_bytes;
        assert_eq!(before, fits * row_bytes);
        let mut more = pins.clone();
        more.add(ByteRange::new(rows.next().unwrap(), row_bytes));
        let refused = runtime.volumes().set_pins("v", &more);
        let Err(VolumeError::Pin(PinError::Uneven { needed_bytes, .. })) = refused else {
            panic!("{refused:?}");
        };
        assert_eq!(needed_bytes, (fits + 1) * row_bytes);
        assert_eq!(runtime.status().unwrap().memory.pinned_bytes, before);
        // Other shards have space.
        let mut others = (0..1 << 30)
            .step_by(row_bytes as usize)
            .filter(|&offset| shard_of(id, Stripes::NONE, offset, shards) == 1);
        pins.add(ByteRange::new(others.next().unwrap(), row_bytes));
        runtime.volumes().set_pins("v", &pins).unwrap();
        runtime.stop(|_| {}).unwrap();
    }
}
