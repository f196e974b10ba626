//! A server that ends anywhere leaves what the next one needs, and chains of a guest are followed
//! inside of its memory only.

use super::{InflightPart, InflightState};
use crate::chain::{BrokenChain, Chain, bytes_of};
use crate::memory::{GuestMemory, SharedMapping};
use forebay_vhost::inflight::ring_bytes;
use forebay_vhost::message::MemoryRegion;
use forebay_vhost::ring::Descriptor;
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use zerocopy::{FromBytes, IntoBytes};

const ENTRIES: u16 = 8;
const PAGE: u64 = 4096;

fn file(bytes: u64) -> OwnedFd {
    let file = memfd_create("test", MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&file, bytes).unwrap();
    file
}

/// The part of a ring, as each server in turn maps it.
struct Region(OwnedFd);

impl Region {
    fn new() -> Self {
        Self(file(ring_bytes(ENTRIES)))
    }

    /// What the next server finds that reads this index from the used ring.
    fn next_server(&self, used_index: u16) -> (InflightState, Vec<u16>) {
        let mapping = SharedMapping::fixed(&self.0, 0, ring_bytes(ENTRIES) as usize).unwrap();
        let part = InflightPart { region: Arc::new(mapping), offset: 0, entries: ENTRIES };
        let mut state = InflightState::new(part, ENTRIES).unwrap();
        let mut taken = Vec::new();
        state.recover(used_index, &mut taken);
        (state, taken)
    }
}

#[test]
fn what_was_taken_is_found_in_its_order() {
    let region = Region::new();
    let (mut server, taken) = region.next_server(0);
    assert!(taken.is_empty());
    for head in [5, 2, 7] {
        server.mark(head);
    }
    let (mut server, taken) = region.next_server(0);
    assert_eq!(taken, [5, 2, 7]);
    // Later ones come after them.
    server.mark(0);
    assert_eq!(region.next_server(0).1, [5, 2, 7, 0]);
}

#[test]
fn a_batch_that_the_guest_has_seen_is_not_served_again() {
    let region = Region::new();
    let (mut server, _) = region.next_server(0);
    for head in [5, 2, 7, 1] {
        server.mark(head);
    }
    server.add_to_batch(2);
    server.end_batch(1);
    server.add_to_batch(7);
    server.add_to_batch(5);
    // It ends after the used ring was advanced, and before the batch was unmarked.
    assert_eq!(region.next_server(3).1, [1]);
}

#[test]
fn a_batch_that_the_guest_has_not_seen_is_served_again() {
    let region = Region::new();
    let (mut server, _) = region.next_server(0);
    for head in [5, 2, 7] {
        server.mark(head);
    }
    server.add_to_batch(2);
    server.end_batch(1);
    server.add_to_batch(7);
    assert_eq!(region.next_server(1).1, [5, 7]);
}

#[test]
fn the_index_of_a_batch_may_overflow() {
    let region = Region::new();
    let (mut server, _) = region.next_server(u16::MAX);
    server.mark(3);
    server.mark(4);
    server.add_to_batch(3);
    assert_eq!(region.next_server(0).1, [4]);
}

#[test]
fn a_region_that_a_monitor_has_filled_with_garbage_is_survived() {
    let region = Region::new();
    rustix::io::pwrite(&region.0, &vec![0xff; ring_bytes(ENTRIES) as usize], 0).unwrap();
    region.next_server(9);
    // A ring of this length, with the highest of all orders.
    let mut head = [0_u8; 16];
    head[8..12].copy_from_slice(&[1, 0, ENTRIES as u8, 0]);
    rustix::io::pwrite(&region.0, &head, 0).unwrap();
    let mut entry = [0xff_u8; 16];
    entry[0] = 1;
    rustix::io::pwrite(&region.0, &entry, 16).unwrap();
    let (mut server, taken) = region.next_server(0);
    assert_eq!(taken, [0]);
    server.mark(1);
}

