//! Learns whether lines that return later than the boundary watches are worth a longer small queue.
//!
//! To hold such lines, the small queue would have to grow by up to [`LATER_SHARE`] of the capacity,
//! at the price of as many lines of main. That pays if these lines return much more often, per line
//! of the queue, than main is hit. The factor is large, because the queue must grow all the way
//! before a later return becomes a hit. Both counts decay with the evictions.

use super::WATCH_SHARE;

/// The age of the oldest ghost of the small queue whose return counts, in evictions from the small
/// queue per line of capacity.
const LATER_SHARE: f64 = 0.40;
/// The ratio of later returns to hits of main, both per line, from which on the boundary moves.
const RETURNS_PER_HIT: f64 = 8.0;
/// The counts lose a quarter each time a quarter of the capacity was evicted.
const DECAY_INVERSE: u64 = 4;

/// See the module documentation.
#[derive(Default)]
pub(super) struct LaterReturns {
    /// Hits of lines in main, decayed.
    pub(super) main_hits: u64,
    returns: u64,
    /// Evictions since the last decay.
    evictions: usize,
}

impl LaterReturns {
    /// Counts the return of a line that the small queue evicted, `age` evictions per line of
    /// capacity ago, more than [`WATCH_SHARE`]. Returns whether it should move the boundary.
    pub(super) fn count_return(&mut self, age: f64, main_len: usize, capacity: usize) -> bool {
        if age > LATER_SHARE {
            return false;
        }
        self.returns += 1;
        let later_len = capacity as f64 * (LATER_SHARE - WATCH_SHARE);
        let returns = self.returns as f64 * main_len as f64;
        returns > RETURNS_PER_HIT * self.main_hits as f64 * later_len
    }

    /// Counts an eviction.
    pub(super) fn count_eviction(&mut self, capacity: usize) {
        self.evictions += 1;
        if self.evictions * DECAY_INVERSE as usize >= capacity {
            self.evictions = 0;
            self.returns -= self.returns.div_ceil(DECAY_INVERSE);
            self.main_hits -= self.main_hits.div_ceil(DECAY_INVERSE);
        }
    }
}
