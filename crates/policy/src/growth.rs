//! The size that the cache should have, by the hits that more memory would bring.
//!
//! The cache starts with a part of the memory that it may have at most, and grows step by step
//! while it is full and the miniatures of the eviction policy say that more memory brings hits. A
//! little more memory may bring nothing where much more does, so two sizes are compared: twice the
//! current one, and four times.

use crate::{PoolSize, SizePrediction};

/// The additional hits for which a doubling of the cache is worth the memory, as a share of all
/// accesses. Less than for the advice to the operator, because memory that the cache does not take
/// is idle.
const GAIN_MIN: f64 = 0.01;
/// Larger sizes that are compared, with the number of doublings.
const LARGER: [(PoolSize, f64); 2] = [(PoolSize::Twice, 1.0), (PoolSize::FourTimes, 2.0)];
/// With fewer sampled accesses, the miniatures say nothing.
const SAMPLED_MIN: f64 = 1_000.0;
/// A step is the size divided by this: from an eighth of a machine's memory to half of it in twelve
/// steps.
const STEP_SHARE: u64 = 8;
/// The least step in bytes.
const STEP_BYTES_MIN: u64 = 16 << 20;
/// The time between two steps in milliseconds. The cache fills the memory of the first one
/// meanwhile.
const STEP_MS: u64 = 60_000;

/// The share of all accesses, from 0 to 1, that each doubling of the pool would turn into hits: the
/// higher one for 2 and 4 times the pool. `None` while too few accesses are known.
pub fn gain_per_doubling(volumes: &[SizePrediction]) -> Option<f64> {
    let sum = |of: &dyn Fn(&SizePrediction) -> f64| volumes.iter().map(of).sum::<f64>();
    let accesses = sum(&SizePrediction::access_rate);
    if accesses <= 0.0 || sum(&SizePrediction::sampled_accesses) < SAMPLED_MIN {
        return None;
    }
    let gain = |(size, doublings): (PoolSize, f64)| {
        sum(&|volume| volume.hits_gained_rate(size)) / accesses / doublings
    };
    LARGER.into_iter().map(gain).reduce(f64::max)
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
    use crate::miniature::tests::predicted;

    const MIB: u64 = 1 << 20;

    #[test]
    fn the_gain_counts_all_volumes() {
        let gain = |ratios: &[[f64; PoolSize::COUNT]]| {
            let volumes: Vec<_> = ratios.iter().map(|&ratios| predicted(5_000.0, ratios)).collect();
            gain_per_doubling(&volumes)
        };
        let near = |found: Option<f64>, gain: f64| (found.unwrap() - gain).abs() < 1e-9;
        assert_eq!(gain(&[]), None);
        assert_eq!(gain_per_doubling(&[predicted(999.0, [0.5; 4])]), None, "too few accesses");
        assert!(near(gain(&[[0.9, 0.9, 0.8, 0.75]]), 0.1));
        assert!(near(gain(&[[0.9, 0.9, 0.9, 0.3]]), 0.3), "two doublings away");
        // Half of the accesses are to a volume that has all it needs.
        assert!(near(gain(&[[0.9, 0.9, 0.5, 0.5], [0.1; 4]]), 0.2));
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
