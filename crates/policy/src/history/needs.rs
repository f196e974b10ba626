//! What is needed in the current slot.

use forebay_types::{
    ByteRange, GRANULE_BYTES, GRANULE_LINES, Granule, HistoryRegion, LINE_BYTES, PART_BYTES,
    PART_LINES, REGION_BYTES,
};
use std::collections::BTreeMap;

/// The regions needed in the current slot, up to a limit. The first ones are kept, because a
/// forecast is worth most at the beginning of a slot.
#[derive(Clone, Debug)]
pub struct Needs {
    regions: BTreeMap<u64, SlotNeed>,
    regions_max: usize,
}

#[derive(Clone, Copy, Debug, Default)]
struct SlotNeed {
    parts: u64,
    lines: u32,
}

impl Needs {
    /// An empty set for at most `regions_max` regions.
    pub const fn new(regions_max: usize) -> Self {
        Self { regions: BTreeMap::new(), regions_max }
    }

    /// Records that `lines` lines of a range were needed: not in the pool, or there only because of
    /// a preload.
    pub fn record(&mut self, range: ByteRange, lines: u32) {
        if range.len == 0 || lines == 0 {
            return;
        }
        let (first, last) = (range.offset / PART_BYTES, (range.end() - 1) / PART_BYTES);
        let parts_per_region = REGION_BYTES / PART_BYTES;
        // A range over several regions: each gets its part of the lines.
        let lines_each = u64::from(lines).min(range.len.div_ceil(LINE_BYTES));
        let (begin, end) = (first / parts_per_region, last / parts_per_region);
        let lines_each = lines_each.div_ceil(end - begin + 1) as u32;
        for index in begin..=end {
            if self.regions.len() >= self.regions_max && !self.regions.contains_key(&index) {
                continue;
            }
            let base = index * parts_per_region;
            let low = first.max(base) - base;
            let high = last.min(base + parts_per_region - 1) - base;
            let need = self.regions.entry(index).or_default();
            need.parts |= u64::MAX >> (u64::BITS as u64 - 1 - (high - low)) << low;
            need.lines = need.lines.saturating_add(lines_each);
        }
    }

    /// Takes the recorded regions, and leaves an empty set.
    #[must_use]
    pub fn take(&mut self) -> Self {
        Self { regions: std::mem::take(&mut self.regions), regions_max: self.regions_max }
    }

    /// Changes the limit. Regions that are recorded already stay.
    pub const fn set_regions_max(&mut self, regions_max: usize) {
        self.regions_max = regions_max;
    }

    /// The number of regions.
    pub fn len(&self) -> usize {
        self.regions.len()
    }

    /// Whether nothing was needed.
    pub fn is_empty(&self) -> bool {
        self.regions.is_empty()
    }

    /// The lines of a granule that are in needed parts.
    pub fn lines_of(&self, granule: &Granule) -> u64 {
        let per_region = REGION_BYTES / GRANULE_BYTES;
        let need = self.regions.get(&(granule.index / per_region));
        let parts = need.map_or(0, |need| need.parts);
        let first = granule.index % per_region * (GRANULE_BYTES / PART_BYTES);
        let is_needed = |line: &u64| parts >> (first + line / PART_LINES) & 1 != 0;
        let lines = (0..GRANULE_LINES).filter(|line| granule.lines >> line & 1 != 0);
        lines.filter(is_needed).count() as u64
    }

    /// The regions as of one observation, in ascending order.
    pub fn regions(&self) -> impl Iterator<Item = HistoryRegion> {
        self.regions.iter().map(|(&index, need)| {
            let lines = need.lines.clamp(1, u32::from(u16::MAX)) as u16;
            HistoryRegion { index, parts: need.parts, weeks: 1, lines }
        })
    }
}
