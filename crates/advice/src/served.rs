//! The rules for a volume that is served: whether it benefits from the cache, and what would help.

use crate::load::ratio;
use crate::verdict::{
    FAST_US, READ_SHARE_MIN, REQUESTS_MIN, SEQUENTIAL_MIN, SLOW_US, SMALL_WRITE_BYTES,
    WRITE_SHARE_MIN,
};
use forebay_types::Mode;
use std::fmt;

/// If memory serves a smaller share of a volume's reads, the gain is not worth its part of the
/// pool.
const HIT_MIN: f64 = 0.1;
/// The same for the I/Os that its disk was spared, as a share of the requests.
const SAVED_MIN: f64 = 0.1;
/// Misses that are needed to know how fast the disk is.
const MISSES_MIN: u64 = 100;
/// Until a volume has been served for this long, in seconds, few hits are no reason to take it out
/// of the cache: the pool may still be filling.
const SECONDS_MIN: u64 = 3_600;

/// The figures of a volume over a period.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Served {
    /// The length of the period.
    pub seconds: u64,
    /// The configured mode.
    pub mode: Mode,
    /// Reads by clients.
    pub reads: u64,
    /// Reads served from memory.
    pub read_hits: u64,
    /// Writes by clients.
    pub writes: u64,
    /// Bytes of the writes.
    pub write_bytes: u64,
    /// Writes that begin where another has ended.
    pub sequential_writes: u64,
    /// Requests of clients minus I/Os of the disk; negative if the disk had more.
    pub saved_ios: i64,
    /// The mean time of a read that was no hit, in microseconds.
    pub miss_us: f64,
    /// The mean time of a write, in microseconds.
    pub write_us: f64,
    /// The volume's miss-ratio curve; `None` while it is unknown.
    pub curve: Option<ServedCurve>,
}

/// What the miss-ratio curve of a volume says.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ServedCurve {
    /// The share of accesses that memory would serve, from 0 to 1: with the volume's present part
    /// of the pool, or with the whole pool if the volume has no data in it.
    pub hits: f64,
    /// Whether the pool should have another size for this volume.
    pub memory: PoolAdvice,
}

/// Whether the pool should have another size for a volume.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum PoolAdvice {
    /// Keep its size.
    #[default]
    Keep,
    /// Half would do.
    Less,
    /// More is worth it.
    More,
}

/// The advice for a volume, with its reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServedAdvice {
    /// Nothing was requested.
    Idle,
    /// Too little was requested.
    TooFew,
    /// It has not been served for long enough.
    TooEarly,
    /// Keep it: it gains.
    Keep,
    /// Keep it: more memory would serve more of it.
    MoreMemory,
    /// Keep it: it gains, and half the memory would do for it.
    LessMemory,
    /// Keep it, with write-back: many of its writes are small, random and slow.
    WriteBack,
    /// Keep it out of the cache.
    StayOut,
    /// Take it into the cache again.
    CacheAgain,
    /// Take it out: it gains nothing.
    NoGain,
    /// Take it out: nearly all of its requests are sequential writes.
    Log,
    /// Take it out: nearly all of its requests are writes.
    WriteHeavy,
    /// Take it out: its disk is fast.
    Fast,
}

impl ServedAdvice {
    /// Its name: one or more words joined by hyphens.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::TooFew => "too-few",
            Self::TooEarly => "too-early",
            Self::Keep => "keep",
            Self::MoreMemory => "more-memory",
            Self::LessMemory => "less-memory",
            Self::WriteBack => "write-back",
            Self::StayOut => "stay-out",
            Self::CacheAgain => "cache-again",
            Self::NoGain => "no-gain",
            Self::Log => "log",
            Self::WriteHeavy => "write-heavy",
            Self::Fast => "fast",
        }
    }

    /// The mode to change to, if any.
    pub const fn mode(self) -> Option<Mode> {
        match self {
            Self::NoGain | Self::Log | Self::WriteHeavy | Self::Fast => Some(Mode::Bypass),
            Self::CacheAgain => Some(Mode::WriteThrough),
            Self::WriteBack => Some(Mode::WriteBack),
            _ => None,
        }
    }

    /// Whether too little is known for advice.
    pub const fn is_unknown(self) -> bool {
        matches!(self, Self::Idle | Self::TooFew | Self::TooEarly)
    }
}

