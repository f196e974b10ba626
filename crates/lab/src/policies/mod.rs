//! Eviction policies by name: the one that Forebay uses, and eight that it is compared with.
//!
//! The eight follow their published definitions behind the same trait, so the replay and the
//! simulator drive all nine alike. They treat lines of recognised streams as any other.

mod arc;
mod clock2q_plus;
mod ghost;
mod lirs;
mod lru;
mod s3_fifo;
mod sieve;
mod sketch;
mod two_q;
mod w_tiny_lfu;

#[cfg(test)]
mod tests;

use arc::Arc;
use clock2q_plus::Clock2QPlus;
use forebay_policy::{CAPACITY_LINES_MAX, Eviction, Weir};
use lirs::Lirs;
use lru::Lru;
use s3_fifo::S3Fifo;
use sieve::Sieve;
use std::{fmt, str::FromStr};
use two_q::TwoQ;
use w_tiny_lfu::WTinyLfu;

/// Which eviction policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PolicyKind {
    /// Least recently used.
    Lru,
    /// Adaptive replacement cache.
    Arc,
    /// Low inter-reference recency set.
    Lirs,
    /// Two queues, the full version.
    TwoQ,
    /// Window TinyLFU.
    WTinyLfu,
    /// Three FIFO queues.
    S3Fifo,
    /// One FIFO queue with a hand that sieves.
    Sieve,
    /// Three FIFO queues with a correlation window.
    Clock2QPlus,
    /// Clock2Q+ with a boundary that moves to where it earns more hits; the one Forebay uses.
    Weir,
}

impl PolicyKind {
    /// All of them, in the order in which tables show them.
    pub const ALL: [Self; 9] = [
        Self::Lru,
        Self::Arc,
        Self::Lirs,
        Self::TwoQ,
        Self::WTinyLfu,
        Self::S3Fifo,
        Self::Sieve,
        Self::Clock2QPlus,
        Self::Weir,
    ];

    /// The name in commands, settings and tables.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Lru => "lru",
            Self::Arc => "arc",
            Self::Lirs => "lirs",
            Self::TwoQ => "2q",
            Self::WTinyLfu => "w-tinylfu",
            Self::S3Fifo => "s3-fifo",
            Self::Sieve => "sieve",
            Self::Clock2QPlus => "clock2q+",
            Self::Weir => "weir",
        }
    }

    /// A policy for a shard of `capacity` lines, with all the memory that it will ever need.
    ///
    /// # Panics
    /// When `capacity` is zero or more than [`CAPACITY_LINES_MAX`].
    pub fn build(self, capacity: usize) -> Box<dyn Eviction> {
        assert!((1..=CAPACITY_LINES_MAX).contains(&capacity), "no policy for {capacity} lines");
        match self {
            Self::Lru => Box::new(Lru::new(capacity)),
            Self::Arc => Box::new(Arc::new(capacity)),
            Self::Lirs => Box::new(Lirs::new(capacity)),
            Self::TwoQ => Box::new(TwoQ::new(capacity)),
            Self::WTinyLfu => Box::new(WTinyLfu::new(capacity)),
            Self::S3Fifo => Box::new(S3Fifo::new(capacity)),
            Self::Sieve => Box::new(Sieve::new(capacity)),
            Self::Clock2QPlus => Box::new(Clock2QPlus::new(capacity)),
            Self::Weir => Box::new(Weir::new(capacity)),
        }
    }
}

impl fmt::Display for PolicyKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The text names no policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParsePolicyError {
    text: String,
}

impl fmt::Display for ParsePolicyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no eviction policy '{}': choose one of ", self.text)?;
        for (i, kind) in PolicyKind::ALL.into_iter().enumerate() {
            if i > 0 {
                f.write_str(", ")?;
            }
            f.write_str(kind.name())?;
        }
        Ok(())
    }
}

impl std::error::Error for ParsePolicyError {}

impl FromStr for PolicyKind {
    type Err = ParsePolicyError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let found = Self::ALL.into_iter().find(|kind| kind.name() == text);
        found.ok_or_else(|| ParsePolicyError { text: text.to_owned() })
    }
}
