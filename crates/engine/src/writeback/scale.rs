//! How much more than the window may be in flight because reads do not take longer.
//!
//! A disk with many dies, or a cache of its own, serves reads beside any number of destages as
//! fast. So a multiple of the window is tried: some reads are timed beside the window, more reads
//! beside the multiple. It doubles while they take as long, and halves if they take longer.
//!
//! Content is advisory, as that of [`super::elevator`].

use super::read_meter::ReadMeter;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};

/// Reads of a phase beside the window and beside a multiple of it, reads between two decisions, and
/// the first reads of a phase, which are not timed because of the destages of the phase before.
const BASE_READS: u64 = 64;
const TRIAL_READS: u64 = 2_048;
const DECISION_READS: u64 = 128;
const SETTLE_READS: u64 = 16;
/// Timed reads that show that reads take far longer.
const READS_FEW: u64 = 16;
/// The largest multiple.
const SCALE_MAX: u32 = 32;
/// Decisions until a larger multiple is tried again, at first and at most.
const PAUSE_MIN: u32 = 8;
const PAUSE_MAX: u32 = 1 << 12;
/// How long after a limited destage a read counts as beside it, in milliseconds.
const LIMITED_MS: u64 = 100;

/// The multiple of a volume.
#[derive(Debug, Default)]
pub(crate) struct RateScale {
    /// The multiple, less one.
    more: AtomicU32,
    is_trial: AtomicBool,
    /// Reads in this phase.
    reads: AtomicU64,
    last_read_ms: AtomicU64,
    limited_ms: AtomicU64,
    base: ReadMeter,
    trial: ReadMeter,
    /// Decisions until the multiple may double, and the next such pause.
    wait: AtomicU32,
    pause: AtomicU32,
}

impl RateScale {
    /// The multiple of the window that may be in flight. Records that it limits destages.
    pub(crate) fn limit(&self, now_ms: u64) -> u32 {
        self.limited_ms.store(now_ms, Relaxed);
        if self.is_trial.load(Relaxed) { self.more.load(Relaxed) + 1 } else { 1 }
    }

    /// Counts a read as completed; `in_flight` were in flight until then.
    pub(crate) fn count_read(&self, in_flight: u64, now_ms: u64) {
        let passed_ms = now_ms.saturating_sub(self.last_read_ms.swap(now_ms, Relaxed));
        if now_ms > self.limited_ms.load(Relaxed) + LIMITED_MS {
            return;
        }
        let reads = self.reads.fetch_add(1, Relaxed);
        if reads < SETTLE_READS {
            return;
        }
        if !self.is_trial.load(Relaxed) {
            self.base.add(in_flight, passed_ms);
            if reads >= BASE_READS {
                self.begin_phase(true);
            }
            return;
        }
        self.trial.add(in_flight, passed_ms);
        if self.is_slower(2) || reads.is_multiple_of(DECISION_READS) {
            self.decide();
        }
        if reads >= TRIAL_READS {
            self.begin_phase(false);
        }
    }

    fn begin_phase(&self, is_trial: bool) {
        self.reads.store(0, Relaxed);
        self.is_trial.store(is_trial, Relaxed);
    }

    /// Whether reads take longer beside the multiple, by more than one in `part`.
    fn is_slower(&self, part: u64) -> bool {
        let base_us = self.base.mean_us();
        self.trial.reads() >= READS_FEW && self.trial.mean_us() > base_us + base_us / part
    }

    fn decide(&self) {
        let scale = self.more.load(Relaxed) + 1;
        if scale > 1 && self.is_slower(16) {
            let pause = self.pause.load(Relaxed).clamp(PAUSE_MIN, PAUSE_MAX);
            self.wait.store(pause, Relaxed);
            self.pause.store(pause * 4, Relaxed);
            self.set(scale / 2);
            self.begin_phase(false);
        } else if self.wait.load(Relaxed) > 0 {
            self.wait.fetch_sub(1, Relaxed);
        } else if scale < SCALE_MAX && !self.is_slower(32) {
            self.set(scale * 2);
        }
    }

    fn set(&self, scale: u32) {
        self.more.store(scale - 1, Relaxed);
        self.trial.reset();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The largest multiple, and the share of reads beside more than the window, on a disk that
    /// takes `read_ms(multiple)` for a read of one of four readers.
    fn run(reads: u64, read_ms: impl Fn(u32) -> u64) -> (u32, f64) {
        let (scale, mut now_ms, mut largest, mut slow) = (RateScale::default(), 1_000, 0, 0);
        for _ in 0..reads / 4 {
            let limit = scale.limit(now_ms);
            now_ms += read_ms(limit);
            // Four complete together; the first of them took the time.
            (0..4).for_each(|_| scale.count_read(4, now_ms));
            largest = largest.max(limit);
            slow += u64::from(limit > 1) * 4;
        }
        (largest, slow as f64 / reads as f64)
    }

    #[test]
    fn the_multiple_rises_while_reads_do_not_take_longer() {
        let (largest, share) = run(20_000, |_| 5);
        assert_eq!(largest, SCALE_MAX);
        assert!(share > 0.9, "{share}");
        let (largest, _) = run(20_000, |limit| if limit > 8 { 10 } else { 5 });
        assert_eq!(largest, 16, "the first one that is too large");
    }

    #[test]
    fn few_reads_suffer_from_trials_that_fail() {
        let (largest, share) = run(100_000, |limit| u64::from(limit) * 5);
        assert_eq!(largest, 2);
        assert!(share < 0.01, "{share}");
    }

    #[test]
    fn reads_without_limited_destages_decide_nothing() {
        let scale = RateScale::default();
        (0..100_000).for_each(|now_ms| scale.count_read(1, 1_000 + now_ms));
        assert_eq!(scale.limit(200_000), 1);
    }
}
