//! The access history of a volume: what is needed at which time of the day and week.
//!
//! The week has 672 slots of a quarter of an hour. The history of a slot lists the regions of
//! 1 MiB with lines that were needed in it: read from the disk, or preloaded and then read. Lines
//! that are in the pool anyway need no forecast, and are not recorded. For each region it has the
//! parts of 16 KiB that were needed last, and in which of the last eight weeks the region was
//! needed.
//!
//! A forecast for a slot knows two patterns, by the same time of other days and weeks:
//!
//! - *daily*: needed on each of the last days. Rejected if it would have been wrong a week ago: the
//!   region was needed eight days ago, but not seven days ago.
//! - *weekly*: needed on this day of each of the last weeks. Rejected if it would have been wrong
//!   yesterday: the region was needed eight days ago, but not yesterday.
//!
//! Days and weeks that were not observed say nothing. A [`Demand`] says how many days or weeks are
//! required; [`Confidence`] chooses it by the use of earlier forecasts. At the lowest demand, a
//! daily job is forecast from its third day on, and a weekly one from its second week on. A job
//! that runs on working days is wrongly forecast only on its first Saturday, and a job that has
//! ended at most once. Parts are forecast if they were needed on at least half of those days. A few
//! lines that were read once are no pattern: a single week counts only for regions of which many
//! lines were needed.
//!
//! The history is bounded: if it is full, the least needed regions are dropped. It has no clock:
//! the caller names the slot, in local time.

mod confidence;
mod needs;
mod pattern;
mod tracker;

pub use confidence::{Confidence, ConfidenceChange, Demand};
pub use needs::Needs;
pub use tracker::{SlotPoll, SlotTracker};

use forebay_types::{
    GRANULE_BYTES, Granule, HistoryRegion, HistorySlot, LINE_BYTES, LINE_VALUE_HOT, PART_BYTES,
    PART_LINES, REGION_BYTES, SLOTS_PER_DAY, SLOTS_PER_WEEK, TimeSlot,
};
use pattern::{DAYS, DayPattern, is_similar};

/// The last three weeks in [`HistoryRegion::weeks`]. A region that was needed in none of them is
/// dropped.
const WEEKS_KEPT: u8 = 0b111;
const GRANULES_PER_REGION: u64 = REGION_BYTES / GRANULE_BYTES;
const PARTS_PER_GRANULE: u64 = GRANULE_BYTES / PART_BYTES;

/// The access history of a volume. See the module.
#[derive(Clone, Debug)]
pub struct AccessHistory {
    /// One for each slot of the week.
    slots: Vec<HistorySlot>,
    region_count: usize,
    regions_max: usize,
}

/// What a slot probably needs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Forecast {
    /// The lines, in ascending order; all of them hot.
    pub granules: Vec<Granule>,
    /// Their bytes.
    pub bytes: u64,
    /// The regions that they are in.
    pub regions: usize,
    /// The regions that are needed daily. The others are needed weekly.
    pub daily_regions: usize,
    /// Bytes that are likely as well, but exceed the budget.
    pub bytes_left: u64,
}

/// A region that a slot probably needs.
struct RegionCandidate {
    index: u64,
    parts: u64,
    is_daily: bool,
    /// Needed lines per million lines to read, times their likelihood.
    worth: u64,
}

impl AccessHistory {
    /// An empty history of at most `regions_max` regions, of all slots together. Each takes 24
    /// bytes.
    ///
    /// # Panics
    /// If `regions_max` is zero.
    pub fn new(regions_max: usize) -> Self {
        let slots = vec![HistorySlot::default(); SLOTS_PER_WEEK as usize];
        Self::restored(slots, regions_max)
    }

    /// A history with these slots, one for each slot of the week.
    ///
    /// # Panics
    /// If `regions_max` is zero, the number of slots is wrong, or a slot breaks a rule of its type.
    pub fn restored(slots: Vec<HistorySlot>, regions_max: usize) -> Self {
        let region_count = slots.iter().map(|slot| slot.regions.len()).sum();
        let mut history = Self { slots, region_count, regions_max };
        history.self_check();
        history.set_regions_max(regions_max);
        history
    }

    /// Its slots, in the order of the week.
    pub fn slots(&self) -> &[HistorySlot] {
        &self.slots
    }

    /// The regions of all slots.
    pub const fn region_count(&self) -> usize {
        self.region_count
    }

    /// The slots of the week that were observed.
    pub fn observed_count(&self) -> usize {
        self.slots.iter().filter(|slot| slot.weeks != 0).count()
    }

