//! Tests of the history: patterns, and a comparison with a simple oracle.

use super::*;
use forebay_types::ByteRange;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

const MIB: u64 = 1 << 20;
const ANY_BUDGET: u64 = u64::MAX;
/// A Monday, 00:00.
const MONDAY: u64 = 3_000 * SLOTS_PER_WEEK;
const NINE: u64 = 36;

/// The slot of a day, counted from [`MONDAY`], at nine.
const fn at_nine(day: u64) -> TimeSlot {
    TimeSlot(MONDAY + day * SLOTS_PER_DAY + NINE)
}

/// Needs of whole regions.
fn needs(regions: impl IntoIterator<Item = u64>) -> Needs {
    let mut needs = Needs::new(usize::MAX);
    regions.into_iter().for_each(|index| needs.record(ByteRange::new(index * MIB, MIB), 256));
    needs
}

/// The regions in a forecast.
fn regions(forecast: &Forecast) -> Vec<u64> {
    let set: BTreeSet<u64> =
        forecast.granules.iter().map(|granule| granule.index / GRANULES_PER_REGION).collect();
    set.into_iter().collect()
}

/// What [`Confidence`] demands at first.
const DEMAND: Demand = Demand { days: 2, weeks: 1 };

/// The days on which region 7 is forecast at nine, if it is needed on the days that `is_needed`
/// says, after three weeks in which nothing was, and nothing else happens.
fn days_forecast(days: u64, is_needed: impl Fn(u64) -> bool) -> Vec<u64> {
    let (mut history, mut forecast_days) = (AccessHistory::new(1_000), Vec::new());
    for day in 0..21 {
        assert!(history.observe(at_nine(day), &needs([])));
    }
    for day in 0..days {
        let slot = at_nine(21 + day);
        let forecast = history.forecast(slot, DEMAND, ANY_BUDGET);
        if !regions(&forecast).is_empty() {
            assert_eq!(regions(&forecast), [7]);
            assert_eq!((forecast.bytes, forecast.bytes_left), (MIB, 0));
            forecast_days.push(day);
        }
        assert!(history.observe(slot, &needs(is_needed(day).then_some(7))));
        history.self_check();
    }
    forecast_days
}

#[test]
fn a_daily_job_is_forecast_from_the_third_day_on() {
    assert_eq!(days_forecast(21, |_| true), (2..21).collect::<Vec<_>>());
}

#[test]
fn a_weekly_job_is_forecast_on_its_day_from_the_second_week_on() {
    assert_eq!(days_forecast(35, |day| day % 7 == 3), [10, 17, 24, 31]);
}

#[test]
fn a_job_of_working_days_is_forecast_on_one_saturday_only() {
    let days = days_forecast(35, |day| day % 7 < 5);
    let weekends: Vec<u64> = days.iter().copied().filter(|day| day % 7 >= 5).collect();
    assert_eq!(weekends, [5]);
    assert!((7..35).filter(|day| day % 7 < 5).all(|day| days.contains(&day)), "{days:?}");
}

#[test]
fn days_that_agree_on_no_part_of_a_region_are_no_pattern() {
    // Yesterday's parts are similar to those of each day before, of which no two are.
    let mut history = AccessHistory::new(10);
    let part_bytes = PART_LINES * LINE_BYTES;
    for (day, parts) in [0..1, 1..2, 2..3, 3..4, 0..4].into_iter().enumerate() {
        let mut needs = Needs::new(usize::MAX);
        for part in parts {
            needs.record(ByteRange::new(part * part_bytes, part_bytes), PART_LINES as u32);
        }
        assert!(history.observe(at_nine(day as u64), &needs));
    }
    assert_eq!(regions(&history.forecast(at_nine(5), DEMAND, ANY_BUDGET)), []);
}

#[test]
fn a_daily_job_that_ends_is_forecast_once_more() {
    let days = days_forecast(60, |day| day < 21);
    assert_eq!(days, (2..=21).collect::<Vec<_>>());
}

