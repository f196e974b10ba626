//! The pool's memory: lines and their metadata, in one memory file.
//!
//! The file starts with a header (`header.rs`), followed by the line tables of all shards, the
//! checksums (four bytes per line), and the data, in slabs of 2 MiB, the size of a huge page. The
//! file has no name; it exists as long as a process holds its descriptor. A process that gets the
//! descriptor of its predecessor's pool adopts it. Pages are allocated when a line is first used,
//! or by the collapser shortly before (see `huge_pages.rs`).

mod header;
mod huge_pages;

pub use header::MemoryWords;
pub(crate) use header::{PoolVolume, Progress, checksum};
pub(crate) use huge_pages::HugePages;

use crate::platform::locks::Lock;
use crate::platform::mapping::{HUGE_PAGE_BYTES, Mapping};
use forebay_engine::{LineMeta, SLOTS_MAX, ShardConfig, Slab, Slot};
use forebay_types::limits::VOLUMES_MAX;
use forebay_types::{Action, Bytes, Fault, LINE_BYTES, Remedy, VolumeId};
use header::{COPY_BYTES, HEADER_BYTES, Header, Layout};
use rustix::fs::{FallocateFlags, MemfdFlags};
use rustix::io::{Errno, FdFlags, pread};
use std::ops::{Deref, DerefMut};
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::AtomicU32;

/// The size of a slab, a huge page. A shard's share of the pool is a multiple of it.
pub const SLAB_BYTES: u64 = HUGE_PAGE_BYTES as u64;
/// Bytes of a line's checksum.
pub(crate) const SUM_BYTES: u64 = size_of::<AtomicU32>() as u64;
/// Lines in a slab.
const SLAB_LINES: usize = (SLAB_BYTES / LINE_BYTES) as usize;
const _: () = assert!(SLAB_LINES == ShardConfig::SLAB_LINES);
/// The usual size of a line of the processor's cache.
pub(crate) const CACHE_LINE_BYTES: usize = 64;
/// The maximum number of shards: a set of shards fits one word.
const SHARDS_MAX: usize = 64;

/// Why a pool cannot be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PoolError {
    /// The system has not enough memory or address space.
    #[error("no memory for a pool of {}", Bytes(*bytes))]
    Memory {
        /// Its size.
        bytes: u64,
        /// The system's error.
        source: Errno,
    },
    /// The kept pool was written by another version.
    #[error(
        "the kept pool was written by another version of forebay, and may hold writes that are on \
         no disk"
    )]
    Version,
    /// The kept file is not a pool.
    #[error("the file kept as the pool is not a pool: {0}")]
    Foreign(&'static str),
    /// The kept pool is inconsistent.
    #[error("the kept pool is damaged and cannot be trusted: {0}; acknowledged writes may be lost")]
    Damaged(String),
}

/// How to release the pool of a previous process; its data is then lost.
const END_KEEPER: &str = "end the keeper process, or discard the descriptors that systemd stores \
                          (systemctl clean --what=fdstore)";

impl Fault for PoolError {
    fn remedy(&self) -> Remedy {
        match self {
            Self::Memory { .. } => Remedy::from("free memory").or(Action::set("memory", "SIZE")),
            Self::Version => {
                "start the version that wrote it, stop it cleanly, and start this one again".into()
            }
            Self::Foreign(_) => format!("{END_KEEPER}, and start again").into(),
            Self::Damaged(_) => {
                format!("to start with an empty pool, {END_KEEPER}, and start again").into()
            }
        }
    }
}

/// The mapping of the pool. It is sound because lines are accessed only through slots that the
/// engine has handed out, and pins keep a slot in use from being handed out again.
#[derive(Debug)]
pub(crate) struct Pool {
    /// Every pointer into it is kept with a clone of the `Arc` of the pool.
    mapping: Mapping,
    sums_offset: usize,
    data_offset: usize,
    layout: Layout,
    header: Lock<Header>,
    /// It holds the lines of a previous process.
    is_adopted: bool,
    file: OwnedFd,
}

// SAFETY: the mapping is plain memory that stays until the pool is dropped; the engine decides
// under a shard's lock which thread may access which of the shard's lines.
unsafe impl Send for Pool {}
// SAFETY: as above.
unsafe impl Sync for Pool {}

