use super::*;
use crate::testing::{ExactCurve, key};
use forebay_types::LINE_BYTES;
use proptest::prelude::*;

/// More memory than any estimator uses.
const PLENTY: usize = 1 << 20;

fn estimator(depth_lines: u64, rate_max: f64, limit: usize) -> CurveEstimator {
    let mut estimator = CurveEstimator::new(CurveConfig { depth_lines, rate_max });
    estimator.set_limit(limit);
    estimator
}

fn record(estimator: &mut CurveEstimator, accesses: &[u64]) {
    for &line in accesses {
        estimator.record(key(line));
    }
}

/// The curve by a list in the order of the last accesses: slow and obvious.
fn naive_miss_ratio(accesses: &[u64], lines: usize) -> f64 {
    let mut recent: Vec<u64> = Vec::new();
    let mut misses = 0;
    for &line in accesses {
        match recent.iter().position(|&other| other == line) {
            Some(distance) => {
                misses += usize::from(distance >= lines);
                recent.remove(distance);
            }
            None => misses += 1,
        }
        recent.insert(0, line);
    }
    misses as f64 / accesses.len() as f64
}

/// Sizes at which an estimate without sampling is exact: the borders of classes, in lines.
fn borders(depth_lines: u64) -> impl Iterator<Item = u64> {
    (0..=classes::count(depth_lines)).map(classes::first_of)
}

/// The mean and the maximum absolute error at sizes of up to one and a half times the distinct
/// lines, in 60 steps.
fn errors(curve: &MissRatioCurve, exact: &ExactCurve, distinct: u64) -> (f64, f64) {
    let of_size = (1..=60).map(|step| {
        let lines = (distinct * step / 40).max(1);
        let estimate = curve.miss_ratio(lines * LINE_BYTES).unwrap();
        (estimate - exact.miss_ratio(lines as usize)).abs()
    });
    let errors: Vec<f64> = of_size.collect();
    let max = errors.iter().copied().fold(0.0, f64::max);
    (errors.iter().sum::<f64>() / errors.len() as f64, max)
}

/// A sequence of well-mixed numbers.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 += 1;
        key(self.0)
    }

    /// From 0 to 1.
    fn share(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// One of `count` lines, by Zipf's law with exponent 1, approximately.
    fn zipf(&mut self, count: u64) -> u64 {
        ((count as f64).powf(self.share()) as u64).min(count) - 1
    }
}

/// A synthetic load, its distinct lines, and the largest mean and maximum errors allowed with 2,730
/// sampled lines.
struct Load {
    name: &'static str,
    accesses: Vec<u64>,
    distinct: u64,
    mean_max: f64,
    max_max: f64,
}

fn loads() -> Vec<Load> {
    const LINES: u64 = 60_000;
    const COUNT: u64 = 600_000;
    let mut random = Random(0);
    let uniform = (0..COUNT).map(|_| random.next() % LINES).collect();
    let mut random = Random(1 << 32);
    let zipf = (0..COUNT).map(|_| random.zipf(LINES)).collect();
    let looping = (0..COUNT).map(|n| n % LINES).collect();
    let mut random = Random(1 << 33);
    let scan_and_hot = (0..COUNT).map(|n| match n % 4 {
        0 => LINES / 10 + n / 4 % (LINES * 9 / 10),
        _ => random.next() % (LINES / 10),
    });
    vec![
        Load { name: "uniform", accesses: uniform, distinct: LINES, mean_max: 0.02, max_max: 0.05 },
        Load { name: "zipf", accesses: zipf, distinct: LINES, mean_max: 0.01, max_max: 0.03 },
        // A cliff: near it, an estimate may be on the wrong side.
        Load { name: "loop", accesses: looping, distinct: LINES, mean_max: 0.04, max_max: 0.5 },
        Load {
            name: "scan and hot",
            accesses: scan_and_hot.collect(),
            distinct: LINES,
            mean_max: 0.02,
            max_max: 0.1,
        },
    ]
}

