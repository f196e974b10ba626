//! A ring of a guest, and its part of the region of requests in flight.

use crate::chain::{BrokenChain, Chain};
use crate::inbox::RingError;
use crate::memory::{GuestMemory, SharedMapping};
use forebay_vhost::inflight::{InflightEntry, RingHead, entry_at, ring_bytes};
use forebay_vhost::message::RingAddresses;
use forebay_vhost::ring::{Descriptor, available_bytes, needs_event, table_bytes, used_bytes};
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering, fence};

/// The flag of an available ring whose guest wants no interrupts.
const NO_INTERRUPT: u16 = 1;

/// The part of a ring in the region of requests in flight.
#[derive(Clone, Debug)]
pub(crate) struct InflightPart {
    pub(crate) region: Arc<SharedMapping>,
    pub(crate) offset: u64,
    /// Entries that it has space for.
    pub(crate) entries: u16,
}

/// A ring of a guest.
pub(crate) struct GuestRing {
    entries: u16,
    table: *const Descriptor,
    available: *const u16,
    used: *mut u16,
    /// Where the rings are. What requests refer to is kept by each of them.
    memory: Arc<GuestMemory>,
    inflight: Option<InflightState>,
    /// The index of the next available request.
    next_available: u16,
    /// The index of the next used entry, and the one that the guest has been told.
    next_used: u16,
    published: u16,
    has_event_index: bool,
}

// SAFETY: the memory that the pointers refer to is kept by `memory`.
unsafe impl Send for GuestRing {}

/// The guest has broken its ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BrokenRing;

/// The memory at an address of the monitor, if it is there and aligned.
fn find(
    memory: &GuestMemory,
    address: u64,
    bytes: u64,
    alignment: usize,
) -> Result<*mut u8, RingError> {
    let piece = memory.at_monitor_address(address, bytes);
    let start = piece.map(|piece| piece.start);
    start.filter(|start| (*start as usize).is_multiple_of(alignment)).ok_or(RingError::Memory)
}

impl GuestRing {
    /// A ring at these addresses. Requests that an earlier server had taken are added to `taken`,
    /// in their order.
    ///
    /// # Errors
    /// The addresses are not in the memory, or the region for requests in flight is too small.
    pub(crate) fn new(
        memory: Arc<GuestMemory>,
        (entries, addresses): (u16, &RingAddresses),
        (base, has_event_index): (u16, bool),
        inflight: Option<InflightPart>,
        taken: &mut Vec<u16>,
    ) -> Result<Self, RingError> {
        let table =
            find(&memory, addresses.descriptors, table_bytes(entries), 16)?.cast_const().cast();
        let available =
            find(&memory, addresses.available, available_bytes(entries), 2)?.cast_const().cast();
        let used = find(&memory, addresses.used, used_bytes(entries), 4)?.cast();
        let inflight = match inflight {
            Some(part) => Some(InflightState::new(part, entries).ok_or(RingError::Inflight)?),
            None => None,
        };
        let mut ring = Self {
            entries,
            table,
            available,
            used,
            memory,
            inflight,
            next_available: base,
            next_used: base,
            published: base,
            has_event_index,
        };
        ring.next_used = ring.used_word(1).load(Ordering::Acquire);
        ring.published = ring.next_used;
        if let Some(inflight) = &mut ring.inflight {
            inflight.recover(ring.next_used, taken);
            ring.next_available = ring.next_used.wrapping_add(taken.len() as u16);
        }
        Ok(ring)
    }

    pub(crate) const fn entries(&self) -> u16 {
        self.entries
    }

    /// The index of the next request that is to be taken.
    pub(crate) const fn next_available(&self) -> u16 {
        self.next_available
    }

    /// Whether the memory that the ring is in has gone away.
    pub(crate) fn is_lost(&self) -> bool {
        self.memory.is_lost()
    }

    fn available_word(&self, at: usize) -> &AtomicU16 {
        // SAFETY: inside of the ring, aligned, and mapped as long as `self` is.
        unsafe { AtomicU16::from_ptr(self.available.add(at).cast_mut()) }
    }

    fn used_word(&self, at: usize) -> &AtomicU16 {
        // SAFETY: as above.
        unsafe { AtomicU16::from_ptr(self.used.add(at)) }
    }

    /// Takes the next request: the head of its chain.
    ///
    /// # Errors
    /// The guest has written what cannot be.
    pub(crate) fn take(&mut self) -> Result<Option<u16>, BrokenRing> {
        let index = self.available_word(1).load(Ordering::Acquire);
        let pending = index.wrapping_sub(self.next_available);
        if pending == 0 {
            return Ok(None);
        }
        if pending > self.entries {
            return Err(BrokenRing);
        }
        let at = usize::from(self.next_available % self.entries);
        let head = self.available_word(2 + at).load(Ordering::Relaxed);
        if head >= self.entries {
            return Err(BrokenRing);
        }
        self.next_available = self.next_available.wrapping_add(1);
        if let Some(inflight) = &mut self.inflight {
            inflight.mark(head);
        }
        Ok(Some(head))
    }

    /// Asks to be notified of the next request. Returns true if there already is one.
    pub(crate) fn ask_for_event(&self) -> bool {
        if self.has_event_index {
            let at = 2 + 4 * usize::from(self.entries);
            self.used_word(at).store(self.next_available, Ordering::Relaxed);
            fence(Ordering::SeqCst);
        }
        self.available_word(1).load(Ordering::Acquire) != self.next_available
    }

