//! The region of shared memory that says which requests are in flight.
//!
//! It outlives the server: the monitor keeps it, and gives it to the next one. Each ring has a head
//! and an entry for each descriptor. An entry is marked when its request is taken. Requests that
//! are answered together are linked as a batch before the used ring tells the guest, and unmarked
//! after it, so that a server that crashes in between leaves what the next one needs to know.

use crate::RING_ENTRIES_MAX;
use zerocopy::{FromBytes, Immutable, IntoBytes};

const ALIGNMENT: u64 = 64;
const VERSION: u16 = 1;

/// The head of a ring's part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub struct RingHead {
    features: u64,
    version: u16,
    entries: u16,
    /// The last request of the last batch.
    pub last_of_batch: u16,
    /// The index of the used ring after the last batch that is unmarked.
    pub used_index: u16,
}

impl RingHead {
    /// The head of a ring that has taken nothing.
    pub const fn new(entries: u16) -> Self {
        Self { features: 0, version: VERSION, entries, last_of_batch: 0, used_index: 0 }
    }

    /// Whether it has been written for a ring of this length.
    pub const fn is_of(&self, entries: u16) -> bool {
        self.version == VERSION && self.entries == entries
    }
}

/// The entry of a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub struct InflightEntry {
    /// 1 while its request is in flight.
    pub is_in_flight: u8,
    padding: [u8; 5],
    /// The request of the batch before this one.
    pub previous_of_batch: u16,
    /// The order in which requests were taken.
    pub order: u64,
}

const HEAD_BYTES: u64 = size_of::<RingHead>() as u64;
const ENTRY_BYTES: u64 = size_of::<InflightEntry>() as u64;
const _: () = assert!(HEAD_BYTES == 16 && ENTRY_BYTES == 16);

/// Bytes of the part of one ring.
pub const fn ring_bytes(entries: u16) -> u64 {
    (HEAD_BYTES + ENTRY_BYTES * entries as u64).next_multiple_of(ALIGNMENT)
}

/// Bytes of the region.
pub const fn region_bytes(rings: u16, entries: u16) -> u64 {
    ring_bytes(entries) * rings as u64
}

/// Entries that each ring's part of a region has space for, if a monitor has asked for `entries`. A
/// region that this program has made has space for the longest ring: the guest of QEMU 10.0 chooses
/// rings of 1024 entries where its monitor asks for 128, and QEMU keeps no more than the length of
/// the region and what it has asked for.
pub const fn entries_within(bytes: u64, rings: u16, entries: u16) -> u16 {
    if bytes >= region_bytes(rings, RING_ENTRIES_MAX) { RING_ENTRIES_MAX } else { entries }
}

/// Where the entry of a descriptor is in the part of its ring.
pub const fn entry_at(descriptor: u16) -> usize {
    (HEAD_BYTES + ENTRY_BYTES * descriptor as u64) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_region_is_as_long_as_what_monitors_expect() {
        // QEMU with four rings of 128 entries.
        assert_eq!(region_bytes(1, 128), 2112);
        assert_eq!(entry_at(127) + 16, 2064);
    }

    #[test]
    fn a_region_of_another_program_has_space_for_what_was_asked_for() {
        assert_eq!(entries_within(region_bytes(4, 128), 4, 128), 128);
        assert_eq!(entries_within(region_bytes(4, 1024) - 1, 4, 128), 128);
        assert_eq!(entries_within(region_bytes(4, 1024), 4, 128), 1024);
    }
}