/// Memory of two pages that follow each other in the guest, but not in this process.
fn memory() -> GuestMemory {
    let mut memory = GuestMemory::default();
    for at in 0..2 {
        let region = MemoryRegion {
            guest_address: at * PAGE,
            bytes: PAGE,
            monitor_address: (1 << 40) + 2 * at * PAGE,
            file_offset: 0,
        };
        memory.add(region, &file(PAGE)).unwrap();
    }
    memory
}

const NEXT: u16 = 1;
const WRITABLE: u16 = 2;
const INDIRECT: u16 = 4;

fn descriptor(address: u64, bytes: u32, flags: u16, next: u16) -> Descriptor {
    let fields = [&address.to_le_bytes()[..], &bytes.to_le_bytes(), &flags.to_le_bytes()];
    let raw = [&fields.concat()[..], &next.to_le_bytes()].concat();
    Descriptor::read_from_bytes(&raw).unwrap()
}

/// Bytes to read and to write of the chain that begins with the first descriptor.
fn read(table: &[Descriptor]) -> Result<(u64, u64), BrokenChain> {
    read_in(&memory(), table)
}

fn read_in(memory: &GuestMemory, table: &[Descriptor]) -> Result<(u64, u64), BrokenChain> {
    let mut chain = Chain::default();
    chain.read(memory, (table.as_ptr(), table.len() as u16), 0)?;
    Ok((bytes_of(&chain.readable), bytes_of(&chain.writable)))
}

#[test]
fn a_chain_may_cross_the_pieces_of_the_memory() {
    let table = [descriptor(PAGE - 100, 300, NEXT, 1), descriptor(0, 5, WRITABLE, 0)];
    assert_eq!(read(&table), Ok((300, 5)));
}

#[test]
fn chains_that_are_not_possible_are_refused() {
    let last = descriptor(0, 1, WRITABLE, 0);
    let readable = descriptor(0, 16, 0, 0);
    for table in [
        [descriptor(0, 16, NEXT, 0), last],
        [descriptor(0, 16, NEXT, 2), last],
        [descriptor(0, 16, NEXT | WRITABLE, 1), readable],
        [descriptor(2 * PAGE - 1, 2, NEXT, 1), last],
        [descriptor(u64::MAX, 1, NEXT, 1), last],
        [descriptor(u64::MAX - 3, 8, NEXT, 1), last],
        [descriptor(0, 16, NEXT, 1), descriptor(0, 16, INDIRECT, 0)],
        [descriptor(0, 0, INDIRECT, 0), last],
        [descriptor(0, 24, INDIRECT, 0), last],
        [descriptor(PAGE - 16, 32, INDIRECT, 0), last],
        [descriptor(0, u32::MAX, INDIRECT, 0), last],
    ] {
        assert_eq!(read(&table), Err(BrokenChain), "{table:?}");
    }
}

#[test]
fn a_table_in_the_guests_memory_is_followed_inside_of_itself() {
    let memory = memory();
    let place = memory.at_guest_address(64, 48).unwrap();
    let put = |table: [Descriptor; 3]| {
        // SAFETY: mapped memory of as many bytes.
        unsafe { std::ptr::copy_nonoverlapping(table.as_bytes().as_ptr(), place.start, 48) };
        read_in(&memory, &[descriptor(64, 48, INDIRECT, 0)])
    };
    let last = descriptor(128, 1, WRITABLE, 0);
    let whole = [descriptor(0, 16, NEXT, 2), last, descriptor(256, 40, NEXT, 1)];
    assert_eq!(put(whole), Ok((56, 1)));
    assert_eq!(put([descriptor(0, 16, NEXT, 3), last, last]), Err(BrokenChain));
    assert_eq!(put([descriptor(0, 16, NEXT, 0), last, last]), Err(BrokenChain));
    assert_eq!(put([descriptor(0, 16, INDIRECT, 0), last, last]), Err(BrokenChain));
}
