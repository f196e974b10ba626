//! LIRS: ranks lines by the distance between their last two uses instead of by the last use.
//!
//! Lines with a short distance (*LIR*) occupy 99 % of the slots and are never evicted directly. The
//! others (*HIR*) pass through the queue `Q`. The stack `S` orders by recency all LIR lines, and
//! every HIR line and ghost younger than the oldest LIR line. A HIR line that is used while in `S`
//! has a shorter distance than that LIR line, and the two exchange their roles (Jiang and Zhang,
//! SIGMETRICS 2002).
//!
//! The paper leaves the number of ghosts open. Here it is twice the capacity; the oldest is dropped
//! first.

use super::ghost::KeyIndex;
use forebay_policy::list::{Links, List, NIL};
use forebay_policy::{Eviction, Hint, Lines, Slot};

/// Ghosts per line of capacity.
const GHOSTS_PER_LINE: usize = 2;

/// Nodes 0 to capacity less one are the slots; those above are ghosts. A node of `stack_links`
/// may be in `S`; a node of `queue_links` in `Q` (HIR slots) or in one of the lists of ghosts.
pub struct Lirs {
    capacity: usize,
    lir_count: usize,
    lir_count_max: usize,
    is_lir: Box<[bool]>,
    stack_links: Links,
    stack: List,
    queue_links: Links,
    queue: List,
    /// All ghosts that are in `S`, oldest at the back.
    ghosts: List,
    ghosts_free: List,
    /// The ghosts by key, numbered from 0.
    ghost_index: KeyIndex,
}

impl Lirs {
    pub fn new(capacity: usize) -> Self {
        let ghost_count = GHOSTS_PER_LINE * capacity;
        let node_count = capacity + ghost_count;
        let mut queue_links = Links::new(node_count);
        let mut ghosts_free = List::new();
        for node in (capacity..node_count).rev() {
            queue_links.push_front(&mut ghosts_free, node as u32);
        }
        Self {
            capacity,
            lir_count: 0,
            lir_count_max: (capacity - (capacity / 100).max(1)).max(1),
            is_lir: vec![false; capacity].into_boxed_slice(),
            stack_links: Links::new(node_count),
            stack: List::new(),
            queue_links,
            queue: List::new(),
            ghosts: List::new(),
            ghosts_free,
            ghost_index: KeyIndex::new(ghost_count),
        }
    }

    fn is_ghost(&self, node: u32) -> bool {
        node as usize >= self.capacity
    }

    fn ghost_number(&self, node: u32) -> u32 {
        node - self.capacity as u32
    }

    fn find_ghost(&self, key: u64) -> Option<u32> {
        self.ghost_index.find(key).map(|ghost| ghost + self.capacity as u32)
    }

    /// Puts a ghost for `key` at the place of the resident line `slot` in the stack.
    fn leave_ghost(&mut self, slot: Slot, key: u64) {
        if let Some(twin) = self.find_ghost(key) {
            self.forget_ghost(twin);
        }
        if self.ghosts_free.is_empty() {
            let oldest = self.ghosts.back();
            self.forget_ghost(oldest);
        }
        let node = self.queue_links.pop_back(&mut self.ghosts_free);
        let node = node.expect("there are ghosts, and one was just freed if none was free");
        self.queue_links.push_front(&mut self.ghosts, node);
        self.stack_links.replace(&mut self.stack, slot, node);
        self.ghost_index.insert(self.ghost_number(node), key);
    }

    fn forget_ghost(&mut self, node: u32) {
        self.stack_links.remove(&mut self.stack, node);
        self.queue_links.remove(&mut self.ghosts, node);
        self.queue_links.push_front(&mut self.ghosts_free, node);
        self.ghost_index.remove(self.ghost_number(node));
    }

    /// Restores the invariant that the stack ends with a LIR line.
    fn prune(&mut self) {
        while self.stack.back() != NIL {
            let node = self.stack.back();
            if self.is_ghost(node) {
                self.forget_ghost(node);
            } else if self.is_lir[node as usize] {
                return;
            } else {
                self.stack_links.remove(&mut self.stack, node);
            }
        }
    }

    /// Makes the LIR line at the end of the stack a HIR line at the young end of the queue.
    fn demote_oldest(&mut self) {
        let oldest = self.stack.back();
        assert!(
            oldest != NIL && self.is_lir[oldest as usize],
            "the stack must end with a LIR line"
        );
        self.stack_links.remove(&mut self.stack, oldest);
        self.is_lir[oldest as usize] = false;
        self.lir_count -= 1;
        self.queue_links.push_front(&mut self.queue, oldest);
        self.prune();
    }

    fn promote(&mut self, slot: Slot) {
        self.is_lir[slot as usize] = true;
        self.lir_count += 1;
        if self.lir_count > self.lir_count_max {
            self.demote_oldest();
        }
    }

