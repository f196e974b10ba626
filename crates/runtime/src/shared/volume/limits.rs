//! The limits of a volume's requests, as the workers share them.

use crate::budget::Waiter;
use crate::platform::locks::Lock;
use forebay_policy::{Passage, RequestLimiter, RequestLimits};
use forebay_types::VolumeConfig;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// The limits of a volume. Without any, a request costs the load of [`VolumeLimits::are_set`].
pub(crate) struct VolumeLimits {
    are_set: AtomicBool,
    /// The origin of the limiter's times.
    started: Instant,
    limiter: Lock<RequestLimiter<Waiter>>,
}

impl VolumeLimits {
    pub(crate) fn new(config: &VolumeConfig, started: Instant) -> Self {
        let limits = Self { are_set: AtomicBool::new(false), started, limiter: Lock::default() };
        limits.set(config, started);
        limits
    }

    /// Whether requests may have to wait.
    pub(crate) fn are_set(&self) -> bool {
        self.are_set.load(Ordering::Relaxed)
    }

    /// Replaces the limits. Returns the clients to wake.
    pub(crate) fn set(&self, config: &VolumeConfig, now: Instant) -> Vec<Waiter> {
        let limits = RequestLimits {
            requests: config.iops_limit,
            bytes: config.bandwidth_limit,
            burst_us: config.limit_burst_us,
        };
        let mut limiter = self.limiter.lock();
        self.are_set.store(!limits.is_none(), Ordering::Relaxed);
        limiter.set(limits, self.ns(now))
    }

    /// See [`RequestLimiter::pass`].
    pub(crate) fn pass(&self, who: Waiter, bytes: u64, now: Instant) -> Passage<Waiter> {
        self.limiter.lock().pass(who, bytes, self.ns(now))
    }

    /// See [`RequestLimiter::end_turn`].
    pub(crate) fn end_turn(&self, who: Waiter) -> Option<Waiter> {
        self.limiter.lock().end_turn(who)
    }

    /// See [`RequestLimiter::cancel`].
    pub(crate) fn cancel(&self, who: Waiter) -> Option<Waiter> {
        self.limiter.lock().cancel(who)
    }

    fn ns(&self, now: Instant) -> u64 {
        now.saturating_duration_since(self.started).as_nanos() as u64
    }
}
