//! The memory of a guest, mapped into this process.

use crate::fault::Guarded;
use forebay_vhost::message::{MEMORY_REGIONS_MAX, MemoryRegion};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::fmt;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

/// The largest pages of a file system of huge pages.
const HUGE_PAGE_BYTES_MAX: u64 = 1 << 30;

/// A piece of mapped memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MemoryPiece {
    pub(crate) start: *mut u8,
    pub(crate) len: usize,
}

/// A mapping of a file of another process.
#[derive(Debug)]
pub(crate) struct SharedMapping {
    start: *mut u8,
    len: usize,
    /// Missing for a file that cannot shrink.
    guarded: Option<Guarded>,
}

// SAFETY: the memory is accessed through raw pointers by who owns a ring in it.
unsafe impl Send for SharedMapping {}
// SAFETY: as above.
unsafe impl Sync for SharedMapping {}

impl SharedMapping {
    /// Maps a part of a file that may shrink.
    ///
    /// # Errors
    /// The system's, or when there are too many mappings.
    pub(crate) fn guarded(file: impl AsFd, offset: u64, len: usize) -> io::Result<Self> {
        let mut mapping = Self::fixed(file, offset, len)?;
        let guarded = Guarded::new(mapping.start as usize, len);
        mapping.guarded = Some(guarded.ok_or(io::ErrorKind::QuotaExceeded)?);
        Ok(mapping)
    }

    /// Maps a part of a file that cannot shrink.
    ///
    /// # Errors
    /// The system's.
    pub(crate) fn fixed(file: impl AsFd, offset: u64, len: usize) -> io::Result<Self> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let none = std::ptr::null_mut();
        // SAFETY: a new mapping at an address of the kernel's choice.
        let start = unsafe { mmap(none, len, protection, MapFlags::SHARED, file, offset) }?;
        Ok(Self { start: start.cast(), len, guarded: None })
    }

    /// The bytes from an offset on; none if they are not all in the mapping.
    pub(crate) fn piece(&self, offset: u64, len: u64) -> Option<MemoryPiece> {
        let is_inside = offset.checked_add(len).is_some_and(|end| end <= self.len as u64);
        let start = self.start.wrapping_add(offset as usize);
        is_inside.then_some(MemoryPiece { start, len: len as usize })
    }

    /// Whether pages have gone away.
    pub(crate) fn is_lost(&self) -> bool {
        self.guarded.as_ref().is_some_and(Guarded::is_lost)
    }
}

impl Drop for SharedMapping {
    fn drop(&mut self) {
        // No longer replaced once another mapping may be there.
        self.guarded = None;
        // SAFETY: mapped with this length, and no longer referenced.
        let unmapped = unsafe { munmap(self.start.cast(), self.len) };
        debug_assert!(unmapped.is_ok(), "a mapping is removed");
    }
}

/// A piece of a guest's memory that is mapped.
#[derive(Clone, Debug)]
struct MappedRegion {
    region: MemoryRegion,
    mapping: Arc<SharedMapping>,
}

impl MappedRegion {
    fn overlaps(&self, other: &MemoryRegion) -> bool {
        self.region.guest_address < other.guest_address + other.bytes
            && other.guest_address < self.region.guest_address + self.region.bytes
    }
}

/// One version of a guest's memory map. Its pieces stay mapped while a request or a ring uses it.
#[derive(Clone, Debug, Default)]
pub(crate) struct GuestMemory {
    regions: Vec<MappedRegion>,
    /// How often it has changed.
    version: u64,
}

/// Why memory of a guest cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum GuestMemoryError {
    /// It cannot be mapped.
    #[error("cannot map memory of the guest: {0}")]
    Map(#[from] io::Error),
    /// There are too many pieces, or two at one address.
    #[error("the memory of the guest has too many pieces, or pieces that overlap")]
    Shape,
}

impl GuestMemory {
    pub(crate) const fn version(&self) -> u64 {
        self.version
    }

