//! The share of the pool for writes.

use crate::limits::WRITE_PERCENT_MAX;

/// The percentage of the pool that may hold dirty lines, up to [`WRITE_PERCENT_MAX`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WriteShare(u8);

impl WriteShare {
    /// No dirty lines.
    pub const NOTHING: Self = Self(0);

    /// The share for a percentage; `None` if the percentage exceeds [`WRITE_PERCENT_MAX`].
    pub const fn of_percent(percent: u8) -> Option<Self> {
        if percent <= WRITE_PERCENT_MAX { Some(Self(percent)) } else { None }
    }

    /// The percentage.
    pub const fn percent(self) -> u8 {
        self.0
    }

    /// The share of `lines` lines, rounded down.
    pub const fn of(self, lines: usize) -> usize {
        (lines as u64 * self.0 as u64 / 100) as usize
    }

    /// All shares, in ascending order.
    pub fn all() -> impl Iterator<Item = Self> {
        (0..=WRITE_PERCENT_MAX).map(Self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_a_percentage_up_to_the_limit() {
        for percent in 0..=u8::MAX {
            let share = WriteShare::of_percent(percent);
            assert_eq!(share.map(WriteShare::percent), (percent <= 75).then_some(percent));
        }
        let half = WriteShare::of_percent(50).unwrap();
        assert_eq!([0, 1, 2, 3, 1 << 32].map(|lines| half.of(lines)), [0, 0, 1, 1, 1 << 31]);
        assert!(WriteShare::all().all(|share| share.of(100) == usize::from(share.percent())));
        assert_eq!(WriteShare::all().count(), 76);
    }
}
