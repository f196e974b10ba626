//! Tests with synthetic loads: what both comparisons say together holds the known truth, whichever
//! of them errs.

use super::super::comparison::Pair;
use super::*;
use crate::client::analyze::random::Random;

const RUNS: u64 = 1000;

/// A load of which the truth is known.
#[derive(Clone, Copy)]
struct Load {
    /// How many times as fast a served request is, beside all others without a cache.
    effect: f64,
    /// The response time of a held-out request as a part of that in the phase `measure`: below 1
    /// if requests wait for each other at the disk.
    emptied: f64,
    /// The response time in the phase `measure` as a part of that in the other phase: not 1 if the
    /// load is not the same.
    other_load: f64,
    /// How much neighbouring intervals resemble each other.
    correlation: f64,
}

const LOAD: Load = Load { effect: 4.0, emptied: 1.0, other_load: 1.0, correlation: 0.0 };

/// Intervals with the response times of their requests: served, and held out, in milliseconds.
fn intervals(
    count: usize,
    (served, held): (Option<f64>, f64),
    correlation: f64,
    random: &mut Random,
) -> Vec<Interval> {
    let noise = (1.0 - correlation * correlation).sqrt();
    let mut states = [random.normal(), random.normal()];
    let mut one = |requests: u64, mean_ms: f64, at: usize| {
        states[at] = correlation * states[at] + noise * random.normal();
        let seconds = requests as f64 * mean_ms / 1e3 * (0.2 * states[at]).exp();
        Times { requests, seconds }
    };
    (0..count)
        .map(|_| Interval {
            weight: 1.0,
            pairs: vec![Pair {
                served: served.map_or(Times::default(), |mean| one(1000, mean, 0)),
                held: one(if served.is_some() { 20 } else { 1000 }, held, 1),
            }],
        })
        .collect()
}

impl Load {
    fn judge(self, seed: u64) -> Judgement {
        let mut random = Random::new(seed);
        let bare = 8.0;
        let without = (None, bare * self.other_load);
        let with = (Some(bare / self.effect), bare * self.emptied);
        let measure = intervals(24, without, self.correlation, &mut random);
        let accelerate = intervals(48, with, self.correlation, &mut random);
        Judgement::of(&measure, &accelerate, Terms { share: 0.02, ..Terms::default() })
    }

    /// Runs whose interval holds the truth.
    fn inside(self) -> usize {
        let holds = |seed| {
            let ratio = self.judge(seed).ratio.unwrap();
            (ratio.low..=ratio.high).contains(&self.effect)
        };
        (0..RUNS).filter(|&seed| holds(seed)).count()
    }
}

#[test]
fn the_interval_holds_the_truth_if_both_comparisons_are_right() {
    for effect in [1.0, 4.0, 0.7, 100.0] {
        for correlation in [0.0, 0.5] {
            let inside = Load { effect, correlation, ..LOAD }.inside();
            assert!(inside >= 950, "{inside} of {RUNS}: {effect}, {correlation}");
        }
    }
}

/// Held-out requests meet a disk that the cache has emptied, or one that works for the cache.
#[test]
fn the_interval_holds_the_truth_where_requests_wait_for_each_other() {
    for emptied in [0.3, 0.45, 0.9, 1.5] {
        for correlation in [0.0, 0.5] {
            let inside = Load { emptied, correlation, ..LOAD }.inside();
            assert!(inside >= 940, "{inside} of {RUNS}: {emptied}, {correlation}");
        }
    }
}

#[test]
fn the_interval_holds_the_truth_where_the_load_of_the_phase_measure_was_another_one() {
    for other_load in [0.3, 0.8, 1.2, 3.0] {
        let inside = Load { other_load, ..LOAD }.inside();
        assert!(inside >= 940, "{inside} of {RUNS}: {other_load}");
    }
}

#[test]
fn without_an_effect_none_is_reported_in_at_least_95_of_100_runs() {
    for correlation in [0.0, 0.5] {
        let load = Load { effect: 1.0, correlation, ..LOAD };
        let none = |seed: &u64| load.judge(*seed).verdict == Verdict::NoMeasurableBenefit;
        let found = (0..RUNS).filter(none).count();
        assert!(found >= 950, "{found} of {RUNS}: {correlation}");
    }
}

