//! One I/O on its way to a backend.

use forebay_types::{IoError, IoResult};
use std::sync::Arc;

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IoKind {
    /// Fill the buffers from the store.
    Read,
    /// Write the buffers to the store; with `fua`, answer only when they are on stable storage.
    Write {
        /// Force unit access.
        fua: bool,
    },
    /// Answer when everything answered before is on stable storage.
    Flush,
    /// The range is no longer needed; what it reads as afterwards is undefined.
    Discard,
    /// The range reads as zeroes afterwards; with `unmap`, it may become a hole.
    Zero {
        /// Whether a hole is acceptable.
        unmap: bool,
    },
}

/// A piece of memory that belongs to an I/O until it is answered.
#[derive(Clone, Copy, Debug)]
pub struct Buffer {
    ptr: *mut u8,
    len: usize,
}

// SAFETY: a `Buffer` is an address and a length; who made it promised (see `new`) that the memory
// stays valid and unshared until the I/O that carries it is answered, on whatever thread.
unsafe impl Send for Buffer {}
// SAFETY: as above; a shared `Buffer` gives access only through `unsafe` methods.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// Lends `len` bytes at `ptr` to an I/O.
    ///
    /// # Safety
    /// The memory must stay valid for reads and (for a [`IoKind::Read`]) writes until the I/O is
    /// answered, and nothing else may write to it before that.
    pub const unsafe fn new(ptr: *mut u8, len: usize) -> Self {
        Self { ptr, len }
    }

    /// The address.
    pub const fn as_ptr(&self) -> *mut u8 {
        self.ptr
    }

    /// The length in bytes.
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether the length is zero.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The bytes.
    ///
    /// # Safety
    /// Only before the I/O that carries this buffer is answered.
    pub const unsafe fn as_slice<'a>(&self) -> &'a [u8] {
        // SAFETY: `new` promised valid memory until the answer, the caller that it is before that.
        unsafe { std::slice::from_raw_parts(self.ptr, self.len) }
    }

    /// The bytes, to be filled.
    ///
    /// # Safety
    /// Only before the I/O that carries this buffer is answered, only for a read, and only one
    /// slice at a time.
    pub const unsafe fn as_mut_slice<'a>(&self) -> &'a mut [u8] {
        // SAFETY: as `as_slice`; a read owns its buffers alone.
        unsafe { std::slice::from_raw_parts_mut(self.ptr, self.len) }
    }
}

/// Who wants to know how an I/O ended. Called on any thread; must not block.
pub trait CompletionSink: Send + Sync {
    /// The I/O submitted under `tag` is done, and its buffers are no longer touched.
    fn complete(&self, tag: u64, result: IoResult);
}

/// The token that answers an I/O exactly once. Dropped unanswered it answers with
/// [`IoError::Io`], so that no request is ever left hanging.
#[must_use]
pub struct Completion {
    sink: Option<Arc<dyn CompletionSink>>,
    tag: u64,
}

impl Completion {
    /// A token that tells `sink` about `tag`.
    pub fn new(sink: Arc<dyn CompletionSink>, tag: u64) -> Self {
        Self { sink: Some(sink), tag }
    }

    /// Answers.
    pub fn complete(mut self, result: IoResult) {
        if let Some(sink) = self.sink.take() {
            sink.complete(self.tag, result);
        }
    }
}

impl Drop for Completion {
    fn drop(&mut self) {
        if let Some(sink) = self.sink.take() {
            sink.complete(self.tag, Err(IoError::Io));
        }
    }
}

/// One I/O, owned by the backend from [`crate::Backend::submit`] until it is answered.
pub struct Io {
    /// What is to be done.
    pub kind: IoKind,
    /// First byte of the store.
    pub offset: u64,
    /// Bytes of the store; for reads and writes the sum of the buffers, for a flush zero.
    pub len: u64,
    /// The memory, in the order of the store; empty but for reads and writes.
    pub buffers: Vec<Buffer>,
    /// The answer.
    pub done: Completion,
}

/// A run of bytes that are all allocated or all not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Bytes, not zero.
    pub len: u64,
    /// Whether nothing is allocated there.
    pub hole: bool,
    /// Whether it reads as zeroes.
    pub zero: bool,
}