#[test]
fn the_curve_of_sampled_lines_is_near_the_exact_one() {
    let mut failed = Vec::new();
    for load in loads() {
        let exact = ExactCurve::new(&load.accesses);
        for rate_max in [1.0, 1.0 / 16.0] {
            let mut estimator = estimator(2 * load.distinct, rate_max, PLENTY);
            record(&mut estimator, &load.accesses);
            estimator.self_check();
            assert!(estimator.rate() < 0.07, "{}: everything was sampled", load.name);
            let (mean, max) = errors(&estimator.curve().unwrap(), &exact, load.distinct);
            println!("{}, from rate {rate_max:.3}: mean {mean:.4}, max {max:.4}", load.name);
            if mean > load.mean_max || max > load.max_max {
                failed.push(load.name);
            }
        }
    }
    assert!(failed.is_empty(), "too large errors: {failed:?}");
}

#[test]
fn a_cliff_is_found_within_a_tenth_of_its_size() {
    let looping: Vec<u64> = (0..600_000).map(|n| n % 60_000).collect();
    let mut estimator = estimator(1 << 20, 1.0, PLENTY);
    record(&mut estimator, &looping);
    let curve = estimator.curve().unwrap();
    assert!(curve.miss_ratio(54_000 * LINE_BYTES).unwrap() > 0.9);
    assert!(curve.miss_ratio(68_000 * LINE_BYTES).unwrap() < 0.2);
    // One step sees a plateau; the cliff is four steps away.
    let steps = curve.steps(30_000 * LINE_BYTES, 10_000 * LINE_BYTES, 4, 4);
    let sizes: Vec<u64> = steps.iter().map(|step| step.bytes / LINE_BYTES).collect();
    assert_eq!(sizes, [10_000, 20_000, 40_000, 50_000, 60_000, 70_000]);
    assert!(steps[..4].iter().all(|step| step.hits_gained.abs() < 30_000.0), "{steps:?}");
    assert!(steps[5].hits_gained > 500_000.0, "{steps:?}");
}

proptest! {
    #[test]
    fn without_sampling_the_curve_is_exact(
        accesses in prop::collection::vec(0u64..300, 1..1500),
        depth in 300u64..4000,
    ) {
        let mut estimator = estimator(depth, 1.0, PLENTY);
        let exact = ExactCurve::new(&accesses);
        for (n, &line) in accesses.iter().enumerate() {
            estimator.record(key(line));
            if n % 64 == 0 {
                estimator.self_check();
            }
        }
        prop_assert_eq!(estimator.rate(), 1.0);
        let curve = estimator.curve().unwrap();
        prop_assert_eq!(curve.accesses(), accesses.len() as f64);
        prop_assert_eq!(curve.sampled_accesses(), accesses.len() as f64);
        for lines in borders(depth) {
            let naive = naive_miss_ratio(&accesses, lines as usize);
            prop_assert!((exact.miss_ratio(lines as usize) - naive).abs() < 1e-9);
            let estimate = curve.miss_ratio(lines * LINE_BYTES).unwrap();
            prop_assert!((estimate - naive).abs() < 1e-9, "{lines} lines: {estimate}, {naive}");
        }
    }

    #[test]
    fn memory_stays_within_any_limit(
        limits in prop::collection::vec(0usize..60_000, 1..6),
        depth in 1u64..1 << 22,
    ) {
        let mut estimator = CurveEstimator::new(CurveConfig { depth_lines: depth, rate_max: 1.0 });
        let mut random = Random(depth);
        for limit in limits {
            estimator.set_limit(limit);
            let is_on = limit >= CurveEstimator::bytes_min(estimator.config);
            prop_assert_eq!(estimator.curve().is_some(), is_on);
            for n in 0..20_000 {
                let line = if n % 2 == 0 { n } else { random.zipf(1 << 20) };
                estimator.record(key(line));
            }
            estimator.self_check();
            prop_assert!(!is_on || estimator.bytes() <= limit, "{} bytes", estimator.bytes());
            prop_assert!(is_on || estimator.heap_bytes() == 0);
        }
    }
}