/// Creates an empty memory file for a pool. It is closed on exec.
pub fn new_file() -> std::io::Result<OwnedFd> {
    Ok(rustix::fs::memfd_create("forebay-pool", MemfdFlags::CLOEXEC)?)
}

/// Takes ownership of an inherited descriptor, given by its number. It is closed on exec from now
/// on, which also marks it as taken.
///
/// # Errors
/// When there is no such descriptor, or it was taken before.
pub fn inherit(number: RawFd) -> std::io::Result<OwnedFd> {
    if number <= 2 {
        return Err(std::io::Error::from(Errno::BADF));
    }
    // SAFETY: used only for `fcntl`, which fails if the descriptor is not open.
    let borrowed = unsafe { BorrowedFd::borrow_raw(number) };
    let flags = rustix::io::fcntl_getfd(borrowed)?;
    if flags.contains(FdFlags::CLOEXEC) {
        // Opened by this process, which sets this flag on all of its descriptors.
        return Err(std::io::Error::from(Errno::BADF));
    }
    rustix::io::fcntl_setfd(borrowed, flags | FdFlags::CLOEXEC)?;
    // SAFETY: it is open and has no other owner: descriptors that this process has opened or taken
    // have the flag.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

/// Bytes in dirty lines of the pool in a file; 0 if there is no pool, or a closed one.
pub fn dirty_bytes_in(file: BorrowedFd<'_>) -> u64 {
    match Found::read(file) {
        Ok(Found::Pool(header)) => dirty_lines_in(file, &header.layout) * LINE_BYTES,
        _ => 0,
    }
}

/// The memory that a file occupies, in bytes.
pub fn used_bytes_in(file: BorrowedFd<'_>) -> u64 {
    // The unit of `st_blocks` is 512 bytes on every file system.
    rustix::fs::fstat(file).map_or(0, |found| found.st_blocks as u64 * 512)
}

/// The memory of a process with a pool, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolLimits {
    /// The most that it may have.
    pub limit_bytes: u64,
    /// The memory at the last size that was set while it ran.
    pub now_bytes: u64,
    /// What it began with.
    pub start_bytes: u64,
}

/// The memory of the process that created the pool in a file; `None` if there is no pool, or a
/// closed one, or if that was not recorded.
pub fn limits_in(file: BorrowedFd<'_>) -> Option<PoolLimits> {
    match Found::read(file) {
        Ok(Found::Pool(header)) if header.limit_bytes > 0 => {
            let missing = (header.layout.shard_slots - lines_of(&header)) * header.layout.shards;
            let now_bytes = header.limit_bytes.saturating_sub(missing as u64 * LINE_BYTES);
            let Header { limit_bytes, start_bytes, .. } = header;
            let start_bytes = if start_bytes > 0 { start_bytes } else { limit_bytes };
            Some(PoolLimits { limit_bytes, now_bytes, start_bytes })
        }
        _ => None,
    }
}

