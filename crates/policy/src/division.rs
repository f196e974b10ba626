//! How a pool could be divided between volumes by their miss-ratio curves.
//!
//! The shares with the most hits by the curves of all volumes are found greedily, one unit after
//! the other. Each curve is replaced by its upper hull first: a policy that resists loops serves a
//! loop that does not fit in proportion to its share, while the curve, which is that of LRU, has no
//! hits before the whole loop fits.
//!
//! The pool is not divided by these shares (`docs/decisions/0032-one-eviction-for-all-volumes.md`).
//! They show what a division would bring.

use crate::MissRatioCurve;

/// The unit of shares: the pool divided by this.
const UNITS: usize = 32;
/// The largest size up to which hulls are searched, in units. Curves reach eight times the pool.
const DEPTH_UNITS_MAX: u64 = 8 * UNITS as u64;
/// With fewer sampled accesses, no division is computed.
const SAMPLED_MIN: f64 = 1_000.0;

/// A volume in the cache.
#[derive(Clone, Debug)]
pub struct VolumeShare {
    /// Its curve.
    pub curve: MissRatioCurve,
    /// Its data in the cache, in bytes.
    pub cached_bytes: u64,
}

/// A division of a pool between volumes.
#[derive(Clone, Debug, PartialEq)]
pub struct Division {
    /// The share of each volume, in bytes.
    pub shares_bytes: Vec<u64>,
    /// The share of all accesses that this division would turn into hits, compared with the current
    /// one, by the hulls of the curves; from 0 to 1.
    pub gain: f64,
}

impl Division {
    /// The division of a pool of `pool_bytes` with the most hits by the curves. `None` for fewer
    /// than two volumes, and while too few accesses are known.
    pub fn by_curves(volumes: &[VolumeShare], pool_bytes: u64) -> Option<Self> {
        let sampled: f64 = volumes.iter().map(|volume| volume.curve.sampled_accesses()).sum();
        let unit_bytes = pool_bytes / UNITS as u64;
        if volumes.len() < 2 || sampled < SAMPLED_MIN || unit_bytes == 0 {
            return None;
        }
        let hulls: Vec<Vec<f64>> =
            volumes.iter().map(|volume| hull(&volume.curve, unit_bytes)).collect();
        let units = divide(&hulls);
        let hits: f64 = hulls.iter().zip(&units).map(|(hull, &units)| hull[units]).sum();
        let now = volumes.iter().zip(&hulls);
        let now: f64 = now.map(|(volume, hull)| at(hull, volume.cached_bytes, unit_bytes)).sum();
        let accesses: f64 = volumes.iter().map(|volume| volume.curve.accesses()).sum();
        Some(Self {
            shares_bytes: units.iter().map(|&units| units as u64 * unit_bytes).collect(),
            gain: ((hits - now) / accesses).clamp(0.0, 1.0),
        })
    }
}

/// The hits of a volume with each number of units up to the whole pool: the upper hull of its
/// curve.
fn hull(curve: &MissRatioCurve, unit_bytes: u64) -> Vec<f64> {
    let count = (curve.depth_bytes() / unit_bytes).clamp(UNITS as u64, DEPTH_UNITS_MAX) as usize;
    let hits: Vec<f64> = (0..=count).map(|units| curve.hits(units as u64 * unit_bytes)).collect();
    let mut hull = vec![hits[0]];
    while hull.len() <= UNITS {
        let from = hull.len() - 1;
        let slope = |to: usize| (hits[to] - hull[from]) / (to - from) as f64;
        let steepest =
            (from + 1..=count).max_by(|&one, &other| slope(one).total_cmp(&slope(other)));
        let to = steepest.unwrap_or(from + 1);
        let slope = if to <= count { slope(to).max(0.0) } else { 0.0 };
        (from..to).for_each(|_| hull.push(hull[hull.len() - 1] + slope));
    }
    hull.truncate(UNITS + 1);
    hull
}

