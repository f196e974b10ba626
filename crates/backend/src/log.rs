//! Rate limiting of log lines for frequent events.

use std::sync::atomic::{AtomicU64, Ordering};

/// Admits the 1st, 2nd, 4th, 8th … event of a kind to the log, so that a failing disk does not fill
/// the log, and the growing count stays visible.
#[derive(Debug, Default)]
pub struct LogLimiter(AtomicU64);

impl LogLimiter {
    /// Counts an event. Returns the count if it should be logged.
    pub fn admit(&self) -> Option<u64> {
        let count = self.0.fetch_add(1, Ordering::Relaxed) + 1;
        count.is_power_of_two().then_some(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_million_events_log_twenty_lines() {
        let limiter = LogLimiter::default();
        assert_eq!((0..1_000_000).filter(|_| limiter.admit().is_some()).count(), 20);
    }
}