#[test]
fn the_least_memory_is_enough_for_an_estimate() {
    for depth_lines in [1, 1_000, 32_768, 1 << 20, 1 << 40] {
        let config = CurveConfig { depth_lines, rate_max: 1.0 };
        let bytes_min = CurveEstimator::bytes_min(config);
        assert!(estimator(depth_lines, 1.0, bytes_min).curve().is_some(), "depth {depth_lines}");
        assert!(estimator(depth_lines, 1.0, bytes_min - 1).curve().is_none());
    }
    for (lines, volumes, estimates) in [(512, 1, 1), (512, 9, 2), (4096, 40, 14), (4096, 0, 0)] {
        let limits: Vec<usize> = CurveConfig::for_shard(lines).limits(lines, volumes).collect();
        assert_eq!(limits.len(), volumes);
        assert_eq!(limits.iter().filter(|&&limit| limit > 0).count(), estimates, "{limits:?}");
        assert!(limits.iter().sum::<usize>() <= lines * LINE_BYTES as usize / 1000);
    }
}

#[test]
fn accesses_without_memory_are_not_part_of_a_later_curve() {
    let mut estimator = estimator(1_000, 1.0, 0);
    record(&mut estimator, &[7; 1_000]);
    assert!(estimator.curve().is_none());
    estimator.set_limit(PLENTY);
    record(&mut estimator, &(0..500).collect::<Vec<u64>>());
    let curve = estimator.curve().unwrap();
    assert_eq!((curve.accesses(), curve.miss_ratio(900 * LINE_BYTES)), (500.0, Some(1.0)));
}

#[test]
fn the_sampling_rate_falls_until_the_samples_cover_the_depth() {
    let mut estimator = estimator(100_000, 1.0, PLENTY);
    let mut rate = 1.0;
    for line in 0..1_000_000 {
        estimator.record(key(line));
        assert!(estimator.rate() <= rate, "the rate rises");
        rate = estimator.rate();
    }
    let kept = kept(CAPACITY_MAX) as f64;
    assert!((rate - kept / 100_000.0).abs() < 1e-6, "{rate}");
    // The oldest lines were dropped, the youngest are still found: a second pass over the last
    // lines hits.
    let before = estimator.curve().unwrap();
    record(&mut estimator, &(950_000..1_000_000).collect::<Vec<u64>>());
    let after = estimator.curve().unwrap();
    let gained = after.hits(80_000 * LINE_BYTES) - before.hits(80_000 * LINE_BYTES);
    assert!((40_000.0..60_000.0).contains(&gained), "{gained}");
}

#[test]
fn a_decayed_curve_follows_a_new_load() {
    let mut estimator = estimator(100_000, 1.0, PLENTY);
    // Ten passes over 50,000 lines, then as many accesses to 1,000 other ones.
    record(&mut estimator, &(0..500_000).map(|n| n % 50_000).collect::<Vec<u64>>());
    let small = 2_000 * LINE_BYTES;
    assert!(estimator.curve().unwrap().miss_ratio(small).unwrap() > 0.95);
    for _ in 0..10 {
        record(&mut estimator, &(0..50_000).map(|n| (1 << 32) + n % 1_000).collect::<Vec<u64>>());
        estimator.decay(0.5);
    }
    let curve = estimator.curve().unwrap();
    assert!(curve.miss_ratio(small).unwrap() < 0.03, "{:?}", curve.miss_ratio(small));
    assert!((45_000.0..55_000.0).contains(&curve.accesses()), "{}", curve.accesses());
    estimator.decay(0.0);
    assert_eq!(estimator.curve().unwrap().miss_ratio(small), None);
}

#[test]
fn curves_of_shards_add_up_to_the_curve_of_the_volume() {
    // Each shard has a quarter of the lines, and so a quarter of the distances.
    let lines: Vec<u64> = (0..400_000).map(|n| key(n) % 40_000).collect();
    let exact = ExactCurve::new(&lines);
    let mut shards = [(); 4].map(|()| estimator(20_000, 0.25, PLENTY));
    for &line in &lines {
        shards[(key(line) % 4) as usize].record(key(line));
    }
    let mut curve = shards[0].curve().unwrap();
    shards[1..].iter().for_each(|shard| curve.add(&shard.curve().unwrap()));
    assert_eq!(curve.accesses(), 400_000.0);
    assert!((80_000 * LINE_BYTES..100_000 * LINE_BYTES).contains(&curve.depth_bytes()));
    let (mean, max) = errors(&curve, &exact, 40_000);
    assert!(mean < 0.01 && max < 0.03, "mean {mean}, max {max}");
}