#[test]
fn a_day_without_the_job_costs_one_more_forecast_at_most() {
    let days = days_forecast(35, |day| day != 15);
    let missed: Vec<u64> = (2..35).filter(|day| !days.contains(day)).collect();
    // On day 16 it looks like the end. Day 22 has the exception of day 15, a week later.
    assert_eq!(missed, [16, 22]);
}

#[test]
fn something_needed_once_is_forecast_once_in_the_next_week_if_it_was_much() {
    assert_eq!(days_forecast(40, |day| day == 3), [10]);
    let mut history = AccessHistory::new(10);
    for lines in [7, 8] {
        let mut needs = Needs::new(10);
        (0..lines).for_each(|line| {
            needs.record(ByteRange::new(lines * MIB + line * LINE_BYTES, LINE_BYTES), 1);
        });
        history.observe(at_nine(lines), &needs);
    }
    let forecast = |day| regions(&history.forecast(at_nine(day), DEMAND, ANY_BUDGET));
    assert_eq!([forecast(14), forecast(15)], [vec![], vec![8]]);
}

#[test]
fn days_that_were_not_observed_say_nothing() {
    let mut history = AccessHistory::new(10);
    for day in [1, 4, 12] {
        let slot = at_nine(day);
        history.observe(slot, &needs([5]));
    }
    assert_eq!(regions(&history.forecast(at_nine(13), DEMAND, ANY_BUDGET)), [5]);
    // More than eight weeks later, all is too old.
    assert_eq!(regions(&history.forecast(at_nine(80), DEMAND, ANY_BUDGET)), []);
}

#[test]
fn other_parts_of_a_region_are_no_repeat() {
    let mut history = AccessHistory::new(10);
    for day in 0..14 {
        let mut needs = Needs::new(10);
        let offset = MIB + (day * 5 + 7) % 64 * PART_BYTES;
        needs.record(ByteRange::new(offset, LINE_BYTES), 1);
        assert_eq!(history.forecast(at_nine(day), DEMAND, ANY_BUDGET).granules, []);
        history.observe(at_nine(day), &needs);
    }
}

#[test]
fn a_part_is_forecast_only_if_it_is_needed_itself() {
    // Each day needs the first parts of a region, and another one.
    let mut history = AccessHistory::new(1_000);
    for day in 0..14 {
        let mut needs = Needs::new(10);
        needs.record(ByteRange::new(3 * MIB, 512), 1);
        needs.record(ByteRange::new(3 * MIB + (day * 5 + 7) % 64 * PART_BYTES, 4_096), 1);
        history.observe(at_nine(day), &needs);
    }
    let forecast = history.forecast(at_nine(14), DEMAND, ANY_BUDGET);
    let first = Granule { index: 3 * GRANULES_PER_REGION, lines: 0xf, value: 16 };
    assert_eq!(forecast.granules, [first]);
    assert!(first.is_hot());
    assert_eq!((forecast.bytes, forecast.regions), (PART_BYTES, 1));
    assert_eq!(forecast.daily_regions, 1);
}

#[test]
fn a_budget_is_spent_on_regions_that_save_most_reads() {
    let mut history = AccessHistory::new(1_000);
    for day in 0..5 {
        let mut needs = needs([5]);
        // One line in each part of a region, and a region needed on the last two days only.
        (0..64).for_each(|part| {
            needs.record(ByteRange::new(6 * MIB + part * PART_BYTES, 512), 1);
        });
        if day >= 3 {
            needs.record(ByteRange::new(7 * MIB, MIB), 256);
        }
        history.observe(at_nine(day), &needs);
    }
    let forecast = |budget| history.forecast(at_nine(5), DEMAND, budget);
    assert_eq!(regions(&forecast(MIB)), [5]);
    assert_eq!(regions(&forecast(2 * MIB)), [5, 7]);
    assert_eq!(regions(&forecast(3 * MIB)), [5, 6, 7]);
    assert_eq!((forecast(MIB).bytes, forecast(MIB).bytes_left), (MIB, 2 * MIB));
    assert_eq!(forecast(MIB - 1).granules, []);
}

