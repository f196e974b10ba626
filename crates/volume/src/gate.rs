//! How much may be dirty under the protection of a supply.
//!
//! Counting dirty lines on each write would need all shards. Instead, each write adds its lines to
//! a counter of admitted bytes, and each call of [`PowerGate::set`] sets the limit of that counter:
//! its value at the previous call, plus what may be dirty, minus what is dirty. Writes admitted
//! since the previous call may be counted twice, so the limit is never too high.

use forebay_types::LINE_BYTES;
use std::sync::atomic::{AtomicU64, Ordering};

/// What may be dirty under the protection of supplies.
#[derive(Debug, Default)]
pub struct PowerGate {
    /// Bytes of dirty lines, at most; 0 while nothing bridges a loss of power.
    dirty_bytes_max: AtomicU64,
    /// Bytes of lines admitted, in all. Only grows.
    admitted: AtomicU64,
    /// Up to where `admitted` may go.
    admitted_max: AtomicU64,
    /// What was admitted when the gate was set last.
    admitted_before: AtomicU64,
}

impl PowerGate {
    /// Whether anything may be dirty.
    pub fn is_open(&self) -> bool {
        self.dirty_bytes_max.load(Ordering::Relaxed) > 0
    }

    /// Asks for room for a write that makes so many lines dirty, at most. Nothing is given back:
    /// the next call of [`set`](Self::set) sees what became of it.
    pub fn admit(&self, lines: u64) -> bool {
        let bytes = lines * LINE_BYTES;
        let admitted =
            self.admitted.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |admitted| {
                let all = admitted + bytes;
                (all <= self.admitted_max.load(Ordering::Relaxed)).then_some(all)
            });
        admitted.is_ok()
    }

    /// So many bytes of lines are dirty, and so many may be from now on; 0 closes the gate. To be
    /// called several times a second, by one thread.
    pub fn set(&self, dirty_bytes: u64, dirty_bytes_max: u64) {
        self.dirty_bytes_max.store(dirty_bytes_max, Ordering::Relaxed);
        let admitted = self.admitted.load(Ordering::Relaxed);
        let before = self.admitted_before.swap(admitted, Ordering::Relaxed);
        let admitted_max = match dirty_bytes_max {
            0 => 0,
            _ => before.saturating_add(dirty_bytes_max).saturating_sub(dirty_bytes),
        };
        self.admitted_max.store(admitted_max, Ordering::Relaxed);
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

    #[test]
    fn a_refusal_beside_a_change_leaves_the_bound_right() {
        let gate = PowerGate::default();
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| (0..1_000_000).filter(|_| gate.admit(2)).count());
            while !writer.is_finished() {
                gate.set(0, LINE_BYTES);
                // Whatever went wrong has a moment to be seen before it is set right again.
                (0..500).for_each(|_| std::hint::spin_loop());
            }
            assert_eq!(writer.join().expect("a writer"), 0, "more than may be dirty");
        });
        gate.set(0, LINE_BYTES);
        assert!(gate.admit(1) && !gate.admit(1));
    }
}
