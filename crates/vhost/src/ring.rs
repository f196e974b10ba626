//! The split ring: a table of descriptors, the available ring of the guest, and the used ring of
//! the device.

use zerocopy::{FromBytes, Immutable, IntoBytes};

/// A descriptor: a piece of the guest's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub struct Descriptor {
    /// Its address in the guest.
    pub address: u64,
    /// Its length in bytes.
    pub bytes: u32,
    flags: u16,
    /// The next one of the chain, if there is one.
    next: u16,
}

/// Bytes of a [`Descriptor`].
pub const DESCRIPTOR_BYTES: usize = size_of::<Descriptor>();
const _: () = assert!(DESCRIPTOR_BYTES == 16);

const NEXT: u16 = 1;
const WRITABLE: u16 = 2;
const INDIRECT: u16 = 4;

impl Descriptor {
    /// The next one of the chain.
    pub const fn next(&self) -> Option<u16> {
        if self.flags & NEXT != 0 { Some(self.next) } else { None }
    }

    /// Whether the device writes there.
    pub const fn is_writable(&self) -> bool {
        self.flags & WRITABLE != 0
    }

    /// Whether it is a table of further descriptors.
    pub const fn is_indirect(&self) -> bool {
        self.flags & INDIRECT != 0
    }
}

/// Bytes of the table of descriptors.
pub const fn table_bytes(entries: u16) -> u64 {
    entries as u64 * DESCRIPTOR_BYTES as u64
}

/// Bytes of the available ring: flags, index, an entry of two bytes each, and the index from which
/// on the guest wants to be interrupted.
pub const fn available_bytes(entries: u16) -> u64 {
    6 + 2 * entries as u64
}

/// Bytes of the used ring: flags, index, an entry of eight bytes each, and the index from which on
/// the device wants to be notified.
pub const fn used_bytes(entries: u16) -> u64 {
    6 + 8 * entries as u64
}

/// Whether the other side wants to know that an index has advanced from `old` to `new`, when it has
/// asked for an event at `event`.
pub const fn needs_event(event: u16, new: u16, old: u16) -> bool {
    new.wrapping_sub(event).wrapping_sub(1) < new.wrapping_sub(old)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_needed_when_its_index_is_passed() {
        assert!(needs_event(5, 6, 5));
        assert!(needs_event(5, 9, 3));
        assert!(!needs_event(5, 5, 3));
        assert!(!needs_event(9, 9, 9));
        assert!(needs_event(u16::MAX, 2, u16::MAX - 1));
    }
}
