//! What warm lists, warm-ups and pins need to know about the slots.

use crate::index::Slots;
use crate::line::meta::{DETACHED, LineTable, PRELOADED, RETAINED};
use crate::{LineKey, Slot};
use forebay_types::{LINE_VALUE_MAX, VolumeId};

/// A count of lines for each volume, indexed by the volume's number; zero beyond the end.
#[derive(Debug, Default)]
pub(crate) struct LineCounts(Vec<u64>);

impl LineCounts {
    pub(crate) fn count(&mut self, volume: VolumeId) {
        self.add(volume, 1);
    }

    fn add(&mut self, volume: VolumeId, lines: u64) {
        let volume = usize::from(volume.0);
        if self.0.len() <= volume {
            self.0.resize(volume + 1, 0);
        }
        self.0[volume] += lines;
    }

    fn get(&self, volume: VolumeId) -> u64 {
        self.0.get(usize::from(volume.0)).copied().unwrap_or(0)
    }

    fn forget(&mut self, volume: VolumeId) {
        if let Some(count) = self.0.get_mut(usize::from(volume.0)) {
            *count = 0;
        }
    }

    pub(crate) const fn metadata_bytes(&self) -> usize {
        self.0.capacity() * size_of::<u64>()
    }
}

/// Resets the counts of a volume, because the volume is removed.
pub(crate) fn forget_counts<M>(slots: &mut Slots<M>, volume: VolumeId) {
    slots.admitted.forget(volume);
    slots.evicted.forget(volume);
    slots.preloads_in_vain.forget(volume);
    slots.forecast.forget(volume);
    slots.forecast_used.forget(volume);
}

/// Records the first use of a line that was preloaded.
pub(crate) fn touch_first<M: LineTable>(slots: &mut Slots<M>, slot: Slot) {
    let line = *slots.get(slot);
    if !line.has(RETAINED) && slots.policy.on_first_use(slot) {
        slots.forecast_used.count(line.key.volume());
    }
}

/// Makes the policy wait again for the first use of a preloaded line that was not used yet.
pub(crate) fn forecast_again<M: LineTable>(slots: &mut Slots<M>, slot: Slot) {
    let line = *slots.get(slot);
    if line.has(PRELOADED) && !line.has(RETAINED) && slots.policy.forecast_again(slot) {
        slots.forecast.count(line.key.volume());
    }
}

/// Counts lines that are preloaded for the current forecast.
pub(crate) fn count_forecast<M>(slots: &mut Slots<M>, volume: VolumeId, lines: u64) {
    slots.forecast.add(volume, lines);
}

/// See [`crate::begin_forecast`].
pub(crate) fn begin_forecast<M>(slots: &mut Slots<M>) {
    slots.policy.begin_forecast();
    slots.miniatures.begin_forecast();
}

/// See [`crate::end_former_forecasts`].
pub(crate) fn end_former_forecasts<M>(slots: &mut Slots<M>, lines_max: usize) -> bool {
    slots.miniatures.end_former_forecasts(lines_max);
    slots.policy.end_former_forecasts(lines_max)
}

/// The slots for warm lists, warm-ups and pins. Borrowed from [`Slots::warm`].
pub struct WarmView<'a, M>(pub(crate) &'a Slots<M>);

impl<M: LineTable> WarmView<'_, M> {
    /// Whether a slot can be reserved without an eviction.
    pub fn has_free_slot(&self) -> bool {
        super::slabs::has_free_slot(self.0)
    }

    /// Lines of pinned ranges of a volume that are in the pool and cannot be evicted.
    pub fn retained_lines(&self, volume: VolumeId) -> u64 {
        self.0.retained.lines_of(volume)
    }

    /// Preloaded lines of a volume that were evicted before they were read, since the volume was
    /// added.
    pub fn preloaded_in_vain(&self, volume: VolumeId) -> u64 {
        self.0.preloads_in_vain.get(volume)
    }

    /// The lines of a volume that became part of the then current forecast: preloaded for it, or
    /// found in the pool, unused since an earlier preload. The second number counts those that a
    /// client read before the next forecast began.
    pub fn forecast_lines(&self, volume: VolumeId) -> (u64, u64) {
        (self.0.forecast.get(volume), self.0.forecast_used.get(volume))
    }

    /// Lines of a volume that came into the pool since the volume was added.
    pub fn admitted_lines(&self, volume: VolumeId) -> u64 {
        self.0.admitted.get(volume)
    }

    /// Lines of a volume that were evicted to make room for others since the volume was added.
    pub fn evicted_lines(&self, volume: VolumeId) -> u64 {
        self.0.evicted.get(volume)
    }

    /// Calls `each` with the lines in `count` slots from `first` on that have valid sectors, and
    /// with their value to the policy. Lines of pinned ranges are left out: they are read again
    /// because they are pinned. Returns the next slot, or `None` at the end. The driver
    /// unlocks the shard between calls, because a large pool takes long to scan.
    pub fn values(
        &self,
        first: Slot,
        count: Slot,
        mut each: impl FnMut(LineKey, u8),
    ) -> Option<Slot> {
        let next = first.saturating_add(count).min(self.0.used());
        for slot in first..next {
            let line = self.0.get(slot);
            let is_known = line.flags & (DETACHED | RETAINED) == 0;
            if line.key != LineKey::NONE && is_known && line.valid != 0 {
                let value = self.0.policy.value(slot);
                debug_assert!(value <= LINE_VALUE_MAX);
                each(line.key, value);
            }
        }
        (next < self.0.used()).then_some(next)
    }
}
