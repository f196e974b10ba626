//! A volume's guaranteed and largest share of the pool.

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
}
