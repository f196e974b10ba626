//! The rules: whether a device should be cached, in which mode, and why.

use crate::load::{Load, SelfCaching, ratio};
use crate::predict::{Point, Prediction};
use forebay_types::Mode;
use std::fmt;

/// With fewer requests, no advice is given: of 1,000 requests, chance alone moves a share by up to
/// 3 percentage points.
pub const REQUESTS_MIN: u64 = 1_000;
/// With a smaller share of reads, a device is judged by its writes: a cache spares it few reads.
pub(crate) const READ_SHARE_MIN: f64 = 0.1;
/// If at least this share of the writes is sequential, they are those of a log or a backup: fast on
/// a disk, and not read again soon.
pub(crate) const SEQUENTIAL_MIN: f64 = 0.5;
/// Writes up to this mean size, in bytes, cost a rotating disk more for the seek than for the data,
/// so gathering them in memory pays.
pub(crate) const SMALL_WRITE_BYTES: f64 = (64 << 10) as f64;
/// From this share of writes on, those that are small and random are worth write-back.
pub(crate) const WRITE_SHARE_MIN: f64 = 0.3;
/// A hit takes about this long, in microseconds: the way through the socket and the pool.
const HIT_US: f64 = 50.0;
/// A miss takes this much longer than the device alone, in microseconds.
const MISS_MORE_US: f64 = 30.0;
/// A device that answers in less than the time of three hits, in microseconds, gains too little.
pub(crate) const FAST_US: f64 = 3.0 * HIT_US;
/// From this mean time on, in microseconds, a device seeks or queues: read-ahead and deferred
/// writes pay.
pub(crate) const SLOW_US: f64 = 1_000.0;
/// The least share of reads from memory for which a cache is worth it. With less, four of five
/// reads take longer than before.
const HIT_MIN: f64 = 0.2;
/// The same if an application caches for itself: its own cache makes better use of the memory.
const HIT_MIN_BESIDE: f64 = 0.5;
/// If reuse serves a smaller share of the reads, the hits come from read-ahead.
const REUSE_MIN: f64 = 0.1;
/// More memory is worth it if each doubling serves this additional share of the reads, as in the
/// advice for served volumes.
const GAIN_PER_DOUBLING: f64 = 0.05;
/// With more than this share unknown, the advice is to observe for longer.
const UNKNOWN_MAX: f64 = 0.05;

/// What is known of a device.
#[derive(Clone, Copy, Debug)]
pub struct Basis<'a> {
    /// The counters.
    pub load: &'a Load,
    /// The prediction; `None` if requests could not be observed.
    pub prediction: Option<&'a Prediction>,
    /// Processes that cache the device's data themselves.
    pub self_caching: &'a [SelfCaching],
    /// The memory available to its cache, in bytes; `None` to let the verdict choose.
    pub memory_bytes: Option<u64>,
}

/// The advice for a device.
#[derive(Clone, Debug, PartialEq)]
pub struct Advice {
    /// What to do, and why.
    pub reason: Reason,
    /// What a cache would bring; `None` without a prediction.
    pub expected: Option<Expectation>,
    /// Whether a longer observation would make the prediction more certain.
    pub watch_longer: bool,
}

/// What a cache of a size would bring.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Expectation {
    /// The prediction for the advised size.
    pub point: Point,
    /// The observed mean time of a read, in microseconds.
    pub read_us: f64,
    /// The mean time of a read with the cache, in microseconds, for the greatest and for the least
    /// predicted share.
    pub cached_us: (f64, f64),
    /// The waiting time that the cache would save all reads together, in seconds per second, for
    /// the least predicted share. Writes are not counted.
    pub saved: f64,
}

/// The reason for an advice.
#[derive(Clone, Debug, PartialEq)]
pub enum Reason {
    /// Cache it: data is read again.
    Reuse,
    /// Cache it, writes too: data is read again, and many writes are small and random.
    ReuseAndWrites,
    /// Cache its writes: they are small, random and slow.
    SmallWrites,
    /// Cache it for its read-ahead: reads are sequential, and the device is slow.
    ReadAhead,
    /// Leave it out: nearly all requests are sequential writes.
    Log,
    /// Leave it out: nearly all requests are writes.
    WriteHeavy,
    /// Leave it out: the device is fast already.
    Fast,
    /// Leave it out: little data is read again.
    LittleReuse,
    /// Leave it out: reads are sequential, and the device is fast enough for that.
    ScanOnly,
    /// Leave it out: the application caches for itself.
    SelfCaching(SelfCaching),
    /// Unknown: there were no requests.
    Idle,
    /// Unknown: there were too few requests.
    TooFew,
    /// Unknown: the requests themselves could not be observed.
    NotSampled,
    /// Unknown: too many reads were the first access to their data.
    WatchLonger,
}

impl Reason {
    /// Its name: one or more words joined by hyphens.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Reuse => "reuse",
            Self::ReuseAndWrites => "reuse-and-writes",
            Self::SmallWrites => "small-writes",
            Self::ReadAhead => "read-ahead",
            Self::Log => "log",
            Self::WriteHeavy => "write-heavy",
            Self::Fast => "fast",
            Self::LittleReuse => "little-reuse",
            Self::ScanOnly => "scan-only",
            Self::SelfCaching(_) => "self-caching",
            Self::Idle => "idle",
            Self::TooFew => "too-few",
            Self::NotSampled => "not-sampled",
            Self::WatchLonger => "watch-longer",
        }
    }

    /// The mode in which to cache the device; `None` if it should be left out, or too little is
    /// known for advice.
    pub const fn mode(&self) -> Option<Mode> {
        match self {
            Self::Reuse | Self::ReadAhead => Some(Mode::WriteThrough),
            Self::ReuseAndWrites | Self::SmallWrites => Some(Mode::WriteBack),
            _ => None,
        }
    }

    /// Whether too little is known for advice.
    pub const fn is_unknown(&self) -> bool {
        matches!(self, Self::Idle | Self::TooFew | Self::NotSampled | Self::WatchLonger)
    }
}

