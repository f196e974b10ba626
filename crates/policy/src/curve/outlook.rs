//! What less or more memory would bring, by a miss-ratio curve.
//!
//! The advice compares several sizes, because curves are not convex: a loop that does not fit gains
//! nothing from twice the memory if it needs four times as much.

use super::MissRatioCurve;
use std::fmt;

/// With fewer sampled accesses there is no advice.
const SAMPLED_MIN: f64 = 1_000.0;
/// More memory is worthwhile if the miss ratio falls by this for each doubling.
const GAIN_MIN: f64 = 0.05;
/// Half the memory is enough if the miss ratio rises by less than this.
const LOSS_MAX: f64 = 0.01;
/// Doublings that are considered.
const DOUBLINGS_MAX: u32 = 3;
/// The change of a miss ratio that is worth a line in the log.
const CHANGE_MIN: f64 = 0.1;
/// The same, if the advice has changed as well.
const CHANGE_WITH_ADVICE_MIN: f64 = 0.02;
/// The shortest time between two lines about one volume, in milliseconds: 15 minutes.
const LOG_INTERVAL_MS: u64 = 15 * 60 * 1_000;

/// Whether a volume should have another amount of memory.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum SizeAdvice {
    /// Neither of the following.
    Keep,
    /// Half the memory would miss hardly more.
    Less,
    /// This many times the memory, a power of two, would have this miss ratio: at least five
    /// percentage points less for each doubling.
    More {
        /// 2, 4 or 8.
        times: u32,
        /// From 0 to 1.
        miss_ratio: f64,
    },
}

/// The miss ratios of a volume with its current share of the pool, and with other shares.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SizeOutlook {
    /// The volume's share of the pool, in bytes.
    pub share_bytes: u64,
    /// The miss ratio with half of it, from 0 to 1.
    pub half: f64,
    /// The miss ratio with the current share.
    pub now: f64,
    /// The miss ratio with twice the share.
    pub twice: f64,
    /// The advice.
    pub advice: SizeAdvice,
}

impl SizeOutlook {
    /// Derives the outlook of a volume from its curve. The volume has `cached_bytes` of the
    /// `used_bytes` in a pool of `pool_bytes`; in a smaller or larger pool it would have the same
    /// part. `None` while the volume has no data in the pool, or too few accesses to tell.
    pub fn of(
        curve: &MissRatioCurve,
        cached_bytes: u64,
        used_bytes: u64,
        pool_bytes: u64,
    ) -> Option<Self> {
        if curve.sampled_accesses() < SAMPLED_MIN || cached_bytes == 0 {
            return None;
        }
        let part = cached_bytes as f64 / used_bytes.max(cached_bytes) as f64;
        let share_bytes = (pool_bytes as f64 * part) as u64;
        let at = |bytes: u64| curve.miss_ratio(bytes);
        let (half, now) = (at(share_bytes / 2)?, at(share_bytes)?);
        let more = (1..=DOUBLINGS_MAX).find_map(|doublings| {
            let miss_ratio = at(share_bytes << doublings)?;
            let is_worthwhile = now - miss_ratio >= GAIN_MIN * f64::from(doublings);
            is_worthwhile.then_some(SizeAdvice::More { times: 1 << doublings, miss_ratio })
        });
        let advice = match more {
            Some(more) => more,
            None if half - now < LOSS_MAX => SizeAdvice::Less,
            None => SizeAdvice::Keep,
        };
        Some(Self { share_bytes, half, now, twice: at(share_bytes * 2)?, advice })
    }

    /// Whether this outlook differs much from an earlier one.
    fn differs_much(&self, earlier: &Self) -> bool {
        let moved = [self.half - earlier.half, self.now - earlier.now, self.twice - earlier.twice];
        let moved = moved.into_iter().map(f64::abs).fold(0.0, f64::max);
        let has_turned = self.advice.name() != earlier.advice.name();
        moved >= CHANGE_MIN || has_turned && moved >= CHANGE_WITH_ADVICE_MIN
    }
}

/// The reason for the advice, in one sentence without a full stop.
impl fmt::Display for SizeOutlook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let percent = |ratio: f64| ratio * 100.0;
        let (half, now) = (percent(self.half), percent(self.now));
        match self.advice {
            SizeAdvice::Keep => write!(
                f,
                "{now:.0} % of accesses miss; half the pool would miss {half:.0} %; a \
                 larger one, up to 8 times, would save less than 5 points for each doubling"
            ),
            SizeAdvice::Less => {
                write!(f, "{now:.0} % of accesses miss; half the pool would miss {half:.0} %")
            }
            SizeAdvice::More { times, miss_ratio } => {
                let more = percent(miss_ratio);
                write!(f, "{now:.0} % of accesses miss; ")?;
                match times {
                    2 => write!(f, "twice the pool would miss {more:.0} %"),
                    times => write!(f, "{times} times the pool would miss {more:.0} %"),
                }
            }
        }
    }
}