/// The hits of a volume with `bytes`, by its hull.
fn at(hull: &[f64], bytes: u64, unit_bytes: u64) -> f64 {
    let units = (bytes as f64 / unit_bytes as f64).min(UNITS as f64);
    let below = (units as usize).min(UNITS - 1);
    hull[below] + (hull[below + 1] - hull[below]) * (units - below as f64)
}

/// Gives each unit to the volume that gains most by it. Units that gain nothing are shared out
/// equally.
fn divide(hulls: &[Vec<f64>]) -> Vec<usize> {
    let mut units = vec![0; hulls.len()];
    for _ in 0..UNITS {
        let gain = |at: usize| hulls[at][units[at] + 1] - hulls[at][units[at]];
        let best = (0..units.len()).max_by(|&one, &other| {
            gain(one).total_cmp(&gain(other)).then(units[other].cmp(&units[one]))
        });
        units[best.expect("there are volumes")] += 1;
    }
    units
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::key;
    use crate::{CurveConfig, CurveEstimator};
    use forebay_types::LINE_BYTES;

    const LINES: u64 = 1_024;
    const POOL: u64 = LINES * LINE_BYTES;

    /// A volume with `cached` lines after `count` accesses.
    fn volume(cached: u64, count: u64, line: impl Fn(u64) -> u64) -> VolumeShare {
        let config = CurveConfig { depth_lines: 8 * LINES, rate_max: 1.0 };
        let mut estimator = CurveEstimator::new(config);
        estimator.set_limit(1 << 20);
        for n in 0..count {
            estimator.record(key(line(n)));
        }
        VolumeShare { curve: estimator.curve().unwrap(), cached_bytes: cached * LINE_BYTES }
    }

    fn lines(division: &Division) -> Vec<u64> {
        division.shares_bytes.iter().map(|bytes| bytes / LINE_BYTES).collect()
    }

    /// Accesses in a fixed order without a pattern.
    fn mixed(n: u64, lines: u64) -> u64 {
        key(n + 1) % lines
    }

    #[test]
    fn a_hot_set_gets_its_lines_and_a_loop_that_does_not_fit_the_rest() {
        let looped = volume(900, 20_000, |n| n % (2 * LINES));
        let hot = volume(124, 20_000, |n| mixed(n, 256));
        let division = Division::by_curves(&[looped, hot], POOL).unwrap();
        let found = lines(&division);
        assert!((224..=320).contains(&found[1]), "{found:?}");
        assert_eq!(found.iter().sum::<u64>(), LINES);
        assert!((0.1..0.4).contains(&division.gain), "{}", division.gain);
    }

    #[test]
    fn the_faster_volume_gets_more() {
        let fast = volume(512, 40_000, |n| mixed(n, 4_000));
        let slow = volume(512, 5_000, |n| mixed(n, 4_000));
        let found = lines(&Division::by_curves(&[fast, slow], POOL).unwrap());
        assert!(found[0] > 900, "{found:?}");
    }

    #[test]
    fn a_division_that_exists_already_gains_nothing() {
        let volumes = |cached| {
            [
                volume(cached, 20_000, |n| mixed(n, 256)),
                volume(LINES - cached, 20_000, |n| 10_000 + n),
            ]
        };
        let gain = |cached| Division::by_curves(&volumes(cached), POOL).unwrap().gain;
        assert!(gain(300) < 0.01, "{}", gain(300));
        assert!(gain(100) > 0.2, "{}", gain(100));
    }

    #[test]
    fn without_accesses_or_other_volumes_nothing_is_divided() {
        let some = || volume(10, 20_000, |n| mixed(n, 256));
        assert_eq!(Division::by_curves(&[], POOL), None);
        assert_eq!(Division::by_curves(&[some()], POOL), None);
        assert_eq!(Division::by_curves(&[some(), some()], 16), None);
        let idle = || volume(10, 100, |n| n);
        assert_eq!(Division::by_curves(&[idle(), idle()], POOL), None);
        let three = Division::by_curves(&[some(), some(), some()], POOL).unwrap();
        assert!(lines(&three).iter().all(|&lines| lines >= 256), "{three:?}");
    }
}