    /// Changes the bound. A larger history drops its least needed regions.
    ///
    /// # Panics
    /// If `regions_max` is zero.
    pub fn set_regions_max(&mut self, regions_max: usize) {
        assert!(regions_max > 0, "a history needs room");
        self.regions_max = regions_max;
        self.forget_least();
    }

    /// Records what was needed in a slot that was observed from its beginning to its end. Each slot
    /// counts once: a repeated hour, at the end of daylight saving time, is ignored. Returns
    /// whether it counted.
    pub fn observe(&mut self, slot: TimeSlot, needs: &Needs) -> bool {
        let observed = &mut self.slots[usize::from(slot.of_week())];
        if observed.weeks != 0 && observed.last == slot {
            return false;
        }
        let age = match slot.0.checked_sub(observed.last.0) {
            Some(slots) => slots / SLOTS_PER_WEEK,
            // The clock was wrong when the slot was observed, or is wrong now.
            None => 1,
        };
        self.region_count -= observed.regions.len();
        observed.last = slot;
        observed.weeks = aged(observed.weeks, age) | 1;
        let mut former = std::mem::take(&mut observed.regions).into_iter().peekable();
        let mut regions = Vec::with_capacity(needs.len().max(former.len()));
        let unneeded = |region: HistoryRegion| {
            let weeks = aged(region.weeks, age);
            (weeks & WEEKS_KEPT != 0).then_some(HistoryRegion { weeks, ..region })
        };
        for needed in needs.regions() {
            while let Some(region) = former.next_if(|region| region.index < needed.index) {
                regions.extend(unneeded(region));
            }
            let before = former.next_if(|region| region.index == needed.index);
            regions.push(before.map_or(needed, |before| needed_again(before, needed, age)));
        }
        regions.extend(former.filter_map(unneeded));
        self.region_count += regions.len();
        observed.regions = regions;
        self.forget_least();
        true
    }

    /// What a slot probably needs, by patterns that meet the demand. If that exceeds
    /// `budget_bytes`, only the regions that save most reads for their size.
    pub fn forecast(&self, slot: TimeSlot, demand: Demand, budget_bytes: u64) -> Forecast {
        let (observed, all) = self.evidence(slot);
        let of_regions = all.chunk_by(|a, b| a.1.index == b.1.index);
        let mut candidates: Vec<RegionCandidate> =
            of_regions.filter_map(|evidence| candidate(observed, evidence, demand)).collect();
        candidates.sort_unstable_by_key(|it| (std::cmp::Reverse(it.worth), it.index));
        let mut forecast = Forecast::default();
        candidates.retain(|candidate| {
            let bytes = u64::from(candidate.parts.count_ones()) * PART_BYTES;
            let fits = forecast.bytes + bytes <= budget_bytes;
            *(if fits { &mut forecast.bytes } else { &mut forecast.bytes_left }) += bytes;
            fits
        });
        forecast.regions = candidates.len();
        forecast.daily_regions = candidates.iter().filter(|it| it.is_daily).count();
        candidates.sort_unstable_by_key(|candidate| candidate.index);
        forecast.granules = candidates.iter().flat_map(granules).collect();
        forecast
    }

    /// The observations of the same time on each of the last seven days: the weeks in which each
    /// was observed, and the regions in ascending order, each with its day, 0 for yesterday. All
    /// weeks are as of that day.
    fn evidence(&self, slot: TimeSlot) -> ([u8; DAYS], Vec<(usize, HistoryRegion)>) {
        let (mut observed, mut all) = ([0; DAYS], Vec::new());
        for (day, observed) in observed.iter_mut().enumerate() {
            let Some(then) = slot.0.checked_sub((day as u64 + 1) * SLOTS_PER_DAY) else { continue };
            let former = &self.slots[usize::from(TimeSlot(then).of_week())];
            // A slot that was observed later: the clock was set back. It says nothing.
            let Some(slots) = then.checked_sub(former.last.0) else { continue };
            let age = slots / SLOTS_PER_WEEK;
            *observed = aged(former.weeks, age);
            let as_of_then = |region: &HistoryRegion| {
                let weeks = aged(region.weeks, age);
                (weeks != 0).then_some((day, HistoryRegion { weeks, ..*region }))
            };
            all.extend(former.regions.iter().filter_map(as_of_then));
        }
        all.sort_by_key(|(_, region)| region.index);
        (observed, all)
    }

