//! The pattern of days and weeks on which a region was needed at one time of the day.

use forebay_types::HistoryRegion;

/// The days of a week.
pub(super) const DAYS: usize = 7;
/// The days of all weeks in [`HistoryRegion::weeks`].
const DAYS_MAX: usize = DAYS * u8::BITS as usize;
/// The minimum number of needed lines of a region if a single week is to count.
const SINGLE_WEEK_LINES_MIN: u64 = 8;

/// Whether parts needed at two times are probably the same data: at least half of the smaller set
/// is in both.
pub(super) const fn is_similar(a: u64, b: u64) -> bool {
    let (a_count, b_count) = (a.count_ones(), b.count_ones());
    let fewer = if a_count < b_count { a_count } else { b_count };
    2 * (a & b).count_ones() >= fewer
}

/// The days before a slot in the last eight weeks; yesterday is day 0.
pub(super) struct DayPattern {
    observed: [u8; DAYS],
    needed: [u8; DAYS],
    /// The parts needed last on each day of the week.
    parts: [u64; DAYS],
    /// Lines needed on the day a week ago.
    week_ago_lines: u64,
}

impl DayPattern {
    pub(super) fn new(observed: [u8; DAYS], evidence: &[(usize, HistoryRegion)]) -> Self {
        let (needed, parts) = ([0; DAYS], [0; DAYS]);
        let mut pattern = Self { observed, needed, parts, week_ago_lines: 0 };
        for (day, region) in evidence {
            pattern.needed[*day] = region.weeks;
            pattern.parts[*day] = region.parts;
            if *day == DAYS - 1 {
                pattern.week_ago_lines = u64::from(region.lines);
            }
        }
        pattern
    }

    const fn is_observed(&self, day: usize) -> bool {
        self.observed[day % DAYS] >> (day / DAYS) & 1 != 0
    }

    const fn is_needed(&self, day: usize) -> bool {
        self.needed[day % DAYS] >> (day / DAYS) & 1 != 0
    }

    const fn is_unneeded(&self, day: usize) -> bool {
        self.is_observed(day) && !self.is_needed(day)
    }

    /// The days in a row, and the weeks in a row, on which the region was needed: zero for a
    /// pattern that is rejected.
    pub(super) fn repeats(&self) -> (u32, u32) {
        let (yesterday, week_ago, eight_days_ago) = (0, DAYS - 1, DAYS);
        let has_exception = self.is_unneeded(week_ago) && self.is_needed(eight_days_ago);
        let has_ended = self.is_unneeded(yesterday) && self.is_needed(eight_days_ago);
        let days = if has_exception { 0 } else { self.run((0..DAYS_MAX).collect()) };
        let weeks =
            if has_ended { 0 } else { self.run((week_ago..DAYS_MAX).step_by(DAYS).collect()) };
        let is_little = self.week_ago_lines < SINGLE_WEEK_LINES_MIN;
        (days, if weeks == 1 && is_little { 0 } else { weeks })
    }

    /// On how many of these days in a row, from the first on, similar parts were needed. Days that
    /// were not observed are skipped.
    fn run(&self, days: Vec<usize>) -> u32 {
        let mut observed = days.into_iter().filter(|&day| self.is_observed(day)).peekable();
        let Some(&first) = observed.peek() else { return 0 };
        let parts = self.parts[first % DAYS];
        let is_same =
            |day: &usize| self.is_needed(*day) && is_similar(parts, self.parts[day % DAYS]);
        observed.take_while(is_same).count() as u32
    }

    /// The parts that were needed on at least half of the last `days` days in a row, and of the day
    /// a week ago if `is_weekly`.
    pub(super) fn parts(&self, days: u32, is_weekly: bool) -> u64 {
        let mut left = days;
        let counts = |day: &usize| {
            let is_in_run = left > 0 && self.is_observed(*day);
            left -= u32::from(is_in_run);
            is_in_run || is_weekly && *day == DAYS - 1
        };
        let voters: Vec<u64> = (0..DAYS).filter(counts).map(|day| self.parts[day]).collect();
        let votes = |bit: &u32| voters.iter().filter(|parts| **parts >> bit & 1 != 0).count();
        let chosen = (0..u64::BITS).filter(|bit| 2 * votes(bit) >= voters.len());
        chosen.fold(0, |parts, bit| parts | 1 << bit)
    }
}
