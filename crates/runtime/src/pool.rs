//! The pool's memory: lines and what is known of them, in one shared memory file.
//!
//! The file starts with a head that says what is in it (`header.rs`), followed by the tables of
//! lines of all shards, their checksums, four bytes a line, and the data in slabs of 2 MiB, so that
//! huge pages fit. It has no name in any file system; whoever holds its descriptor holds the pool,
//! and it lives as long as somebody does. A process that is given a pool by the one before goes on
//! with it. Pages are taken from the machine when a line is first used, or by the warmer shortly
//! before (see `warm.rs`).

mod header;

pub(crate) use header::{PoolVolume, Progress, checksum};

use crate::locks::Lock;
use forebay_engine::{LineMeta, SLOTS_MAX, Slot};
use forebay_types::LINE_BYTES;
use header::{COPY_BYTES, HEADER_BYTES, Header, Layout};
use rustix::fs::MemfdFlags;
use rustix::io::{Errno, FdFlags, pread};
use rustix::mm::{Advice, MapFlags, ProtFlags};
use std::ops::{Deref, DerefMut};
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;

/// Bytes of data that a shard's share of the pool is a multiple of: a huge page.
pub const SLAB_BYTES: u64 = 2 << 20;
/// Bytes of a line's checksum.
pub(crate) const SUM_BYTES: u64 = size_of::<AtomicU32>() as u64;
/// Lines in a slab.
const SLAB_LINES: usize = (SLAB_BYTES / LINE_BYTES) as usize;
/// Shards that a pool can have: a set of them fits one word.
const SHARDS_MAX: usize = 64;

/// Why a pool can't be had.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PoolError {
    /// The system says no.
    #[error("no memory for a pool of {bytes} bytes")]
    Memory {
        /// Its size.
        bytes: u64,
        /// Why.
        source: Errno,
    },
    /// What was kept was written by another version.
    #[error(
        "the pool that was kept is of another version of this program, and may hold writes that \
         no disk has"
    )]
    Version,
    /// What was kept is no pool.
    #[error("what was kept as the pool is none: {0}")]
    Foreign(&'static str),
    /// It contradicts itself.
    #[error(
        "the pool that was kept is damaged: {0}. Nothing in it can be trusted; acknowledged writes \
         may be lost"
    )]
    Damaged(String),
}

/// The mapping of the pool. All access goes through slots that the engine has handed out: that,
/// and the pins that keep a slot from being handed out twice, is what makes it sound.
#[derive(Debug)]
pub(crate) struct Pool {
    base: NonNull<u8>,
    /// The address space around the mapping, taken so that it lies at a multiple of a huge page.
    reserved: NonNull<u8>,
    reserved_len: usize,
    sums_offset: usize,
    data_offset: usize,
    layout: Layout,
    header: Lock<Header>,
    /// Another process has left lines in it.
    is_adopted: bool,
    /// Keeps the memory alive beyond the mapping: what a later process will be given.
    _file: OwnedFd,
}

// SAFETY: the mapping is plain memory that stays until the pool is dropped; who may touch which
// line when is decided by the engine under its shard's lock.
unsafe impl Send for Pool {}
// SAFETY: as above.
unsafe impl Sync for Pool {}

/// A memory file for a pool, still empty. It is closed when another program is executed.
///
/// # Errors
/// The system forbids memory files.
pub fn new_file() -> std::io::Result<OwnedFd> {
    Ok(rustix::fs::memfd_create("forebay-pool", MemfdFlags::CLOEXEC)?)
}

