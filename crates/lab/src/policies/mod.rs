//! Eviction policies by name: Forebay's own, and eight for comparison.
//!
//! The eight follow their published definitions behind the same trait, so that the replay and the
//! simulator drive all nine in the same way. They treat lines of recognised streams like any
//! others.

mod arc;
mod ghost;
mod lirs;
mod lru;
mod queues;
mod s3_fifo;
mod sieve;
mod sketch;
mod two_q;
mod w_tiny_lfu;

#[cfg(test)]
mod tests;

use crate::named::named;
use arc::Arc;
use forebay_policy::{CAPACITY_LINES_MAX, Eviction, Weir};
use lirs::Lirs;
use lru::Lru;
use s3_fifo::S3Fifo;
use sieve::Sieve;
use two_q::TwoQ;
use w_tiny_lfu::WTinyLfu;

named! {
    /// The eviction policies.
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
        /// One FIFO queue with a moving hand.
        Sieve = "sieve",
        /// Three FIFO queues with a correlation window.
        Clock2QPlus = "clock2q+",
        /// Clock2Q+ with a small queue of adaptive length; Forebay's own.
        Weir = "weir",
    }
}

impl PolicyKind {
    /// A policy for a shard of `capacity` lines. It allocates all of its memory here.
    ///
    /// # Panics
    /// Panics if `capacity` is zero or above [`CAPACITY_LINES_MAX`].
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
            Self::Clock2QPlus => Box::new(S3Fifo::clock2q_plus(capacity)),
            Self::Weir => Box::new(Weir::new(capacity)),
        }
    }
}
