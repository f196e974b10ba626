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

use crate::named::named;
use arc::Arc;
use clock2q_plus::Clock2QPlus;
use forebay_policy::{CAPACITY_LINES_MAX, Eviction, Weir};
use lirs::Lirs;
use lru::Lru;
use s3_fifo::S3Fifo;
use sieve::Sieve;
use two_q::TwoQ;
use w_tiny_lfu::WTinyLfu;

named! {
    /// Which eviction policy.
    "eviction policy" enum PolicyKind {
        /// Least recently used.
        Lru = "lru",
        /// Adaptive replacement cache.
        Arc = "arc",
        /// Low inter-reference recency set.
        Lirs = "lirs",
        /// Two queues, the full version.
        TwoQ = "2q",
        /// Window TinyLFU.
        WTinyLfu = "w-tinylfu",
        /// Three FIFO queues.
        S3Fifo = "s3-fifo",
        /// One FIFO queue with a hand that sieves.
        Sieve = "sieve",
        /// Three FIFO queues with a correlation window.
        Clock2QPlus = "clock2q+",
        /// Clock2Q+ with a boundary that moves to where it earns more hits; the one Forebay uses.
        Weir = "weir",
    }
}

impl PolicyKind {
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