/// Takes over a descriptor that whoever started this process has left open in it, by its number.
/// From here on it is closed when another program is executed, so it is not found twice.
///
/// # Errors
/// There is none of this number, or it was taken over before.
pub fn inherit(number: RawFd) -> std::io::Result<OwnedFd> {
    if number <= 2 {
        return Err(std::io::Error::from(Errno::BADF));
    }
    // SAFETY: only looked at before it is known to be open.
    let lent = unsafe { BorrowedFd::borrow_raw(number) };
    let flags = rustix::io::fcntl_getfd(lent)?;
    if flags.contains(FdFlags::CLOEXEC) {
        // All that this process opens is closed on execution: this one is its own.
        return Err(std::io::Error::from(Errno::BADF));
    }
    rustix::io::fcntl_setfd(lent, flags | FdFlags::CLOEXEC)?;
    // SAFETY: open, as was seen just now, and nobody's: what this process has opened itself is
    // marked, and what it has taken over is marked as well.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

/// Bytes in dirty lines of the pool in a file; 0 where there is no pool, or one that was left in
/// order.
pub fn dirty_bytes_in(file: BorrowedFd<'_>) -> u64 {
    match Found::look(file) {
        Ok(Found::Pool(header)) => dirty_lines_in(file, &header.layout) * LINE_BYTES,
        _ => 0,
    }
}

fn dirty_lines_in(file: BorrowedFd<'_>, layout: &Layout) -> u64 {
    let mut lines = 0;
    let (mut at, end) = (layout.table_offset(0), layout.table_offset(layout.shards));
    let mut piece = vec![0; 1 << 20];
    while at < end {
        let len = piece.len().min(end - at);
        if read_exactly(file, at as u64, &mut piece[..len]).is_err() {
            break;
        }
        lines += LineMeta::dirty_in(&piece[..len]);
        at += len;
    }
    lines
}

fn read_exactly(file: BorrowedFd<'_>, at: u64, mut bytes: &mut [u8]) -> Result<(), Errno> {
    let mut at = at;
    while !bytes.is_empty() {
        let read = pread(file, &mut *bytes, at)?;
        if read == 0 {
            return Err(Errno::IO);
        }
        at += read as u64;
        bytes = &mut bytes[read..];
    }
    Ok(())
}

/// What a file holds.
enum Found {
    Nothing,
    Pool(Header),
}

impl Found {
    fn look(file: BorrowedFd<'_>) -> Result<Self, PoolError> {
        let failed = |_| PoolError::Foreign("it can't be read");
        let len = rustix::fs::fstat(file).map_err(failed)?.st_size as u64;
        if len == 0 {
            return Ok(Self::Nothing);
        }
        let mut head = vec![0; HEADER_BYTES];
        if len < head.len() as u64 || read_exactly(file, 0, &mut head).is_err() {
            return Err(PoolError::Foreign("it is too short"));
        }
        let (first, second) = head.split_at(COPY_BYTES);
        let Some(header) = Header::newest([first, second]) else {
            // A process that was killed while it made the pool has not come to its head.
            return match (Header::is_pool([first, second]), head.iter().all(|&byte| byte == 0)) {
                (true, _) => Err(PoolError::Version),
                (false, true) => Ok(Self::Nothing),
                (false, false) => Err(PoolError::Foreign("it has another head")),
            };
        };
        let layout = &header.layout;
        let is_possible = (1..=SHARDS_MAX).contains(&layout.shards)
            && (SLAB_LINES..=SLOTS_MAX).contains(&layout.shard_slots)
            && layout.shard_slots % SLAB_LINES == 0;
        if !is_possible || len_of(layout) as u64 != len {
            return Err(PoolError::Damaged("its head does not fit its length".into()));
        }
        Ok(if header.is_closed { Self::Nothing } else { Self::Pool(header) })
    }
}

const fn len_of(layout: &Layout) -> usize {
    layout.data_offset(SLAB_BYTES as usize) + layout.slots() * LINE_BYTES as usize
}

impl Pool {
    /// A pool of at most `bytes` of lines in `shards` equal shares of whole slabs; or, where `kept`
    /// holds one with dirty lines or of that size, the pool in there.
    ///
    /// # Errors
    /// The system has no address space, or forbids memory files, or what was kept can't be used.
    pub(crate) fn open(
        bytes: u64,
        shards: usize,
        kept: Option<OwnedFd>,
    ) -> Result<Arc<Self>, PoolError> {
        let slabs = (bytes / SLAB_BYTES / shards as u64).max(1) as usize;
        let shard_slots = (slabs * SLAB_LINES).min(SLOTS_MAX / SLAB_LINES * SLAB_LINES);
        let wanted = Layout { shards, shard_slots };
        let failed = |source| PoolError::Memory { bytes, source };
        let Some(file) = kept else {
            let file = rustix::fs::memfd_create("forebay-pool", MemfdFlags::CLOEXEC);
            return Self::lay_out(file.map_err(failed)?, wanted).map_err(failed);
        };
        match Found::look(file.as_fd())? {
            Found::Nothing => Self::lay_out(file, wanted).map_err(failed),
            Found::Pool(header) if header.layout == wanted => {
                Self::map(file, header, true).map_err(failed)
            }
            Found::Pool(header) if dirty_lines_in(file.as_fd(), &header.layout) > 0 => {
                tracing::warn!(
                    "the pool that was kept has another size than is asked for now, and holds what \
                     no disk has: it stays as it is until the next start after an orderly stop"
                );
                Self::map(file, header, true).map_err(failed)
            }
            Found::Pool(_) => Self::lay_out(file, wanted).map_err(failed),
        }
    }

    /// A pool with nothing in it.
    fn lay_out(file: OwnedFd, layout: Layout) -> rustix::io::Result<Arc<Self>> {
        // What was there goes back to the system.
        rustix::fs::ftruncate(&file, 0)?;
        rustix::fs::ftruncate(&file, len_of(&layout) as u64)?;
        let pool = Self::map(file, Header::new(layout), false)?;
        for shard in 0..layout.shards {
            pool.table(shard).fill(LineMeta::FREE);
        }
        pool.change_header(|_| ());
        Ok(pool)
    }

    fn map(file: OwnedFd, header: Header, is_adopted: bool) -> rustix::io::Result<Arc<Self>> {
        let layout = header.layout;
        let len = len_of(&layout);
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
            sums_offset: layout.sums_offset(),
            data_offset: layout.data_offset(SLAB_BYTES as usize),
            layout,
            header: Lock::new(header),
            is_adopted,
            _file: file,
        }))
    }

    /// Whether another process has left it.
    pub(crate) const fn is_adopted(&self) -> bool {
        self.is_adopted
    }

    /// Parts with a table each.
    pub(crate) const fn shards(&self) -> usize {
        self.layout.shards
    }

    /// The volumes that may have lines here.
    pub(crate) fn volumes(&self) -> Vec<PoolVolume> {
        self.header.lock().volumes.clone()
    }

    /// Changes the list of volumes. When it returns, the next process would find the change.
    pub(crate) fn change_volumes<T>(&self, change: impl FnOnce(&mut Vec<PoolVolume>) -> T) -> T {
        self.change_header(|header| change(&mut header.volumes))
    }

    /// Says that everything is on the disks: another process begins with nothing.
    pub(crate) fn close(&self) {
        self.change_header(|header| header.is_closed = true);
    }

    fn change_header<T>(&self, change: impl FnOnce(&mut Header) -> T) -> T {
        let mut header = self.header.lock();
        let result = change(&mut header);
        header.sequence += 1;
        let bytes = header.encode();
        // SAFETY: a copy lies at the start of the mapping and is as long as the longest head;
        // nobody but this function, under the lock, touches it.
        unsafe {
            let to = self.base.as_ptr().add(header.copy() * COPY_BYTES);
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len());
        }
        std::sync::atomic::compiler_fence(std::sync::atomic::Ordering::SeqCst);
        result
    }

    /// Lines in each shard.
    pub(crate) const fn shard_slots(&self) -> usize {
        self.layout.shard_slots
    }

    /// Bytes of data it can hold.
    pub(crate) const fn data_bytes(&self) -> u64 {
        self.layout.slots() as u64 * LINE_BYTES
    }

    /// The address of a line's data.
    pub(crate) fn line(&self, shard: usize, slot: Slot) -> *mut u8 {
        let line = shard * self.layout.shard_slots + slot as usize;
        assert!(shard < self.layout.shards && (slot as usize) < self.layout.shard_slots);
        // SAFETY: asserted to lie inside the mapping.
        unsafe { self.base.as_ptr().add(self.data_offset + line * LINE_BYTES as usize) }
    }

    /// Copies a line's data out. The caller holds the shard's lock and knows that it is there.
    pub(crate) fn copy_line(&self, shard: usize, slot: Slot, to: &mut [u8]) {
        assert_eq!(to.len() as u64, LINE_BYTES);
        let from = self.line(shard, slot);
        // SAFETY: a line of the mapping, and memory of its length that lies elsewhere. Nobody
        // changes a line that is valid but under its shard's lock.
        unsafe { std::ptr::copy_nonoverlapping(from.cast_const(), to.as_mut_ptr(), to.len()) };
    }

    /// The checksum of a line, of which only the shard knows whether it is current. It is an atomic
    /// because it is read outside of the shard's lock, too; the lock orders the rest.
    pub(crate) fn sum(&self, shard: usize, slot: Slot) -> &AtomicU32 {
        assert!(shard < self.layout.shards && (slot as usize) < self.layout.shard_slots);
        let line = shard * self.layout.shard_slots + slot as usize;
        let offset = self.sums_offset + line * size_of::<AtomicU32>();
        // SAFETY: asserted to lie inside the mapping, between the tables and the data; aligned, for
        // the tables' size is a multiple of it; never accessed but through this function.
        unsafe { &*self.base.as_ptr().add(offset).cast::<AtomicU32>() }
    }

    /// Brings what the processor will need of a line into its cache, or begins to.
    pub(crate) fn bring(&self, shard: usize, slot: Slot) {
        if shard < self.layout.shards && (slot as usize) < self.layout.shard_slots {
            let line = shard * self.layout.shard_slots + slot as usize;
            prefetch(
                self.base
                    .as_ptr()
                    .wrapping_add(self.layout.table_offset(0) + line * size_of::<LineMeta>()),
            );
            prefetch(self.line(shard, slot));
        }
    }

    /// Slabs in each shard.
    pub(crate) const fn shard_slabs(&self) -> usize {
        self.layout.shard_slots / SLAB_LINES
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
        assert!(shard < self.layout.shards);
        let offset = self.layout.table_offset(shard);
        // SAFETY: the tables of all shards lie before the data; the mapping is aligned to a page,
        // a table to the size of its elements.
        let start = unsafe { self.base.as_ptr().add(offset) }.cast::<LineMeta>();
        MappedLines { start, len: self.layout.shard_slots, _pool: Arc::clone(self) }
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
        // SAFETY: in the file, every byte of which is a value, whatever was written there; owned by
        // this value alone, mapped as long as it.
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
        let pool = Pool::open(8 << 20, 2, None).unwrap();
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
        assert_eq!(Pool::open(1, 1, None).unwrap().data_bytes(), SLAB_BYTES);
    }
}
