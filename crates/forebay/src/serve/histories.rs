//! The access histories of volumes, as files of the state directory, and the clock that they
//! follow.

use super::warm_lists::{file_name, read_file, remove_file};
use crate::marks;
use forebay_runtime::{Histories, LocalClock, LocalTime, SystemClock};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// The environment variable that names a file with the time: seconds since 1970 UTC, the offset of
/// local time from UTC in seconds, and seconds of a clock that does not jump, separated by spaces.
/// Only tests set it; otherwise the clock of the machine is used.
const CLOCK_VARIABLE: &str = "FOREBAY_CLOCK";
/// The interval at which the clock of a test is read.
const TEST_INTERVAL: Duration = Duration::from_millis(20);

/// The access histories in a state directory.
pub(super) struct StateHistories {
    state_dir: PathBuf,
}

impl StateHistories {
    pub(super) fn new(state_dir: &Path) -> Self {
        Self { state_dir: state_dir.to_owned() }
    }

    fn path_of(&self, volume: &str) -> PathBuf {
        self.state_dir.join(format!("access-{}.history", file_name(volume)))
    }
}

impl Histories for StateHistories {
    fn read(&self, volume: &str, bytes_max: u64) -> io::Result<Option<Vec<u8>>> {
        read_file(&self.path_of(volume), bytes_max)
    }

    fn write(&self, volume: &str, history: &[u8]) -> io::Result<()> {
        marks::replace(&self.path_of(volume), history)
    }

    fn put_aside(&self, volume: &str) -> io::Result<String> {
        let path = self.path_of(volume);
        let aside = aside_of(&path);
        // Replaces a file that was put aside earlier.
        std::fs::rename(&path, &aside)?;
        marks::sync_directory(&aside)?;
        Ok(aside.display().to_string())
    }

    fn remove(&self, volume: &str) -> io::Result<()> {
        let path = self.path_of(volume);
        remove_file(&aside_of(&path))?;
        remove_file(&path)
    }
}

/// Where the history at `path` is put aside.
fn aside_of(path: &Path) -> PathBuf {
    path.with_extension("unusable")
}

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
    fn histories_are_kept_by_volume_and_put_aside() {
        let directory = tempfile::tempdir().unwrap();
        let histories = StateHistories::new(directory.path());
        assert_eq!(histories.read("a", 9).unwrap(), None);
        assert!(histories.put_aside("a").is_err());
        histories.write("a", b"of a").unwrap();
        histories.write("b", b"of b").unwrap();
        assert_eq!(histories.read("a", 4).unwrap().unwrap(), b"of a");
        let error = histories.read("a", 3).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::FileTooLarge);
        for _ in 0..2 {
            histories.write("a", b"of a").unwrap();
            let aside = histories.put_aside("a").unwrap();
            assert_eq!(std::fs::read(aside).unwrap(), b"of a");
        }
        assert_eq!(histories.read("a", 9).unwrap(), None);
        assert_eq!(histories.read("b", 9).unwrap().unwrap(), b"of b");
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 2);
        histories.write("a", b"of a").unwrap();
        for _ in 0..2 {
            histories.remove("a").unwrap();
            assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1);
        }
        assert_eq!(histories.read("b", 9).unwrap().unwrap(), b"of b");
    }

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
