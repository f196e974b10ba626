//! The clock for the power controller.

use rustix::time::{ClockId, clock_gettime};

/// Milliseconds since boot, including time spent suspended: readings from before a suspend must
/// expire.
pub fn now_ms() -> u64 {
    let now = clock_gettime(ClockId::Boottime);
    let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
    let ms = u64::try_from(now.tv_nsec / 1_000_000).unwrap_or(0);
    seconds.saturating_mul(1000).saturating_add(ms)
}

#[cfg(test)]
mod tests {
    #[test]
    fn clock_is_monotonic() {
        let before = super::now_ms();
        assert!(before > 0 && super::now_ms() >= before);
    }
}