#[test]
fn a_slot_counts_once_and_a_clock_set_back_is_survived() {
    let mut history = AccessHistory::new(10);
    assert!(history.observe(at_nine(1), &needs([1])));
    let before = history.slots().to_vec();
    assert!(!history.observe(at_nine(1), &needs([2])), "a repeated hour");
    assert_eq!(history.slots(), before);
    // A clock that was wrong by ten years, and is right again.
    for day in [3_640, 3_641] {
        history.observe(at_nine(day), &needs([8]));
    }
    for day in 2..5 {
        assert!(history.observe(at_nine(day), &needs([1])));
        history.self_check();
    }
    assert_eq!(regions(&history.forecast(at_nine(5), DEMAND, ANY_BUDGET)), [1]);
    let all = Demand { days: 1, weeks: 1 };
    // A jump forward: everything is too old.
    assert_eq!(history.forecast(at_nine(700), all, ANY_BUDGET), Forecast::default());
    assert!(history.observe(TimeSlot(u64::MAX), &needs([1])));
    assert_eq!(history.forecast(TimeSlot(0), all, ANY_BUDGET), Forecast::default());
}

#[test]
fn a_full_history_drops_the_least_needed_regions() {
    let mut history = AccessHistory::new(64);
    for day in 0..3 {
        history.observe(at_nine(day), &needs(0..16));
    }
    // A scan of the disk, once.
    let mut scan = Needs::new(1_000);
    (100..1_100).for_each(|index| scan.record(ByteRange::new(index * MIB, 4_096), 1));
    history.observe(TimeSlot(at_nine(3).0 - 7), &scan);
    history.self_check();
    assert_eq!(history.region_count(), 60);
    let forecast = history.forecast(at_nine(3), DEMAND, ANY_BUDGET);
    assert_eq!(regions(&forecast), (0..16).collect::<Vec<_>>());
    history.set_regions_max(32);
    assert_eq!(history.region_count(), 30);
    history.self_check();
    let again = AccessHistory::restored(history.slots().to_vec(), 8);
    assert_eq!(again.region_count(), 8);
    again.self_check();
}

#[test]
fn needs_are_recorded_by_part_and_bounded() {
    let mut needs = Needs::new(2);
    // From the last part of region 0 to the first of region 1.
    needs.record(ByteRange::new(MIB - 512, 1_024), 2);
    needs.record(ByteRange::new(2 * MIB - PART_BYTES, PART_BYTES), 4);
    needs.record(ByteRange::new(9 * MIB, 4_096), 1);
    needs.record(ByteRange::new(0, 0), 1);
    needs.record(ByteRange::new(0, 512), 0);
    let found: Vec<_> = needs.regions().map(|it| (it.index, it.parts, it.lines)).collect();
    assert_eq!(found, [(0, 1 << 63, 1), (1, 1 | 1 << 63, 5)]);
    assert_eq!(needs.len(), 2);
    let lines_of = |index, lines| needs.lines_of(&Granule { index, lines, value: 1 });
    assert_eq!([lines_of(8, u32::MAX), lines_of(8, 0xf0), lines_of(8, 0x18)], [4, 0, 1]);
    assert_eq!([lines_of(15, u32::MAX), lines_of(14, u32::MAX), lines_of(72, 1)], [4, 0, 0]);
    let mut whole = Needs::new(10);
    whole.record(ByteRange::new(0, 3 * MIB), u32::MAX);
    assert!(whole.regions().all(|region| region.parts == u64::MAX && region.lines == 256));
    assert!(!whole.is_empty() && Needs::new(1).is_empty());
}

/// All observations, and nothing else. Each region always needs the same parts, and many lines.
#[derive(Default)]
struct Oracle(BTreeMap<u64, BTreeSet<u64>>);

impl Oracle {
    /// Whether a region was needed some days before a slot, within eight weeks of the last
    /// observation of that day of the week. `None` if that is not known.
    fn was_needed(&self, region: u64, slot: u64, days: u64) -> Option<bool> {
        let needed = slot.checked_sub(days * SLOTS_PER_DAY).and_then(|then| self.0.get(&then));
        needed.filter(|_| days <= 56).map(|needed| needed.contains(&region))
    }

