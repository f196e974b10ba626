//! The time that counts for the timeouts of clients.

use std::time::{Duration, Instant};

/// The most that the clock advances between two turns of a worker. An idle worker waits half as
/// long.
const TURN_MAX: Duration = Duration::from_secs(1);

/// A clock that does not advance while its worker is stalled, by an overloaded machine or because
/// the process was stopped. Clients must not time out for a stall, in which the worker receives
/// nothing.
pub(crate) struct ClientClock {
    time: Instant,
    turn: Instant,
}

impl ClientClock {
    /// A clock that shows `now`.
    pub(crate) const fn new(now: Instant) -> Self {
        Self { time: now, turn: now }
    }

    /// Advances the clock to a turn that starts at `now`.
    pub(crate) fn advance(&mut self, now: Instant) {
        self.time += now.saturating_duration_since(self.turn).min(TURN_MAX);
        self.turn = now;
    }

    /// The time it shows.
    pub(crate) const fn time(&self) -> Instant {
        self.time
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_of_a_stall_does_not_count() {
        let begin = Instant::now();
        let mut clock = ClientClock::new(begin);
        let at = |ms| begin + Duration::from_millis(ms);
        for (turn_ms, shown_ms) in [(500, 500), (40_000, 1500), (40_200, 1700)] {
            clock.advance(at(turn_ms));
            assert_eq!(clock.time(), at(shown_ms), "at {turn_ms} ms");
        }
    }
}
