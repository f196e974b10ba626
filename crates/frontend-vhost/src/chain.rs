//! Reads the chain of descriptors of a request.

use crate::memory::{GuestMemory, MemoryPiece};
use forebay_vhost::RING_ENTRIES_MAX;
use forebay_vhost::block::{HEAD_BYTES, RequestHead};
use forebay_vhost::ring::{DESCRIPTOR_BYTES, Descriptor, table_bytes};
use zerocopy::IntoBytes;

/// Pieces of a chain at most: twice what a driver is told, as pieces may cross the guest's memory.
const PIECES_MAX: usize = 512;

/// Pieces that a place keeps space for when its request has ended.
const PIECES_KEPT: usize = 32;

/// The pieces of guest memory of a request, kept from one request of a place to the next.
#[derive(Debug, Default)]
pub(crate) struct Chain {
    /// What the device reads: the head, and data to write.
    pub(crate) readable: Vec<MemoryPiece>,
    /// What the device writes: data that was read, and the status.
    pub(crate) writable: Vec<MemoryPiece>,
}

/// A chain that no driver makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BrokenChain;

impl Chain {
    /// Reads the chain that begins at an entry of a table.
    ///
    /// # Errors
    /// The chain has a loop, an address outside of the guest's memory, or another fault.
    pub(crate) fn read(
        &mut self,
        memory: &GuestMemory,
        (table, entries): (*const Descriptor, u16),
        head: u16,
    ) -> Result<(), BrokenChain> {
        self.readable.clear();
        self.writable.clear();
        // SAFETY: the table of a ring has this many entries, and the caller's `head` is one.
        let first = unsafe { table.add(usize::from(head)).read_volatile() };
        if !first.is_indirect() {
            return self.follow(memory, (table, entries), first);
        }
        let count = first.bytes as usize / DESCRIPTOR_BYTES;
        let is_whole = (first.bytes as usize).is_multiple_of(DESCRIPTOR_BYTES);
        if !is_whole || !(1..=usize::from(RING_ENTRIES_MAX)).contains(&count) {
            return Err(BrokenChain);
        }
        let entries = count as u16;
        let table = memory.at_guest_address(first.address, table_bytes(entries));
        let table = table.ok_or(BrokenChain)?.start.cast_const().cast::<Descriptor>();
        // SAFETY: mapped memory of at least one descriptor, at any address.
        let first = unsafe { table.read_unaligned() };
        self.follow(memory, (table, entries), first)
    }

    /// Follows a chain through its table.
    fn follow(
        &mut self,
        memory: &GuestMemory,
        (table, entries): (*const Descriptor, u16),
        first: Descriptor,
    ) -> Result<(), BrokenChain> {
        let mut descriptor = first;
        for _ in 0..entries {
            if descriptor.is_indirect() {
                return Err(BrokenChain);
            }
            let pieces = match descriptor.is_writable() {
                true => &mut self.writable,
                false if self.writable.is_empty() => &mut self.readable,
                false => return Err(BrokenChain),
            };
            let is_there = memory.pieces(descriptor.address, u64::from(descriptor.bytes), pieces);
            if !is_there || self.readable.len() + self.writable.len() > PIECES_MAX {
                return Err(BrokenChain);
            }
            let Some(next) = descriptor.next() else { return Ok(()) };
            if next >= entries {
                return Err(BrokenChain);
            }
            // SAFETY: the table is mapped, with this many entries.
            descriptor = unsafe { table.add(usize::from(next)).read_unaligned() };
        }
        Err(BrokenChain)
    }

    /// Forgets the request, and gives back what an unusual one has taken.
    pub(crate) fn clear(&mut self) {
        for pieces in [&mut self.readable, &mut self.writable] {
            pieces.clear();
            pieces.shrink_to(PIECES_KEPT);
        }
    }

    /// Takes the head of the request from the pieces to read.
    pub(crate) fn take_head(&mut self) -> Option<RequestHead> {
        let mut bytes = [0; HEAD_BYTES];
        copy_out(&self.readable, 0, &mut bytes).then(|| {
            skip(&mut self.readable, HEAD_BYTES);
            zerocopy::transmute!(bytes)
        })
    }

    /// Takes the place of the status from the pieces to write.
    pub(crate) fn take_status(&mut self) -> Option<*mut u8> {
        let last = self.writable.last_mut().filter(|last| last.len > 0)?;
        last.len -= 1;
        Some(last.start.wrapping_add(last.len))
    }
}

/// Bytes of some pieces.
pub(crate) fn bytes_of(pieces: &[MemoryPiece]) -> u64 {
    pieces.iter().map(|piece| piece.len as u64).sum()
}

/// Removes bytes from the start.
fn skip(pieces: &mut Vec<MemoryPiece>, bytes: usize) {
    let mut left = bytes;
    pieces.retain_mut(|piece| {
        let skipped = piece.len.min(left);
        left -= skipped;
        piece.start = piece.start.wrapping_add(skipped);
        piece.len -= skipped;
        piece.len > 0
    });
}

/// Reads a value of the guest. `None` if the pieces are not exactly as long.
pub(crate) fn read_value<T: zerocopy::FromBytes + IntoBytes>(pieces: &[MemoryPiece]) -> Option<T> {
    let mut value = T::new_zeroed();
    let bytes = value.as_mut_bytes();
    (bytes_of(pieces) == bytes.len() as u64 && copy_out(pieces, 0, bytes)).then_some(value)
}

/// Copies bytes of the guest, from an offset on. Returns false if there are too few.
pub(crate) fn copy_out(pieces: &[MemoryPiece], from: usize, bytes: &mut [u8]) -> bool {
    let mut to = bytes.as_mut_ptr();
    let copied = for_each(pieces, from, bytes.len(), |piece| {
        // SAFETY: `for_each` passes as many bytes as there are, and the guest's memory and this
        // buffer do not overlap.
        unsafe { std::ptr::copy_nonoverlapping(piece.start.cast_const(), to, piece.len) };
        to = to.wrapping_add(piece.len);
    });
    copied == bytes.len()
}

/// Copies bytes to the guest, from an offset on.
///
/// # Safety
/// The source must be readable.
pub(crate) unsafe fn copy_in(
    pieces: &[MemoryPiece],
    from: usize,
    source: *const u8,
    len: usize,
) -> bool {
    let mut source = source;
    let copied = for_each(pieces, from, len, |piece| {
        // SAFETY: the caller's source has as many bytes, and it and the guest's memory do not
        // overlap.
        unsafe { std::ptr::copy_nonoverlapping(source, piece.start, piece.len) };
        source = source.wrapping_add(piece.len);
    });
    copied == len
}

/// Calls `act` with consecutive pieces of a part. Returns the bytes that there are.
pub(crate) fn for_each(
    pieces: &[MemoryPiece],
    from: usize,
    len: usize,
    mut act: impl FnMut(MemoryPiece),
) -> usize {
    let (mut skip, mut left) = (from, len);
    for piece in pieces {
        if skip >= piece.len {
            skip -= piece.len;
            continue;
        }
        if left == 0 {
            break;
        }
        let len = (piece.len - skip).min(left);
        act(MemoryPiece { start: piece.start.wrapping_add(skip), len });
        left -= len;
        skip = 0;
    }
    len - left
}
