//! A file in memory, mapped so that huge pages can back it.

use rustix::fd::AsFd;
use rustix::mm::{Advice, MapFlags, ProtFlags};
use std::io;
use std::ptr::NonNull;

/// Of the kernel's `mman-common.h`; the headers of musl lack it.
const MADV_COLLAPSE: libc::c_int = 25;

/// The size of a huge page, in bytes.
pub(crate) const HUGE_PAGE_BYTES: usize = 2 << 20;

/// A shared mapping of a file from its start, aligned to a huge page. Dropping it invalidates all
/// pointers into it.
#[derive(Debug)]
pub(crate) struct Mapping {
    base: NonNull<u8>,
    len: usize,
    /// The address space reserved around the mapping, to align it.
    reserved: NonNull<u8>,
}

impl Mapping {
    /// Maps `len` bytes.
    pub(crate) fn new(file: impl AsFd, len: usize) -> rustix::io::Result<Self> {
        // SAFETY: new address space of the kernel's choice does not affect other memory.
        let reserved = unsafe {
            rustix::mm::mmap_anonymous(
                std::ptr::null_mut(),
                len + HUGE_PAGE_BYTES,
                ProtFlags::empty(),
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )?
        };
        let aligned = (reserved as usize).next_multiple_of(HUGE_PAGE_BYTES);
        // SAFETY: replaces a part of the address space reserved above.
        let base = unsafe {
            rustix::mm::mmap(
                std::ptr::with_exposed_provenance_mut(aligned),
                len,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED | MapFlags::FIXED | MapFlags::NORESERVE,
                file,
                0,
            )?
        };
        // Best effort: small pages work, too.
        // SAFETY: the range is the mapping made above.
        let _ = unsafe { rustix::mm::madvise(base, len, Advice::LinuxHugepage) };
        let base = NonNull::new(base.cast()).expect("a mapping is never at address zero");
        let reserved = NonNull::new(reserved.cast()).expect("a mapping is never at address zero");
        Ok(Self { base, len, reserved })
    }

    /// The address of the first byte.
    #[inline]
    pub(crate) const fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// Collapses the small pages at a multiple of [`HUGE_PAGE_BYTES`] into a huge page. The content
    /// is kept.
    ///
    /// # Errors
    /// The kernel's error: `EINVAL` if it does not support this, others if it fails this time,
    /// because pages are in use or no huge page is free.
    pub(crate) fn make_huge(&self, offset: usize) -> io::Result<()> {
        assert!(offset.is_multiple_of(HUGE_PAGE_BYTES) && offset + HUGE_PAGE_BYTES <= self.len);
        // SAFETY: the offset lies inside the mapping.
        let start = unsafe { self.base.as_ptr().add(offset) };
        // The kernel collapses pages only if at least one is allocated.
        // SAFETY: reads a byte of the mapping. A concurrent change does not matter, because the
        // value is not used.
        unsafe { start.read_volatile() };
        // SAFETY: the page lies inside the mapping; collapsing pages does not change their content.
        match unsafe { libc::madvise(start.cast(), HUGE_PAGE_BYTES, MADV_COLLAPSE) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: unmaps the address space reserved in `new`, with the mapping in it. The owner
        // keeps no pointer into it.
        let unmapped = unsafe {
            rustix::mm::munmap(self.reserved.as_ptr().cast(), self.len + HUGE_PAGE_BYTES)
        };
        debug_assert!(unmapped.is_ok());
    }
}