/// The number of lines that each shard may hold.
fn lines_of(header: &Header) -> usize {
    let all = header.layout.shard_slots;
    match header.shard_lines {
        0 => all,
        lines => usize::try_from(lines).unwrap_or(usize::MAX).min(all),
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

/// The content of the memory file that a keeper holds.
enum Found {
    Nothing,
    Pool(Header),
}

impl Found {
    fn read(file: BorrowedFd<'_>) -> Result<Self, PoolError> {
        let failed = |_| PoolError::Foreign("it cannot be read");
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
            // A process that was killed while it created the pool has not written the header.
            return match (Header::is_pool([first, second]), head.iter().all(|&byte| byte == 0)) {
                (true, _) => Err(PoolError::Version),
                (false, true) => Ok(Self::Nothing),
                (false, false) => Err(PoolError::Foreign("its header is not that of a pool")),
            };
        };
        let layout = &header.layout;
        let is_possible = (1..=SHARDS_MAX).contains(&layout.shards)
            && (SLAB_LINES..=SLOTS_MAX).contains(&layout.shard_slots)
            && layout.shard_slots % SLAB_LINES == 0;
        if !is_possible || len_of(layout) as u64 != len {
            return Err(PoolError::Damaged("its header does not match its length".into()));
        }
        Ok(if header.is_closed { Self::Nothing } else { Self::Pool(header) })
    }
}

const fn len_of(layout: &Layout) -> usize {
    layout.data_offset(SLAB_BYTES as usize) + layout.slots() * LINE_BYTES as usize
}

/// The layout of a new pool of at most `bytes` of lines, in `shards` equal shares of whole slabs.
fn layout_for(bytes: u64, shards: usize) -> Layout {
    let slabs = (bytes / SLAB_BYTES / shards as u64).max(1) as usize;
    let shard_slots = (slabs * SLAB_LINES).min(SLOTS_MAX / SLAB_LINES * SLAB_LINES);
    Layout { shards, shard_slots }
}

impl Pool {
    /// Opens a pool of at most `bytes` of lines, in `shards` equal shares of whole slabs. A pool in
    /// `kept` is adopted if it has dirty lines or that size.
    ///
    /// # Errors
    /// When the system lacks address space or forbids memory files, or `kept` cannot be used.
    pub(crate) fn open(
        bytes: u64,
        shards: usize,
        kept: Option<OwnedFd>,
    ) -> Result<Arc<Self>, PoolError> {
        let wanted = layout_for(bytes, shards);
        let failed = |source| PoolError::Memory { bytes, source };
        let Some(file) = kept else {
            let file = rustix::fs::memfd_create("forebay-pool", MemfdFlags::CLOEXEC);
            return Self::create(file.map_err(failed)?, wanted).map_err(failed);
        };
        match Found::read(file.as_fd())? {
            Found::Nothing => Self::create(file, wanted).map_err(failed),
            Found::Pool(header) if header.layout == wanted => {
                Self::map(file, header, true).map_err(failed)
            }
            Found::Pool(header) if dirty_lines_in(file.as_fd(), &header.layout) > 0 => {
                tracing::warn!(
                    "adopted pool has dirty lines, keeping its old size until the next start after \
                     a clean stop"
                );
                Self::map(file, header, true).map_err(failed)
            }
            Found::Pool(_) => Self::create(file, wanted).map_err(failed),
        }
    }

    /// Creates an empty pool.
    fn create(file: OwnedFd, layout: Layout) -> rustix::io::Result<Arc<Self>> {
        // Frees the pages of an earlier pool.
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
        Ok(Arc::new(Self {
            mapping: Mapping::new(&file, len_of(&layout))?,
            sums_offset: layout.sums_offset(),
            data_offset: layout.data_offset(SLAB_BYTES as usize),
            layout,
            header: Lock::new(header),
            is_adopted,
            file,
        }))
    }

    /// Records the memory of this process, from which the size of a new pool follows. In an adopted
    /// pool, the memory of the process that created it stays recorded.
    pub(crate) fn record_limit(&self, bytes: u64, start_bytes: u64) {
        if !self.is_adopted {
            self.change_header(|header| {
                (header.limit_bytes, header.start_bytes) = (bytes, start_bytes);
            });
        }
    }

    /// Records the number of lines that each shard may hold, for the process that adopts the pool.
    pub(crate) fn record_lines(&self, lines: usize) {
        let is_whole = lines >= self.layout.shard_slots;
        let shard_lines = if is_whole { 0 } else { (lines as u64).max(1) };
        self.change_header(|header| header.shard_lines = shard_lines);
    }

    /// The number of lines that each shard may hold.
    pub(crate) fn recorded_lines(&self) -> usize {
        lines_of(&self.header.lock())
    }

    /// The bytes of the lines that all shards may hold now.
    pub(crate) fn lines_bytes(&self) -> u64 {
        (self.recorded_lines() * self.shards()) as u64 * LINE_BYTES
    }

    /// Records settings of the process's memory, for the process that adopts the pool.
    pub(crate) fn record_memory_settings(&self, words: MemoryWords) {
        self.change_header(|header| header.memory_settings = words);
    }

    /// The recorded settings, possibly of a previous process; zeroes in a new pool.
    pub(crate) fn memory_settings(&self) -> MemoryWords {
        self.header.lock().memory_settings
    }

    /// Records the setting of the share for writes, for the process that adopts the pool.
    pub(crate) fn record_share(&self, word: u64) {
        self.change_header(|header| header.share_setting = word);
    }

    /// The setting that was recorded; 0 in a new pool.
    pub(crate) fn recorded_share(&self) -> u64 {
        self.header.lock().share_setting
    }

    /// Gives back the memory of a slab that the shard does not use. Its lines then read as zeroes.
    ///
    /// # Errors
    /// The kernel's error; the memory stays allocated then.
    pub(crate) fn give_back(&self, shard: usize, slab: Slab) -> std::io::Result<()> {
        assert!(shard < self.layout.shards && slab.number < self.shard_slabs());
        assert!(slab.count as usize == SLAB_LINES);
        let line = shard * self.layout.shard_slots + slab.first as usize;
        let offset = self.data_offset + line * LINE_BYTES as usize;
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        Ok(rustix::fs::fallocate(&self.file, flags, offset as u64, SLAB_BYTES)?)
    }

    /// The memory that the file occupies, in bytes.
    pub(crate) fn used_bytes(&self) -> u64 {
        used_bytes_in(self.file.as_fd())
    }

    /// A lower bound of the memory that the lines occupy, in bytes. It may be too low by up to the
    /// size of the tables, because it counts them as occupied completely.
    pub(crate) fn lines_used_bytes(&self) -> u64 {
        self.used_bytes().saturating_sub(self.data_offset as u64)
    }

    /// Whether it holds the lines of a previous process.
    pub(crate) const fn is_adopted(&self) -> bool {
        self.is_adopted
    }

    /// Whether it has the size of a new pool of `bytes` in `shards` shares. An adopted pool may
    /// have another one.
    pub(crate) fn is_of_size(&self, bytes: u64, shards: usize) -> bool {
        self.layout == layout_for(bytes, shards)
    }

    pub(crate) const fn shards(&self) -> usize {
        self.layout.shards
    }

    /// The volumes that may have lines in the pool.
    pub(crate) fn volumes(&self) -> Vec<PoolVolume> {
        self.header.lock().volumes.clone()
    }

    /// The first of these volumes that meets a condition.
    pub(crate) fn find_volume(&self, is_it: impl Fn(&PoolVolume) -> bool) -> Option<PoolVolume> {
        self.header.lock().volumes.iter().find(|volume| is_it(volume)).cloned()
    }

    /// The lowest number that none of these volumes has.
    pub(crate) fn free_number(&self) -> Option<VolumeId> {
        let mut is_taken = [false; VOLUMES_MAX];
        for volume in &self.header.lock().volumes {
            if let Some(is_taken) = is_taken.get_mut(usize::from(volume.id.0)) {
                *is_taken = true;
            }
        }
        let free = is_taken.iter().position(|is_taken| !is_taken)?;
        Some(VolumeId(free as u16))
    }

    /// Changes the list of volumes. After it returns, a later process finds the change.
    pub(crate) fn change_volumes<T>(&self, change: impl FnOnce(&mut Vec<PoolVolume>) -> T) -> T {
        self.change_header(|header| change(&mut header.volumes))
    }

    /// Marks all lines as void: all data is on the disks. A later process does not adopt them.
    pub(crate) fn close(&self) {
        self.change_header(|header| header.is_closed = true);
    }

    fn change_header<T>(&self, change: impl FnOnce(&mut Header) -> T) -> T {
        let mut header = self.header.lock();
        let result = change(&mut header);
        header.sequence += 1;
        let bytes = header.encode();
        // SAFETY: the two copies lie at the start of the mapping, and each has space for the
        // longest header. Only this function accesses them, under the lock.
        unsafe {
            let to = self.mapping.base().as_ptr().add(header.copy() * COPY_BYTES);
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len());
        }
        std::sync::atomic::compiler_fence(std::sync::atomic::Ordering::SeqCst);
        result
    }

    /// Lines per shard.
    pub(crate) const fn shard_slots(&self) -> usize {
        self.layout.shard_slots
    }

    /// The size of all lines.
    pub(crate) const fn data_bytes(&self) -> u64 {
        self.layout.slots() as u64 * LINE_BYTES
    }

    /// The address of a line's data.
    pub(crate) fn line(&self, shard: usize, slot: Slot) -> *mut u8 {
        let line = shard * self.layout.shard_slots + slot as usize;
        assert!(shard < self.layout.shards && (slot as usize) < self.layout.shard_slots);
        // SAFETY: asserted to lie inside the mapping.
        unsafe { self.mapping.base().as_ptr().add(self.data_offset + line * LINE_BYTES as usize) }
    }

    /// Copies a line's data to `to`. The caller holds the shard's lock, and the line is resident.
    pub(crate) fn copy_line(&self, shard: usize, slot: Slot, to: &mut [u8]) {
        assert_eq!(to.len() as u64, LINE_BYTES);
        let from = self.line(shard, slot);
        // SAFETY: a line of the mapping, and a disjoint buffer of the same length. A valid line
        // changes only under its shard's lock, which the caller holds.
        unsafe { std::ptr::copy_nonoverlapping(from.cast_const(), to.as_mut_ptr(), to.len()) };
    }

    /// The checksum of a line, which is current while the shard has the line sealed. It is atomic
    /// because it is also read without the shard's lock.
    pub(crate) fn sum(&self, shard: usize, slot: Slot) -> &AtomicU32 {
        assert!(shard < self.layout.shards && (slot as usize) < self.layout.shard_slots);
        let line = shard * self.layout.shard_slots + slot as usize;
        let offset = self.sums_offset + line * size_of::<AtomicU32>();
        // SAFETY: inside the mapping, between tables and data, as asserted; aligned, because the
        // size of the tables is a multiple of four; accessed only through this function.
        unsafe { &*self.mapping.base().as_ptr().add(offset).cast::<AtomicU32>() }
    }

    /// Prefetches a line's metadata and the first `data_bytes` of its data into the processor's
    /// cache.
    pub(crate) fn prefetch_line(&self, shard: usize, slot: Slot, data_bytes: usize) {
        if shard < self.layout.shards && (slot as usize) < self.layout.shard_slots {
            let line = shard * self.layout.shard_slots + slot as usize;
            prefetch(
                self.mapping
                    .base()
                    .as_ptr()
                    .wrapping_add(self.layout.table_offset(0) + line * size_of::<LineMeta>()),
            );
            let data = self.line(shard, slot);
            for at in (0..data_bytes.min(LINE_BYTES as usize)).step_by(CACHE_LINE_BYTES) {
                prefetch(data.wrapping_add(at));
            }
        }
    }

    /// Slabs per shard.
    pub(crate) const fn shard_slabs(&self) -> usize {
        self.layout.shard_slots / SLAB_LINES
    }

    /// Collapses the pages of a slab into a huge page. The content is kept.
    ///
    /// # Errors
    /// The kernel's error: `EINVAL` if it does not support this, others if it fails this time,
    /// because pages are in use or no huge page is free.
    pub(crate) fn make_huge(&self, shard: usize, slab: usize) -> std::io::Result<()> {
        assert!(slab < self.shard_slabs());
        let line = shard * self.layout.shard_slots + slab * SLAB_LINES;
        self.mapping.make_huge(self.data_offset + line * LINE_BYTES as usize)
    }

    /// The line table of a shard. The result owns the table, so only one may exist at a time.
    pub(crate) fn table(self: &Arc<Self>, shard: usize) -> MappedLines {
        assert!(shard < self.layout.shards);
        let offset = self.layout.table_offset(shard);
        // SAFETY: the tables of all shards lie inside the mapping, before the data. The mapping is
        // page-aligned, and each table is aligned to the size of its elements.
        let start = unsafe { self.mapping.base().as_ptr().add(offset) }.cast::<LineMeta>();
        MappedLines { start, len: self.layout.shard_slots, _pool: Arc::clone(self) }
    }
}

