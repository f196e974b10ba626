//! Compares response times of requests that the cache has served with those of requests that were
//! held out. Pure: its only input are counts and sums.
//!
//! Each interval of an analysis has its own held-out regions, and is the unit of the statistics
//! (`estimate`).
//!
//! Each held-out request is compared with the mean of the served requests of the same stratum (kind
//! and class of size) and interval. So a different mix of sizes, or a different load at another
//! time, does not count as a difference in speed. The ratio is that of the sums over all intervals,
//! each weighted so that it counts as if requests had been compared throughout.

use super::estimate::{Estimate, LogRatio};

/// Requests of a stratum and the sum of their response times in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Times {
    pub(crate) requests: u64,
    pub(crate) seconds: f64,
}

impl Times {
    pub(crate) fn plus(self, other: Self) -> Self {
        let seconds = self.seconds + other.seconds;
        Self { requests: self.requests + other.requests, seconds }
    }

    fn without(self, other: Self) -> Self {
        let seconds = (self.seconds - other.seconds).max(0.0);
        Self { requests: self.requests - other.requests, seconds }
    }

    pub(crate) fn mean(self) -> f64 {
        self.seconds / self.requests as f64
    }

    fn weighted(self, weight: f64) -> Self {
        let requests = (self.requests as f64 * weight).round() as u64;
        Self { requests, seconds: self.seconds * weight }
    }
}

/// A stratum of an interval.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Pair {
    /// Served by the cache.
    pub(crate) served: Times,
    /// Held out.
    pub(crate) held: Times,
}

/// An interval.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Interval {
    /// Its length divided by the time in which requests were compared: at least 1.
    pub(crate) weight: f64,
    /// Its strata. All intervals of a comparison have the same ones.
    pub(crate) pairs: Vec<Pair>,
}

impl Interval {
    /// Its requests of all strata that the cache has served.
    pub(crate) fn served(&self) -> Times {
        self.sum(|pair| pair.served)
    }

    /// Its requests of all strata that were held out.
    pub(crate) fn held(&self) -> Times {
        self.sum(|pair| pair.held)
    }

    fn sum(&self, side: fn(&Pair) -> Times) -> Times {
        self.pairs.iter().map(side).fold(Times::default(), Times::plus)
    }

    /// Its strata and their numbers, weighted.
    fn weighted(&self) -> impl Iterator<Item = (usize, Pair)> + '_ {
        let weighted = |pair: &Pair| Pair {
            served: pair.served.weighted(self.weight),
            held: pair.held.weighted(self.weight),
        };
        self.pairs.iter().map(weighted).enumerate()
    }
}

/// With fewer intervals that have held-out requests, no ratio is estimated.
pub(crate) const INTERVALS_MIN: usize = 8;
/// With fewer held-out requests, no ratio is estimated.
pub(crate) const HELD_MIN: u64 = 50;
/// A stratum with fewer requests in a phase is left out of the comparison of phases.
const STRATUM_MIN: u64 = 10;
/// An interval with fewer held-out or fewer served requests cannot be the worst one.
const WORST_REQUESTS_MIN: u64 = 5;
/// The worst interval is exceptional if its ratio is below the median by more than this many
/// standard deviations, on a logarithmic scale.
const EXCEPTIONAL_DEVIATIONS: f64 = 4.0;

/// The interval in which served requests were slowest compared with its held-out ones.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Worst {
    /// Its index.
    pub(crate) at: usize,
    /// How many times as fast served requests were in it.
    pub(crate) ratio: f64,
    pub(crate) served_mean: f64,
    pub(crate) held_mean: f64,
    /// It is outside the usual variation between intervals.
    pub(crate) is_exceptional: bool,
}

/// The result of a comparison.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Comparison {
    /// How many times as fast served requests are: the held-out mean divided by the served one.
    /// `None` if there is too little data.
    pub(crate) ratio: Option<Estimate>,
    /// The mean response time of held-out requests, in seconds.
    pub(crate) held_mean: f64,
    /// The mean response time of served requests of the same strata and intervals, in seconds.
    pub(crate) served_mean: f64,
    /// The numbers of held-out and of served requests.
    pub(crate) held: u64,
    pub(crate) served: u64,
    /// The part of the held-out requests that could be compared: there are served requests of the
    /// same stratum and interval.
    pub(crate) covered: f64,
    pub(crate) worst: Option<Worst>,
}

