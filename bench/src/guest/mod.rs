//! The guest of a virtual machine and its monitor, as a disk over vhost-user sees them: memory with
//! rings in it, and the messages that share it. Written from the specifications, and not with the
//! server's own types, so that both would have to be wrong in the same way.

mod monitor;
mod ring;

pub use monitor::Monitor;
pub use ring::{GuestRing, Used, Verb};

use anyhow::{Context, Result};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// Where the guest's memory begins, in its own addresses.
pub const GUEST_BASE: u64 = 1 << 32;

/// The memory of a guest.
pub struct GuestRam {
    /// The file that is shared with the server.
    pub file: OwnedFd,
    start: *mut u8,
    bytes: usize,
}

// SAFETY: accessed through raw pointers; each ring uses a part of its own.
unsafe impl Send for GuestRam {}
// SAFETY: as above.
unsafe impl Sync for GuestRam {}

impl GuestRam {
    /// Memory of zeroes.
    ///
    /// # Errors
    /// The system has too little.
    pub fn new(bytes: usize) -> Result<Arc<Self>> {
        let file = memfd_create("guest", MemfdFlags::CLOEXEC).context("memory of the guest")?;
        ftruncate(&file, bytes as u64)?;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let none = std::ptr::null_mut();
        // SAFETY: a new mapping at an address of the kernel's choice.
        let start = unsafe { mmap(none, bytes, protection, MapFlags::SHARED, &file, 0) }?;
        Ok(Arc::new(Self { file, start: start.cast(), bytes }))
    }

    /// Its length in bytes.
    pub const fn bytes(&self) -> usize {
        self.bytes
    }

    /// The address of a byte in this process.
    ///
    /// # Panics
    /// When the `len` bytes from there are not all inside.
    pub fn at(&self, offset: usize, len: usize) -> *mut u8 {
        assert!(offset + len <= self.bytes, "inside the guest's memory");
        self.start.wrapping_add(offset)
    }

    /// Copies bytes to the guest.
    pub fn write(&self, offset: usize, bytes: &[u8]) {
        let to = self.at(offset, bytes.len());
        // SAFETY: checked above; the guest does not use the bytes meanwhile.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
    }

    /// Copies bytes from the guest.
    pub fn read(&self, offset: usize, bytes: &mut [u8]) {
        let from = self.at(offset, bytes.len());
        // SAFETY: as above.
        unsafe { std::ptr::copy_nonoverlapping(from, bytes.as_mut_ptr(), bytes.len()) };
    }
}

impl Drop for GuestRam {
    fn drop(&mut self) {
        // SAFETY: mapped with this length, and no longer referenced.
        let _ = unsafe { munmap(self.start.cast(), self.bytes) };
    }
}
