//! ARC: two LRU lists whose sizes adapt to hits on their ghosts.
//!
//! `T1` holds lines that were used once recently, `T2` those used at least twice; `B1` and `B2`
//! hold the ghosts of lines evicted from them. A hit on a ghost shows that its list was too short,
//! and moves the target length of `T1` accordingly (Megiddo and Modha, FAST 2003). For a capacity
//! of c, `T1` and `B1` together hold at most c, all four at most 2c.

use super::ghost::Ghosts;
use super::queues::Queues;
use forebay_policy::{Eviction, Hint, Lines, Slot};

const T1: usize = 0;
const T2: usize = 1;

pub struct Arc {
    capacity: usize,
    queues: Queues<2>,
    b1: Ghosts,
    b2: Ghosts,
    /// The target length of `T1`, from 0 to the capacity.
    t1_len_target: usize,
    /// The last incoming key that was found among the ghosts; the target has been moved for it.
    recalled: Option<u64>,
}

impl Arc {
    pub fn new(capacity: usize) -> Self {
        Self {
            capacity,
            queues: Queues::new(capacity),
            b1: Ghosts::new(capacity),
            b2: Ghosts::new(2 * capacity),
            t1_len_target: 0,
            recalled: None,
        }
    }

    /// Removes `key` from the ghosts and moves the target, unless an eviction for `key` has done
    /// so. Returns whether it was a ghost, and whether this call found it in `b2`.
    fn recall(&mut self, key: u64) -> (bool, bool) {
        if self.recalled == Some(key) {
            return (true, false);
        }
        self.recalled = None;
        let (b1_len, b2_len) = (self.b1.len(), self.b2.len());
        let in_b2 = if self.b1.remove(key) {
            let step = (b2_len / b1_len).max(1);
            self.t1_len_target = (self.t1_len_target + step).min(self.capacity);
            false
        } else if self.b2.remove(key) {
            let step = (b1_len / b2_len).max(1);
            self.t1_len_target = self.t1_len_target.saturating_sub(step);
            true
        } else {
            return (false, false);
        };
        self.recalled = Some(key);
        (true, in_b2)
    }

    /// Keeps the directory within its bounds before a line without a ghost is inserted.
    fn trim(&mut self) {
        if self.queues.len(T1) + self.b1.len() >= self.capacity {
            self.b1.drop_oldest();
        } else if self.queues.len(T1) + self.queues.len(T2) + self.b1.len() + self.b2.len()
            >= 2 * self.capacity
        {
            self.b2.drop_oldest();
        }
    }

    fn evict_from_t1(&mut self, lines: &dyn Lines, with_ghost: bool) -> Option<Slot> {
        let slot = self.queues.evict(T1, lines)?;
        if with_ghost {
            self.b1.push(lines.key(slot));
        }
        Some(slot)
    }

    fn evict_from_t2(&mut self, lines: &dyn Lines) -> Option<Slot> {
        let slot = self.queues.evict(T2, lines)?;
        self.b2.push(lines.key(slot));
        Some(slot)
    }
}

impl Eviction for Arc {
    fn name(&self) -> &'static str {
        "arc"
    }

    fn on_insert(&mut self, slot: Slot, key: u64, _hint: Hint) {
        let (returns, _) = self.recall(key);
        self.recalled = None;
        if !returns {
            self.trim();
        }
        self.queues.push(if returns { T2 } else { T1 }, slot);
    }

    fn on_hit(&mut self, slot: Slot) {
        self.queues.move_to(T2, slot);
    }

    fn on_remove(&mut self, slot: Slot) {
        self.queues.remove(slot);
    }

    fn evict(&mut self, incoming: u64, _hint: Hint, lines: &dyn Lines) -> Option<Slot> {
        let (returns, was_in_b2) = self.recall(incoming);
        let mut with_ghost = true;
        if !returns {
            // If `T1` alone has the capacity, `B1` has no space for a ghost.
            with_ghost = self.queues.len(T1) < self.capacity;
            self.trim();
        }
        let t1_len = self.queues.len(T1);
        let from_t1 = t1_len > 0
            && (!with_ghost
                || t1_len > self.t1_len_target
                || (was_in_b2 && t1_len == self.t1_len_target));
        if from_t1 {
            let slot = self.evict_from_t1(lines, with_ghost);
            slot.or_else(|| self.evict_from_t2(lines))
        } else {
            let slot = self.evict_from_t2(lines);
            slot.or_else(|| self.evict_from_t1(lines, with_ghost))
        }
    }

    fn metadata_bytes(&self) -> usize {
        size_of::<Self>() + self.queues.heap_bytes() + self.b1.heap_bytes() + self.b2.heap_bytes()
    }

    fn self_check(&self) {
        self.queues.self_check();
        let l1 = self.queues.len(T1) + self.b1.len();
        let l2 = self.queues.len(T2) + self.b2.len();
        assert!(l1 <= self.capacity, "T1 and B1 hold {l1} of {} lines", self.capacity);
        assert!(l1 + l2 <= 2 * self.capacity, "the directory holds {}", l1 + l2);
        assert!(self.t1_len_target <= self.capacity);
        self.b1.self_check();
        self.b2.self_check();
    }
}