/// Compares held-out and served requests over all intervals.
pub(crate) fn compare(intervals: &[Interval]) -> Comparison {
    let pairs = || intervals.iter().flat_map(|interval| &interval.pairs);
    let served = pairs().map(|pair| pair.served.requests).sum();
    let held = pairs().map(|pair| pair.held.requests).sum();
    let matched: Vec<Matched> = intervals.iter().map(Matched::of).collect();
    let sum = matched.iter().fold(Matched::default(), |sum, one| sum.plus(*one));
    let enough = matched.iter().filter(|one| one.requests > 0).count();
    let ratio = (enough >= INTERVALS_MIN && sum.requests >= HELD_MIN)
        .then(|| over_intervals(&matched))
        .flatten();
    Comparison {
        ratio,
        held_mean: sum.mean(sum.held_seconds),
        served_mean: sum.mean(sum.served_seconds),
        held,
        served,
        covered: sum.requests as f64 / held.max(1) as f64,
        worst: worst(&matched),
    }
}

/// The held-out requests for which there are served ones of the same stratum and interval.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Matched {
    requests: u64,
    /// The same, weighted.
    weighted: f64,
    /// Their response times, weighted.
    held_seconds: f64,
    /// The time that as many served requests of the same strata would take, weighted.
    served_seconds: f64,
    /// The number of served requests that `served_seconds` is computed from.
    served: u64,
}

impl Matched {
    fn of(interval: &Interval) -> Self {
        let both =
            interval.pairs.iter().filter(|pair| pair.held.requests.min(pair.served.requests) > 0);
        both.fold(Self::default(), |sum, pair| {
            let weighted = pair.held.requests as f64 * interval.weight;
            sum.plus(Self {
                requests: pair.held.requests,
                weighted,
                held_seconds: pair.held.seconds * interval.weight,
                served_seconds: weighted * pair.served.mean(),
                served: pair.served.requests,
            })
        })
    }

    fn plus(self, other: Self) -> Self {
        Self {
            requests: self.requests + other.requests,
            weighted: self.weighted + other.weighted,
            held_seconds: self.held_seconds + other.held_seconds,
            served_seconds: self.served_seconds + other.served_seconds,
            served: self.served + other.served,
        }
    }

    /// The mean of one of its sums of response times.
    fn mean(self, seconds: f64) -> f64 {
        if self.weighted > 0.0 { seconds / self.weighted } else { 0.0 }
    }

    /// The logarithm of how many times longer the held-out requests took.
    fn log_ratio(self) -> Option<f64> {
        let is_known = self.held_seconds > 0.0 && self.served_seconds > 0.0;
        is_known.then(|| (self.held_seconds / self.served_seconds).ln())
    }
}

/// The ratio over all intervals.
fn over_intervals(matched: &[Matched]) -> Option<Estimate> {
    let log = |skipped: Option<usize>| {
        let kept = matched.iter().enumerate().filter(|(at, _)| Some(*at) != skipped);
        kept.fold(Matched::default(), |sum, (_, one)| sum.plus(*one)).log_ratio()
    };
    let used = (0..matched.len()).filter(|&at| matched[at].requests > 0);
    let without = used.map(|at| log(Some(at))).collect::<Option<Vec<f64>>>()?;
    LogRatio::jackknife(log(None)?, &without).map(Estimate::of)
}

