//! The budget of dirty data under UPS protection.
//!
//! Counting dirty lines on each write would visit all shards. Instead, each write adds its lines to
//! a counter of admitted bytes, and [`PowerGate::set`] sets the limit of that counter: its value at
//! the previous call, plus the budget, minus the dirty bytes. A write admitted since the previous
//! call counts in the counter, and also in the dirty bytes if it is in the pool, so the limit may
//! be too low, but never too high.

use forebay_types::LINE_BYTES;
use std::sync::atomic::{AtomicU64, Ordering};

/// Admits writes as long as the dirty data stays within the budget.
#[derive(Debug, Default)]
pub struct PowerGate {
    /// The budget in bytes of dirty lines; 0 while no UPS bridges a power failure.
    dirty_bytes_max: AtomicU64,
    /// Bytes of lines admitted in total. Never decreases.
    admitted: AtomicU64,
    /// The limit of `admitted`.
    admitted_max: AtomicU64,
    /// The value of `admitted` at the last call of `set`.
    admitted_before: AtomicU64,
}

impl PowerGate {
    /// Whether dirty data is allowed at all.
    pub fn is_open(&self) -> bool {
        self.dirty_bytes_max.load(Ordering::Relaxed) > 0
    }

    /// Returns whether the budget admits a write that dirties up to `lines` lines. The end of a
    /// write is not reported: the next call of [`set`](Self::set) counts the lines that are dirty
    /// then.
    pub fn admit(&self, lines: u64) -> bool {
        let bytes = lines * LINE_BYTES;
        let admitted =
            self.admitted.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |admitted| {
                let all = admitted + bytes;
                (all <= self.admitted_max.load(Ordering::Relaxed)).then_some(all)
            });
        admitted.is_ok()
    }

    /// Sets the budget, given the bytes of lines that are dirty now; a budget of 0 closes the gate.
    /// One thread calls this, several times a second.
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
    fn admitted_writes_count_until_a_second_call_of_set() {
        let gate = PowerGate::default();
        gate.set(0, 10 * LINE_BYTES);
        assert!(gate.admit(8) && !gate.admit(3) && gate.admit(2) && !gate.admit(1));
        // All ten were the same line. An admitted write may not be in the pool yet, so only the
        // second call of `set` raises the limit.
        gate.set(LINE_BYTES, 10 * LINE_BYTES);
        assert!(!gate.admit(1));
        gate.set(LINE_BYTES, 10 * LINE_BYTES);
        assert!(gate.admit(9) && !gate.admit(1));
    }

    #[test]
    fn a_budget_below_the_dirty_bytes_admits_nothing() {
        let gate = PowerGate::default();
        gate.set(100 * LINE_BYTES, 10 * LINE_BYTES);
        assert!(gate.is_open() && !gate.admit(1));
        gate.set(9 * LINE_BYTES, 10 * LINE_BYTES);
        assert!(gate.admit(1) && !gate.admit(1));
    }

    #[test]
    fn a_refusal_during_a_call_of_set_keeps_the_limit() {
        let gate = PowerGate::default();
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| (0..1_000_000).filter(|_| gate.admit(2)).count());
            while !writer.is_finished() {
                gate.set(0, LINE_BYTES);
                // The writer gets time to exceed a wrong limit before the next call corrects it.
                (0..500).for_each(|_| std::hint::spin_loop());
            }
            let admitted = writer.join().expect("the writer does not panic");
            assert_eq!(admitted, 0, "the budget is exceeded");
        });
        gate.set(0, LINE_BYTES);
        assert!(gate.admit(1) && !gate.admit(1));
    }
}
