//! The limits of a volume's requests: how many per second, and how many bytes per second.
//!
//! Each limit is a token bucket that fills at the limit's rate, up to what the limit lets pass in
//! the time of the burst. A request passes once every bucket has what it costs. A request that
//! costs more than a bucket holds passes once that bucket is full, and leaves a debt that later
//! requests wait for. So in any time `t`, at most `rate * t` and either a full bucket or one larger
//! request pass.
//!
//! Clients that have to wait take turns, in the order in which they began to wait. In a turn, a
//! client passes one request, or several that together take [`TURN_NS`] of a limit; it loses its
//! turn when it has no request left. So no client waits for more than one turn of each other
//! client, and a client with many requests in its queue gets no more than one with few.
//!
//! The price: turns are equal by requests if these are larger than what a limit lets pass in
//! [`TURN_NS`], so under a limit of bytes, clients with large requests get more of them.
//!
//! The caller passes the time, wakes the clients that it is told to, and ends a client's turn when
//! that has nothing left to submit.

#[cfg(test)]
mod tests;

use std::collections::VecDeque;

/// The time of a limit that a client may use in one turn, in nanoseconds, in addition to its last
/// request: turns pass between threads, and shorter ones would make fast limits unreachable.
pub const TURN_NS: u64 = 2_000_000;

/// Tokens are counted in billionths: a rate per second, times nanoseconds.
const UNITS: i128 = 1_000_000_000;

/// The limits of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestLimits {
    /// Requests per second.
    pub requests: Option<u64>,
    /// Bytes per second.
    pub bytes: Option<u64>,
    /// The time of a limit that may pass at once after idleness, in microseconds. A request always
    /// fits.
    pub burst_us: u64,
}

impl RequestLimits {
    /// Whether there is no limit.
    pub const fn is_none(&self) -> bool {
        self.requests.is_none() && self.bytes.is_none()
    }
}

/// What a client does with its next request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Passage<W> {
    /// It submits it.
    Passes {
        /// The client has the turn, which [`RequestLimiter::end_turn`] must end.
        has_turn: bool,
        /// The client that is to try now, because the turn is its own.
        wakes: Option<W>,
    },
    /// It waits.
    Waits {
        /// The time after which the client is to try again, in nanoseconds; `None` if it is woken
        /// when its turn comes.
        ns: Option<u64>,
    },
}

/// A bucket, in billionths of tokens.
#[derive(Clone, Copy, Debug)]
struct TokenBucket {
    /// Tokens per second: billionths per nanosecond.
    rate: i128,
    capacity: i128,
    /// Negative for a debt.
    level: i128,
}

impl TokenBucket {
    /// A full bucket, for at least `least` tokens.
    fn new(rate: u64, burst_us: u64, least: u64) -> Self {
        let rate = i128::from(rate.max(1));
        let capacity = (rate * i128::from(burst_us) * 1000).max(i128::from(least) * UNITS);
        Self { rate, capacity, level: capacity }
    }

    /// The new bucket, with what the old one has.
    fn replaced(old: Option<Self>, new: Option<Self>) -> Option<Self> {
        let new = new?;
        let level = old.map_or(new.capacity, |old| old.level.min(new.capacity));
        Some(Self { level, ..new })
    }

    fn fill(&mut self, ns: u64) {
        self.level = self.capacity.min(self.level + self.rate * i128::from(ns));
    }

    /// The time until a request of this cost passes.
    fn wait_ns(&self, cost: u64) -> u64 {
        let short = (i128::from(cost) * UNITS).min(self.capacity) - self.level;
        if short <= 0 {
            return 0;
        }
        u64::try_from((short + self.rate - 1) / self.rate).unwrap_or(u64::MAX)
    }

    fn take(&mut self, cost: u64) {
        self.level -= i128::from(cost) * UNITS;
    }

    /// The time in which the bucket fills by this cost.
    fn time_ns(&self, cost: u64) -> u64 {
        u64::try_from(i128::from(cost) * UNITS / self.rate).unwrap_or(u64::MAX)
    }
}

/// The limits of a volume and the clients that wait for them. See the module.
#[derive(Debug)]
pub struct RequestLimiter<W> {
    requests: Option<TokenBucket>,
    bytes: Option<TokenBucket>,
    /// When the buckets were filled last.
    filled_ns: u64,
    /// The clients that wait, and the one that has the turn, which is the first.
    queue: VecDeque<W>,
    /// What the first one has used of its turn.
    used_ns: u64,
    /// Nothing passes.
    is_held: bool,
}