impl fmt::Display for Reason {
    /// The reason in one sentence without a full stop.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Reuse => "data is read again, so memory serves it",
            Self::ReuseAndWrites => {
                "data is read again, and many writes are small and random, which memory gathers"
            }
            Self::SmallWrites => {
                "nearly all requests are small random writes, and the device is slow; memory \
                 gathers them"
            }
            Self::ReadAhead => "reads are sequential and slow; reading ahead serves them",
            Self::Log => {
                "nearly all requests are sequential writes, like those of a log; the data is not \
                 read again and would displace data that is"
            }
            Self::WriteHeavy => {
                "nearly all requests are writes; caching the few reads saves little"
            }
            Self::Fast => "the device already answers nearly as fast as a cache hit",
            Self::LittleReuse => "little data is read again before it would be evicted",
            Self::ScanOnly => {
                "reads are sequential and hardly repeat, and the device streams them fast enough"
            }
            Self::SelfCaching(process) => {
                return write!(
                    f,
                    "{} (process {}) bypasses the page cache and uses {} MiB of memory itself; \
                     give that process more memory instead",
                    process.name,
                    process.pid,
                    process.resident_bytes >> 20,
                );
            }
            Self::Idle => "nothing was read or written; no advice is possible",
            Self::TooFew => "there were too few requests; no advice is possible",
            Self::NotSampled => {
                "requests could not be traced, so it is unknown whether data is read again"
            }
            Self::WatchLonger => {
                "too many reads were first accesses to judge reuse; observe for longer"
            }
        })
    }
}

/// Judges a device.
pub fn verdict(basis: &Basis<'_>) -> Advice {
    let point = basis.prediction.and_then(|prediction| match basis.memory_bytes {
        Some(bytes) => prediction.at(bytes).or(prediction.points.first()),
        None => worthwhile(&prediction.points),
    });
    let unknown = basis.prediction.map_or(0.0, Prediction::unknown);
    Advice {
        reason: reason(basis, point),
        expected: point.map(|&point| expectation(basis.load, point)),
        watch_longer: unknown > UNKNOWN_MAX,
    }
}

/// The smallest size beyond which more memory is not worth it. Looks past plateaus.
fn worthwhile(points: &[Point]) -> Option<&Point> {
    let mut best = points.first()?;
    for point in points {
        let doublings = (point.bytes as f64 / best.bytes as f64).log2();
        if point.low - best.low >= GAIN_PER_DOUBLING * doublings {
            best = point;
        }
    }
    Some(best)
}

fn reason(basis: &Basis<'_>, point: Option<&Point>) -> Reason {
    let load = basis.load;
    match load.requests() {
        0 => return Reason::Idle,
        1..REQUESTS_MIN => return Reason::TooFew,
        _ => {}
    }
    let all_ms = (load.read_wait_ms + load.write_wait_ms) as f64;
    if ratio(all_ms * 1e3, load.requests() as f64) < FAST_US {
        return Reason::Fast;
    }
    let (Some(prediction), Some(point)) = (basis.prediction, point) else {
        return match load.read_share() < READ_SHARE_MIN {
            true => Reason::WriteHeavy,
            false => Reason::NotSampled,
        };
    };
    let pattern = &prediction.pattern;
    if pattern.reads + pattern.writes < REQUESTS_MIN {
        return Reason::TooFew;
    }
    let is_sequential = pattern.sequential_write_share() >= SEQUENTIAL_MIN;
    let has_small_writes = !is_sequential && pattern.write_size() <= SMALL_WRITE_BYTES;
    if load.read_share() < READ_SHARE_MIN {
        return match (is_sequential, has_small_writes && load.write_us() >= SLOW_US) {
            (true, _) => Reason::Log,
            (false, true) => Reason::SmallWrites,
            (false, false) => Reason::WriteHeavy,
        };
    }
    if let Some(process) = basis.self_caching.first()
        && point.low < HIT_MIN_BESIDE
    {
        return Reason::SelfCaching(process.clone());
    }
    if point.low < HIT_MIN {
        return if point.high < HIT_MIN { Reason::LittleReuse } else { Reason::WatchLonger };
    }
    if point.reuse() < REUSE_MIN {
        return if load.read_us() >= SLOW_US { Reason::ReadAhead } else { Reason::ScanOnly };
    }
    match has_small_writes && load.read_share() <= 1.0 - WRITE_SHARE_MIN {
        true => Reason::ReuseAndWrites,
        false => Reason::Reuse,
    }
}

fn expectation(load: &Load, point: Point) -> Expectation {
    let read_us = load.read_us();
    let with = |hits: f64| hits * HIT_US + (1.0 - hits) * (read_us + MISS_MORE_US);
    let per_second = ratio(load.reads as f64, load.seconds);
    let saved = (read_us - with(point.low)).max(0.0) * per_second / 1e6;
    Expectation { point, read_us, cached_us: (with(point.high), with(point.low)), saved }
}

#[cfg(test)]
mod tests;
