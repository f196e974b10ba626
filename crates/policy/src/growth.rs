//! The size that the cache should have, by the hits that more memory would bring.
//!
//! The cache starts with a part of the memory that it may have at most, and grows step by step
//! while it is full and the miss-ratio curves of the volumes say that more memory brings hits.
//! Curves are not convex: a loop that does not fit gains nothing from a little more memory. So
//! several sizes are compared, up to eight times the current one.

use crate::MissRatioCurve;

/// The additional hits for which a doubling of the cache is worth the memory, as a share of all
/// accesses. Less than for the advice to the operator, because memory that the cache does not take
/// is idle.
const GAIN_MIN: f64 = 0.01;
/// Doublings that are compared.
const DOUBLINGS_MAX: u32 = 3;
/// With fewer sampled accesses, the curves say nothing.
const SAMPLED_MIN: f64 = 1_000.0;
/// A step is the size divided by this: from an eighth of a machine's memory to half of it in twelve
/// steps.
const STEP_SHARE: u64 = 8;
/// The least step in bytes.
const STEP_BYTES_MIN: u64 = 16 << 20;
/// The time between two steps in milliseconds. The cache fills the memory of the first one
/// meanwhile.
const STEP_MS: u64 = 60_000;

/// A volume in the cache.
#[derive(Clone, Debug)]
pub struct VolumeShare {
    /// Its curve.
    pub curve: MissRatioCurve,
    /// Its data in the cache, in bytes.
    pub cached_bytes: u64,
}

/// The share of all accesses, from 0 to 1, that each doubling of a pool of `pool_bytes` would turn
/// into hits: the highest one for 2, 4 and 8 times the pool. Each volume would have the same part
/// of a larger pool. `None` while too few accesses are known.
pub fn gain_per_doubling(volumes: &[VolumeShare], pool_bytes: u64) -> Option<f64> {
    let sum = |of: &dyn Fn(&VolumeShare) -> f64| volumes.iter().map(of).sum::<f64>();
    let used_bytes: u64 = volumes.iter().map(|volume| volume.cached_bytes).sum();
    if used_bytes == 0 || sum(&|volume| volume.curve.sampled_accesses()) < SAMPLED_MIN {
        return None;
    }
    let accesses = sum(&|volume| volume.curve.accesses());
    let hits = |times: u64| {
        sum(&|volume| {
            let part = volume.cached_bytes as f64 / used_bytes as f64;
            let share_bytes = (pool_bytes as f64 * part) as u64;
            volume.curve.hits(share_bytes.saturating_mul(times))
        })
    };
    let now = hits(1);
    let gain = |doublings: u32| (hits(1 << doublings) - now) / accesses / f64::from(doublings);
    (1..=DOUBLINGS_MAX).map(gain).reduce(f64::max)
}

/// The figures of one moment. All sizes are in bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GrowthSample {
    /// Any clock, in milliseconds.
    pub now_ms: u64,
    /// The memory that the cache may have now.
    pub size_bytes: u64,
    /// The part of it without data.
    pub unused_bytes: u64,
    /// The maximum size.
    pub most_bytes: u64,
    /// Sizes differ by multiples of this.
    pub step_bytes: u64,
    /// See [`gain_per_doubling`].
    pub gain: Option<f64>,
}

/// Why the cache should have its size and not more.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum GrowthReason {
    /// Nothing was decided yet.
    #[default]
    Begun,
    /// It has the maximum.
    Most,
    /// It does not use all of its memory.
    Unused,
    /// Too few accesses are known.
    Unknown,
    /// More memory would bring too few hits.
    NoGain {
        /// The share of all accesses for each doubling, from 0 to 1.
        gain: f64,
    },
    /// More memory brings hits: it grows.
    Gain {
        /// The share of all accesses for each doubling, from 0 to 1.
        gain: f64,
    },
}

impl GrowthReason {
    /// A sentence without a full stop.
    pub fn sentence(self) -> String {
        match self {
            Self::Begun => "growth is decided once a minute".into(),
            Self::Most => "this is the maximum".into(),
            Self::Unused => "the cache does not use all of it".into(),
            Self::Unknown => "too few accesses to tell what more memory would bring".into(),
            Self::NoGain { gain } => {
                format!("each doubling would serve {:.1} % more of the accesses", gain * 100.0)
            }
            Self::Gain { gain } => format!(
                "it grows, because each doubling would serve {:.1} % more of the accesses",
                gain * 100.0
            ),
        }
    }
}

/// Decides how large the cache should be. See the module.
#[derive(Clone, Debug)]
pub struct Growth {
    target_bytes: u64,
    /// When the target was last compared with what more memory would bring.
    decided_ms: Option<u64>,
    reason: GrowthReason,
}

impl Growth {
    /// Begins with a size.
    pub fn new(bytes: u64) -> Self {
        Self { target_bytes: bytes, decided_ms: None, reason: GrowthReason::default() }
    }

    /// The size that the cache should have, in bytes.
    pub const fn target_bytes(&self) -> u64 {
        self.target_bytes
    }

    /// Why it should not have more.
    pub const fn reason(&self) -> GrowthReason {
        self.reason
    }

    /// Whether [`Growth::decide`] is due: a minute after the last time.
    pub fn is_due(&mut self, now_ms: u64) -> bool {
        let decided_ms = *self.decided_ms.get_or_insert(now_ms);
        now_ms.saturating_sub(decided_ms) >= STEP_MS
    }

