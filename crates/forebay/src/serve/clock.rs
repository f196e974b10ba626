//! The clock that the access histories of volumes follow.

use forebay_runtime::{LocalClock, LocalTime, SystemClock};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// The environment variable that names a file with the time: seconds since 1970 UTC, the offset of
/// local time from UTC in seconds, and seconds of a clock that does not jump, separated by spaces.
/// Only tests set it; otherwise the clock of the machine is used.
const CLOCK_VARIABLE: &str = "FOREBAY_CLOCK";
/// The interval at which the clock of a test is read.
const TEST_INTERVAL: Duration = Duration::from_millis(20);

/// The clock of the machine, or of a test; and the interval at which it is read, if not the
/// default.
pub(super) fn clock() -> (Arc<dyn LocalClock>, Option<Duration>) {
    match std::env::var_os(CLOCK_VARIABLE) {
        None => (Arc::new(SystemClock::default()), None),
        Some(path) => (Arc::new(TestClock(path.into())), Some(TEST_INTERVAL)),
    }
}

/// The clock of a test: a file.
struct TestClock(PathBuf);

impl LocalClock for TestClock {
    fn now(&self) -> LocalTime {
        let text = std::fs::read_to_string(&self.0).unwrap_or_default();
        let mut words = text.split_whitespace();
        let mut number = || words.next().and_then(|word| word.parse::<i64>().ok()).unwrap_or(0);
        LocalTime {
            utc_seconds: number().max(0).unsigned_abs(),
            offset_seconds: number(),
            elapsed_ms: number().max(0).unsigned_abs() * 1_000,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clock_of_a_test_is_a_file() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("clock");
        let clock = TestClock(path.clone());
        let now = |text: &str| {
            std::fs::write(&path, text).unwrap();
            let LocalTime { utc_seconds, offset_seconds, elapsed_ms } = clock.now();
            (utc_seconds, offset_seconds, elapsed_ms)
        };
        assert_eq!(now("7200 -3600 5\n"), (7_200, -3_600, 5_000));
        assert_eq!(now("x"), (0, 0, 0));
    }
}