#[test]
fn an_overflow_halves_all_counts_and_keeps_the_curve() {
    let mut estimator = estimator(1_000, 1.0, PLENTY);
    record(&mut estimator, &(0..100_000).map(|n| n % 100).collect::<Vec<u64>>());
    let before = estimator.curve().unwrap();
    let check = |estimator: &CurveEstimator, accesses: f64| {
        let curve = estimator.curve().unwrap();
        assert_eq!(curve.accesses(), accesses);
        for lines in [50, 99, 112, 500] {
            let ratio = |curve: &MissRatioCurve| curve.miss_ratio(lines * LINE_BYTES).unwrap();
            assert!((ratio(&curve) - ratio(&before)).abs() < 0.001, "{lines}");
        }
    };
    for weight in [8, 4, 2, 1] {
        let counts = estimator.counts.as_mut().unwrap();
        assert!(counts.halve());
        assert_eq!(counts.weight, weight);
        check(&estimator, 100_000.0);
    }
    assert!(!estimator.counts.as_mut().unwrap().halve());
    estimator.accesses /= 2;
    check(&estimator, 50_000.0);
    // A count at its limit: the access is counted, and everything is halved.
    estimator.counts.as_mut().unwrap().beyond = u32::MAX;
    estimator.record(key(1 << 40));
    assert_eq!(estimator.counts.as_ref().unwrap().beyond, u32::MAX / 2 + 1);
    assert_eq!(estimator.accesses, 25_000);
}

#[test]
fn accesses_to_what_a_warm_up_has_read_are_no_misses() {
    let mut estimator = estimator(1 << 20, 1.0, PLENTY);
    (0..1_000).for_each(|line| estimator.record_preload(key(line)));
    // Known lines stay where they are.
    (0..1_000).for_each(|line| estimator.record_preload(key(line)));
    record(&mut estimator, &(0..1_000).collect::<Vec<_>>());
    let curve = estimator.curve().unwrap();
    assert_eq!(curve.accesses(), 1_000.0);
    let miss_ratio = |lines: u64| curve.miss_ratio(lines * LINE_BYTES).unwrap();
    assert!(miss_ratio(1_024) < 0.01 && miss_ratio(900) > 0.99, "{curve:?}");
    // What it has not read is missed at every size.
    record(&mut estimator, &(5_000..6_000).collect::<Vec<_>>());
    let miss_ratio = estimator.curve().unwrap().miss_ratio(1 << 30).unwrap();
    assert!((miss_ratio - 0.5).abs() < 0.01, "{miss_ratio}");
}

#[test]
fn a_volume_whose_lines_do_not_return_is_read_once() {
    const DEPTH: u64 = 8 * 4_096;
    let mut estimator = estimator(DEPTH, 1.0 / 4.0, PLENTY);
    assert!(!estimator.is_read_once());
    // Not before a full pool was read.
    record(&mut estimator, &(0..4_000).collect::<Vec<_>>());
    assert!(!estimator.is_read_once());
    record(&mut estimator, &(4_000..20_000).collect::<Vec<_>>());
    assert!(estimator.is_read_once());
    estimator.decay(0.5);
    assert!(estimator.is_read_once());
    estimator.self_check();
    // One access in ten is to a line that was read before.
    let mixed: Vec<u64> =
        (20_000..44_000).map(|n| if n % 10 == 0 { n - 4_001 } else { n }).collect();
    record(&mut estimator, &mixed);
    assert!(!estimator.is_read_once());
    // Circles of three shards, and of one and a half.
    for (lines, is_read_once) in [(DEPTH * 3 / 8, true), (DEPTH * 3 / 16, false)] {
        let mut circle = self::estimator(DEPTH, 1.0 / 4.0, PLENTY);
        record(&mut circle, &(0..3 * DEPTH).map(|n| n % lines).collect::<Vec<_>>());
        assert_eq!(circle.is_read_once(), is_read_once, "{lines} lines");
    }
    // Too few samples.
    let mut small = self::estimator(8 * 64, 1.0, PLENTY);
    record(&mut small, &(0..500).collect::<Vec<_>>());
    assert!(!small.is_read_once());
    record(&mut small, &(500..513).collect::<Vec<_>>());
    assert!(small.is_read_once());
}
