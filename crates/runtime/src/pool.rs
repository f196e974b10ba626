//! The pool's memory: lines and what is known of them, in one shared memory file.
//!
//! The file starts with the tables of lines of all shards, followed by the data in slabs of 2 MiB,
//! so that huge pages fit. It has no name in any file system; whoever holds its descriptor holds
//! the pool, and it lives as long as somebody does. Pages are taken from the machine when a line
//! is first used, or by the warmer shortly before (see `warm.rs`).

use forebay_engine::{LineMeta, SLOTS_MAX, Slot};
use forebay_types::LINE_BYTES;
use rustix::fs::MemfdFlags;
use rustix::mm::{Advice, MapFlags, ProtFlags};
use std::ops::{Deref, DerefMut};
use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::Arc;

/// Bytes of data that a shard's share of the pool is a multiple of: a huge page.
pub const SLAB_BYTES: u64 = 2 << 20;
/// Lines in a slab.
const SLAB_LINES: usize = (SLAB_BYTES / LINE_BYTES) as usize;

/// The mapping of the pool. All access goes through slots that the engine has handed out: that,
/// and the pins that keep a slot from being handed out twice, is what makes it sound.
#[derive(Debug)]
pub(crate) struct Pool {
    base: NonNull<u8>,
    /// The address space around the mapping, taken so that it lies at a multiple of a huge page.
    reserved: NonNull<u8>,
    reserved_len: usize,
    data_offset: usize,
    shards: usize,
    shard_slots: usize,
    /// Keeps the memory alive beyond the mapping: what a later process will be given.
    _file: OwnedFd,
}

// SAFETY: the mapping is plain memory that stays until the pool is dropped; who may touch which
// line when is decided by the engine under its shard's lock.
unsafe impl Send for Pool {}
// SAFETY: as above.
unsafe impl Sync for Pool {}

impl Pool {
    /// Makes a pool of at most `bytes` of lines in `shards` equal shares of whole slabs.
    ///
    /// # Errors
    /// The system has no address space, or forbids memory files.
    pub(crate) fn new(bytes: u64, shards: usize) -> rustix::io::Result<Arc<Self>> {
        let slabs = (bytes / SLAB_BYTES / shards as u64).max(1) as usize;
        let shard_slots = (slabs * SLAB_LINES).min(SLOTS_MAX / SLAB_LINES * SLAB_LINES);
        let table_bytes = shards * shard_slots * size_of::<LineMeta>();
        let data_offset = table_bytes.next_multiple_of(SLAB_BYTES as usize);
        let len = data_offset + shards * shard_slots * LINE_BYTES as usize;
        let file = rustix::fs::memfd_create("forebay-pool", MemfdFlags::CLOEXEC)?;
        rustix::fs::ftruncate(&file, len as u64)?;
        let reserved_len = len + SLAB_BYTES as usize;
        // SAFETY: new address space of the kernel's choice harms nobody.
        let reserved = unsafe {
            rustix::mm::mmap_anonymous(
                std::ptr::null_mut(),
                reserved_len,
                ProtFlags::empty(),
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )?
        };
        let aligned = (reserved as usize).next_multiple_of(SLAB_BYTES as usize);
        // SAFETY: replaces a part of the address space that was reserved just now.
        let base = unsafe {
            rustix::mm::mmap(
                std::ptr::with_exposed_provenance_mut(aligned),
                len,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED | MapFlags::FIXED | MapFlags::NORESERVE,
                &file,
                0,
            )?
        };
        // Only a wish: where shared memory gets no huge pages, small ones do.
        // SAFETY: the range is the mapping just made.
        let _ = unsafe { rustix::mm::madvise(base, len, Advice::LinuxHugepage) };
        let base = NonNull::new(base.cast()).expect("a mapping is never at address zero");
        let reserved = NonNull::new(reserved.cast()).expect("nor is address space");
        Ok(Arc::new(Self {
            base,
            reserved,
            reserved_len,
            data_offset,
            shards,
            shard_slots,
            _file: file,
        }))
    }

    /// Lines in each shard.
    pub(crate) const fn shard_slots(&self) -> usize {
        self.shard_slots
    }

    /// Bytes of data it can hold.
    pub(crate) const fn data_bytes(&self) -> u64 {
        (self.shards * self.shard_slots) as u64 * LINE_BYTES
    }

    /// The address of a line's data.
    pub(crate) fn line(&self, shard: usize, slot: Slot) -> *mut u8 {
        let line = shard * self.shard_slots + slot as usize;
        assert!(shard < self.shards && (slot as usize) < self.shard_slots);
        // SAFETY: asserted to lie inside the mapping.
        unsafe { self.base.as_ptr().add(self.data_offset + line * LINE_BYTES as usize) }
    }