/// How many times as fast the served requests of `later` are as the held-out ones of `earlier`, two
/// independent lists of intervals of the same strata. `None` if there is too little data.
pub(crate) fn compare_phases(earlier: &[Interval], later: &[Interval]) -> Option<Estimate> {
    let is_enough = has_enough(earlier, Interval::held) && has_enough(later, Interval::served);
    if !is_enough {
        return None;
    }
    let (before, after) = (total(earlier), total(later));
    let enough = |times: Times| times.requests >= STRATUM_MIN;
    let used: Vec<usize> = (0..before.len().min(after.len()))
        .filter(|&at| enough(before[at].held) && enough(after[at].served))
        .collect();
    let weights: Vec<u64> = after.iter().map(|pair| pair.served.requests).collect();
    let mean = |total: &[Pair], side: fn(&Pair) -> Times| {
        let some = used.iter().filter(|&&at| side(&total[at]).requests > 0);
        let sums = some.fold((0.0, 0.0), |(sum, weight), &at| {
            let more = weights[at] as f64;
            (sum + more * side(&total[at]).mean(), weight + more)
        });
        (sums.1 > 0.0 && sums.0 > 0.0).then(|| (sums.0 / sums.1).ln())
    };
    let before = mean_over_intervals(earlier, |total| mean(total, |pair| pair.held))?;
    let after = mean_over_intervals(later, |total| mean(total, |pair| pair.served))?;
    Some(Estimate::of(before.over(after)))
}

/// Whether one side of the intervals of a phase has enough requests for an estimate.
fn has_enough(intervals: &[Interval], side: fn(&Interval) -> Times) -> bool {
    let counts: Vec<u64> = intervals.iter().map(|one| side(one).requests).collect();
    let filled = counts.iter().filter(|requests| **requests > 0).count();
    filled >= INTERVALS_MIN && counts.iter().sum::<u64>() >= HELD_MIN
}

/// The weighted sums of all intervals.
fn total(intervals: &[Interval]) -> Vec<Pair> {
    let strata = intervals.iter().map(|interval| interval.pairs.len()).max().unwrap_or_default();
    let mut total = vec![Pair::default(); strata];
    for (at, pair) in intervals.iter().flat_map(Interval::weighted) {
        total[at].served = total[at].served.plus(pair.served);
        total[at].held = total[at].held.plus(pair.held);
    }
    total
}

/// The logarithm of a mean over all intervals.
fn mean_over_intervals(
    intervals: &[Interval],
    log: impl Fn(&[Pair]) -> Option<f64>,
) -> Option<LogRatio> {
    let total = total(intervals);
    let value = log(&total)?;
    let mut without = Vec::with_capacity(intervals.len());
    for interval in intervals {
        let mut rest = total.clone();
        for (at, pair) in interval.weighted() {
            rest[at].served = rest[at].served.without(pair.served);
            rest[at].held = rest[at].held.without(pair.held);
        }
        without.push(log(&rest)?);
    }
    LogRatio::jackknife(value, &without)
}

/// The interval with the lowest ratio.
fn worst(matched: &[Matched]) -> Option<Worst> {
    let is_enough =
        |one: &Matched| one.requests >= WORST_REQUESTS_MIN && one.served >= WORST_REQUESTS_MIN;
    let candidates = matched.iter().enumerate().filter(|(_, one)| is_enough(one));
    let logs: Vec<(usize, f64)> =
        candidates.filter_map(|(at, one)| Some((at, one.log_ratio()?))).collect();
    let (at, lowest) = *logs.iter().min_by(|a, b| a.1.total_cmp(&b.1))?;
    let middle = median(logs.iter().map(|one| one.1).collect());
    // For a normal distribution, 1.4826 times the median deviation is the standard deviation.
    let spread = 1.4826 * median(logs.iter().map(|one| (one.1 - middle).abs()).collect());
    let Matched { served_seconds, held_seconds, .. } = matched[at];
    Some(Worst {
        at,
        ratio: lowest.exp(),
        served_mean: matched[at].mean(served_seconds),
        held_mean: matched[at].mean(held_seconds),
        is_exceptional: logs.len() >= INTERVALS_MIN
            && middle - lowest > EXCEPTIONAL_DEVIATIONS * spread,
    })
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let (half, count) = (values.len() / 2, values.len());
    match count {
        0 => 0.0,
        _ if count % 2 == 1 => values[half],
        _ => f64::midpoint(values[half - 1], values[half]),
    }
}

#[cfg(test)]
#[path = "comparison_tests.rs"]
mod tests;
