//! The memory limit for the requests of all clients.
//!
//! Each connection has an equal share of a budget for its requests in flight and its unfetched
//! replies, so many clients that never read take little more memory than a few: a share is at least
//! 256 KiB. A request larger
//! than a share is served when the connection has nothing else in flight. A request larger than
//! [`HUGE_BYTES`] also needs memory of the lane: a quota for huge requests, granted in order of
//! arrival. With little memory, the lane holds only a few pieces of [`PIECE_BYTES`], and the front
//! end submits a huge request in such pieces. Smaller requests whose payload has not arrived
//! completely queue for another quota.
//!
//! A counter that grants room is checked when it falls, in release builds too: if it wrapped, it
//! would grant memory without limit. Other arithmetic is checked in tests only.

use crate::platform::locks::Lock;
use forebay_types::REGION_BYTES;
use forebay_types::limits::{CONNECTION_BYTES_IN_FLIGHT_MAX, REQUEST_BYTES_MAX};
use std::collections::VecDeque;

/// Requests larger than this queue for the lane, in bytes. By default, kernels and virtual machines
/// send smaller ones.
pub(crate) const HUGE_BYTES: u64 = 2 << 20;
/// The length of the pieces of a huge request if there is little memory, in bytes: a region of the
/// volume, so that a piece is one part.
pub(crate) const PIECE_BYTES: u64 = REGION_BYTES;
/// The smallest share of a connection, in bytes: several requests of the usual sizes.
const SHARE_BYTES_MIN: u64 = 256 << 10;

/// A queued connection: its worker, number and generation.
pub(crate) type Waiter = (usize, u32, u32);

/// The quotas for which connections queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Queue {
    /// Memory for huge requests.
    Lane,
    /// Memory for incomplete payloads.
    Payloads,
}

/// The result of an attempt to acquire memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Acquired {
    /// The memory is granted. `next` is the new head of the queue, which may be granted memory,
    /// too.
    Granted { next: Option<Waiter> },
    /// There is not enough memory. The waiter is queued, and tries again when it is woken.
    Queued,
}

/// The budget that all workers share. See the module.
pub(crate) struct Budget {
    shares_bytes: u64,
    /// Huge requests are served in pieces, because the lane is smaller than the largest request.
    has_pieces: bool,
    lane: FairQuota,
    payloads: FairQuota,
}

impl Budget {
    /// A budget of `shares_bytes` for all shares, `lane_bytes` for huge requests and
    /// `payload_bytes` for payloads that are being received.
    pub(crate) fn new(shares_bytes: u64, lane_bytes: u64, payload_bytes: u64) -> Self {
        let has_pieces = lane_bytes < REQUEST_BYTES_MAX;
        let [lane, payloads] = [lane_bytes, payload_bytes].map(FairQuota::new);
        Self { shares_bytes, has_pieces, lane, payloads }
    }

    /// The length of the pieces of a request of `bytes`; `None` if it is served whole.
    pub(crate) fn piece_bytes(&self, bytes: u64) -> Option<u64> {
        (self.has_pieces && bytes > HUGE_BYTES).then_some(PIECE_BYTES)
    }

    /// Whether a connection waits for memory.
    pub(crate) fn has_waiters(&self) -> bool {
        self.lane.has_waiters() || self.payloads.has_waiters()
    }

    pub(crate) const fn quota(&self, queue: Queue) -> &FairQuota {
        match queue {
            Queue::Lane => &self.lane,
            Queue::Payloads => &self.payloads,
        }
    }

    /// The share of one of `connections` connections, in bytes.
    pub(crate) fn share(&self, connections: u64) -> u64 {
        let share = self.shares_bytes / connections.max(1);
        share.clamp(SHARE_BYTES_MIN, CONNECTION_BYTES_IN_FLIGHT_MAX)
    }
}

/// A quota of memory that is granted in FIFO order.
pub(crate) struct FairQuota {
    bytes_max: u64,
    state: Lock<QuotaState>,
}

#[derive(Default)]
struct QuotaState {
    acquired_bytes: u64,
    queue: VecDeque<Waiter>,
}

impl FairQuota {
    fn new(bytes_max: u64) -> Self {
        Self { bytes_max, state: Lock::default() }
    }

    /// Acquires memory if the waiter is first in the queue and enough is free; otherwise queues the
    /// waiter. A request for more than the whole quota is granted once the whole quota is free.
    pub(crate) fn acquire(&self, bytes: u64, waiter: Waiter) -> Acquired {
        let mut state = self.state.lock();
        let at = state.queue.iter().position(|&other| other == waiter);
        let is_first = at == Some(0) || state.queue.is_empty();
        let fits = state.acquired_bytes == 0 || state.acquired_bytes + bytes <= self.bytes_max;
        if is_first && fits {
            state.acquired_bytes += bytes;
            debug_assert!(state.acquired_bytes <= self.bytes_max.max(bytes), "the quota is kept");
            let next = state.queue.pop_front();
            debug_assert!(next.is_none_or(|next| next == waiter), "the first is served first");
            return Acquired::Granted { next: state.queue.front().copied() };
        }
        if at.is_none() {
            state.queue.push_back(waiter);
        }
        Acquired::Queued
    }