    /// The memory after a change, for the workers.
    pub(crate) fn changed(&mut self) -> Arc<Self> {
        self.version += 1;
        Arc::new(self.clone())
    }

    /// Removes all pieces.
    pub(crate) fn clear(&mut self) {
        self.regions.clear();
    }

    /// Adds a piece.
    ///
    /// # Errors
    /// See [`GuestMemoryError`].
    pub(crate) fn add(
        &mut self,
        region: MemoryRegion,
        file: &OwnedFd,
    ) -> Result<(), GuestMemoryError> {
        if self.regions.len() == MEMORY_REGIONS_MAX
            || self.regions.iter().any(|it| it.overlaps(&region))
        {
            return Err(GuestMemoryError::Shape);
        }
        // The kernel maps whole pages, which are those of the file system if they are huge; the
        // region may begin inside of one.
        let block = rustix::fs::fstat(file).map_err(io::Error::from)?.st_blksize as u64;
        let page = block.clamp(rustix::param::page_size() as u64, HUGE_PAGE_BYTES_MAX);
        let ahead = region.file_offset % page;
        let len = (region.bytes + ahead).checked_next_multiple_of(page);
        let len = len.and_then(|len| usize::try_from(len).ok()).ok_or(GuestMemoryError::Shape)?;
        let mut region = region;
        let mapping = Arc::new(SharedMapping::guarded(file, region.file_offset - ahead, len)?);
        region.file_offset = ahead;
        self.regions.push(MappedRegion { region, mapping });
        Ok(())
    }

    /// Removes a piece. Returns whether there was one.
    pub(crate) fn remove(&mut self, region: &MemoryRegion) -> bool {
        let before = self.regions.len();
        self.regions.retain(|mapped| {
            let other = &mapped.region;
            (other.guest_address, other.bytes) != (region.guest_address, region.bytes)
        });
        self.regions.len() < before
    }

    /// The memory at an address of the monitor, in one piece.
    pub(crate) fn at_monitor_address(&self, address: u64, len: u64) -> Option<MemoryPiece> {
        self.find(address, len, |region| region.monitor_address)
    }

    /// The memory at an address of the guest, in one piece.
    pub(crate) fn at_guest_address(&self, address: u64, len: u64) -> Option<MemoryPiece> {
        self.find(address, len, |region| region.guest_address)
    }

    fn find(&self, address: u64, len: u64, start: fn(&MemoryRegion) -> u64) -> Option<MemoryPiece> {
        self.regions.iter().find_map(|MappedRegion { region, mapping }| {
            let offset = address.checked_sub(start(region))?;
            let is_inside = offset.checked_add(len).is_some_and(|end| end <= region.bytes);
            if is_inside { mapping.piece(region.file_offset + offset, len) } else { None }
        })
    }

    /// Adds the pieces of memory at an address of the guest to a list. Returns false if some of it
    /// is not there.
    pub(crate) fn pieces(&self, address: u64, len: u64, pieces: &mut Vec<MemoryPiece>) -> bool {
        let (mut address, mut left) = (address, len);
        while left > 0 {
            let region = self.regions.iter().find_map(|mapped| {
                let offset = address.checked_sub(mapped.region.guest_address)?;
                (offset < mapped.region.bytes).then(|| (mapped.region.bytes - offset).min(left))
            });
            let Some(len) = region else { return false };
            let Some(piece) = self.at_guest_address(address, len) else { return false };
            pieces.push(piece);
            left -= len;
            match address.checked_add(len) {
                Some(next) => address = next,
                None => return left == 0,
            }
        }
        true
    }

    /// Whether the guest's monitor has taken memory away that it had shared.
    pub(crate) fn is_lost(&self) -> bool {
        self.regions.iter().any(|mapped| mapped.mapping.is_lost())
    }
}

impl fmt::Display for GuestMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes: u64 = self.regions.iter().map(|mapped| mapped.region.bytes).sum();
        write!(f, "{} MiB", bytes >> 20)
    }
}