    /// Reads the chain of a request.
    ///
    /// # Errors
    /// As [`Chain::read`].
    pub(crate) fn chain(
        &self,
        memory: &GuestMemory,
        head: u16,
        chain: &mut Chain,
    ) -> Result<(), BrokenChain> {
        chain.read(memory, (self.table, self.entries), head)
    }

    /// Adds a request to the used ring, with the number of bytes that were written to the guest.
    /// The guest sees it after [`GuestRing::publish`].
    pub(crate) fn put(&mut self, head: u16, bytes: u32) {
        let at = 2 + 4 * usize::from(self.next_used % self.entries);
        for (word, half) in [head, 0, bytes as u16, (bytes >> 16) as u16].into_iter().enumerate() {
            self.used_word(at + word).store(half, Ordering::Relaxed);
        }
        self.next_used = self.next_used.wrapping_add(1);
        if let Some(inflight) = &mut self.inflight {
            inflight.add_to_batch(head);
        }
    }

    /// Shows the guest what was added. Returns whether it wants an interrupt.
    pub(crate) fn publish(&mut self) -> bool {
        let old = self.published;
        if old == self.next_used {
            return false;
        }
        self.used_word(1).store(self.next_used, Ordering::Release);
        self.published = self.next_used;
        if let Some(inflight) = &mut self.inflight {
            inflight.end_batch(self.next_used);
        }
        fence(Ordering::SeqCst);
        if self.has_event_index {
            let event = self.available_word(2 + usize::from(self.entries)).load(Ordering::Relaxed);
            return needs_event(event, self.next_used, old);
        }
        self.available_word(0).load(Ordering::Relaxed) & NO_INTERRUPT == 0
    }
}

/// What a ring has in flight, in memory that the monitor keeps. See [`forebay_vhost::inflight`].
struct InflightState {
    /// Keeps the region mapped.
    _part: InflightPart,
    start: *mut u8,
    entries: u16,
    order: u64,
    batch: Vec<u16>,
}

impl InflightState {
    fn new(part: InflightPart, entries: u16) -> Option<Self> {
        let start = part.region.piece(part.offset, ring_bytes(entries))?.start;
        if entries > part.entries || !(start as usize).is_multiple_of(align_of::<InflightEntry>()) {
            return None;
        }
        let mut inflight = Self { _part: part, start, entries, order: 0, batch: Vec::new() };
        if !inflight.head().is_of(entries) {
            inflight.set_head(RingHead::new(entries));
        }
        Some(inflight)
    }

    fn head(&self) -> RingHead {
        // SAFETY: mapped, aligned, and long enough, by `new`.
        unsafe { self.start.cast::<RingHead>().read_volatile() }
    }

    fn set_head(&mut self, head: RingHead) {
        // SAFETY: as above.
        unsafe { self.start.cast::<RingHead>().write_volatile(head) }
    }

    fn entry(&self, head: u16) -> *mut InflightEntry {
        assert!(head < self.entries, "a descriptor of the ring");
        self.start.wrapping_add(entry_at(head)).cast()
    }

    fn read(&self, head: u16) -> InflightEntry {
        // SAFETY: as above.
        unsafe { self.entry(head).read_volatile() }
    }

    /// Changes an entry, and returns what it becomes.
    fn change(&mut self, head: u16, change: impl FnOnce(&mut InflightEntry)) -> InflightEntry {
        let mut entry = self.read(head);
        change(&mut entry);
        // SAFETY: as above.
        unsafe { self.entry(head).write_volatile(entry) };
        entry
    }

    /// Unmarks the batch that an earlier server had shown to the guest, and lists what it had
    /// taken besides, in the order in which it did.
    fn recover(&mut self, used_index: u16, taken: &mut Vec<u16>) {
        let mut head = self.head();
        let batch = used_index.wrapping_sub(head.used_index).min(self.entries);
        let mut of_batch = head.last_of_batch;
        for _ in 0..batch {
            if of_batch >= self.entries {
                break;
            }
            of_batch = self.change(of_batch, |entry| entry.is_in_flight = 0).previous_of_batch;
        }
        head.used_index = used_index;
        self.set_head(head);
        taken.extend((0..self.entries).filter(|&head| self.read(head).is_in_flight == 1));
        taken.sort_by_key(|&head| self.read(head).order);
        self.order = taken.last().map_or(0, |&head| self.read(head).order);
    }

    fn mark(&mut self, head: u16) {
        // The monitor may have written any number there.
        self.order = self.order.wrapping_add(1);
        let order = self.order;
        self.change(head, |entry| entry.order = order);
        fence(Ordering::Release);
        self.change(head, |entry| entry.is_in_flight = 1);
    }

    fn add_to_batch(&mut self, head: u16) {
        let mut of_ring = self.head();
        self.change(head, |entry| entry.previous_of_batch = of_ring.last_of_batch);
        fence(Ordering::Release);
        of_ring.last_of_batch = head;
        self.set_head(of_ring);
        self.batch.push(head);
    }

    fn end_batch(&mut self, used_index: u16) {
        fence(Ordering::Release);
        for at in 0..self.batch.len() {
            let head = self.batch[at];
            self.change(head, |entry| entry.is_in_flight = 0);
        }
        self.batch.clear();
        fence(Ordering::Release);
        let mut of_ring = self.head();
        of_ring.used_index = used_index;
        self.set_head(of_ring);
    }
}

#[cfg(test)]
mod tests;