    /// Releases memory. Returns the waiter to wake.
    pub(crate) fn release(&self, bytes: u64) -> Option<Waiter> {
        let mut state = self.state.lock();
        let left = state.acquired_bytes.checked_sub(bytes);
        state.acquired_bytes = left.expect("no more is released than was acquired");
        state.queue.front().copied()
    }

    /// Whether a connection is queued.
    pub(crate) fn has_waiters(&self) -> bool {
        !self.state.lock().queue.is_empty()
    }

    /// Removes a waiter from the queue. Returns the waiter to wake.
    pub(crate) fn cancel(&self, waiter: Waiter) -> Option<Waiter> {
        let mut state = self.state.lock();
        state.queue.retain(|&other| other != waiter);
        state.queue.front().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    const GRANTED: Acquired = Acquired::Granted { next: None };

    #[test]
    fn shares_shrink_with_the_number_of_connections() {
        let budget = Budget::new(16 * MIB, 0, 0);
        assert_eq!(budget.share(0), 16 * MIB);
        assert_eq!(budget.share(4), 4 * MIB);
        assert_eq!(budget.share(10_000), SHARE_BYTES_MIN);
        assert_eq!(Budget::new(1 << 40, 0, 0).share(1), CONNECTION_BYTES_IN_FLIGHT_MAX);
    }

    #[test]
    fn huge_requests_are_served_in_pieces_only_if_the_lane_has_no_memory_for_the_largest() {
        let small = Budget::new(MIB, 2 * MIB, MIB);
        assert_eq!(small.piece_bytes(HUGE_BYTES), None);
        assert_eq!(small.piece_bytes(HUGE_BYTES + 512), Some(MIB));
        let large = Budget::new(MIB, 32 * MIB, MIB);
        assert_eq!(large.piece_bytes(32 * MIB), None);
    }

    /// In release builds too, where a counter that wraps would grant everything.
    #[test]
    #[should_panic(expected = "no more is released than was acquired")]
    fn memory_that_was_not_acquired_is_not_released() {
        let budget = Budget::new(MIB, 32 * MIB, MIB);
        assert_eq!(budget.quota(Queue::Lane).acquire(MIB, (0, 1, 0)), GRANTED);
        budget.quota(Queue::Lane).release(2 * MIB);
    }

    #[test]
    fn memory_is_granted_in_order_of_arrival() {
        let budget = Budget::new(MIB, 32 * MIB, MIB);
        let lane = budget.quota(Queue::Lane);
        let [a, b, c] = [(0, 1, 0), (1, 1, 0), (0, 2, 0)];
        assert_eq!(lane.acquire(20 * MIB, a), GRANTED);
        assert_eq!(lane.acquire(32 * MIB, b), Acquired::Queued);
        assert_eq!(lane.acquire(4 * MIB, c), Acquired::Queued, "it fits, but is not the first");
        assert_eq!(lane.acquire(32 * MIB, b), Acquired::Queued, "it is queued once");
        assert_eq!(lane.release(20 * MIB), Some(b));
        assert_eq!(lane.acquire(4 * MIB, c), Acquired::Queued);
        assert_eq!(lane.acquire(28 * MIB, b), Acquired::Granted { next: Some(c) });
        assert_eq!(lane.acquire(4 * MIB, c), GRANTED);
        assert_eq!(lane.release(32 * MIB), None);
    }

    #[test]
    fn a_request_larger_than_the_quota_is_granted_alone() {
        let budget = Budget::new(MIB, 0, MIB);
        let payloads = budget.quota(Queue::Payloads);
        let [a, b] = [(0, 1, 0), (1, 1, 0)];
        assert_eq!(payloads.acquire(2 * MIB, a), GRANTED);
        assert_eq!(payloads.acquire(1, b), Acquired::Queued);
        assert_eq!(payloads.release(2 * MIB), Some(b));
        assert_eq!(payloads.acquire(1, b), GRANTED);
        assert_eq!(payloads.acquire(2 * MIB, a), Acquired::Queued);
        assert!(payloads.has_waiters() && !budget.quota(Queue::Lane).has_waiters());
    }

    #[test]
    fn cancelling_a_queued_request_wakes_the_next() {
        let budget = Budget::new(MIB, 32 * MIB, MIB);
        let lane = budget.quota(Queue::Lane);
        let [a, b, c] = [(0, 1, 0), (1, 1, 0), (0, 2, 0)];
        assert_eq!(lane.acquire(20 * MIB, a), GRANTED);
        assert_eq!(lane.acquire(32 * MIB, b), Acquired::Queued);
        assert_eq!(lane.acquire(4 * MIB, c), Acquired::Queued);
        assert_eq!(lane.cancel(b), Some(c));
        assert_eq!(lane.acquire(4 * MIB, c), GRANTED);
    }
}
