//! The local time.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// A moment: the time in UTC, the offset of local time, and a monotonic time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LocalTime {
    /// Seconds since 1970-01-01 00:00 UTC.
    pub utc_seconds: u64,
    /// Seconds from UTC to local time, positive in the east.
    pub offset_seconds: i64,
    /// Monotonic time in milliseconds.
    pub elapsed_ms: u64,
}

impl LocalTime {
    /// Seconds of local time since 1970-01-01 00:00.
    pub const fn local_seconds(&self) -> u64 {
        self.utc_seconds.saturating_add_signed(self.offset_seconds)
    }
}

/// A clock with the local time.
pub trait LocalClock: Send + Sync {
    /// The time now.
    fn now(&self) -> LocalTime;
}

/// The clock of the machine, in its time zone: that of `TZ` or `/etc/localtime`.
#[derive(Debug)]
pub struct SystemClock {
    started: Instant,
}

impl Default for SystemClock {
    fn default() -> Self {
        Self { started: Instant::now() }
    }
}

impl LocalClock for SystemClock {
    fn now(&self) -> LocalTime {
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let utc_seconds = since_epoch.as_secs();
        LocalTime {
            utc_seconds,
            offset_seconds: offset_seconds(utc_seconds),
            elapsed_ms: self.started.elapsed().as_millis() as u64,
        }
    }
}

unsafe extern "C" {
    /// Reads the time zone, again if it has changed.
    fn tzset();
}

/// The difference of local time from UTC at a moment. Zero if it is not known.
fn offset_seconds(utc_seconds: u64) -> i64 {
    let Ok(time) = utc_seconds.try_into() else { return 0 };
    // SAFETY: `tzset` has no arguments. It reads the environment, which this process never changes.
    // JUSTIFICATION: the standard library has no time zones. `localtime_r` alone need not notice a
    // change of the zone.
    unsafe { tzset() };
    // SAFETY: a `tm` of zeroes is valid: integers, and a pointer that may be null.
    // JUSTIFICATION: it is the buffer for the next call.
    let mut tm: libc::tm = unsafe { std::mem::zeroed() };
    // SAFETY: both pointers are to values that live during the call.
    // JUSTIFICATION: as for `tzset`.
    let found = unsafe { libc::localtime_r(&raw const time, &raw mut tm) };
    if found.is_null() { 0 } else { tm.tm_gmtoff }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_offset_is_that_of_a_time_zone() {
        let clock = SystemClock::default();
        let now = clock.now();
        assert!(now.utc_seconds > 1_700_000_000);
        assert!(now.offset_seconds.abs() <= 15 * 3_600, "{now:?}");
        assert_eq!(now.offset_seconds % 60, 0, "{now:?}");
        assert!(clock.now().elapsed_ms >= now.elapsed_ms);
        assert_eq!(offset_seconds(u64::MAX), 0);
    }

    #[test]
    fn local_time_stays_within_its_type() {
        let at = |utc_seconds, offset_seconds| {
            LocalTime { utc_seconds, offset_seconds, elapsed_ms: 0 }.local_seconds()
        };
        assert_eq!([at(7_200, 3_600), at(7_200, -3_600)], [10_800, 3_600]);
        assert_eq!([at(0, -1), at(u64::MAX, 1)], [0, u64::MAX]);
    }
}