    /// Brings what the processor will need of a line into its cache, or begins to.
    pub(crate) fn bring(&self, shard: usize, slot: Slot) {
        if shard < self.shards && (slot as usize) < self.shard_slots {
            let line = shard * self.shard_slots + slot as usize;
            prefetch(self.base.as_ptr().wrapping_add(line * size_of::<LineMeta>()));
            prefetch(self.line(shard, slot));
        }
    }

    /// Slabs in each shard.
    pub(crate) const fn shard_slabs(&self) -> usize {
        self.shard_slots / SLAB_LINES
    }

    /// Gives a slab of a shard a huge page, whatever is in it already.
    ///
    /// # Errors
    /// What the kernel says: `EINVAL` where it does not know how, other errors where it can't at
    /// the moment, because pages are in use or huge ones are short.
    pub(crate) fn make_huge(&self, shard: usize, slab: usize) -> std::io::Result<()> {
        assert!(slab < self.shard_slabs());
        let start = self.line(shard, (slab * SLAB_LINES) as Slot);
        // The kernel joins pages only where there is at least one.
        // SAFETY: reads a byte of the mapping. That it may be changing at the same moment is of
        // no interest: the value is thrown away.
        unsafe { start.read_volatile() };
        // SAFETY: the slab lies inside the mapping; joining pages does not change what is in it.
        match unsafe { libc::madvise(start.cast(), SLAB_BYTES as usize, libc::MADV_COLLAPSE) } {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        }
    }

    /// The table of lines of a shard. To be called once for each shard.
    pub(crate) fn table(self: &Arc<Self>, shard: usize) -> MappedLines {
        assert!(shard < self.shards);
        let offset = shard * self.shard_slots * size_of::<LineMeta>();
        // SAFETY: the tables of all shards lie before the data; the mapping is aligned to a page,
        // a table to the size of its elements.
        let start = unsafe { self.base.as_ptr().add(offset) }.cast::<LineMeta>();
        for slot in 0..self.shard_slots {
            // SAFETY: inside the table, to which nobody else has a pointer yet.
            unsafe { start.add(slot).write(LineMeta::FREE) };
        }
        MappedLines { start, len: self.shard_slots, _pool: Arc::clone(self) }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        // SAFETY: the address space taken in `new`, and the mapping in it; every pointer into it
        // went with a clone of the `Arc`.
        let unmapped =
            unsafe { rustix::mm::munmap(self.reserved.as_ptr().cast(), self.reserved_len) };
        debug_assert!(unmapped.is_ok());
    }
}

/// A shard's table of lines in the pool.
pub(crate) struct MappedLines {
    start: *mut LineMeta,
    len: usize,
    _pool: Arc<Pool>,
}

// SAFETY: the one owner of this part of the mapping, like a `Box`.
unsafe impl Send for MappedLines {}

impl Deref for MappedLines {
    type Target = [LineMeta];

    fn deref(&self) -> &[LineMeta] {
        // SAFETY: initialised by `Pool::table`, owned by this value alone, mapped as long as it.
        unsafe { std::slice::from_raw_parts(self.start, self.len) }
    }
}

impl DerefMut for MappedLines {
    fn deref_mut(&mut self) -> &mut [LineMeta] {
        // SAFETY: as `deref`.
        unsafe { std::slice::from_raw_parts_mut(self.start, self.len) }
    }
}

/// Asks the processor to bring memory into its cache.
pub(crate) fn prefetch(address: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a hint; it reads nothing and never faults, whatever the address.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(address.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_different_shards_do_not_overlap() {
        let pool = Pool::new(8 << 20, 2).unwrap();
        assert_eq!(pool.data_bytes(), 8 << 20);
        let tables = [pool.table(0), pool.table(1)];
        assert!(tables.iter().all(|table| table.iter().all(|line| *line == LineMeta::FREE)));
        for shard in 0..2 {
            for slot in 0..pool.shard_slots() as Slot {
                let address = pool.line(shard, slot);
                // SAFETY: a line of the pool that nobody else uses.
                unsafe { address.write_bytes((shard as u8) << 4 | (slot % 16) as u8, 4096) };
            }
        }
        for shard in 0..2 {
            for slot in 0..pool.shard_slots() as Slot {
                // SAFETY: written just now.
                let line = unsafe { std::slice::from_raw_parts(pool.line(shard, slot), 4096) };
                assert!(line.iter().all(|&byte| byte == (shard as u8) << 4 | (slot % 16) as u8));
            }
        }
        assert!(tables[1].iter().all(|line| *line == LineMeta::FREE));
    }

    #[test]
    fn a_pool_smaller_than_a_slab_has_one() {
        assert_eq!(Pool::new(1, 1).unwrap().data_bytes(), SLAB_BYTES);
    }
}