impl fmt::Display for ServedAdvice {
    /// The reason in one sentence without a full stop.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Idle => "nothing was read or written; no advice is possible",
            Self::TooFew => "there were too few requests; no advice is possible",
            Self::TooEarly => {
                "memory serves little of it so far, but the pool may still be filling; ask again \
                 later"
            }
            Self::Keep => "memory serves it, and more would hardly bring more",
            Self::MoreMemory => "memory serves it, and more would bring more",
            Self::LessMemory => "memory serves it, and half of it would do",
            Self::WriteBack => "many writes are small, random and slow; write-back gathers them",
            Self::StayOut => "it is not cached, and little of it is read again",
            Self::CacheAgain => "it is not cached, although its data is read again",
            Self::NoGain => {
                "caching does not help this volume: hardly any of its data is read again"
            }
            Self::Log => {
                "caching does not help this volume: nearly all requests are sequential writes, \
                 like those of a log"
            }
            Self::WriteHeavy => "caching does not help this volume: nearly all requests are writes",
            Self::Fast => {
                "caching does not help this volume: its disk answers nearly as fast as a cache hit"
            }
        })
    }
}

/// Judges a volume.
pub fn advise_served(served: &Served) -> ServedAdvice {
    let requests = served.reads + served.writes;
    match requests {
        0 => return ServedAdvice::Idle,
        1..REQUESTS_MIN => return ServedAdvice::TooFew,
        _ => {}
    }
    if served.mode == Mode::Bypass {
        return judge_bypassed(served);
    }
    let share = |part: u64, all: u64| ratio(part as f64, all as f64);
    let read_share = share(served.reads, requests);
    let is_sequential = share(served.sequential_writes, served.writes) >= SEQUENTIAL_MIN;
    let is_small = share(served.write_bytes, served.writes) <= SMALL_WRITE_BYTES;
    let is_slow = served.write_us >= SLOW_US;
    let would_defer = served.mode == Mode::WriteThrough && !is_sequential && is_small && is_slow;
    let is_saving = served.saved_ios as f64 >= requests as f64 * SAVED_MIN;
    if read_share < READ_SHARE_MIN {
        return match (is_saving, would_defer, is_sequential) {
            (true, ..) => ServedAdvice::Keep,
            (false, true, _) => ServedAdvice::WriteBack,
            (false, false, true) => ServedAdvice::Log,
            (false, false, false) => ServedAdvice::WriteHeavy,
        };
    }
    if served.reads - served.read_hits >= MISSES_MIN && served.miss_us < FAST_US {
        return ServedAdvice::Fast;
    }
    if share(served.read_hits, served.reads) < HIT_MIN && !is_saving {
        return judge_missing(served);
    }
    if would_defer && read_share <= 1.0 - WRITE_SHARE_MIN {
        return ServedAdvice::WriteBack;
    }
    match served.curve.map(|curve| curve.memory) {
        Some(PoolAdvice::More) => ServedAdvice::MoreMemory,
        Some(PoolAdvice::Less) => ServedAdvice::LessMemory,
        Some(PoolAdvice::Keep) | None => ServedAdvice::Keep,
    }
}

fn judge_bypassed(served: &Served) -> ServedAdvice {
    let hits = served.curve.map_or(0.0, |curve| curve.hits);
    if hits >= 2.0 * HIT_MIN && served.reads >= served.writes {
        ServedAdvice::CacheAgain
    } else {
        ServedAdvice::StayOut
    }
}

