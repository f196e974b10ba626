//! A disk that takes a fixed time per I/O, one I/O at a time.
//!
//! No real disk behaves like this. It serves to test arrays: the time of an array of such disks
//! depends only on the number of I/Os and their dependencies. Linux's `null_blk` with a completion
//! time and a queue depth of one behaves in the same way.

use super::DiskModel;
use crate::IoKind;
use std::collections::VecDeque;

/// A disk with a fixed time per I/O. A flush takes none: it completes with the I/O before it.
pub struct Fixed {
    service_ns: u64,
    /// When the disk is idle again.
    free_at_ns: u64,
    /// I/Os in flight: completion time and id.
    answers: VecDeque<(u64, u64)>,
}

impl Fixed {
    /// An idle disk that takes `service_ns` nanoseconds for an I/O.
    pub const fn new(service_ns: u64) -> Self {
        Self { service_ns, free_at_ns: 0, answers: VecDeque::new() }
    }
}

impl DiskModel for Fixed {
    fn enqueue(&mut self, now_ns: u64, id: u64, kind: IoKind, _offset: u64, _len: u64) {
        let service_ns = if kind == IoKind::Flush { 0 } else { self.service_ns };
        self.free_at_ns = self.free_at_ns.max(now_ns) + service_ns;
        self.answers.push_back((self.free_at_ns, id));
    }

    fn next_completion(&self) -> Option<u64> {
        self.answers.front().map(|&(at_ns, _)| at_ns)
    }

    fn pop(&mut self, now_ns: u64) -> Option<u64> {
        self.answers.pop_front_if(|&mut (at_ns, _)| at_ns <= now_ns).map(|(_, id)| id)
    }

    fn is_rotational(&self) -> bool {
        false
    }
}
