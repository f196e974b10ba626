//! Estimates from known costs with added noise, outliers and useless values.

use super::*;
use crate::testing::key as mix;
use proptest::prelude::*;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// Seven reads of each size from 4 KiB to 1 MiB.
fn reads(ns: impl Fn(u64, u64) -> f64) -> Vec<ReadTime> {
    let sizes = (0..9).map(|step| (4 * KIB) << step);
    let each = |bytes| (0..7).map(move |turn| (bytes, turn));
    let times = sizes.flat_map(each).map(|(bytes, turn)| (bytes, ns(bytes, turn)));
    times.map(|(bytes, ns)| ReadTime { bytes, ns: ns as u64 }).collect()
}

fn line(fixed_us: f64, mib_per_second: f64) -> impl Fn(u64) -> f64 {
    move |bytes| fixed_us * 1e3 + bytes as f64 * 1e9 / (mib_per_second * MIB as f64)
}

/// A deterministic pseudo-random number from 0 to 1.
fn chance(bytes: u64, turn: u64) -> f64 {
    mix(bytes ^ turn << 40) as f64 / u64::MAX as f64
}

#[test]
fn the_fixed_cost_is_at_most_a_quarter_at_the_threshold() {
    for (fixed_us, mib_per_second, threshold_bytes) in [
        // At 120 MiB/s, 12.5 ms transfer 1.5 MiB; three times that is 4.5 MiB.
        (12_500.0, 120.0, 8 * MIB),
        (80.0, 2048.0, 512 * KIB),
        (100.0, 500.0, 256 * KIB),
        // 3 * 1 ms * 64 MiB/s is 196.6 KiB, so the next power of two is 256 KiB.
        (1000.0, 64.0, 256 * KIB),
        (0.0, 100.0, 4 * KIB),
        (1e6, 1000.0, 32 * MIB),
    ] {
        let line = line(fixed_us, mib_per_second);
        let cost = SplitCost::of(&reads(|bytes, _| line(bytes))).unwrap();
        assert_eq!(cost.threshold_bytes, threshold_bytes, "{cost:?}");
        assert!((cost.fixed_us() - fixed_us).abs() < 1.0, "{cost:?}");
        let bytes_per_second = cost.bytes_per_second.unwrap() as f64;
        assert!((bytes_per_second / (mib_per_second * MIB as f64) - 1.0).abs() < 0.001);
        let share = fixed_us * 1e3 / line(threshold_bytes);
        assert!(share <= 0.25 || threshold_bytes == 32 * MIB, "{share}");
    }
}

#[test]
fn a_rotating_disk_is_estimated_within_a_factor_of_two() {
    let line = line(8000.0, 120.0);
    let cost = SplitCost::of(&reads(|bytes, turn| {
        line(bytes) + 8.33e6 * chance(bytes, turn) + 4e6 * chance(turn, bytes)
    }));
    let cost = cost.unwrap();
    assert!((4 * MIB..=8 * MIB).contains(&cost.threshold_bytes), "{cost:?}");
    assert!((12_000.0..16_000.0).contains(&cost.fixed_us()), "{cost:?}");
}

#[test]
fn equal_times_for_all_sizes_give_the_largest_threshold() {
    let cost = SplitCost::of(&reads(|_, _| 5e6)).unwrap();
    let all = SplitCost {
        threshold_bytes: GATHER_BELOW_BYTES_MAX,
        fixed_ns: 5_000_000,
        bytes_per_second: None,
    };
    assert_eq!(cost, all);
    // A slightly negative slope is noise.
    let cost = SplitCost::of(&reads(|bytes, _| 5e6 - bytes as f64)).unwrap();
    assert_eq!((cost.threshold_bytes, cost.bytes_per_second), (GATHER_BELOW_BYTES_MAX, None));
}

#[test]
fn useless_times_are_rejected() {
    assert_eq!(SplitCost::of(&[]), Err(Unclear::TooFew));
    let three: Vec<_> =
        reads(|_, _| 1e6).into_iter().filter(|time| time.bytes <= 16 * KIB).collect();
    assert_eq!(SplitCost::of(&three), Err(Unclear::TooFew));
    assert_eq!(SplitCost::of(&reads(|_, _| 0.0)), Err(Unclear::TooQuick));
    let mostly_zero = |bytes, _| if bytes == MIB { 1e6 } else { 0.0 };
    assert_eq!(SplitCost::of(&reads(mostly_zero)), Err(Unclear::TooQuick));
    let falling = |bytes, _| 1e12 / bytes as f64;
    let larger = Err(Unclear::LargerIsQuicker);
    assert_eq!(SplitCost::of(&reads(|bytes, _| 10e6 - 8.0 * bytes as f64)), larger);
    assert_eq!(SplitCost::of(&reads(falling)), larger);
    assert_eq!(Unclear::TooFew.to_string(), "fewer than 4 sizes could be read");
}

