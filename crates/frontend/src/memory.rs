//! Buffers of single requests: payloads and direct reads.
//!
//! Buffers are aligned for direct I/O and recycled: each thread keeps some of the buffers that it
//! frees, because the 256 page faults of a fresh megabyte cost more than copying a megabyte.

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::cell::RefCell;
use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};

const ALIGNMENT: usize = 4096;
/// Blocks of at least this size are mapped. In the heap, fragmentation would keep freed large
/// blocks from being returned to the system.
const MAPPED_BYTES_MIN: usize = 128 << 10;
/// Limit of free buffers kept per thread, in bytes.
static KEPT_BYTES_MAX: AtomicUsize = AtomicUsize::new(1 << 20);

/// Sets the limit of free buffers kept per thread, in bytes.
pub fn set_kept_bytes_max(bytes: u64) {
    KEPT_BYTES_MAX.store(bytes as usize, Ordering::Relaxed);
}

thread_local! {
    static KEPT: RefCell<KeptBlocks> = const {
        RefCell::new(KeptBlocks { free: Vec::new(), bytes: 0 })
    };
}

struct KeptBlocks {
    free: Vec<MemoryBlock>,
    bytes: usize,
}

/// Raw memory; the capacity is a power of two.
struct MemoryBlock {
    ptr: NonNull<u8>,
    capacity: usize,
}

impl MemoryBlock {
    fn layout(capacity: usize) -> Layout {
        Layout::from_size_align(capacity, ALIGNMENT).expect("a power of two of at most a request")
    }

    /// Allocates a zeroed block.
    fn allocate(capacity: usize) -> Self {
        if capacity >= MAPPED_BYTES_MIN {
            return Self::map(capacity);
        }
        let layout = Self::layout(capacity);
        // SAFETY: the layout is not empty.
        let ptr = unsafe { alloc_zeroed(layout) };
        let ptr = NonNull::new(ptr).unwrap_or_else(|| handle_alloc_error(layout));
        Self { ptr, capacity }
    }

    /// Maps a zeroed block. Its pages are allocated on first use, so a payload being received takes
    /// only the memory of the bytes received so far.
    fn map(capacity: usize) -> Self {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice does not affect other memory.
        let mapped = unsafe {
            mmap_anonymous(std::ptr::null_mut(), capacity, protection, MapFlags::PRIVATE)
        };
        match mapped.ok().and_then(|start| NonNull::new(start.cast())) {
            Some(ptr) => Self { ptr, capacity },
            None => handle_alloc_error(Self::layout(capacity)),
        }
    }
}

impl Drop for MemoryBlock {
    fn drop(&mut self) {
        if self.capacity >= MAPPED_BYTES_MIN {
            // SAFETY: mapped with this length, and no longer referenced.
            let unmapped = unsafe { munmap(self.ptr.as_ptr().cast(), self.capacity) };
            debug_assert!(unmapped.is_ok());
            return;
        }
        // SAFETY: allocated with this layout, and freed once.
        unsafe { dealloc(self.ptr.as_ptr(), Self::layout(self.capacity)) }
    }
}

/// A page-aligned buffer of a request. Its initial content is unspecified.
pub struct Memory {
    /// The start of a block of [`capacity_of`] `len`.
    ptr: NonNull<u8>,
    len: usize,
}

// SAFETY: the memory is owned, and accessed through `&self` for reading and `&mut self` for writing
// only. Kernel and backends write to it through pointers while no reference is used.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    /// A buffer of `len` bytes.
    pub fn new(len: usize) -> Self {
        let capacity = capacity_of(len);
        let kept = KEPT.with_borrow_mut(|kept| {
            let at = kept.free.iter().rposition(|block| block.capacity == capacity)?;
            debug_assert!(kept.bytes >= capacity, "a kept buffer is counted once");
            kept.bytes -= capacity;
            Some(kept.free.swap_remove(at))
        });
        // A recycled block holds bytes of another request. They do not leak: every user writes the
        // bytes that it sends.
        let block = ManuallyDrop::new(kept.unwrap_or_else(|| MemoryBlock::allocate(capacity)));
        Self { ptr: block.ptr, len }
    }

    /// A buffer with a copy of `content`.
    pub fn with_content(content: &[u8]) -> Self {
        let mut memory = Self::new(content.len());
        memory.bytes_mut().copy_from_slice(content);
        memory
    }

    /// The address of the first byte.
    pub const fn as_ptr(&self) -> *mut u8 {
        self.ptr.as_ptr()
    }

    /// The bytes, for writing.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: the block has at least `len` initialised bytes, and is owned exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.as_ptr(), self.len) }
    }
}

/// The capacity of the block of a buffer of `len` bytes.
fn capacity_of(len: usize) -> usize {
    len.max(ALIGNMENT).next_power_of_two()
}

impl AsRef<[u8]> for Memory {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: as `bytes_mut`.
        unsafe { std::slice::from_raw_parts(self.as_ptr(), self.len) }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        let block = MemoryBlock { ptr: self.ptr, capacity: capacity_of(self.len) };
        // At the end of a thread, its list may have been destroyed; the block is then freed at
        // once.
        let _ = KEPT.try_with(|kept| {
            let mut kept = kept.borrow_mut();
            if kept.bytes + block.capacity <= KEPT_BYTES_MAX.load(Ordering::Relaxed) {
                kept.bytes += block.capacity;
                kept.free.push(block);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_aligned_and_recycled() {
        let first = Memory::with_content(&[7; 5000]);
        assert_eq!(first.as_ref(), [7; 5000]);
        let address = first.as_ptr();
        assert_eq!(address as usize % ALIGNMENT, 0);
        drop(first);
        assert_eq!(Memory::new(8000).as_ptr(), address);
    }
}