    /// Decides on a sample.
    pub fn decide(&mut self, sample: &GrowthSample) {
        self.decided_ms = Some(sample.now_ms);
        self.target_bytes = self.target_bytes.min(sample.most_bytes);
        self.reason = self.reason_at(sample);
        if let GrowthReason::Gain { .. } = self.reason {
            let step_bytes = (self.target_bytes / STEP_SHARE).max(STEP_BYTES_MIN);
            let step_bytes = step_bytes.next_multiple_of(sample.step_bytes.max(1));
            self.target_bytes = (self.target_bytes + step_bytes).min(sample.most_bytes);
        }
    }

    fn reason_at(&self, sample: &GrowthSample) -> GrowthReason {
        if self.target_bytes >= sample.most_bytes {
            return GrowthReason::Most;
        }
        // The runtime has yet to make a step, or part of the memory was never used.
        let is_full = sample.unused_bytes < sample.size_bytes / 2 / STEP_SHARE;
        if sample.size_bytes < self.target_bytes || !is_full {
            return GrowthReason::Unused;
        }
        match sample.gain {
            None => GrowthReason::Unknown,
            Some(gain) if gain < GAIN_MIN => GrowthReason::NoGain { gain },
            Some(gain) => GrowthReason::Gain { gain },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::key;
    use crate::{CurveConfig, CurveEstimator};
    use forebay_types::LINE_BYTES;

    const MIB: u64 = 1 << 20;

    /// A volume with ten passes over `loop_lines`, which has `cached_lines` in the cache.
    fn volume(loop_lines: u64, cached_lines: u64) -> VolumeShare {
        let mut estimator =
            CurveEstimator::new(CurveConfig { depth_lines: 1 << 20, rate_max: 1.0 });
        estimator.set_limit(1 << 20);
        (0..10 * loop_lines).for_each(|n| estimator.record(key(n % loop_lines)));
        let curve = estimator.curve().unwrap();
        VolumeShare { curve, cached_bytes: cached_lines * LINE_BYTES }
    }

    #[test]
    fn the_gain_counts_all_volumes_with_their_parts_of_the_pool() {
        let gain =
            |volumes: &[VolumeShare], lines: u64| gain_per_doubling(volumes, lines * LINE_BYTES);
        assert_eq!(gain(&[], 1_000), None);
        assert_eq!(gain(&[volume(99, 99)], 99), None, "too few accesses");
        // Nine of ten passes hit once the loop fits.
        let at = |lines| gain(&[volume(1_000, 1_000)], lines).unwrap();
        assert!((at(800) - 0.9).abs() < 0.02, "{}", at(800));
        assert!((at(200) - 0.3).abs() < 0.02, "a cliff three doublings away: {}", at(200));
        assert!(at(100) < 0.01 && at(2_000) < 0.01, "{} {}", at(100), at(2_000));
        // Half of the accesses are to a volume that has all it needs.
        let both = [volume(1_000, 800), volume(1_000, 1_200)];
        let found = gain(&both, 2_000).unwrap();
        assert!((found - 0.45).abs() < 0.02, "{found}");
    }

    fn sample(now_ms: u64, size_mib: u64, gain: Option<f64>) -> GrowthSample {
        GrowthSample {
            now_ms,
            size_bytes: size_mib * MIB,
            unused_bytes: 0,
            most_bytes: 1_024 * MIB,
            step_bytes: 16 * MIB,
            gain,
        }
    }

    /// Target in MiB and reason after a decision.
    fn decided(growth: &mut Growth, sample: &GrowthSample) -> (u64, GrowthReason) {
        growth.decide(sample);
        (growth.target_bytes() / MIB, growth.reason())
    }

    #[test]
    fn the_cache_grows_while_it_is_full_and_more_brings_hits() {
        let mut growth = Growth::new(256 * MIB);
        let mut decide = |sample: GrowthSample| decided(&mut growth, &sample);
        let gain = GrowthReason::Gain { gain: 0.2 };
        assert_eq!(decide(sample(0, 256, None)), (256, GrowthReason::Unknown));
        let none = GrowthReason::NoGain { gain: 0.009 };
        assert_eq!(decide(sample(1, 256, Some(0.009))), (256, none));
        let unused = GrowthSample { unused_bytes: 16 * MIB, ..sample(2, 256, Some(0.2)) };
        assert_eq!(decide(unused), (256, GrowthReason::Unused));
        assert_eq!(decide(sample(3, 256, Some(0.2))), (288, gain), "an eighth");
        assert_eq!(decide(sample(4, 256, Some(0.2))), (288, GrowthReason::Unused), "not taken");
        assert_eq!(decide(sample(5, 288, Some(0.2))), (336, gain), "whole steps of the pool");
        let mut size = 336;
        for now_ms in 6..30 {
            size = decide(sample(now_ms, size, Some(0.2))).0;
        }
        assert_eq!(decide(sample(30, size, Some(0.2))), (1_024, GrowthReason::Most));
    }

    #[test]
    fn a_lower_maximum_lowers_the_target() {
        let mut growth = Growth::new(512 * MIB);
        let lower = GrowthSample { most_bytes: 300 * MIB, ..sample(0, 512, Some(0.5)) };
        assert_eq!(decided(&mut growth, &lower), (300, GrowthReason::Most));
    }

    #[test]
    fn a_decision_is_due_once_a_minute() {
        let mut growth = Growth::new(MIB);
        assert!(!growth.is_due(5_000), "the cache has just begun");
        assert!(!growth.is_due(64_999));
        assert!(growth.is_due(65_000));
        growth.decide(&sample(65_000, 256, None));
        assert!(!growth.is_due(124_999) && growth.is_due(125_000));
    }
}