impl<W> Default for RequestLimiter<W> {
    fn default() -> Self {
        let (requests, bytes, queue) = (None, None, VecDeque::new());
        Self { requests, bytes, filled_ns: 0, queue, used_ns: 0, is_held: false }
    }
}

impl<W: Copy + Eq> RequestLimiter<W> {
    /// Replaces the limits. Debts remain. Returns the clients to wake.
    pub fn set(&mut self, limits: RequestLimits, now_ns: u64) -> Vec<W> {
        self.fill(now_ns);
        let burst_us = limits.burst_us;
        let requests = limits.requests.map(|rate| TokenBucket::new(rate, burst_us, 1));
        let bytes = limits.bytes.map(|rate| TokenBucket::new(rate, burst_us, 0));
        self.requests = TokenBucket::replaced(self.requests, requests);
        self.bytes = TokenBucket::replaced(self.bytes, bytes);
        self.used_ns = 0;
        self.waiting()
    }

    /// Lets nothing pass until [`Self::release`].
    pub fn hold(&mut self) {
        self.is_held = true;
    }

    /// Ends a hold. Returns the clients to wake.
    pub fn release(&mut self) -> Vec<W> {
        self.is_held = false;
        self.waiting()
    }

    /// The clients to wake: without a limit, all of them, which are taken out of the queue.
    fn waiting(&mut self) -> Vec<W> {
        match self.requests.is_none() && self.bytes.is_none() && !self.is_held {
            true => self.queue.drain(..).collect(),
            false => self.queue.front().copied().into_iter().collect(),
        }
    }

    /// Decides on the next request of a client, which reads or writes `bytes`, zero if it moves no
    /// data.
    pub fn pass(&mut self, who: W, bytes: u64, now_ns: u64) -> Passage<W> {
        self.fill(now_ns);
        let at = self.queue.iter().position(|&other| other == who);
        let is_first = at == Some(0) || self.queue.is_empty();
        if !is_first || self.is_held {
            if at.is_none() {
                self.queue.push_back(who);
            }
            return Passage::Waits { ns: None };
        }
        let ns = self.largest(bytes, TokenBucket::wait_ns);
        if ns > 0 {
            if at.is_none() {
                self.queue.push_back(who);
                self.used_ns = 0;
            }
            return Passage::Waits { ns: Some(ns) };
        }
        if let Some(bucket) = &mut self.requests {
            bucket.take(1);
        }
        if let Some(bucket) = &mut self.bytes {
            bucket.take(bytes);
        }
        if at.is_none() {
            return Passage::Passes { has_turn: false, wakes: None };
        }
        self.used_ns = self.used_ns.saturating_add(self.largest(bytes, TokenBucket::time_ns));
        let has_turn = self.queue.len() > 1 && self.used_ns < TURN_NS;
        let wakes = if has_turn { None } else { self.next_turn() };
        Passage::Passes { has_turn, wakes }
    }

    /// Ends the turn of a client that has nothing left to submit. Returns the client to wake.
    pub fn end_turn(&mut self, who: W) -> Option<W> {
        if self.queue.front() == Some(&who) { self.next_turn() } else { None }
    }

    /// Removes a client that does not wait any more. Returns the client to wake.
    pub fn cancel(&mut self, who: W) -> Option<W> {
        if self.queue.front() == Some(&who) {
            return self.next_turn();
        }
        self.queue.retain(|&other| other != who);
        None
    }

    fn next_turn(&mut self) -> Option<W> {
        self.queue.pop_front();
        self.used_ns = 0;
        self.queue.front().copied()
    }

    /// The larger figure of the two buckets, for a request.
    fn largest(&self, bytes: u64, figure: impl Fn(&TokenBucket, u64) -> u64) -> u64 {
        let requests = self.requests.as_ref().map_or(0, |bucket| figure(bucket, 1));
        requests.max(self.bytes.as_ref().map_or(0, |bucket| figure(bucket, bytes)))
    }

    /// Fills the buckets. The clocks of threads may differ by a turn of their loops.
    fn fill(&mut self, now_ns: u64) {
        let ns = now_ns.saturating_sub(self.filled_ns);
        self.filled_ns += ns;
        for bucket in [&mut self.requests, &mut self.bytes].into_iter().flatten() {
            bucket.fill(ns);
        }
    }
}
