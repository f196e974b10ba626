//! What less or more memory would bring to a volume.
//!
//! The advice compares several sizes, because a curve need not be convex: the policy serves a part
//! of a loop that does not fit, but other loads gain nothing from twice the memory if they need
//! four times as much.

use super::{PoolSize, SizePrediction};
use std::fmt;

/// With fewer sampled accesses there is no advice.
const SAMPLED_MIN: f64 = 1_000.0;
/// More memory is worthwhile if the miss ratio falls by this for each doubling.
const GAIN_MIN: f64 = 0.05;
/// Half the memory is enough if the miss ratio rises by less than this.
const LOSS_MAX: f64 = 0.01;
/// Larger sizes that are considered, with the number of doublings.
const LARGER: [(PoolSize, u32); 2] = [(PoolSize::Twice, 1), (PoolSize::FourTimes, 2)];
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
        /// 2 or 4.
        times: u32,
        /// From 0 to 1.
        miss_ratio: f64,
    },
}

/// The miss ratios of a volume in the present pool, and in a smaller or larger one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SizeOutlook {
    /// The volume's share of the pool, in bytes.
    pub share_bytes: u64,
    /// The miss ratio with half the pool, from 0 to 1.
    pub half: f64,
    /// The measured miss ratio.
    pub now: f64,
    /// The miss ratio with twice the pool.
    pub twice: f64,
    /// The advice.
    pub advice: SizeAdvice,
}

impl SizeOutlook {
    /// Derives the outlook of a volume. The volume has `cached_bytes` of the `used_bytes` in a pool
    /// of `pool_bytes`. `None` while the volume has no data in the pool, or too few accesses to
    /// tell.
    pub fn of(
        prediction: &SizePrediction,
        cached_bytes: u64,
        used_bytes: u64,
        pool_bytes: u64,
    ) -> Option<Self> {
        if prediction.sampled_accesses() < SAMPLED_MIN || cached_bytes == 0 {
            return None;
        }
        let part = cached_bytes as f64 / used_bytes.max(cached_bytes) as f64;
        let share_bytes = (pool_bytes as f64 * part) as u64;
        let at = |size| prediction.miss_ratio(size);
        let (half, now, twice) = (at(PoolSize::Half)?, at(PoolSize::Now)?, at(PoolSize::Twice)?);
        let more = LARGER.into_iter().find_map(|(size, doublings)| {
            let miss_ratio = at(size)?;
            let is_worthwhile = now - miss_ratio >= GAIN_MIN * f64::from(doublings);
            is_worthwhile.then_some(SizeAdvice::More { times: 1 << doublings, miss_ratio })
        });
        let advice = match more {
            Some(more) => more,
            None if half - now < LOSS_MAX => SizeAdvice::Less,
            None => SizeAdvice::Keep,
        };
        Some(Self { share_bytes, half, now, twice, advice })
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
                 larger one, up to 4 times, would save less than 5 points for each doubling"
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
    use crate::miniature::tests::predicted;

    const MIB: u64 = 1 << 20;

    fn outlook(ratios: [f64; PoolSize::COUNT]) -> SizeOutlook {
        SizeOutlook::of(&predicted(5_000.0, ratios), MIB, MIB, MIB).unwrap()
    }

    #[test]
    fn the_advice_follows_from_the_miss_ratios_of_all_sizes() {
        let more = |times, miss_ratio| SizeAdvice::More { times, miss_ratio };
        for (ratios, advice) in [
            ([0.6, 0.5, 0.4, 0.1], more(2, 0.4)),
            ([0.6, 0.5, 0.46, 0.3], more(4, 0.3)),
            ([0.6, 0.5, 0.46, 0.41], SizeAdvice::Keep),
            ([0.505, 0.5, 0.46, 0.41], SizeAdvice::Less),
            ([0.505, 0.5, 0.44, 0.41], more(2, 0.44)),
        ] {
            let found = outlook(ratios).advice;
            let is_near = match (found, advice) {
                (
                    SizeAdvice::More { times, miss_ratio: one },
                    SizeAdvice::More { times: of, miss_ratio },
                ) => times == of && (one - miss_ratio).abs() < 1e-9,
                (one, other) => one == other,
            };
            assert!(is_near, "{ratios:?}: {found:?}");
        }
        let sentence = "50 % of accesses miss; 4 times the pool would miss 30 %";
        assert_eq!(outlook([0.6, 0.5, 0.46, 0.3]).to_string(), sentence);
    }

    #[test]
    fn a_share_grows_with_the_pool_that_it_is_a_part_of() {
        let of = |sampled, cached, used| {
            let prediction = predicted(sampled, [0.6, 0.5, 0.4, 0.1]);
            let outlook = SizeOutlook::of(&prediction, cached, used, 8 * MIB);
            outlook.map(|outlook| outlook.share_bytes)
        };
        assert_eq!(of(5_000.0, MIB, 4 * MIB), Some(2 * MIB));
        assert_eq!(of(5_000.0, 8 * MIB, 8 * MIB), Some(8 * MIB));
        assert_eq!(of(5_000.0, 0, 4 * MIB), None, "nothing cached");
        assert_eq!(of(999.0, MIB, 4 * MIB), None, "too few accesses");
        // The two figures are not from the same moment.
        assert_eq!(of(5_000.0, 2 * MIB, MIB), Some(8 * MIB));
    }

    #[test]
    fn a_line_is_logged_when_the_outlook_changes_much_at_most_every_15_minutes() {
        let before = outlook([0.105, 0.1, 0.1, 0.1]);
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
