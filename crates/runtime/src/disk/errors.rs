//! Whether a disk fails I/Os now.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// How long a disk must have failed no I/O before its errors are over.
const OVER: Duration = Duration::from_secs(10 * 60);

/// The I/Os that the disk of a volume has failed lately. A series of failures ends with the first
/// I/O that succeeds ten minutes after the last failure or later: a bad sector that is read again
/// and again belongs to one series, and a lost path is over some time after it is back.
#[derive(Debug, Default)]
pub(crate) struct DiskErrors {
    /// Failures of the present series; 0 if there is none.
    failures: AtomicU64,
    /// The time of the last one, in milliseconds.
    last_ms: AtomicU64,
}

impl DiskErrors {
    /// Counts an I/O that has ended at `now`, a time since the start of the runtime.
    pub(crate) fn record(&self, is_failed: bool, now: Duration) {
        let now_ms = now.as_millis() as u64;
        if is_failed {
            self.last_ms.fetch_max(now_ms, Relaxed);
            self.failures.fetch_add(1, Relaxed);
        } else if self.failures.load(Relaxed) > 0 {
            let since_ms = now_ms.saturating_sub(self.last_ms.load(Relaxed));
            if u128::from(since_ms) >= OVER.as_millis() {
                self.failures.store(0, Relaxed);
            }
        }
    }

    /// The I/Os of the present series; 0 if there is none.
    pub(crate) fn failures(&self) -> u64 {
        self.failures.load(Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_over_when_the_disk_has_failed_nothing_for_ten_minutes() {
        let errors = DiskErrors::default();
        let minutes = |minutes: u64| Duration::from_secs(60 * minutes);
        errors.record(false, minutes(0));
        assert_eq!(errors.failures(), 0);
        errors.record(true, minutes(1));
        errors.record(true, minutes(2));
        errors.record(false, minutes(11));
        assert_eq!(errors.failures(), 2);
        errors.record(true, minutes(11));
        errors.record(false, minutes(20));
        assert_eq!(errors.failures(), 3, "nine minutes after the last one");
        errors.record(false, minutes(21));
        assert_eq!(errors.failures(), 0);
        errors.record(true, minutes(30));
        assert_eq!(errors.failures(), 1, "another series");
    }
}
