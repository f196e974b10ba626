//! How many lines a disk takes in a given time.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

/// The interval of a measurement, in milliseconds, and the longest one: there was a pause in it.
const INTERVAL_MS: u64 = 50;
const INTERVAL_MS_MAX: u64 = 1_000;

/// The rate of a volume's destages while any are in flight. Content is advisory, as that of
/// [`super::elevator`].
#[derive(Debug, Default)]
pub(super) struct DestageRate {
    begun_ms: AtomicU64,
    lines: AtomicUsize,
    per_second: AtomicUsize,
}

impl DestageRate {
    /// Counts a destage over `lines` lines as completed.
    pub(super) fn count_end(&self, lines: usize, now_ms: u64) {
        let lines = self.lines.fetch_add(lines, Relaxed) + lines;
        let passed_ms = now_ms.saturating_sub(self.begun_ms.load(Relaxed));
        if passed_ms < INTERVAL_MS {
            return;
        }
        if passed_ms <= INTERVAL_MS_MAX {
            self.per_second.store(lines * 1_000 / passed_ms as usize, Relaxed);
        }
        self.begun_ms.store(now_ms, Relaxed);
        self.lines.store(0, Relaxed);
    }

    /// The lines that the disk takes in `ms` milliseconds.
    pub(super) fn lines_in(&self, ms: usize) -> usize {
        self.per_second.load(Relaxed) * ms / 1_000
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_is_that_of_the_last_interval_without_a_pause() {
        let rate = DestageRate::default();
        (0..=100).for_each(|step| rate.count_end(3, 1_000_000 + step));
        assert_eq!(rate.lines_in(100), 300);
        rate.count_end(3, 2_000_000);
        assert_eq!(rate.lines_in(100), 300, "a pause says nothing about the disk");
    }
}
