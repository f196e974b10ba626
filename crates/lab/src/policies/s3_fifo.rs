//! S3-FIFO: a small FIFO for new lines, a main FIFO for proven ones, and ghosts.
//!
//! Hits are only counted, up to three. A line that leaves the small queue with more than one hit
//! goes to main; otherwise it is evicted and becomes a ghost. A line whose ghost is found goes to
//! main at once. Main is a clock: a line there returns to the front once for each hit (Yang et al.,
//! SOSP 2023). The small queue is a tenth of the lines; main has as many ghosts as lines.

use super::ghost::Ghosts;
use forebay_policy::list::{Links, List, NIL, PASS_OVER_MAX};
use forebay_policy::{Eviction, Hint, Lines, Slot};

const HITS_MAX: u8 = 3;
/// Hits in the small queue after which a line is promoted to main.
const HITS_TO_PROMOTE: u8 = 2;

/// See the module.
pub struct S3Fifo {
    links: Links,
    small: List,
    main: List,
    ghosts: Ghosts,
    hits: Box<[u8]>,
    is_in_main: Box<[bool]>,
    small_len_target: usize,
    /// The last incoming key that was found among the ghosts.
    recalled: Option<u64>,
}

impl S3Fifo {
    /// A policy for `capacity` lines.
    pub fn new(capacity: usize) -> Self {
        let small_len_target = (capacity / 10).max(1);
        Self {
            links: Links::new(capacity),
            small: List::new(),
            main: List::new(),
            ghosts: Ghosts::new((capacity - small_len_target).max(1)),
            hits: vec![0; capacity].into_boxed_slice(),
            is_in_main: vec![false; capacity].into_boxed_slice(),
            small_len_target,
            recalled: None,
        }
    }

    /// Promotes the lines at the back of small that have enough hits, until one is evictable.
    fn evict_from_small(&mut self, lines: &dyn Lines) -> Option<Slot> {
        let mut slot = self.small.back();
        let mut passed = 0;
        while slot != NIL && passed < PASS_OVER_MAX {
            let next = self.links.fore(slot);
            if self.hits[slot as usize] >= HITS_TO_PROMOTE {
                self.links.remove(&mut self.small, slot);
                self.links.push_front(&mut self.main, slot);
                self.is_in_main[slot as usize] = true;
                self.hits[slot as usize] = 0;
            } else if lines.may_go(slot) {
                self.links.remove(&mut self.small, slot);
                self.ghosts.push(lines.key(slot));
                return Some(slot);
            } else {
                passed += 1;
            }
            slot = next;
        }
        self.links.rotate_behind(&mut self.small, slot);
        None
    }

    /// Turns the clock of main until a line without hits is found.
    fn evict_from_main(&mut self, lines: &dyn Lines) -> Option<Slot> {
        let mut passed = 0;
        // Returning a line to the front costs the line a hit, which bounds the loop.
        while passed < PASS_OVER_MAX.min(self.main.len()) {
            let slot = self.main.back();
            let hits = &mut self.hits[slot as usize];
            if *hits == 0 && lines.may_go(slot) {
                self.links.remove(&mut self.main, slot);
                return Some(slot);
            }
            passed += usize::from(*hits == 0);
            *hits = hits.saturating_sub(1);
            self.links.move_to_front(&mut self.main, slot);
        }
        None
    }
}

impl Eviction for S3Fifo {
    fn name(&self) -> &'static str {
        "s3-fifo"
    }

    fn on_insert(&mut self, slot: Slot, key: u64, _hint: Hint) {
        let returns = self.recalled.take() == Some(key) || self.ghosts.remove(key);
        self.hits[slot as usize] = 0;
        self.is_in_main[slot as usize] = returns;
        let list = if returns { &mut self.main } else { &mut self.small };
        self.links.push_front(list, slot);
    }

    fn on_hit(&mut self, slot: Slot) {
        let hits = &mut self.hits[slot as usize];
        *hits = (*hits + 1).min(HITS_MAX);
    }

    fn on_remove(&mut self, slot: Slot) {
        let list = if self.is_in_main[slot as usize] { &mut self.main } else { &mut self.small };
        self.links.remove(list, slot);
    }

    fn evict(&mut self, incoming: u64, _hint: Hint, lines: &dyn Lines) -> Option<Slot> {
        if self.recalled != Some(incoming) {
            self.recalled = self.ghosts.remove(incoming).then_some(incoming);
        }
        if self.small.len() >= self.small_len_target || self.main.is_empty() {
            self.evict_from_small(lines).or_else(|| self.evict_from_main(lines))
        } else {
            self.evict_from_main(lines).or_else(|| self.evict_from_small(lines))
        }
    }

    fn metadata_bytes(&self) -> usize {
        size_of::<Self>()
            + self.links.heap_bytes()
            + self.ghosts.heap_bytes()
            + size_of_val(&*self.hits)
            + size_of_val(&*self.is_in_main)
    }

    fn self_check(&self) {
        self.links.check(&self.small, |slot| assert!(!self.is_in_main[slot as usize]));
        self.links.check(&self.main, |slot| assert!(self.is_in_main[slot as usize]));
        assert_eq!(self.links.listed_count(), self.small.len() + self.main.len());
        assert!(self.hits.iter().all(|&hits| hits <= HITS_MAX));
        self.ghosts.self_check();
    }
}
