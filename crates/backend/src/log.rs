//! Logging of what may happen very often.

use std::sync::atomic::{AtomicU64, Ordering};

/// Lets the 1st, 2nd, 4th, 8th … of a kind of event be logged, so that a dying disk fills no log
/// and its count is still seen to grow.
#[derive(Default)]
pub(crate) struct Brake(AtomicU64);

impl Brake {
    /// Counts an event; gives the count when it is one to be logged.
    pub(crate) fn pass(&self) -> Option<u64> {
        let count = self.0.fetch_add(1, Ordering::Relaxed) + 1;
        count.is_power_of_two().then_some(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_million_events_make_twenty_lines() {
        let brake = Brake::default();
        assert_eq!((0..1_000_000).filter(|_| brake.pass().is_some()).count(), 20);
    }
}
