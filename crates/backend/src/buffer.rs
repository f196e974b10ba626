//! Memory that direct I/O can use.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

/// The strictest alignment that a backend requires, in bytes: a memory page.
pub const BUFFER_ALIGNMENT_BYTES: usize = 4096;

/// Zeroed bytes that start at a multiple of [`BUFFER_ALIGNMENT_BYTES`].
pub struct AlignedBuffer {
    ptr: NonNull<u8>,
    len: usize,
}

// SAFETY: this value owns the memory exclusively, like a `Vec<u8>`.
unsafe impl Send for AlignedBuffer {}
// SAFETY: as above; a shared reference only reads.
unsafe impl Sync for AlignedBuffer {}

impl AlignedBuffer {
    /// Allocates `len` bytes. Aborts the process if memory runs out, like `Vec`.
    pub fn new(len: usize) -> Self {
        let layout = Self::layout(len);
        // SAFETY: the layout has a size above zero.
        let ptr = unsafe { alloc_zeroed(layout) };
        match NonNull::new(ptr) {
            Some(ptr) => Self { ptr, len },
            None => handle_alloc_error(layout),
        }
    }

    fn layout(len: usize) -> Layout {
        Layout::from_size_align(len.max(1), BUFFER_ALIGNMENT_BYTES)
            .expect("a length below half of the address space makes a layout")
    }
}

impl Deref for AlignedBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: `ptr` is `len` initialised bytes that live as long as `self`.
        unsafe { std::slice::from_raw_parts(self.ptr.as_ptr(), self.len) }
    }
}

impl DerefMut for AlignedBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as `deref`, and `self` is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.ptr.as_ptr(), self.len) }
    }
}

impl AsRef<[u8]> for AlignedBuffer {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl AsMut<[u8]> for AlignedBuffer {
    fn as_mut(&mut self) -> &mut [u8] {
        self
    }
}

impl Drop for AlignedBuffer {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with the same layout.
        unsafe { dealloc(self.ptr.as_ptr(), Self::layout(self.len)) }
    }
}

impl From<&[u8]> for AlignedBuffer {
    fn from(bytes: &[u8]) -> Self {
        let mut buffer = Self::new(bytes.len());
        buffer.copy_from_slice(bytes);
        buffer
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_aligned_and_zero() {
        for len in [0, 1, 512, 4096, 1 << 20] {
            let buffer = AlignedBuffer::new(len);
            assert_eq!(buffer.len(), len);
            assert!(buffer.as_ptr().addr().is_multiple_of(BUFFER_ALIGNMENT_BYTES));
            assert!(buffer.iter().all(|&b| b == 0));
        }
        assert_eq!(&*AlignedBuffer::from(&b"abc"[..]), b"abc");
    }
}
