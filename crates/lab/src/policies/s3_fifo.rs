//! S3-FIFO: a small FIFO for new lines, a main FIFO for proven ones, and ghosts.
//!
//! Hits are only counted, up to three. A line that leaves the small queue with more than one hit
//! goes to main; otherwise it is evicted and becomes a ghost. A line whose ghost is found goes to
//! main at once. Main is a clock: a line there returns to the front once for each hit (Yang et al.,
//! SOSP 2023). The small queue is a tenth of the lines; main has as many ghosts as lines.
//!
//! Clock2Q+ is S3-FIFO with a correlation window: an operation often uses a new block several times
//! at once and then never again. Therefore hits on the newer half of the small queue (the *window*)
//! do not count; one hit on the older half does, and promotes the line to main. Main has one bit
//! per line. There are half as many ghosts as lines (Zhai et al., VLDB 2026).

use super::ghost::Ghosts;
use super::queues::Queues;
use forebay_policy::list::{NIL, PASS_OVER_MAX};
use forebay_policy::{Eviction, Hint, Lines, Slot};

/// The newer part of the small queue, empty in S3-FIFO, and the older part.
const WINDOW: usize = 0;
const SMALL: usize = 1;
const MAIN: usize = 2;

pub struct S3Fifo {
    name: &'static str,
    queues: Queues<3>,
    ghosts: Ghosts,
    hits: Box<[u8]>,
    hits_max: u8,
    /// Hits in the small queue after which a line is promoted to main.
    hits_to_promote: u8,
    /// The target length of window and small queue together.
    small_len_target: usize,
    window_len_max: usize,
}

impl S3Fifo {
    /// S3-FIFO for `capacity` lines.
    pub fn new(capacity: usize) -> Self {
        let small_len_target = (capacity / 10).max(1);
        Self {
            name: "s3-fifo",
            queues: Queues::new(capacity),
            ghosts: Ghosts::new((capacity - small_len_target).max(1)),
            hits: vec![0; capacity].into_boxed_slice(),
            hits_max: 3,
            hits_to_promote: 2,
            small_len_target,
            window_len_max: 0,
        }
    }

    /// Clock2Q+ for `capacity` lines.
    pub fn clock2q_plus(capacity: usize) -> Self {
        let policy = Self::new(capacity);
        Self {
            name: "clock2q+",
            ghosts: Ghosts::new((capacity / 2).max(1)),
            hits_max: 1,
            hits_to_promote: 1,
            window_len_max: policy.small_len_target.div_ceil(2),
            ..policy
        }
    }

    /// Promotes the lines at the back of small that have enough hits, until one is evictable.
    fn evict_from_small(&mut self, lines: &dyn Lines) -> Option<Slot> {
        let mut slot = self.queues.back(SMALL);
        let mut passed = 0;
        while slot != NIL && passed < PASS_OVER_MAX {
            let next = self.queues.fore(slot);
            if self.hits[slot as usize] >= self.hits_to_promote {
                self.queues.move_to(MAIN, slot);
                self.hits[slot as usize] = 0;
            } else if lines.is_evictable(slot) {
                self.queues.remove(slot);
                self.ghosts.push(lines.key(slot));
                return Some(slot);
            } else {
                passed += 1;
            }
            slot = next;
        }
        self.queues.rotate_behind(SMALL, slot);
        None
    }

    /// Turns the clock of main until a line without hits is found.
    fn evict_from_main(&mut self, lines: &dyn Lines) -> Option<Slot> {
        let mut passed = 0;
        // Returning a line to the front costs the line a hit, which bounds the loop.
        while passed < PASS_OVER_MAX.min(self.queues.len(MAIN)) {
            let slot = self.queues.back(MAIN);
            let hits = &mut self.hits[slot as usize];
            if *hits == 0 && lines.is_evictable(slot) {
                self.queues.remove(slot);
                return Some(slot);
            }
            passed += usize::from(*hits == 0);
            *hits = hits.saturating_sub(1);
            self.queues.move_to_front(slot);
        }
        None
    }
}

impl Eviction for S3Fifo {
    fn name(&self) -> &'static str {
        self.name
    }

    fn on_insert(&mut self, slot: Slot, key: u64, _hint: Hint) {
        self.hits[slot as usize] = 0;
        if self.ghosts.take(key) {
            self.queues.push(MAIN, slot);
            return;
        }
        self.queues.push(WINDOW, slot);
        if self.queues.len(WINDOW) > self.window_len_max {
            self.queues.move_to(SMALL, self.queues.back(WINDOW));
        }
    }

    fn on_hit(&mut self, slot: Slot) {
        if self.queues.queue_of(slot) != WINDOW {
            let hits = &mut self.hits[slot as usize];
            *hits = (*hits + 1).min(self.hits_max);
        }
    }

    fn on_remove(&mut self, slot: Slot) {
        self.queues.remove(slot);
    }

    fn evict(&mut self, incoming: u64, _hint: Hint, lines: &dyn Lines) -> Option<Slot> {
        self.ghosts.recall(incoming);
        let new_len = self.queues.len(WINDOW) + self.queues.len(SMALL);
        let victim = if new_len >= self.small_len_target || self.queues.len(MAIN) == 0 {
            self.evict_from_small(lines).or_else(|| self.evict_from_main(lines))
        } else {
            self.evict_from_main(lines).or_else(|| self.evict_from_small(lines))
        };
        // The older half may be empty; at the smallest capacities, it always is.
        victim.or_else(|| {
            let slot = self.queues.evict(WINDOW, lines)?;
            self.ghosts.push(lines.key(slot));
            Some(slot)
        })
    }

    fn metadata_bytes(&self) -> usize {
        size_of::<Self>()
            + self.queues.heap_bytes()
            + self.ghosts.heap_bytes()
            + size_of_val(&*self.hits)
    }

    fn self_check(&self) {
        self.queues.self_check();
        assert!(self.queues.len(WINDOW) <= self.window_len_max, "the window is too long");
        assert!(self.hits.iter().all(|&hits| hits <= self.hits_max));
        self.ghosts.self_check();
    }
}
