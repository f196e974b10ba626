//! A volume's guaranteed and largest share of the pool.

use crate::VolumeConfig;
use std::fmt;

/// The largest sum of the guaranteed shares of all volumes, in percent. The other half of the pool
/// is open to all volumes: dirty lines and their parity may take four fifths of it, and the rest is
/// clean, so that a volume without a guaranteed share finds a line to evict.
pub const SHARE_MIN_SUM_MAX: u8 = 50;

/// The guaranteed and the largest share of a volume, in percent of the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PoolShare {
    min: u8,
    max: u8,
}

impl PoolShare {
    /// Nothing is guaranteed, and the largest share is the pool.
    pub const NONE: Self = Self { min: 0, max: 100 };

    /// Shares in percent. `None` unless `max` is from 1 to 100 and `min` at most `max` and
    /// [`SHARE_MIN_SUM_MAX`].
    pub const fn of_percent(min: u8, max: u8) -> Option<Self> {
        let is_valid = max > 0 && max <= 100 && min <= max && min <= SHARE_MIN_SUM_MAX;
        if is_valid { Some(Self { min, max }) } else { None }
    }

    /// The shares by the settings of a volume. Settings that are invalid have been refused.
    pub fn of_config(config: &VolumeConfig) -> Self {
        let (min, max) = (config.share_min.unwrap_or(0), config.share_max.unwrap_or(100));
        Self::of_percent(min, max).unwrap_or(Self::NONE)
    }

    /// The guaranteed share in percent.
    pub const fn min_percent(self) -> u8 {
        self.min
    }

    /// The largest share in percent.
    pub const fn max_percent(self) -> u8 {
        self.max
    }

    /// Whether there are no limits.
    pub const fn is_none(self) -> bool {
        self.min == 0 && self.max == 100
    }

    /// The guaranteed share of `lines` lines, rounded down.
    pub const fn lines_min(self, lines: usize) -> usize {
        (lines as u64 * self.min as u64 / 100) as usize
    }

    /// The largest share of `lines` lines, rounded down, but at least one line. `None` if it is all
    /// of them.
    pub const fn lines_max(self, lines: usize) -> Option<usize> {
        if self.max == 100 {
            return None;
        }
        let share = (lines as u64 * self.max as u64 / 100) as usize;
        Some(if share == 0 { 1 } else { share })
    }
}

impl Default for PoolShare {
    fn default() -> Self {
        Self::NONE
    }
}

/// The guaranteed shares of several volumes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShareSum(Vec<(String, u8)>);

impl ShareSum {
    /// The volumes that have guaranteed shares, each given as its name and the share in percent.
    pub fn of<'a>(volumes: impl Iterator<Item = (&'a str, u8)>) -> Self {
        let guaranteed = volumes.filter(|(_, percent)| *percent > 0);
        Self(guaranteed.map(|(name, percent)| (name.to_owned(), percent)).collect())
    }

    fn percent(&self) -> u64 {
        self.0.iter().map(|(_, percent)| u64::from(*percent)).sum()
    }

    /// Checks that they leave room: that their sum is at most [`SHARE_MIN_SUM_MAX`].
    ///
    /// # Errors
    /// When they do not. The error is the sum itself.
    pub fn check(self) -> Result<(), Self> {
        if self.percent() <= u64::from(SHARE_MIN_SUM_MAX) { Ok(()) } else { Err(self) }
    }

    /// What to do when they leave no room.
    pub fn remedy(&self) -> String {
        let more = self.percent().saturating_sub(u64::from(SHARE_MIN_SUM_MAX));
        format!("lower share-min of some of these volumes, by {more}% in all")
    }
}

impl fmt::Display for ShareSum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shares = self.0.iter().map(|(name, percent)| format!("{percent}% for '{name}'"));
        let shares = shares.collect::<Vec<_>>().join(", ");
        let (sum, max) = (self.percent(), SHARE_MIN_SUM_MAX);
        write!(
            f,
            "the guaranteed shares of all volumes are {sum}% of the pool, more than {max}%: "
        )?;
        write!(f, "{shares}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_percentages_that_leave_room() {
        let of = PoolShare::of_percent;
        assert_eq!(of(0, 100), Some(PoolShare::NONE));
        for (min, max) in [(0, 0), (0, 101), (11, 10), (51, 100), (255, 255)] {
            assert_eq!(of(min, max), None, "{min} and {max}");
        }
        let share = of(25, 50).unwrap();
        let lines = [0, 1, 3, 4, 400, 1 << 32];
        assert_eq!(lines.map(|lines| share.lines_min(lines)), [0, 0, 0, 1, 100, 1 << 30]);
        let max = lines.map(|lines| share.lines_max(lines).unwrap());
        assert_eq!(max, [1, 1, 1, 2, 200, 1 << 31]);
        assert_eq!(PoolShare::NONE.lines_max(7), None);
        assert!(PoolShare::NONE.is_none() && !share.is_none() && !of(0, 99).unwrap().is_none());
    }

    #[test]
    fn guaranteed_shares_of_more_than_half_are_refused_with_their_volumes() {
        let sum = |shares: &[(&str, u8)]| ShareSum::of(shares.iter().copied());
        assert_eq!(sum(&[("a", 30), ("b", 20), ("c", 0)]).check(), Ok(()));
        let error = sum(&[("a", 30), ("b", 21), ("c", 0)]).check().unwrap_err();
        let expected = "the guaranteed shares of all volumes are 51% of the pool, more than 50%: \
                        30% for 'a', 21% for 'b'";
        assert_eq!(error.to_string(), expected);
        assert_eq!(error.remedy(), "lower share-min of some of these volumes, by 1% in all");
    }
}