    fn hit_lir(&mut self, slot: Slot) {
        let was_oldest = self.stack.back() == slot;
        self.stack_links.move_to_front(&mut self.stack, slot);
        if was_oldest {
            self.prune();
        }
    }

    fn hit_hir(&mut self, slot: Slot) {
        if self.stack_links.is_listed(slot) {
            self.stack_links.move_to_front(&mut self.stack, slot);
            self.queue_links.remove(&mut self.queue, slot);
            self.promote(slot);
        } else {
            self.stack_links.push_front(&mut self.stack, slot);
            self.queue_links.move_to_front(&mut self.queue, slot);
            // If no line is LIR, which removals can cause, the line is at the end of the stack.
            self.prune();
        }
    }

    /// The oldest evictable LIR line; used only if no HIR line is evictable.
    fn evict_lir(&mut self, lines: &dyn Lines) -> Option<Slot> {
        let mut node = self.stack.back();
        for _ in 0..forebay_policy::list::PASS_OVER_MAX {
            if node == NIL {
                return None;
            }
            if !self.is_ghost(node) && self.is_lir[node as usize] && lines.is_evictable(node) {
                self.forget_lir(node);
                return Some(node);
            }
            node = self.stack_links.fore(node);
        }
        // None of the oldest lines is evictable. Demoting one lets the next search reach further.
        self.demote_oldest();
        None
    }

    fn forget_lir(&mut self, slot: Slot) {
        self.stack_links.remove(&mut self.stack, slot);
        self.is_lir[slot as usize] = false;
        self.lir_count -= 1;
        self.prune();
    }
}

impl Eviction for Lirs {
    fn name(&self) -> &'static str {
        "lirs"
    }

    fn on_insert(&mut self, slot: Slot, key: u64, _hint: Hint) {
        assert!((slot as usize) < self.capacity, "slot {slot} is beyond the capacity");
        let ghost = self.find_ghost(key);
        if let Some(ghost) = ghost {
            self.forget_ghost(ghost);
        }
        self.stack_links.push_front(&mut self.stack, slot);
        if ghost.is_some() || self.lir_count < self.lir_count_max {
            self.promote(slot);
        } else {
            self.is_lir[slot as usize] = false;
            self.queue_links.push_front(&mut self.queue, slot);
        }
        self.prune();
    }

    fn on_hit(&mut self, slot: Slot) {
        if self.is_lir[slot as usize] {
            self.hit_lir(slot);
        } else {
            self.hit_hir(slot);
        }
    }

    fn on_remove(&mut self, slot: Slot) {
        if self.is_lir[slot as usize] {
            self.forget_lir(slot);
            return;
        }
        self.queue_links.remove(&mut self.queue, slot);
        if self.stack_links.is_listed(slot) {
            self.stack_links.remove(&mut self.stack, slot);
        }
    }

    fn evict(&mut self, _incoming: u64, _hint: Hint, lines: &dyn Lines) -> Option<Slot> {
        let Some(slot) = self.queue_links.last_evictable(&mut self.queue, lines) else {
            return self.evict_lir(lines);
        };
        self.queue_links.remove(&mut self.queue, slot);
        if self.stack_links.is_listed(slot) {
            self.leave_ghost(slot, lines.key(slot));
        }
        Some(slot)
    }

    fn metadata_bytes(&self) -> usize {
        size_of::<Self>()
            + self.stack_links.heap_bytes()
            + self.queue_links.heap_bytes()
            + size_of_val(&*self.is_lir)
            + self.ghost_index.heap_bytes()
    }

    fn self_check(&self) {
        let (mut lir_count, mut ghost_count) = (0, 0);
        self.stack_links.check(&self.stack, |node| {
            if self.is_ghost(node) {
                ghost_count += 1;
                let key = self.ghost_index.key(self.ghost_number(node));
                assert_eq!(self.find_ghost(key), Some(node), "a ghost can't be found");
            } else if self.is_lir[node as usize] {
                lir_count += 1;
                assert!(!self.queue_links.is_listed(node), "LIR line {node} is queued");
            } else {
                assert!(self.queue_links.is_listed(node), "HIR line {node} is not queued");
            }
        });
        assert_eq!(lir_count, self.lir_count, "LIR lines in the stack");
        assert_eq!(ghost_count, self.ghosts.len(), "ghosts in the stack");
        assert!(self.lir_count <= self.lir_count_max, "too many LIR lines");
        self.queue_links.check(&self.queue, |slot| assert!(!self.is_lir[slot as usize]));
        self.queue_links.check(&self.ghosts, |node| assert!(self.is_ghost(node)));
        let oldest = self.stack.back();
        if oldest != NIL {
            assert!(!self.is_ghost(oldest) && self.is_lir[oldest as usize], "not pruned");
        }
    }
}
