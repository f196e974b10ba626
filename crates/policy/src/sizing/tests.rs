//! Settings, bounds and figures together.

use super::*;

const MIB: u64 = 1 << 20;

/// A process with 100 MiB, of which 64 MiB are for lines, in four shards.
fn bounds(missing_mib: u64) -> MemoryBounds {
    MemoryBounds::new(100 * MIB, 64 * MIB, missing_mib * MIB, 8 * MIB)
}

fn settings(memory_mib: u64, min_mib: u64, max_mib: u64) -> SizeSettings {
    let size = |mib: u64| (mib > 0).then_some(mib * MIB);
    SizeSettings { memory: size(memory_mib), min: size(min_mib), max: size(max_mib) }
}

/// The least and the wanted size in MiB, with a choice of `chosen_mib`.
fn sizes(settings: SizeSettings, chosen_mib: u64) -> (u64, u64) {
    let mut sizing = SizeControl::new(chosen_mib * MIB);
    let found = bounds(0).memory_use(64 * MIB, 64 * MIB);
    let (sample, _) = sizing.decide(&settings, &found, &MachineFigures::default());
    (sample.least_bytes / MIB, sample.wanted_bytes / MIB)
}

#[test]
fn sizes_are_whole_steps_below_the_maximum() {
    let bounds = bounds(16);
    assert_eq!((bounds.least_bytes / MIB, bounds.now_bytes / MIB), (44, 84));
    assert_eq!(
        [0, 44, 51, 52, 99, 100, 999].map(|mib| bounds.within(mib * MIB) / MIB),
        [44, 44, 44, 52, 92, 100, 100]
    );
    // 32 MiB, which any server needs, lie between 18 and 26 MiB and the next size.
    let small = MemoryBounds::new(66 * MIB, 64 * MIB, 0, 8 * MIB);
    assert_eq!((small.least_bytes / MIB, small.within(0) / MIB), (32, 34));
    let found = bounds.memory_use(64 * MIB, 20 * MIB);
    assert_eq!((found.unused_bytes / MIB, found.pending_bytes), (28, 0));
    let found = bounds.memory_use(64 * MIB, 50 * MIB);
    assert_eq!((found.unused_bytes, found.pending_bytes / MIB), (0, 2));
}

#[test]
fn settings_bound_the_size_that_is_set_or_chosen() {
    assert_eq!(sizes(settings(0, 0, 0), 76), (44, 76), "the server's choice");
    assert_eq!(sizes(settings(0, 84, 0), 76), (84, 84), "not below the minimum");
    assert_eq!(sizes(settings(0, 60, 68), 76), (60, 68), "not above the maximum");
    assert_eq!(sizes(settings(92, 60, 68), 76), (60, 92), "a maximum bounds only the choice");
    assert_eq!(sizes(settings(60, 0, 0), 76), (44, 60));
    assert_eq!(sizes(settings(1, 0, 0), 76), (44, 44), "nor below what the pool needs");
    // A minimum that the pool can have only rounded down must not exceed the size that is set.
    assert_eq!(sizes(settings(70, 66, 0), 76), (60, 68));
}

#[test]
fn a_size_that_is_set_applies_at_once_and_bounds_only_limit() {
    let change = |settings, is_size_set| {
        let (bytes, next) = SizeControl::new(92 * MIB).changed(&settings, &bounds(32), is_size_set);
        (bytes / MIB, next.target_bytes() / MIB)
    };
    assert_eq!(change(settings(84, 0, 0), true), (84, 68));
    assert_eq!(change(settings(0, 0, 0), true), (68, 68), "the choice begins with the size now");
    assert_eq!(change(settings(0, 0, 60), false), (60, 92));
    assert_eq!(change(settings(0, 76, 0), false), (76, 92));
    assert_eq!(change(settings(0, 44, 84), false), (68, 92));
}

#[test]
fn only_a_choice_of_the_server_grows() {
    let mut sizing = SizeControl::new(60 * MIB);
    assert!(!sizing.is_growth_due(&settings(60, 0, 0), 0));
    assert!(!sizing.is_growth_due(&settings(60, 0, 0), 100_000));
    assert!(!sizing.is_growth_due(&settings(0, 0, 0), 100_000), "the first minute begins");
    assert!(sizing.is_growth_due(&settings(0, 0, 0), 160_000));
    sizing.decide_growth(&settings(0, 0, 68), &bounds(40), 160_000, 0, Some(0.5));
    assert_eq!(sizing.growth_reason(), GrowthReason::Gain { gain: 0.5 });
    assert_eq!(sizing.target_bytes() / MIB, 68, "the maximum that was set");
}
