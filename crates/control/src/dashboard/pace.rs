//! Limits the rate of requests. Requests above the rate wait for the next window. This also slows
//! their clients down, because a connection has one request at a time.

use super::{REQUESTS_PER_WINDOW, WINDOW};
use std::{
    sync::{Mutex, PoisonError},
    time::Duration,
};
use tokio::time::{Instant, sleep};

/// The number of requests in the current window of time.
#[derive(Default)]
struct RateWindow {
    index: u128,
    requests: u32,
}

/// The rate limit of all connections together.
pub(super) struct RequestRate {
    begin: Instant,
    window: Mutex<RateWindow>,
}

impl RequestRate {
    pub(super) fn new() -> Self {
        Self { begin: Instant::now(), window: Mutex::default() }
    }

    /// Waits until a request may be served.
    pub(super) async fn admit(&self) {
        loop {
            let wait = self.try_admit(self.begin.elapsed());
            if wait.is_zero() {
                return;
            }
            sleep(wait).await;
        }
    }

    /// Admits a request and returns zero, or returns how long it has to wait. `now` is the time
    /// since the beginning.
    fn try_admit(&self, now: Duration) -> Duration {
        let index = now.as_nanos() / WINDOW.as_nanos();
        let mut window = self.window.lock().unwrap_or_else(PoisonError::into_inner);
        if window.index != index {
            *window = RateWindow { index, requests: 0 };
        }
        if window.requests < REQUESTS_PER_WINDOW {
            window.requests += 1;
            return Duration::ZERO;
        }
        let past = Duration::from_nanos((now.as_nanos() % WINDOW.as_nanos()) as u64);
        WINDOW - past
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_beyond_the_rate_wait_for_the_next_window() {
        let pace = RequestRate { begin: Instant::now(), window: Mutex::default() };
        let at = |ms: u64| pace.try_admit(Duration::from_millis(ms));
        for _ in 0..REQUESTS_PER_WINDOW {
            assert_eq!(at(1000), Duration::ZERO);
        }
        assert_eq!(at(1000), WINDOW);
        assert_eq!(at(1099), Duration::from_millis(1));
        for _ in 0..REQUESTS_PER_WINDOW {
            assert_eq!(at(1100), Duration::ZERO);
        }
        assert_eq!(at(1150), Duration::from_millis(50));
    }
}
