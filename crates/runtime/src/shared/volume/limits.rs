//! The limits of a volume's requests, as the workers share them.

use crate::budget::Waiter;
use crate::platform::locks::Lock;
use forebay_policy::{Passage, RequestLimiter, RequestLimits};
use forebay_types::VolumeConfig;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// The limits of a volume. Without any, a request costs the load of [`VolumeLimits::are_set`].
pub(crate) struct VolumeLimits {
    /// There is a limit, or a hold.
    are_set: AtomicBool,
    /// No request may pass for the moment, not even one that no limit counts.
    is_held: AtomicBool,
    has_limit: AtomicBool,
    /// The origin of the limiter's times.
    started: Instant,
    limiter: Lock<RequestLimiter<Waiter>>,
}

impl VolumeLimits {
    pub(crate) fn new(config: &VolumeConfig, started: Instant) -> Self {
        let (are_set, is_held, has_limit) = Default::default();
        let limits = Self { are_set, is_held, has_limit, started, limiter: Lock::default() };
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
        self.has_limit.store(!limits.is_none(), Ordering::Relaxed);
        self.update();
        limiter.set(limits, self.ns(now))
    }

    /// With the limiter locked.
    fn update(&self) {
        let has_any = self.has_limit.load(Ordering::Relaxed) || self.is_held();
        self.are_set.store(has_any, Ordering::Relaxed);
    }

    /// Lets no request pass until [`Self::release`]. One that is being received may still begin.
    pub(crate) fn hold(&self) {
        let mut limiter = self.limiter.lock();
        self.is_held.store(true, Ordering::Relaxed);
        self.update();
        limiter.hold();
    }

    /// Ends a hold. Returns the clients to wake.
    pub(crate) fn release(&self) -> Vec<Waiter> {
        let mut limiter = self.limiter.lock();
        self.is_held.store(false, Ordering::Relaxed);
        self.update();
        limiter.release()
    }

    pub(crate) fn is_held(&self) -> bool {
        self.is_held.load(Ordering::Relaxed)
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
