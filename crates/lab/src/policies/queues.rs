//! The queues of a policy.

use forebay_policy::list::{Links, List};
use forebay_policy::{Lines, Slot};

/// `N` queues of slots, numbered from 0. A resident slot is in exactly one of them.
pub struct Queues<const N: usize> {
    links: Links,
    lists: [List; N],
    /// The queue of each resident slot.
    numbers: Box<[u8]>,
}

impl<const N: usize> Queues<N> {
    /// Empty queues for `capacity` slots.
    pub fn new(capacity: usize) -> Self {
        Self {
            links: Links::new(capacity),
            lists: std::array::from_fn(|_| List::new()),
            numbers: vec![0; capacity].into_boxed_slice(),
        }
    }

    pub const fn len(&self, queue: usize) -> usize {
        self.lists[queue].len()
    }

    pub fn queue_of(&self, slot: Slot) -> usize {
        usize::from(self.numbers[slot as usize])
    }

    /// The slot at the back of a queue, or [`NIL`](forebay_policy::list::NIL).
    pub const fn back(&self, queue: usize) -> u32 {
        self.lists[queue].back()
    }

    /// The neighbour of a slot on the side of the front, or [`NIL`](forebay_policy::list::NIL).
    pub fn fore(&self, slot: Slot) -> u32 {
        self.links.fore(slot)
    }

    pub fn push(&mut self, queue: usize, slot: Slot) {
        self.numbers[slot as usize] = queue as u8;
        self.links.push_front(&mut self.lists[queue], slot);
    }

    pub fn remove(&mut self, slot: Slot) {
        let queue = self.queue_of(slot);
        self.links.remove(&mut self.lists[queue], slot);
    }

    pub fn move_to(&mut self, queue: usize, slot: Slot) {
        self.remove(slot);
        self.push(queue, slot);
    }

    pub fn move_to_front(&mut self, slot: Slot) {
        let queue = self.queue_of(slot);
        self.links.move_to_front(&mut self.lists[queue], slot);
    }

    /// The evictable slot nearest to the back of a queue, see [`Links::last_evictable`].
    pub fn last_evictable(&mut self, queue: usize, lines: &dyn Lines) -> Option<Slot> {
        self.links.last_evictable(&mut self.lists[queue], lines)
    }

    /// Removes the evictable slot nearest to the back of a queue.
    pub fn evict(&mut self, queue: usize, lines: &dyn Lines) -> Option<Slot> {
        let slot = self.last_evictable(queue, lines)?;
        self.remove(slot);
        Some(slot)
    }

    /// Moves the slots behind `slot` to the front of a queue, see [`Links::rotate_behind`].
    pub fn rotate_behind(&mut self, queue: usize, slot: u32) {
        self.links.rotate_behind(&mut self.lists[queue], slot);
    }

    pub fn heap_bytes(&self) -> usize {
        self.links.heap_bytes() + size_of_val(&*self.numbers)
    }

    pub fn self_check(&self) {
        for (queue, list) in self.lists.iter().enumerate() {
            self.links.check(list, |slot| assert_eq!(self.queue_of(slot), queue));
        }
        assert_eq!(self.links.listed_count(), self.lists.iter().map(List::len).sum::<usize>());
    }
}
