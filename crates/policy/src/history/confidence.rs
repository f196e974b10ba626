//! How many repeats of a pattern a preload requires, by the use of earlier forecasts.

/// How often a region must have been needed to be forecast. One of the two conditions suffices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Demand {
    /// On this many days in a row, at least 1.
    pub days: u32,
    /// In this many weeks in a row, at least 1.
    pub weeks: u32,
}

/// The demand, by level.
const LEVELS: [Demand; 4] = [
    Demand { days: 2, weeks: 1 },
    Demand { days: 2, weeks: 2 },
    Demand { days: 3, weeks: 3 },
    Demand { days: 5, weeks: 4 },
];
/// The share of the lines preloaded lately that is used, in thousandths: below it, the next level
/// applies.
const POOR_MILLI: u64 = 250;
/// A forecast is good if at least this share of its lines is used, in thousandths. After
/// [`GOOD_MAX`] good ones in a row, the level before applies.
const FAIR_MILLI: u64 = 500;
const GOOD_MAX: u8 = 8;
/// The weight of a forecast falls by one part in this many with each later one: to two fifths
/// within 15 hours, if there is one in each slot.
const DECAY: u64 = 64;
/// Forecasts after which a level can be judged.
const JUDGED_MIN: u8 = 2;
/// Forecasts with fewer lines than this say little: 256 KiB.
const LINES_MIN: u64 = 64;
/// Larger forecasts count as one with this many lines, so that nothing overflows: 4 PiB.
const LINES_MAX: u64 = 1 << 40;

/// A change of the level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConfidenceChange {
    /// Forecasts were used too little: more is required now.
    Stricter,
    /// Forecasts are used: less is required.
    Looser,
}

/// The required number of repeats. See the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Confidence {
    /// An index of [`LEVELS`], or their number: then nothing is preloaded.
    level: u8,
    /// Lines preloaded at this level lately, and those of them that were used.
    lines: u64,
    used: u64,
    /// Forecasts at this level, up to [`JUDGED_MIN`].
    judged: u8,
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
        Self { level: level.min(Self::PAUSED), lines: 0, used: 0, judged: 0, good: 0 }
    }

    /// Its level.
    pub const fn level(&self) -> u8 {
        self.level
    }

    /// The share of the lines preloaded lately that was used, in thousandths; 1000 if there were
    /// none.
    pub fn used_milli(&self) -> u64 {
        (self.used * 1_000).checked_div(self.lines).unwrap_or(1_000)
    }

    /// The demand of forecasts. While paused, forecasts are not preloaded, only compared with what
    /// is needed.
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
        let lines = lines.min(LINES_MAX);
        let used = used.min(lines);
        self.lines = self.lines - self.lines / DECAY + lines;
        self.used = (self.used - self.used / DECAY + used).min(self.lines);
        self.judged = (self.judged + 1).min(JUDGED_MIN);
        // Small forecasts beside large ones say little.
        if lines >= self.lines / DECAY {
            let is_good = used * 1_000 >= lines * FAIR_MILLI;
            self.good = if is_good { self.good + 1 } else { 0 };
        }
        let is_poor = self.judged == JUDGED_MIN && self.used_milli() < POOR_MILLI;
        if is_poor && !self.is_paused() {
            *self = Self::at_level(self.level + 1);
            return Some(ConfidenceChange::Stricter);
        }
        if self.good >= GOOD_MAX {
            self.good = 0;
            if self.level > 0 {
                *self = Self::at_level(self.level - 1);
                return Some(ConfidenceChange::Looser);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unused_forecasts_raise_the_level_until_nothing_is_preloaded() {
        let mut confidence = Confidence::default();
        let first = Demand { days: 2, weeks: 1 };
        assert_eq!((confidence.demand(), confidence.is_paused()), (first, false));
        let mut levels = Vec::new();
        for _ in 0..20 {
            let change = confidence.record(1_000, 0);
            if change == Some(ConfidenceChange::Stricter) {
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
    fn forecasts_count_by_their_size() {
        let mut confidence = Confidence::default();
        for _ in 0..10 {
            // Two jobs a day that hold, and small forecasts in between that do not.
            for _ in 0..2 {
                assert_eq!(confidence.record(12_000, 11_000), None);
                assert!((0..40).all(|_| confidence.record(100, 10).is_none()));
            }
        }
        assert_eq!(confidence.level(), 0);
        // Without large ones, the small ones count.
        let raised = (0..1_000).filter_map(|_| confidence.record(100, 10)).count();
        assert_eq!(raised, usize::from(Confidence::PAUSED));
        // A single one is no reason.
        let mut confidence = Confidence::default();
        assert_eq!(confidence.record(u64::MAX, 0), None);
        assert_eq!(confidence.record(u64::MAX, 0), Some(ConfidenceChange::Stricter));
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
