//! How much of a pattern is required for a preload: what earlier forecasts were worth decides.

/// How often something must have been needed to be forecast: by either of the two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Demand {
    /// On so many days in a row, at least 1.
    pub days: u32,
    /// In so many weeks in a row, at least 1.
    pub weeks: u32,
}

/// The demand, by level.
const LEVELS: [Demand; 4] = [
    Demand { days: 2, weeks: 1 },
    Demand { days: 2, weeks: 2 },
    Demand { days: 3, weeks: 3 },
    Demand { days: 5, weeks: 4 },
];
/// The share of preloaded data that is used, in thousandths: below the first, the next level
/// applies, and above the second for [`GOOD_MAX`] forecasts, the one before.
const POOR_MILLI: u32 = 250;
const FAIR_MILLI: u32 = 500;
/// Forecasts in a row above [`FAIR_MILLI`] after which a level is taken back.
const GOOD_MAX: u8 = 8;
/// Forecasts with fewer lines than this say little: 256 KiB.
const LINES_MIN: u64 = 64;

/// A change of the level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConfidenceChange {
    /// Forecasts were used too little: more is required now.
    Raised,
    /// Forecasts are used: less is required.
    Lowered,
}

/// How much of a pattern is required. See the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Confidence {
    /// An index of [`LEVELS`], or their number: then nothing is preloaded.
    level: u8,
    /// The share that was used lately, in thousandths.
    used_milli: u32,
    good: u8,
}

impl Default for Confidence {
    fn default() -> Self {
        Self::at_level(0)
    }
}

impl Confidence {
    /// The level at which nothing is preloaded.
    pub const PAUSED: u8 = LEVELS.len() as u8;

    /// The confidence at a level, at most [`Confidence::PAUSED`].
    pub fn at_level(level: u8) -> Self {
        Self { level: level.min(Self::PAUSED), used_milli: FAIR_MILLI, good: 0 }
    }

    /// Its level.
    pub const fn level(&self) -> u8 {
        self.level
    }

    /// The share of preloaded data that was used lately, in thousandths.
    pub const fn used_milli(&self) -> u32 {
        self.used_milli
    }

    /// The demand of forecasts. While paused, what they have is not preloaded, but compared with
    /// what is needed.
    pub fn demand(&self) -> Demand {
        LEVELS[usize::from(self.level).min(LEVELS.len() - 1)]
    }

    /// Whether forecasts are only compared with what is needed.
    pub const fn is_paused(&self) -> bool {
        self.level == Self::PAUSED
    }

    /// Records how much of a forecast was used: `used` of `lines` lines that were preloaded, or, if
    /// paused, would have been.
    pub fn record(&mut self, lines: u64, used: u64) -> Option<ConfidenceChange> {
        if lines < LINES_MIN {
            return None;
        }
        let share_milli = (used.min(lines) * 1_000 / lines) as u32;
        self.used_milli = u32::midpoint(self.used_milli, share_milli);
        self.good = if share_milli >= FAIR_MILLI { self.good + 1 } else { 0 };
        if self.used_milli < POOR_MILLI && !self.is_paused() {
            *self = Self::at_level(self.level + 1);
            return Some(ConfidenceChange::Raised);
        }
        if self.good >= GOOD_MAX {
            self.good = 0;
            if self.level > 0 {
                self.level -= 1;
                return Some(ConfidenceChange::Lowered);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_goes_unused_raises_the_level_until_nothing_is_preloaded() {
        let mut confidence = Confidence::default();
        let first = Demand { days: 2, weeks: 1 };
        assert_eq!((confidence.demand(), confidence.is_paused()), (first, false));
        let mut levels = Vec::new();
        for _ in 0..20 {
            let change = confidence.record(1_000, 0);
            if change == Some(ConfidenceChange::Raised) {
                levels.push(confidence.demand().days);
            }
        }
        assert_eq!(levels, [2, 3, 5, 5]);
        assert!(confidence.is_paused());
    }

    #[test]
    fn forecasts_that_hold_lower_the_level_again() {
        let mut confidence = Confidence::at_level(Confidence::PAUSED);
        let changes = (0..100).filter_map(|_| confidence.record(1_000, 900)).count();
        assert_eq!((changes, confidence.level()), (usize::from(Confidence::PAUSED), 0));
        // Used more often than preloaded: other causes have counted, too.
        assert_eq!(confidence.record(1_000, 5_000), None);
        assert!(confidence.used_milli() <= 1_000);
    }

    #[test]
    fn a_third_used_changes_nothing_and_small_forecasts_do_not_count() {
        let mut confidence = Confidence::at_level(1);
        assert!((0..100).all(|_| confidence.record(1_000, 333).is_none()));
        assert_eq!(confidence.level(), 1);
        assert!((0..100).all(|_| confidence.record(63, 0).is_none()));
        assert_eq!(Confidence::at_level(200).level(), Confidence::PAUSED);
    }
}
