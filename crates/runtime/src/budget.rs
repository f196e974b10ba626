//! How much memory the requests of all clients may take together.
//!
//! Each connection has a share of a budget: what it has in flight and what it does not fetch stay
//! within it, so a hundred clients that never read take no more than one. A request that is larger
//! than a share is served when the connection has nothing else under way; one that is larger than
//! [`HUGE_BYTES`] also needs room in the lane, where such requests queue in the order in which they
//! came. The price is that huge requests of different clients are served one after the other where
//! there is little memory.

use crate::shared::lock;
use forebay_types::limits::{CONNECTION_BYTES_IN_FLIGHT_MAX, REQUEST_BYTES_MAX};
use std::collections::VecDeque;
use std::sync::Mutex;

/// Requests larger than this queue for the lane, in bytes. Kernels and virtual machines send
/// smaller ones unless they are told otherwise.
pub(crate) const HUGE_BYTES: u64 = 2 << 20;
/// Least share of a connection, in bytes: several requests of the usual sizes.
const SHARE_BYTES_MIN: u64 = 256 << 10;

/// Who waits for the lane: worker, connection and its generation.
pub(crate) type Ticket = (usize, u32, u32);

/// See the module's description.
pub(crate) struct Budget {
    shares_bytes: u64,
    lane_bytes: u64,
    lane: Mutex<Lane>,
}

#[derive(Default)]
struct Lane {
    used_bytes: u64,
    queue: VecDeque<Ticket>,
}

impl Budget {
    /// A budget of `shares_bytes` for all shares and `lane_bytes` for huge requests. The lane has
    /// room for at least one of the largest.
    pub(crate) fn new(shares_bytes: u64, lane_bytes: u64) -> Self {
        let lane_bytes = lane_bytes.max(REQUEST_BYTES_MAX);
        Self { shares_bytes, lane_bytes, lane: Mutex::default() }
    }

    /// What one of so many connections may have under way.
    pub(crate) fn share(&self, connections: u64) -> u64 {
        let share = self.shares_bytes / connections.max(1);
        share.clamp(SHARE_BYTES_MIN, CONNECTION_BYTES_IN_FLIGHT_MAX)
    }

    /// Takes room in the lane, or a place in its queue.
    pub(crate) fn enter_lane(&self, bytes: u64, ticket: Ticket) -> bool {
        let mut lane = lock(&self.lane);
        let at = lane.queue.iter().position(|&other| other == ticket);
        let first = at == Some(0) || lane.queue.is_empty();
        if first && lane.used_bytes + bytes <= self.lane_bytes {
            lane.used_bytes += bytes;
            lane.queue.pop_front();
            return true;
        }
        if at.is_none() {
            lane.queue.push_back(ticket);
        }
        false
    }

    /// Gives room back. Returns who is to try again.
    pub(crate) fn leave_lane(&self, bytes: u64) -> Option<Ticket> {
        let mut lane = lock(&self.lane);
        lane.used_bytes -= bytes;
        lane.queue.front().copied()
    }

    /// Whether anybody waits for the lane.
    pub(crate) fn lane_is_wanted(&self) -> bool {
        !lock(&self.lane).queue.is_empty()
    }

    /// Gives up a place in the queue. Returns who is to try again.
    pub(crate) fn give_up(&self, ticket: Ticket) -> Option<Ticket> {
        let mut lane = lock(&self.lane);
        lane.queue.retain(|&other| other != ticket);
        lane.queue.front().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn shares_shrink_with_the_number_of_connections() {
        let budget = Budget::new(16 * MIB, 0);
        assert_eq!(budget.share(0), 16 * MIB);
        assert_eq!(budget.share(4), 4 * MIB);
        assert_eq!(budget.share(10_000), SHARE_BYTES_MIN);
        assert_eq!(Budget::new(1 << 40, 0).share(1), CONNECTION_BYTES_IN_FLIGHT_MAX);
    }

    #[test]
    fn the_lane_is_served_in_order() {
        let budget = Budget::new(MIB, 0);
        let [a, b, c] = [(0, 1, 0), (1, 1, 0), (0, 2, 0)];
        assert!(budget.enter_lane(20 * MIB, a));
        assert!(!budget.enter_lane(32 * MIB, b));
        assert!(!budget.enter_lane(4 * MIB, c), "it would fit, but was not the first");
        assert!(!budget.enter_lane(32 * MIB, b), "asking twice is waiting once");
        assert_eq!(budget.leave_lane(20 * MIB), Some(b));
        assert!(!budget.enter_lane(4 * MIB, c));
        assert!(budget.enter_lane(28 * MIB, b));
        assert!(budget.enter_lane(4 * MIB, c));
        assert_eq!(budget.leave_lane(32 * MIB), None);
    }

    #[test]
    fn who_leaves_the_queue_lets_the_next_one_go() {
        let budget = Budget::new(MIB, 0);
        let [a, b, c] = [(0, 1, 0), (1, 1, 0), (0, 2, 0)];
        assert!(budget.enter_lane(20 * MIB, a));
        assert!(!budget.enter_lane(32 * MIB, b));
        assert!(!budget.enter_lane(4 * MIB, c));
        assert_eq!(budget.give_up(b), Some(c));
        assert!(budget.enter_lane(4 * MIB, c));
    }
}