/// The line table of a shard, in the pool.
pub(crate) struct MappedLines {
    start: *mut LineMeta,
    len: usize,
    _pool: Arc<Pool>,
}

// SAFETY: this value owns its part of the mapping exclusively, like a `Box`.
unsafe impl Send for MappedLines {}

impl Deref for MappedLines {
    type Target = [LineMeta];

    fn deref(&self) -> &[LineMeta] {
        // SAFETY: any bytes are valid `LineMeta`. The part of the mapping is owned by this value
        // exclusively, and mapped as long as it exists.
        unsafe { std::slice::from_raw_parts(self.start, self.len) }
    }
}

impl DerefMut for MappedLines {
    fn deref_mut(&mut self) -> &mut [LineMeta] {
        // SAFETY: as `deref`.
        unsafe { std::slice::from_raw_parts_mut(self.start, self.len) }
    }
}

/// Prefetches memory into the processor's cache.
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

/// As [`prefetch`], of memory that will be written and may be in the cache of another processor.
pub(crate) fn prefetch_to_write(address: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a hint; it reads nothing and never faults, whatever the address.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_ET0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_ET0>(address.cast());
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
                // SAFETY: a line of the pool, which only this test accesses.
                unsafe { address.write_bytes((shard as u8) << 4 | (slot % 16) as u8, 4096) };
            }
        }
        for shard in 0..2 {
            for slot in 0..pool.shard_slots() as Slot {
                // SAFETY: written above.
                let line = unsafe { std::slice::from_raw_parts(pool.line(shard, slot), 4096) };
                assert!(line.iter().all(|&byte| byte == (shard as u8) << 4 | (slot % 16) as u8));
            }
        }
        assert!(tables[1].iter().all(|line| *line == LineMeta::FREE));
    }

    #[test]
    fn the_memory_of_a_kept_file_and_of_its_first_process_is_known() {
        let file = new_file().unwrap();
        assert_eq!((used_bytes_in(file.as_fd()), limits_in(file.as_fd())), (0, None));
        let open = |bytes| Pool::open(bytes, 1, Some(file.try_clone().unwrap())).unwrap();
        let first = open(8 << 20);
        first.record_limit(64 << 20, 48 << 20);
        let empty = used_bytes_in(file.as_fd());
        assert!(empty < 8 << 20, "{empty}");
        for slot in 0..512 {
            // SAFETY: a line of the pool, which only this test accesses.
            unsafe { first.line(0, slot).write_bytes(1, 4096) };
        }
        let used = used_bytes_in(file.as_fd());
        assert!((empty + (2 << 20)..=10 << 20).contains(&used), "{used}");
        drop(first);
        let limits = |now_mib: u64| {
            let (limit_bytes, now_bytes, start_bytes) = (64 << 20, now_mib << 20, 48 << 20);
            Some(PoolLimits { limit_bytes, now_bytes, start_bytes })
        };
        assert_eq!(limits_in(file.as_fd()), limits(64));
        let second = open(8 << 20);
        second.record_limit(96 << 20, 96 << 20);
        assert_eq!(limits_in(file.as_fd()), limits(64), "it is adopted");
        second.record_lines(512);
        assert_eq!(second.recorded_lines(), 512);
        assert_eq!(limits_in(file.as_fd()), limits(58), "three slabs fewer");
        second.close();
        assert_eq!(limits_in(file.as_fd()), None, "a closed pool is not continued");
    }

    #[test]
    fn a_slab_that_is_given_back_has_no_memory_and_reads_as_zeroes() {
        let file = new_file().unwrap();
        let pool = Pool::open(8 << 20, 1, Some(file.try_clone().unwrap())).unwrap();
        for slot in 0..2048 {
            // SAFETY: a line of the pool, which only this test accesses.
            unsafe { pool.line(0, slot).write_bytes(1, 4096) };
        }
        let before = pool.used_bytes();
        pool.give_back(0, Slab { number: 2, first: 1024, count: 512 }).unwrap();
        assert_eq!(pool.used_bytes(), before - SLAB_BYTES);
        let mut line = [0; 4096];
        for (slot, expected) in [(1023, 1), (1024, 0), (1535, 0), (1536, 1)] {
            pool.copy_line(0, slot, &mut line);
            assert_eq!(line, [expected; 4096], "slot {slot}");
        }
    }

    #[test]
    fn the_smallest_pool_has_one_slab() {
        assert_eq!(Pool::open(1, 1, None).unwrap().data_bytes(), SLAB_BYTES);
    }
}
