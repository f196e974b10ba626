//! The verdict on requests of a kind: what two comparisons say together. Pure.
//!
//! - *Beside held-out regions*: served requests with those held out at the same time. The load is
//!   the same, but the disk is not: the cache has taken most of its load, so a held-out request
//!   waits less in its queue than all requests would without a cache.
//! - *Against the phase `measure`*: served requests with those of the phase in which the whole
//!   volume had no cache. Queues are those of a disk without a cache, but the load is that of
//!   another time.
//!
//! Each is right where the other errs, so the interval of the verdict covers both intervals. Where
//! a queue matters, or the load has changed, they disagree, and the interval is as wide as that.
//!
//! A write that memory acknowledges has no fair counterpart beside held-out regions: a held-out one
//! waits for the destages of those that memory has acknowledged before. It is only compared against
//! the phase `measure`.
//!
//! The hold-out itself changes what it measures. The clients of held-out requests wait longer, and
//! send the disk less meanwhile, which makes served requests faster; and held-out requests that
//! would have been hits give the disk more to do, which makes them slower. Both matter as far as
//! the disk is busy with the load itself, and the interval reaches lower and higher by as much.
//!
//! The ratio is that of mean response times per request, of the requests that were sent in the
//! phase `accelerate`: a client that waits for its answers sends more of them, with the cache, but
//! the same proportion of kinds and sizes.

use super::comparison::{
    Comparison, HELD_MIN, INTERVALS_MIN, Interval, Times, compare, compare_phases,
};
use super::estimate::Estimate;

/// A smaller difference counts as none.
pub(crate) const MARGIN: f64 = 0.02;
/// What a response takes between a server and a client on the same machine, in seconds: 35 to 100
/// us were measured over a Unix socket, by how busy the machine was. It is part of both sides for a
/// client, but not for the server, which knows only its own time.
pub(crate) const OUTSIDE_SECONDS: f64 = 100e-6;

/// What the comparisons say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The whole interval is above 1 plus the margin.
    Benefit,
    /// The whole interval is below 1 minus the margin.
    Harm,
    /// The data shows neither.
    NoMeasurableBenefit,
    /// There is too little data for an estimate.
    TooLittleData,
    /// Nothing was held out, although there were enough requests.
    NotCompared,
}

impl Verdict {
    pub(crate) fn of(ratio: Option<Estimate>) -> Self {
        match ratio {
            None => Self::TooLittleData,
            Some(ratio) if ratio.low > 1.0 + MARGIN => Self::Benefit,
            Some(ratio) if ratio.high < 1.0 - MARGIN => Self::Harm,
            Some(_) => Self::NoMeasurableBenefit,
        }
    }
}

/// What a judgement depends on beside the times of requests.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Terms {
    /// Whether memory acknowledges the requests, so that those held out are no counterpart.
    pub(crate) is_deferred: bool,
    /// The part of the regions that was held out.
    pub(crate) share: f64,
    /// The part of the time in which the disk was busy while regions were held out.
    pub(crate) busy: f64,
    /// The part of the disk's I/Os that it had only because regions were held out.
    pub(crate) added_io: f64,
}

/// What an analysis says about the requests of a kind.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Judgement {
    pub(crate) verdict: Verdict,
    /// How many times as fast the requests are with the cache: from both comparisons, or from the
    /// only one. `None` if there is too little data.
    pub(crate) ratio: Option<Estimate>,
    /// Beside held-out regions.
    pub(crate) held_out: Comparison,
    /// Whether memory acknowledges them, so that those held out are no counterpart.
    pub(crate) is_deferred: bool,
    /// Against the phase `measure`.
    pub(crate) measure: Option<Estimate>,
    /// The time that served requests have taken together, in seconds.
    pub(crate) served_seconds: f64,
}

impl Judgement {
    /// Judges the requests of a kind by the intervals of the phases `measure` and `accelerate`.
    pub(crate) fn of(measure: &[Interval], accelerate: &[Interval], terms: Terms) -> Self {
        let Terms { is_deferred, share, busy, added_io } = terms;
        let held_out = compare(accelerate);
        let measured = compare_phases(measure, accelerate);
        let beside = held_out.ratio.filter(|_| !is_deferred);
        let both = match (beside, measured) {
            (Some(beside), Some(measured)) => Some(beside.covering(measured)),
            (one, other) => one.or(other),
        };
        let (served, held) = (sum(accelerate, Interval::served), sum(accelerate, Interval::held));
        let slower = served.plus(held).mean() / served.mean() - 1.0;
        let ratio = both.map(|ratio| {
            let widened = ratio.widened(busy * (1.0 - added_io) * slower, busy * added_io);
            widened.with_outside(OUTSIDE_SECONDS / served.mean())
        });
        // The server counts none of the held-out requests that something else than the disk delays.
        let held_at_all = held.requests + sum(measure, Interval::held).requests;
        // Deferred writes are only held out in the phase `measure`, which may be too short.
        let had_chance = !is_deferred || measure.len() >= INTERVALS_MIN;
        let is_left_out =
            held_at_all == 0 && had_chance && held_out.served as f64 * share >= HELD_MIN as f64;
        let verdict = if is_left_out { Verdict::NotCompared } else { Verdict::of(ratio) };
        let served_seconds = served.seconds;
        Self { verdict, ratio, held_out, is_deferred, measure: measured, served_seconds }
    }

    /// Whether there were any requests.
    pub(crate) const fn is_empty(&self) -> bool {
        self.held_out.served + self.held_out.held == 0
    }
}

fn sum(intervals: &[Interval], side: fn(&Interval) -> Times) -> Times {
    intervals.iter().map(side).fold(Times::default(), Times::plus)
}

/// What an analysis says about a volume as a whole.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Whole {
    pub(crate) verdict: Verdict,
    pub(crate) ratio: Option<Estimate>,
    /// Which requests the ratio is of.
    pub(crate) of: Requests,
}

/// Requests that a ratio is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Requests {
    All,
    /// Reads only, although there were writes.
    Reads,
    /// Writes only, although there were reads.
    Writes,
}

impl Whole {
    /// Reads and writes together: each kind with the time that it takes with the cache.
    pub(crate) fn of(reads: &Judgement, writes: &Judgement) -> Self {
        let kinds = [reads, writes];
        let compared: Vec<(f64, Estimate)> =
            kinds.iter().filter_map(|one| Some((one.served_seconds, one.ratio?))).collect();
        let ratio = Estimate::together(&compared);
        let of = match kinds.map(|one| one.ratio.is_some() || one.is_empty()) {
            [true, false] => Requests::Reads,
            [false, true] => Requests::Writes,
            _ => Requests::All,
        };
        Self { verdict: Verdict::of(ratio), ratio, of }
    }
}

#[cfg(test)]
#[path = "judgement_tests.rs"]
mod tests;
