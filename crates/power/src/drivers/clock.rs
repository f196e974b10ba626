//! The clock that the guard is to be given.

use rustix::time::{ClockId, clock_gettime};

/// Milliseconds since the machine started, counting the time that it slept: a machine that wakes
/// has no fresh readings.
pub fn now_ms() -> u64 {
    let now = clock_gettime(ClockId::Boottime);
    let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
    let ms = u64::try_from(now.tv_nsec / 1_000_000).unwrap_or(0);
    seconds.saturating_mul(1000).saturating_add(ms)
}

#[cfg(test)]
mod tests {
    #[test]
    fn it_goes_forward() {
        let before = super::now_ms();
        assert!(before > 0 && super::now_ms() >= before);
    }
}
