//! The statistics of one volume: its total, and what was added in the last five minutes, hour and
//! day. Pure: the time is an argument.
//!
//! The counters of a volume start at zero when it is added again, so a total is the sum of
//! differences. For each period there are copies of the total, taken at intervals, and packed,
//! because most numbers are zero: the figures of the period are the total minus its oldest copy. So
//! a period is as long as its name says, or up to one interval longer; or shorter, while the series
//! is younger. The price: up to 44 packed copies for each volume, of about a kilobyte each for one
//! with all kinds of requests.

use forebay_format::{pack, unpack};
use std::collections::VecDeque;

/// The length of the periods, and the interval at which the total is copied for them, in seconds.
pub(super) const PERIODS: [(u64, u64); 3] = [(300, 60), (3_600, 300), (86_400, 3_600)];

/// The numbers of a volume over time.
#[derive(Debug)]
pub(super) struct Series {
    total: Vec<u64>,
    /// The source of the last observation, and its numbers.
    last: (u64, Vec<u64>),
    copies: [VecDeque<PeriodSample>; PERIODS.len()],
}

/// A copy of the total.
#[derive(Debug)]
struct PeriodSample {
    at_s: u64,
    packed: Vec<u8>,
}

impl Series {
    /// A series that begins now with a total.
    pub(super) fn new(total: Vec<u64>, now_s: u64) -> Self {
        let copies = std::array::from_fn(|_| {
            VecDeque::from([PeriodSample { at_s: now_s, packed: pack(&total) }])
        });
        Self { last: (0, vec![0; total.len()]), total, copies }
    }

    /// Adds the counts since the last observation. `source` identifies the counters: another source
    /// has begun at zero. So has a number that has decreased: a volume that is being removed loses
    /// some of its numbers before the others.
    ///
    /// # Panics
    /// If there are more or fewer numbers than in the total.
    pub(super) fn observe(&mut self, source: u64, numbers: Vec<u64>, now_s: u64) {
        assert_eq!(numbers.len(), self.total.len());
        let (before, last) = &self.last;
        for ((total, now), last) in self.total.iter_mut().zip(&numbers).zip(last) {
            let since = if *before == source && last <= now { *last } else { 0 };
            *total = total.wrapping_add(now - since);
        }
        self.last = (source, numbers);
        for (copies, (length_s, interval_s)) in self.copies.iter_mut().zip(PERIODS) {
            let newest = copies.back().map_or(0, |copy| copy.at_s);
            if now_s >= newest + interval_s {
                copies.push_back(PeriodSample { at_s: now_s, packed: pack(&self.total) });
            }
            // The oldest copy that is kept is the newest one that is at least as old as the period.
            while copies.get(1).is_some_and(|copy| copy.at_s + length_s <= now_s) {
                copies.pop_front();
            }
        }
    }

    /// The total.
    pub(super) fn total(&self) -> &[u64] {
        &self.total
    }

    /// The length of each period in seconds, and what was added in it.
    pub(super) fn periods(&self, now_s: u64) -> [(u64, Vec<u64>); PERIODS.len()] {
        self.copies.each_ref().map(|copies| {
            let oldest = copies.front().expect("a series begins with a copy");
            let then = unpack(&oldest.packed, self.total.len()).expect("packed by this series");
            let added = self.total.iter().zip(then).map(|(now, then)| now.wrapping_sub(then));
            (now_s.saturating_sub(oldest.at_s), added.collect())
        })
    }

    /// The number of copies.
    #[cfg(test)]
    fn copies(&self) -> usize {
        self.copies.iter().map(VecDeque::len).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn firsts(series: &Series, now_s: u64) -> [(u64, u64); 3] {
        series.periods(now_s).map(|(seconds, added)| (seconds, added[0]))
    }

    #[test]
    fn a_period_has_what_was_added_in_it() {
        let mut series = Series::new(vec![1000, 0], 0);
        // One each second, for three days.
        for now_s in (10..=3 * 86_400).step_by(10) {
            series.observe(7, vec![now_s, 0], now_s);
        }
        let now_s = 3 * 86_400;
        assert_eq!(series.total(), [1000 + now_s, 0]);
        let periods = firsts(&series, now_s);
        for ((seconds, added), (length_s, interval_s)) in periods.into_iter().zip(PERIODS) {
            assert_eq!(seconds, added);
            assert!((length_s..length_s + interval_s).contains(&seconds), "{seconds}");
        }
        assert!(series.copies() <= 6 + 13 + 25, "{}", series.copies());
        // Nothing was added since.
        series.observe(7, vec![now_s, 0], now_s + 400);
        let (seconds, added) = firsts(&series, now_s + 400)[0];
        assert!(added == 0 && seconds >= 300, "{added} in {seconds} s");
    }

    #[test]
    fn a_young_series_has_shorter_periods() {
        let mut series = Series::new(vec![50], 100);
        series.observe(1, vec![5], 130);
        assert_eq!(firsts(&series, 130), [(30, 5); 3]);
        assert_eq!(series.total(), [55]);
    }

    #[test]
    fn counting_that_begins_again_adds_to_the_total() {
        let mut series = Series::new(vec![0, 0], 0);
        series.observe(1, vec![10, 10], 10);
        series.observe(1, vec![12, 11], 20);
        // Another volume of the same name, with larger numbers already.
        series.observe(2, vec![20, 20], 30);
        // A number that is smaller began again; the others continue.
        series.observe(2, vec![3, 30], 40);
        assert_eq!(series.total(), [12 + 20 + 3, 11 + 20 + 10]);
        assert_eq!(firsts(&series, 40)[0], (40, 35));
    }

    proptest! {
        #[test]
        fn periods_agree_with_a_list_of_all_observations(
            steps in prop::collection::vec((1..400_u64, 0..9_u64), 1..500)
        ) {
            let mut series = Series::new(vec![0], 0);
            let mut list = vec![(0, 0)];
            let (mut now_s, mut count) = (0, 0);
            for (passed_s, added) in steps {
                (now_s, count) = (now_s + passed_s, count + added);
                series.observe(1, vec![count], now_s);
                list.push((now_s, count));
            }
            let periods = firsts(&series, now_s).into_iter().zip(PERIODS);
            for ((seconds, added), (length_s, interval_s)) in periods {
                let begin = now_s - seconds;
                let then = list.iter().find(|(at, _)| *at == begin);
                prop_assert_eq!(then.map(|(_, then)| count - then), Some(added));
                prop_assert!(seconds >= length_s || begin == 0);
                // Observations are at most 399 s apart.
                prop_assert!(seconds < length_s + interval_s + 2 * 400, "{} s", seconds);
            }
        }
    }
}