    /// If the history exceeds its bound, drops the least needed regions, down to fifteen sixteenths
    /// of the bound, so that this is rare.
    fn forget_least(&mut self) {
        if self.region_count <= self.regions_max {
            return;
        }
        let kept = self.regions_max - self.regions_max / 16;
        let worth = |region: &HistoryRegion| region.weeks.count_ones() * u32::from(region.lines);
        let all = || self.slots.iter().flat_map(|slot| &slot.regions);
        let mut worths: Vec<u32> = all().map(worth).collect();
        let at = worths.len() - kept;
        let (_, &mut least, _) = worths.select_nth_unstable(at);
        // Of equally needed regions, those of the last slots of the week are kept.
        let mut spared = kept - all().filter(|region| worth(region) > least).count();
        for slot in self.slots.iter_mut().rev() {
            slot.regions.retain(|region| {
                let is_spared = worth(region) == least && spared > 0;
                spared -= usize::from(is_spared);
                is_spared || worth(region) > least
            });
        }
        self.region_count = self.slots.iter().map(|slot| slot.regions.len()).sum();
    }

    /// Verifies the whole state.
    ///
    /// # Panics
    /// If a rule is broken.
    pub fn self_check(&self) {
        assert_eq!(self.slots.len(), SLOTS_PER_WEEK as usize);
        let count: usize = self.slots.iter().map(|slot| slot.regions.len()).sum();
        assert_eq!(count, self.region_count);
        for (at, slot) in self.slots.iter().enumerate() {
            let is_ordered = slot.regions.is_sorted_by(|a, b| a.index < b.index);
            assert!(is_ordered, "the regions of slot {at} are in order");
            if slot.weeks == 0 {
                assert!(slot.regions.is_empty(), "slot {at} was never observed");
            } else {
                assert_eq!(usize::from(slot.last.of_week()), at);
            }
            for region in &slot.regions {
                assert!(region.parts != 0 && region.weeks != 0 && region.lines > 0, "{region:?}");
                assert!(region.weeks & !slot.weeks == 0, "{region:?} was not observed");
            }
        }
    }
}

/// The bits of `weeks`, `age` weeks later.
fn aged(weeks: u8, age: u64) -> u8 {
    u32::try_from(age).ok().and_then(|age| weeks.checked_shl(age)).unwrap_or(0)
}

/// A region that is needed again, `age` weeks later.
fn needed_again(before: HistoryRegion, now: HistoryRegion, age: u64) -> HistoryRegion {
    // Other parts of the same region are other data.
    let earlier = if is_similar(before.parts, now.parts) { aged(before.weeks, age) } else { 0 };
    let lines = (u32::from(before.lines) + u32::from(now.lines)).div_ceil(2) as u16;
    HistoryRegion { weeks: earlier | now.weeks, lines, ..now }
}

/// A region, if it meets the demand. `evidence` has at most one entry per day.
fn candidate(
    observed: [u8; DAYS],
    evidence: &[(usize, HistoryRegion)],
    demand: Demand,
) -> Option<RegionCandidate> {
    let pattern = DayPattern::new(observed, evidence);
    let lines = evidence.iter().map(|(_, region)| u64::from(region.lines)).max()?;
    let (days, weeks) = pattern.repeats();
    let (is_daily, is_weekly) = (days >= demand.days, weeks >= demand.weeks);
    if !is_daily && !is_weekly {
        return None;
    }
    let parts = pattern.parts(if is_daily { days } else { 0 }, is_weekly);
    if parts == 0 {
        // The days agree on the region, but on no part of it.
        return None;
    }
    let read = u64::from(parts.count_ones()) * PART_LINES;
    // Two days are as much of a pattern as one week.
    let repeats = u64::from(days.max(2 * weeks));
    let worth = lines.min(read) * 1_000_000 / read * repeats / (repeats + 1);
    Some(RegionCandidate { index: evidence[0].1.index, parts, is_daily, worth })
}

/// The lines of a candidate.
fn granules(candidate: &RegionCandidate) -> impl Iterator<Item = Granule> + use<> {
    let RegionCandidate { index, parts, .. } = *candidate;
    (0..GRANULES_PER_REGION).filter_map(move |granule| {
        let bits = (0..PARTS_PER_GRANULE)
            .filter(|part| parts >> (granule * PARTS_PER_GRANULE + part) & 1 != 0);
        let of_part = |part: u64| ((1 << PART_LINES) - 1) << (part * PART_LINES);
        let lines: u32 = bits.map(of_part).sum();
        let value = lines.count_ones() as u8 * LINE_VALUE_HOT;
        let index = index * GRANULES_PER_REGION + granule;
        (lines != 0).then_some(Granule { index, lines, value })
    })
}

const _: () = assert!(PART_LINES * PARTS_PER_GRANULE == u32::BITS as u64);
const _: () = assert!(GRANULE_BYTES / LINE_BYTES == u32::BITS as u64);

#[cfg(test)]
mod tests;
