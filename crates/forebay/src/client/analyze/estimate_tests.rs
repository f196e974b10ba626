//! Tests with series of which the truth is known.

use super::*;
use crate::client::analyze::random::Random;
use proptest::prelude::*;

const RUNS: u64 = 1000;

/// The mean of a series of intervals, as a jackknife estimates it. Neighbours are correlated.
fn estimate_of_series(intervals: usize, correlation: f64, spread: f64, seed: u64) -> Estimate {
    let mut random = Random::new(seed);
    let noise = (1.0 - correlation * correlation).sqrt();
    let mut state = random.normal();
    let logs: Vec<f64> = (0..intervals)
        .map(|_| {
            state = correlation * state + noise * random.normal();
            spread * state
        })
        .collect();
    let sum: f64 = logs.iter().sum();
    let count = intervals as f64;
    let without: Vec<f64> = logs.iter().map(|log| (sum - log) / (count - 1.0)).collect();
    Estimate::of(LogRatio::jackknife(sum / count, &without).unwrap())
}

fn covered(intervals: usize, correlation: f64) -> u64 {
    let holds = |seed| {
        let estimate = estimate_of_series(intervals, correlation, 0.3, seed);
        (estimate.low..=estimate.high).contains(&1.0)
    };
    (0..RUNS).filter(|&seed| holds(seed)).count() as u64
}

#[test]
fn in_95_of_100_runs_the_interval_holds_the_truth_although_neighbours_are_alike() {
    for (intervals, correlation) in
        [(8, 0.0), (20, 0.0), (48, 0.0), (20, 0.3), (48, 0.3), (48, 0.5)]
    {
        let found = covered(intervals, correlation);
        assert!(found >= 950, "{found} of {RUNS} with {intervals} intervals, {correlation}");
    }
    // Of few intervals that are much alike, the correlation itself is not known well.
    for (intervals, correlation) in [(8, 0.3), (20, 0.5), (48, 0.7)] {
        let found = covered(intervals, correlation);
        assert!(found >= 920, "{found} of {RUNS} with {intervals} intervals, {correlation}");
    }
}

#[test]
fn independent_intervals_are_hardly_worth_less_than_with_student_alone() {
    let width = |seed| {
        let estimate = estimate_of_series(48, 0.0, 0.3, seed);
        (estimate.high / estimate.low).ln()
    };
    let mean = (0..RUNS).map(width).sum::<f64>() / RUNS as f64;
    let student = 2.0 * 2.012 * 0.3 / 48.0_f64.sqrt();
    assert!((1.0..1.3).contains(&(mean / student)), "{mean} and {student}");
}

#[test]
fn without_any_variation_the_interval_has_the_width_of_the_comparisons_own_errors() {
    let estimate = Estimate::of(LogRatio::jackknife(0.0, &[0.0; 40]).unwrap());
    assert!(estimate.low < 0.981 && estimate.high > 1.019, "{estimate:?}");
    assert!(estimate.low > 0.97 && estimate.high < 1.03, "{estimate:?}");
    assert_eq!(LogRatio::jackknife(0.0, &[0.0]), None);
}

fn any_estimate() -> impl Strategy<Value = Estimate> {
    (-3.0..6.0_f64, 0.01..1.0_f64).prop_map(|(log, reach)| Estimate {
        value: log.exp(),
        low: (log - reach).exp(),
        high: (log + reach).exp(),
    })
}

/// Comparisons with a little room for rounding.
fn below(a: f64, b: f64) -> bool {
    a <= b * (1.0 + 1e-9)
}

proptest! {
    #[test]
    fn two_estimates_as_one_cover_both_and_their_value_is_between(
        a in any_estimate(),
        b in any_estimate(),
    ) {
        let both = a.covering(b);
        prop_assert!(below(both.low, a.low.min(b.low)) && below(a.high.max(b.high), both.high));
        prop_assert!(below(a.value.min(b.value), both.value));
        prop_assert!(below(both.value, a.value.max(b.value)));
        let turned = b.covering(a);
        prop_assert!((both.value / turned.value - 1.0).abs() < 1e-9);
    }

    #[test]
    fn kinds_together_are_between_the_kinds(
        a in any_estimate(),
        b in any_estimate(),
        seconds in 0.001..1000.0_f64,
    ) {
        let whole = Estimate::together(&[(1.0, a), (seconds, b)]).unwrap();
        let parts: [fn(&Estimate) -> f64; 3] = [|one| one.value, |one| one.low, |one| one.high];
        for of in parts {
            prop_assert!(below(of(&a).min(of(&b)), of(&whole)));
            prop_assert!(below(of(&whole), of(&a).max(of(&b))));
        }
        prop_assert!(below(whole.low, whole.value) && below(whole.value, whole.high));
    }

    #[test]
    fn allowances_only_widen_an_interval(
        one in any_estimate(),
        (lower, higher, outside) in (-1.0..1.0_f64, -1.0..1.0_f64, 0.0..10.0_f64),
    ) {
        let wide = one.widened(lower, higher).with_outside(outside);
        prop_assert!(below(wide.low, one.low) && below(one.high, wide.high));
        prop_assert_eq!(wide.value, one.value);
    }
}

#[test]
fn what_is_added_to_both_sides_brings_a_ratio_closer_to_one() {
    let one = Estimate { value: 10.0, low: 8.0, high: 12.0 };
    // A hit of 50 us, and as much between server and client.
    let with = one.with_outside(1.0);
    assert_eq!((with.low, with.value, with.high), (4.5, 10.0, 12.0));
    let harm = Estimate { value: 0.5, low: 0.4, high: 0.6 }.with_outside(1.0);
    assert_eq!((harm.low, harm.high), (0.4, 0.8));
    assert_eq!(Estimate::together(&[]), None);
}

#[test]
fn the_more_certain_of_two_estimates_weighs_more_unless_they_disagree() {
    let of = |value: f64, reach: f64| Estimate { value, low: value / reach, high: value * reach };
    let near = of(5.0, 1.05).covering(of(5.5, 1.5));
    assert!((5.0..5.05).contains(&near.value), "{near:?}");
    let apart = of(4.5, 1.05).covering(of(10.0, 1.1));
    assert!((6.5..6.9).contains(&apart.value), "{apart:?}");
    assert!((apart.low - 4.5 / 1.05).abs() < 1e-9 && (apart.high - 11.0).abs() < 1e-9);
}

#[test]
fn the_quantiles_of_student_are_those_of_the_tables() {
    for (freedom, expected) in [(7.0, 2.3646), (10.0, 2.2281), (30.0, 2.0423), (1000.0, 1.9623)] {
        assert!((student_t(freedom) - expected).abs() < 0.003, "{freedom}");
    }
}