    fn run(&self, region: u64, slot: u64, step: u64) -> u32 {
        let days = (1..=56).filter(|days| days % step == 0);
        let known = days.filter_map(|days| self.was_needed(region, slot, days));
        known.take_while(|needed| *needed).count() as u32
    }

    fn forecast(&self, slot: u64, demand: Demand) -> Vec<u64> {
        let is_likely = |region: &u64| {
            let needed = |days| self.was_needed(*region, slot, days);
            let was_last_week = needed(8) == Some(true);
            let is_daily = !(was_last_week && needed(7) == Some(false))
                && self.run(*region, slot, 1) >= demand.days;
            let is_weekly = !(was_last_week && needed(1) == Some(false))
                && self.run(*region, slot, 7) >= demand.weeks;
            is_daily || is_weekly
        };
        let all: BTreeSet<u64> = self.0.values().flatten().copied().collect();
        all.into_iter().filter(is_likely).collect()
    }
}

/// The parts that a region always needs.
fn parts_of(region: u64) -> impl Iterator<Item = u64> {
    (0..64).filter(move |part| (region + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> part & 1 != 0)
}

proptest! {
    /// Observations at nine, on random days with gaps of up to ten weeks.
    #[test]
    fn a_forecast_equals_that_of_an_oracle_with_all_observations(
        days in prop::collection::vec(
            (prop_oneof![6 => 1u64..4, 1 => 4u64..70], prop::collection::btree_set(0u64..6, 0..5)),
            1..40,
        ),
        days_demanded in 1u32..9,
        weeks_demanded in 1u32..5,
    ) {
        let demand = Demand { days: days_demanded, weeks: weeks_demanded };
        let (mut history, mut oracle, mut day) = (AccessHistory::new(10_000), Oracle::default(), 0);
        for (gap, needed) in days {
            day += gap;
            let slot = at_nine(day);
            prop_assert_eq!(
                regions(&history.forecast(slot, demand, ANY_BUDGET)),
                oracle.forecast(slot.0, demand),
                "on day {}", day
            );
            let mut needs = Needs::new(100);
            for &region in &needed {
                for part in parts_of(region) {
                    needs.record(ByteRange::new(region * MIB + part * PART_BYTES, 4_096), 1);
                }
            }
            prop_assert!(history.observe(slot, &needs));
            history.self_check();
            oracle.0.insert(slot.0, needed);
        }
    }

    #[test]
    fn a_history_and_its_forecasts_stay_within_their_bounds(
        slots in prop::collection::vec(
            (0u64..3_000, prop::collection::vec((0u64..80, 0u64..64, 1u64..9), 0..40)), 1..40,
        ),
        regions_max in 1usize..60,
        budget in 0u64..40 * MIB,
        days_demanded in 1u32..4,
    ) {
        let demand = Demand { days: days_demanded, weeks: 1 };
        let mut history = AccessHistory::new(regions_max);
        for (slot, ranges) in slots {
            let slot = TimeSlot(MONDAY + slot);
            let mut needs = Needs::new(30);
            for (region, part, lines) in ranges {
                let range = ByteRange::new(region * MIB + part * PART_BYTES, lines * LINE_BYTES);
                needs.record(range, lines as u32);
            }
            prop_assert!(needs.len() <= 30);
            history.observe(slot, &needs);
            history.self_check();
            prop_assert!(history.region_count() <= regions_max);
            for later in [1, SLOTS_PER_DAY, SLOTS_PER_WEEK] {
                let forecast =
                    history.forecast(TimeSlot(slot.0 + later), demand, budget);
                let granules = &forecast.granules;
                prop_assert!(granules.is_sorted_by(|a, b| a.index < b.index));
                let lines: u64 = granules.iter().map(|it| u64::from(it.line_count())).sum();
                prop_assert_eq!(lines * LINE_BYTES, forecast.bytes);
                prop_assert!(forecast.bytes <= budget);
                prop_assert!(granules.iter().all(|granule| granule.is_hot()));
                prop_assert!(forecast.daily_regions <= forecast.regions);
            }
        }
    }
}