/// Judges a volume of which memory serves little.
fn judge_missing(served: &Served) -> ServedAdvice {
    match served.curve {
        Some(ServedCurve { memory: PoolAdvice::More, .. }) => ServedAdvice::MoreMemory,
        // The pool is still filling.
        Some(curve) if curve.hits >= 2.0 * HIT_MIN => ServedAdvice::TooEarly,
        _ if served.seconds < SECONDS_MIN => ServedAdvice::TooEarly,
        _ => ServedAdvice::NoGain,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A volume that was served for two hours. Memory serves the share `hits` of its reads, and its
    /// disk takes 5 ms for an I/O.
    fn served(reads: u64, writes: u64, hits: f64) -> Served {
        Served {
            seconds: 7_200,
            mode: Mode::WriteThrough,
            reads,
            read_hits: (reads as f64 * hits) as u64,
            writes,
            write_bytes: writes * 4_096,
            saved_ios: (reads as f64 * hits) as i64,
            miss_us: 5_000.0,
            write_us: 5_000.0,
            ..Served::default()
        }
    }

    fn with_curve(served: Served, hits: f64, memory: PoolAdvice) -> Served {
        Served { curve: Some(ServedCurve { hits, memory }), ..served }
    }

    #[test]
    fn a_volume_that_gains_is_kept() {
        let good = served(9_000, 1_000, 0.8);
        assert_eq!(advise_served(&good), ServedAdvice::Keep);
        for (memory, advice) in [
            (PoolAdvice::Keep, ServedAdvice::Keep),
            (PoolAdvice::Less, ServedAdvice::LessMemory),
            (PoolAdvice::More, ServedAdvice::MoreMemory),
        ] {
            assert_eq!(advise_served(&with_curve(good, 0.8, memory)), advice);
        }
        assert_eq!(advise_served(&served(6_000, 4_000, 0.8)), ServedAdvice::WriteBack);
        let sequential = Served { sequential_writes: 4_000, ..served(6_000, 4_000, 0.8) };
        assert_eq!(advise_served(&sequential), ServedAdvice::Keep);
    }

    #[test]
    fn a_volume_that_gains_nothing_is_taken_out() {
        let poor = served(9_000, 1_000, 0.02);
        assert_eq!(advise_served(&poor), ServedAdvice::NoGain);
        assert_eq!(advise_served(&with_curve(poor, 0.02, PoolAdvice::Less)), ServedAdvice::NoGain);
        let young = Served { seconds: 600, ..poor };
        assert_eq!(advise_served(&young), ServedAdvice::TooEarly);
        let filling = with_curve(poor, 0.7, PoolAdvice::Keep);
        assert_eq!(advise_served(&filling), ServedAdvice::TooEarly);
        let small = with_curve(poor, 0.02, PoolAdvice::More);
        assert_eq!(advise_served(&small), ServedAdvice::MoreMemory);
        let fast = Served { miss_us: 90.0, ..served(9_000, 1_000, 0.8) };
        assert_eq!(advise_served(&fast), ServedAdvice::Fast);
        assert_eq!(ServedAdvice::NoGain.mode(), Some(Mode::Bypass));
    }

    #[test]
    fn a_volume_of_writes_is_judged_by_them() {
        assert_eq!(advise_served(&served(100, 9_900, 0.0)), ServedAdvice::WriteBack);
        let log = Served { sequential_writes: 9_000, ..served(100, 9_900, 0.0) };
        assert_eq!(advise_served(&log), ServedAdvice::Log);
        let quick = Served { write_us: 300.0, ..served(100, 9_900, 0.0) };
        assert_eq!(advise_served(&quick), ServedAdvice::WriteHeavy);
        let gathered =
            Served { mode: Mode::WriteBack, saved_ios: 5_000, ..served(100, 9_900, 0.0) };
        assert_eq!(advise_served(&gathered), ServedAdvice::Keep);
        let in_vain = Served { saved_ios: 10, ..gathered };
        assert_eq!(advise_served(&in_vain), ServedAdvice::WriteHeavy);
    }

    #[test]
    fn a_bypassed_volume_is_judged_by_its_curve() {
        let bypassed = Served { mode: Mode::Bypass, ..served(9_000, 1_000, 0.0) };
        assert_eq!(advise_served(&bypassed), ServedAdvice::StayOut);
        let again = with_curve(bypassed, 0.6, PoolAdvice::Keep);
        assert_eq!(advise_served(&again), ServedAdvice::CacheAgain);
        let writes = Served { reads: 100, writes: 9_900, ..again };
        assert_eq!(advise_served(&writes), ServedAdvice::StayOut);
    }

    #[test]
    fn little_is_said_of_little() {
        assert_eq!(advise_served(&served(0, 0, 0.0)), ServedAdvice::Idle);
        assert_eq!(advise_served(&served(500, 499, 0.0)), ServedAdvice::TooFew);
        let unknown = [ServedAdvice::Idle, ServedAdvice::TooFew, ServedAdvice::TooEarly];
        assert!(unknown.iter().all(|advice| advice.is_unknown() && advice.mode().is_none()));
    }
}
