//! How much may be dirty under the protection of a supply.
//!
//! **The bound.** Counting dirty lines on each write would need all shards. So each write adds its
//! lines to a bound, and each call of [`PowerGate::set`] sets the bound to what is really dirty
//! and what was added since the call before. It is never less than what is dirty, and too much
//! only by lines that were written twice in between.

use forebay_types::LINE_BYTES;
use std::sync::atomic::{AtomicU64, Ordering};

/// What may be dirty under the protection of supplies.
#[derive(Debug, Default)]
pub struct PowerGate {
    /// Bytes of dirty lines, at most; 0 while nothing bridges a loss of power.
    dirty_bytes_max: AtomicU64,
    /// At least the bytes of dirty lines there are.
    bound: AtomicU64,
    /// Bytes added to the bound, in all.
    added: AtomicU64,
    /// The same when the bound was set last.
    added_before: AtomicU64,
}

impl PowerGate {
    /// Whether anything may be dirty.
    pub fn is_open(&self) -> bool {
        self.dirty_bytes_max.load(Ordering::Relaxed) > 0
    }

    /// Asks for room for a write that makes so many lines dirty, at most. Nothing is given back:
    /// the next call of [`set`](Self::set) sees what became of it.
    pub fn admit(&self, lines: u64) -> bool {
        let max = self.dirty_bytes_max.load(Ordering::Relaxed);
        if max == 0 {
            return false;
        }
        let bytes = lines * LINE_BYTES;
        if self.bound.fetch_add(bytes, Ordering::Relaxed) + bytes > max {
            self.bound.fetch_sub(bytes, Ordering::Relaxed);
            return false;
        }
        self.added.fetch_add(bytes, Ordering::Relaxed);
        true
    }

    /// So many bytes of lines are dirty, and so many may be from now on; 0 closes the gate. To be
    /// called several times a second.
    pub fn set(&self, dirty_bytes: u64, dirty_bytes_max: u64) {
        self.dirty_bytes_max.store(dirty_bytes_max, Ordering::Relaxed);
        let added = self.added.load(Ordering::Relaxed);
        let since = added - self.added_before.swap(added, Ordering::Relaxed);
        self.bound.store(dirty_bytes.saturating_add(since), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_closed_gate_admits_nothing() {
        let gate = PowerGate::default();
        assert!(!gate.is_open() && !gate.admit(1));
        gate.set(0, 3 * LINE_BYTES);
        assert!(gate.is_open() && gate.admit(1));
        gate.set(LINE_BYTES, 0);
        assert!(!gate.is_open() && !gate.admit(1));
    }

    #[test]
    fn the_bound_is_never_below_what_is_dirty() {
        let gate = PowerGate::default();
        gate.set(0, 10 * LINE_BYTES);
        assert!(gate.admit(8) && !gate.admit(3) && gate.admit(2) && !gate.admit(1));
        // All ten were the same line; but a write may have been admitted and not be in the pool
        // yet, so the bound comes down with the second look.
        gate.set(LINE_BYTES, 10 * LINE_BYTES);
        assert!(!gate.admit(1));
        gate.set(LINE_BYTES, 10 * LINE_BYTES);
        assert!(gate.admit(9) && !gate.admit(1));
    }

    #[test]
    fn less_than_is_dirty_admits_nothing_until_it_is_less() {
        let gate = PowerGate::default();
        gate.set(100 * LINE_BYTES, 10 * LINE_BYTES);
        assert!(gate.is_open() && !gate.admit(1));
        gate.set(9 * LINE_BYTES, 10 * LINE_BYTES);
        assert!(gate.admit(1) && !gate.admit(1));
    }
}