#[test]
fn writes_from_memory_are_compared_with_the_phase_measure_only() {
    let mut random = Random::new(3);
    let measure = intervals(24, (None, 8.0), 0.0, &mut random);
    let accelerate = intervals(48, (Some(0.02), 30.0), 0.0, &mut random);
    let terms = Terms { share: 0.02, ..Terms::default() };
    let deferred = Judgement::of(&measure, &accelerate, Terms { is_deferred: true, ..terms });
    assert_eq!(deferred.ratio.map(|one| one.value), deferred.measure.map(|one| one.value));
    let ratio = deferred.ratio.unwrap();
    // A client adds up to 100 us to 20 us.
    assert!(ratio.low < 80.0 && ratio.high < 600.0, "{ratio:?}");
    let early = Judgement::of(&measure[..7], &accelerate, Terms { is_deferred: true, ..terms });
    assert_eq!((early.verdict, early.ratio), (Verdict::TooLittleData, None));
    // No write is held out beside others, and the phase `measure` was too short.
    let mut alone = accelerate.clone();
    alone.iter_mut().for_each(|interval| interval.pairs[0].held = Times::default());
    let none = Judgement::of(&[], &alone, Terms { is_deferred: true, ..terms });
    assert_eq!((none.verdict, none.ratio), (Verdict::TooLittleData, None));
    let fair = Judgement::of(&measure, &accelerate, terms);
    assert!(fair.ratio.unwrap().high > 1000.0, "{fair:?}");
}

#[test]
fn what_the_hold_out_itself_changes_widens_the_interval_of_a_busy_disk() {
    let mut random = Random::new(4);
    let measure = intervals(24, (None, 8.0), 0.0, &mut random);
    let accelerate = intervals(48, (Some(1.0), 8.0), 0.0, &mut random);
    let of = |busy, added_io| {
        let terms = Terms { share: 0.02, busy, added_io, ..Terms::default() };
        Judgement::of(&measure, &accelerate, terms).ratio.unwrap()
    };
    let (idle, busy) = (of(0.0, 0.1), of(1.0, 0.1));
    assert!((busy.high / idle.high - 1.1).abs() < 1e-9, "{busy:?} {idle:?}");
    // Of 1,020 requests, 20 take eight times as long.
    assert!((1.1..1.2).contains(&(idle.low / busy.low)), "{busy:?} {idle:?}");
    assert_eq!(idle.value, busy.value);
    // Without the hold-out, the disk would have nothing to do.
    assert_eq!(of(1.0, 1.0).low, idle.low);
}

#[test]
fn a_volume_is_judged_by_the_kinds_that_can_be_compared() {
    let mut random = Random::new(5);
    let measure = intervals(24, (None, 8.0), 0.0, &mut random);
    let accelerate = intervals(48, (Some(1.0), 8.0), 0.0, &mut random);
    let none = Judgement::of(&[], &[], Terms::default());
    let terms = Terms { share: 0.02, ..Terms::default() };
    let reads = Judgement::of(&measure, &accelerate, terms);
    let whole = Whole::of(&reads, &none);
    assert_eq!((whole.of, whole.ratio), (Requests::All, reads.ratio));
    let mut uncounted = accelerate.clone();
    uncounted.iter_mut().for_each(|interval| interval.pairs[0].held = Times::default());
    let writes = Judgement::of(&[], &uncounted, terms);
    assert_eq!((writes.verdict, writes.ratio), (Verdict::NotCompared, None));
    let whole = Whole::of(&reads, &writes);
    assert_eq!((whole.of, whole.ratio), (Requests::Reads, reads.ratio));
    // Writes that the cache does not help take most of the time.
    let slow = intervals(48, (Some(8.0), 8.0), 0.0, &mut random);
    let writes = Judgement::of(&measure, &slow, terms);
    let value = Whole::of(&reads, &writes).ratio.unwrap().value;
    assert!((1.5..2.1).contains(&value), "16 of 9 ms: {value}");
}