#[test]
fn a_set_threshold_overrides_measurement_and_default() {
    let cost = SplitCost { threshold_bytes: MIB, fixed_ns: 1, bytes_per_second: None };
    assert_eq!(gather_below(Some(0), Some(&cost)), (0, ThresholdSource::Set));
    assert_eq!(gather_below(None, Some(&cost)), (MIB, ThresholdSource::Measured));
    let default = (GATHER_BELOW_DEFAULT_BYTES, ThresholdSource::Default);
    assert_eq!(gather_below(None, None), default);
}

/// 200 estimates of one disk whose times vary: by few long delays of `delay_us` on average, and by
/// a factor that is mostly between `1 / spread` and `spread`.
fn estimates(fixed_us: f64, delay_us: f64, spread: f64) -> Vec<Result<SplitCost, Unclear>> {
    let line = line(fixed_us, 1024.0);
    let one = |seed: u64| {
        SplitCost::of(&reads(|bytes, turn| {
            let at = |which: u64| chance(bytes ^ seed << 48 ^ which << 32, turn).max(1e-9);
            let delay = -at(0).ln() * delay_us * 1e3;
            // The sum of three has about a normal distribution.
            let factor = spread.powf((at(1) + at(2) + at(3)) * 2.0 - 3.0);
            line(bytes) * factor + delay
        }))
    };
    (0..200).map(one).collect()
}

#[test]
fn measurements_of_one_disk_agree_or_say_that_they_are_not_certain() {
    for fixed_us in [0.0, 10.0, 50.0, 200.0] {
        for delay_us in [0.0, 20.0, 500.0] {
            for spread in [1.0, 1.1, 1.5, 3.0, 10.0] {
                let estimates = estimates(fixed_us, delay_us, spread);
                let mut sure: Vec<u64> = estimates
                    .iter()
                    .flatten()
                    .map(|cost| cost.threshold_bytes.min(ALIKE_BYTES))
                    .collect();
                sure.sort_unstable();
                let case = format!("{fixed_us} us, {delay_us} us, {spread}: {sure:?}");
                // All but the lowest and the highest two of a hundred.
                let outer = sure.len() / 50;
                let inner = &sure[outer..sure.len() - outer];
                if let (Some(least), Some(most)) = (inner.first(), inner.last()) {
                    assert!(most / least <= 8, "{case}");
                }
                // Noise is found where it is large, and only there.
                let is_quiet = spread == 1.0 || spread <= 1.5 && delay_us > 100.0;
                let is_noisy = spread >= 3.0 && fixed_us <= 10.0 && delay_us < 100.0;
                assert!(!is_quiet || sure.len() == estimates.len(), "{case}");
                assert!(!is_noisy || sure.len() <= estimates.len() / 10, "{case}");
            }
        }
    }
}

proptest! {
    #[test]
    fn one_outlier_in_seven_reads_changes_the_estimate_little(
        fixed_us in 10.0..20_000.0f64,
        mib_per_second in 10.0..5000.0f64,
        wild in proptest::collection::vec(0..10_000_000_000u64, 9),
        order: u64,
    ) {
        let line = line(fixed_us, mib_per_second);
        let clean = reads(|bytes, turn| line(bytes) * (1.0 + 0.02 * chance(bytes, turn)));
        let mut times = clean.clone();
        for (at, ns) in wild.into_iter().enumerate() {
            times[at * 7 + (mix(order ^ at as u64) % 7) as usize].ns = ns;
        }
        times.sort_by_key(|time| mix(order ^ time.ns ^ time.bytes));
        let (there, here) = (SplitCost::of(&clean).unwrap(), SplitCost::of(&times).unwrap());
        let ratio = here.threshold_bytes as f64 / there.threshold_bytes as f64;
        prop_assert!((0.5..=2.0).contains(&ratio), "{there:?} became {here:?}");
        let ratio = here.fixed_ns as f64 / (fixed_us * 1e3);
        prop_assert!((0.5..2.0).contains(&ratio) || fixed_us < 100.0, "{here:?}");
    }

    #[test]
    fn every_estimate_is_within_its_limits(
        times in proptest::collection::vec((0..=u64::MAX, 0..=u64::MAX), 0..20)
    ) {
        let times: Vec<_> = times.into_iter().map(|(bytes, ns)| ReadTime { bytes, ns }).collect();
        if let Ok(cost) = SplitCost::of(&times) {
            prop_assert!(cost.threshold_bytes.is_power_of_two());
            prop_assert!((LINE_BYTES..=GATHER_BELOW_BYTES_MAX).contains(&cost.threshold_bytes));
            prop_assert!(cost.bytes_per_second != Some(0));
        }
    }

    #[test]
    fn the_threshold_never_falls_as_the_fixed_cost_rises(
        fixed_us in 0.0..10_000.0f64, more_us in 0.0..10_000.0f64, mib_per_second in 1.0..5000.0f64
    ) {
        let of = |fixed_us| {
            let line = line(fixed_us, mib_per_second);
            SplitCost::of(&reads(|bytes, _| line(bytes))).unwrap().threshold_bytes
        };
        prop_assert!(of(fixed_us + more_us + 1.0) >= of(fixed_us));
    }
}
