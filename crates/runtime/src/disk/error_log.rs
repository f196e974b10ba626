//! The log of the I/Os that disks fail.

use crate::platform::locks::Lock;
use std::time::{Duration, Instant};

/// The least time between two lines for a volume.
const INTERVAL: Duration = Duration::from_secs(10);

/// Limits the lines of one volume: the first failure is logged, and then at most one in ten
/// seconds, with the number of those in between.
#[derive(Debug, Default)]
pub(crate) struct ErrorLog(Lock<(Option<Instant>, u64)>);

impl ErrorLog {
    /// Counts a failure at `now`. Returns the failures since the last line if it is to be logged.
    pub(crate) fn admit(&self, now: Instant) -> Option<u64> {
        let mut state = self.0.lock();
        let (logged, unlogged) = &mut *state;
        if logged.is_some_and(|at| now.saturating_duration_since(at) < INTERVAL) {
            *unlogged += 1;
            return None;
        }
        *logged = Some(now);
        Some(std::mem::take(unlogged))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failing_disk_gets_a_line_at_once_and_then_one_in_ten_seconds() {
        let (log, start) = (ErrorLog::default(), Instant::now());
        let lines = (0..1000_u32).map(|n| log.admit(start + Duration::from_millis(100) * n));
        let lines: Vec<u64> = lines.flatten().collect();
        assert_eq!(lines, [[0].as_slice(), &[99; 9]].concat());
    }
}
