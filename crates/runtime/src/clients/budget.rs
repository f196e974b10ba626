//! How much memory the requests of all clients may take together.
//!
//! Each connection has a share of a budget: what it has in flight and what it does not fetch stay
//! within it, so a hundred clients that never read take no more than one. A request that is larger
//! than a share is served when the connection has nothing else under way; one that is larger than
//! [`HUGE_BYTES`] also needs room in the lane, where such requests queue in the order in which they
//! came. The price is that huge requests of different clients are served one after the other where
//! there is little memory. Smaller payloads that come in pieces queue for room of their own.

use crate::locks::Lock;
use forebay_types::limits::{CONNECTION_BYTES_IN_FLIGHT_MAX, REQUEST_BYTES_MAX};
use std::collections::VecDeque;

/// Requests larger than this queue for the lane, in bytes. Kernels and virtual machines send
/// smaller ones unless they are told otherwise.
pub(crate) const HUGE_BYTES: u64 = 2 << 20;
/// Least share of a connection, in bytes: several requests of the usual sizes.
const SHARE_BYTES_MIN: u64 = 256 << 10;

/// Who waits for room: worker, connection and its generation.
pub(crate) type Waiter = (usize, u32, u32);

/// What a connection may have to wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Queue {
    /// Room for a huge request.
    Lane,
    /// Room for a payload that comes in pieces.
    Payloads,
}

/// What comes of asking for room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Entry {
    /// It is granted. The next in the queue, if any, may find room too.
    Granted { next: Option<Waiter> },
    /// There is none now; who asked has a place in the queue, and is told when to ask again.
    Queued,
}

/// See the module's description.
pub(crate) struct Budget {
    shares_bytes: u64,
    lane: Room,
    payloads: Room,
}

impl Budget {
    /// A budget of `shares_bytes` for all shares, `lane_bytes` for huge requests and
    /// `payload_bytes` for payloads on their way. The lane has room for at least one of the
    /// largest.
    pub(crate) fn new(shares_bytes: u64, lane_bytes: u64, payload_bytes: u64) -> Self {
        let lane = Room::new(lane_bytes.max(REQUEST_BYTES_MAX));
        Self { shares_bytes, lane, payloads: Room::new(payload_bytes) }
    }

    /// Whether anybody waits for memory.
    pub(crate) fn is_wanted(&self) -> bool {
        self.lane.is_wanted() || self.payloads.is_wanted()
    }

    /// The room that a queue is for.
    pub(crate) const fn room(&self, queue: Queue) -> &Room {
        match queue {
            Queue::Lane => &self.lane,
            Queue::Payloads => &self.payloads,
        }
    }

    /// What one of so many connections may have under way.
    pub(crate) fn share(&self, connections: u64) -> u64 {
        let share = self.shares_bytes / connections.max(1);
        share.clamp(SHARE_BYTES_MIN, CONNECTION_BYTES_IN_FLIGHT_MAX)
    }
}

/// Memory that is given in the order in which it was asked for.
pub(crate) struct Room {
    bytes_max: u64,
    state: Lock<Taken>,
}

#[derive(Default)]
struct Taken {
    bytes: u64,
    queue: VecDeque<Waiter>,
}

impl Room {
    fn new(bytes_max: u64) -> Self {
        Self { bytes_max, state: Lock::default() }
    }

    /// Takes room, or a place in the queue. What is larger than all of it has to be alone.
    pub(crate) fn enter(&self, bytes: u64, waiter: Waiter) -> Entry {
        let mut taken = self.state.lock();
        let at = taken.queue.iter().position(|&other| other == waiter);
        let first = at == Some(0) || taken.queue.is_empty();
        if first && (taken.bytes == 0 || taken.bytes + bytes <= self.bytes_max) {
            taken.bytes += bytes;
            taken.queue.pop_front();
            return Entry::Granted { next: taken.queue.front().copied() };
        }
        if at.is_none() {
            taken.queue.push_back(waiter);
        }
        Entry::Queued
    }

    /// Gives room back. Returns who is to try again.
    pub(crate) fn leave(&self, bytes: u64) -> Option<Waiter> {
        let mut taken = self.state.lock();
        taken.bytes -= bytes;
        taken.queue.front().copied()
    }

    /// Whether anybody waits.
    pub(crate) fn is_wanted(&self) -> bool {
        !self.state.lock().queue.is_empty()
    }

    /// Gives up a place in the queue. Returns who is to try again.
    pub(crate) fn give_up(&self, waiter: Waiter) -> Option<Waiter> {
        let mut taken = self.state.lock();
        taken.queue.retain(|&other| other != waiter);
        taken.queue.front().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    const GRANTED: Entry = Entry::Granted { next: None };

    #[test]
    fn shares_shrink_with_the_number_of_connections() {
        let budget = Budget::new(16 * MIB, 0, 0);
        assert_eq!(budget.share(0), 16 * MIB);
        assert_eq!(budget.share(4), 4 * MIB);
        assert_eq!(budget.share(10_000), SHARE_BYTES_MIN);
        assert_eq!(Budget::new(1 << 40, 0, 0).share(1), CONNECTION_BYTES_IN_FLIGHT_MAX);
    }

    #[test]
    fn room_is_given_in_order() {
        let budget = Budget::new(MIB, 0, MIB);
        let lane = budget.room(Queue::Lane);
        let [a, b, c] = [(0, 1, 0), (1, 1, 0), (0, 2, 0)];
        assert_eq!(lane.enter(20 * MIB, a), GRANTED);
        assert_eq!(lane.enter(32 * MIB, b), Entry::Queued);
        assert_eq!(lane.enter(4 * MIB, c), Entry::Queued, "it would fit, but was not the first");
        assert_eq!(lane.enter(32 * MIB, b), Entry::Queued, "asking twice is waiting once");
        assert_eq!(lane.leave(20 * MIB), Some(b));
        assert_eq!(lane.enter(4 * MIB, c), Entry::Queued);
        assert_eq!(lane.enter(28 * MIB, b), Entry::Granted { next: Some(c) }, "there is more");
        assert_eq!(lane.enter(4 * MIB, c), GRANTED);
        assert_eq!(lane.leave(32 * MIB), None);
    }

    #[test]
    fn what_is_larger_than_the_room_comes_alone() {
        let budget = Budget::new(MIB, 0, MIB);
        let payloads = budget.room(Queue::Payloads);
        let [a, b] = [(0, 1, 0), (1, 1, 0)];
        assert_eq!(payloads.enter(2 * MIB, a), GRANTED);
        assert_eq!(payloads.enter(1, b), Entry::Queued);
        assert_eq!(payloads.leave(2 * MIB), Some(b));
        assert_eq!(payloads.enter(1, b), GRANTED);
        assert_eq!(payloads.enter(2 * MIB, a), Entry::Queued);
        assert!(payloads.is_wanted() && !budget.room(Queue::Lane).is_wanted());
    }

    #[test]
    fn who_leaves_the_queue_lets_the_next_one_go() {
        let budget = Budget::new(MIB, 0, MIB);
        let lane = budget.room(Queue::Lane);
        let [a, b, c] = [(0, 1, 0), (1, 1, 0), (0, 2, 0)];
        assert_eq!(lane.enter(20 * MIB, a), GRANTED);
        assert_eq!(lane.enter(32 * MIB, b), Entry::Queued);
        assert_eq!(lane.enter(4 * MIB, c), Entry::Queued);
        assert_eq!(lane.give_up(b), Some(c));
        assert_eq!(lane.enter(4 * MIB, c), GRANTED);
    }
}