impl SizeAdvice {
    /// `keep`, `less` or `more`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Keep => "keep",
            Self::Less => "less",
            Self::More { .. } => "more",
        }
    }
}

/// Decides when the outlook of one volume is worth a line in the log: when it is known for the
/// first time, and when it has changed much since the last line, at most every 15 minutes.
#[derive(Clone, Copy, Debug, Default)]
pub struct OutlookLog {
    last: Option<(u64, SizeOutlook)>,
}

impl OutlookLog {
    /// Returns whether to log this outlook now. If so, later ones are compared with it.
    pub fn is_due(&mut self, now_ms: u64, outlook: &SizeOutlook) -> bool {
        let is_due = self.last.is_none_or(|(logged_ms, logged)| {
            now_ms >= logged_ms + LOG_INTERVAL_MS && outlook.differs_much(&logged)
        });
        if is_due {
            self.last = Some((now_ms, *outlook));
        }
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::curve::{CurveConfig, CurveEstimator};
    use crate::testing::key;
    use forebay_types::LINE_BYTES;

    const MIB: u64 = 1 << 20;

    /// The outlook with `lines` of memory after ten passes over `loop_lines`, all of them in a pool
    /// of that size.
    fn outlook(loop_lines: u64, lines: u64) -> SizeOutlook {
        let config = CurveConfig { depth_lines: 1 << 20, rate_max: 1.0 };
        let mut estimator = CurveEstimator::new(config);
        estimator.set_limit(1 << 20);
        (0..10 * loop_lines).for_each(|n| estimator.record(key(n % loop_lines)));
        let pool = lines * LINE_BYTES;
        SizeOutlook::of(&estimator.curve().unwrap(), pool, pool, pool).unwrap()
    }

    #[test]
    fn the_advice_looks_past_a_plateau() {
        // Only the first pass misses once the loop fits.
        for (lines, advice) in [(800, "more"), (400, "more"), (200, "more"), (100, "less")] {
            assert_eq!(outlook(1_000, lines).advice.name(), advice, "{lines} lines");
        }
        let SizeAdvice::More { times, miss_ratio } = outlook(1_000, 200).advice else { panic!() };
        assert_eq!(times, 8);
        assert!((0.09..0.11).contains(&miss_ratio), "{miss_ratio}");
        let sentence = "100 % of accesses miss; 8 times the pool would miss 10 %";
        assert_eq!(outlook(1_000, 200).to_string(), sentence);
        assert_eq!(outlook(1_000, 4_000).advice, SizeAdvice::Less);
        assert_eq!(outlook(1_000, 1_300).advice, SizeAdvice::Keep);
    }

    #[test]
    fn a_share_grows_with_the_pool_that_it_is_a_part_of() {
        let config = CurveConfig { depth_lines: 1 << 20, rate_max: 1.0 };
        let mut estimator = CurveEstimator::new(config);
        estimator.set_limit(1 << 20);
        let curve = estimator.curve().unwrap();
        assert_eq!(SizeOutlook::of(&curve, MIB, MIB, 8 * MIB), None, "no accesses");
        (0..5_000).for_each(|n| estimator.record(key(n % 500)));
        let curve = estimator.curve().unwrap();
        let share = |cached, used| {
            SizeOutlook::of(&curve, cached, used, 8 * MIB).map(|outlook| outlook.share_bytes)
        };
        assert_eq!(share(MIB, 4 * MIB), Some(2 * MIB));
        assert_eq!(share(8 * MIB, 8 * MIB), Some(8 * MIB));
        assert_eq!(share(0, 4 * MIB), None, "nothing cached");
        // The two figures are not from the same moment.
        assert_eq!(share(2 * MIB, MIB), Some(8 * MIB));
    }

    #[test]
    fn a_line_is_logged_when_the_outlook_changes_much_at_most_every_15_minutes() {
        let before = outlook(1_000, 2_500);
        let mut log = OutlookLog::default();
        assert!(log.is_due(0, &before), "known for the first time");
        assert!(!log.is_due(LOG_INTERVAL_MS, &before), "nothing has changed");
        let worse = SizeOutlook { now: before.now + 0.2, ..before };
        assert!(!log.is_due(LOG_INTERVAL_MS - 1, &worse), "too early");
        assert!(log.is_due(LOG_INTERVAL_MS, &worse));
        assert!(!log.is_due(2 * LOG_INTERVAL_MS - 1, &before), "too early");
        let similar = SizeOutlook { now: worse.now + 0.01, ..worse };
        let other = SizeOutlook { advice: SizeAdvice::Keep, ..similar };
        assert!(!log.is_due(9 * LOG_INTERVAL_MS, &similar), "a small change");
        assert!(!log.is_due(9 * LOG_INTERVAL_MS, &other), "at the border of two kinds of advice");
        let turned = SizeOutlook { now: worse.now + 0.03, ..other };
        assert!(log.is_due(9 * LOG_INTERVAL_MS, &turned));
    }
}
