//! One I/O submitted to a backend.

use crate::Description;
use forebay_types::{ByteRange, Few, IoError, IoResult};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// The operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IoKind {
    /// Fill the buffers from the store.
    Read,
    /// Write the buffers to the store; with `fua`, answer only when they are on stable storage.
    Write {
        /// Force unit access.
        fua: bool,
    },
    /// Answer when all I/O answered before is on stable storage.
    Flush,
    /// The range is no longer needed; what it reads as afterwards is undefined.
    Discard,
    /// The range reads as zeroes afterwards; with `unmap`, it may become a hole.
    Zero {
        /// Whether a hole is acceptable.
        unmap: bool,
    },
}

impl IoKind {
    /// Whether the operation may change stored data.
    pub const fn changes_data(self) -> bool {
        matches!(self, Self::Write { .. } | Self::Discard | Self::Zero { .. })
    }
}

/// A piece of memory that belongs to an I/O until it is answered.
#[derive(Clone, Copy, Debug)]
pub struct Buffer {
    ptr: *mut u8,
    len: usize,
}

// SAFETY: a `Buffer` is an address and a length; the caller of `new` guarantees that the memory
// stays valid and unshared until the I/O is answered, on whatever thread.
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
        // SAFETY: the memory is valid until the answer (`new`), and the caller guarantees that the
        // I/O is not answered yet.
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

/// Receives the results of I/Os. Called on any thread; must not block.
pub trait CompletionSink: Send + Sync {
    /// The I/O submitted with `tag` has completed, and its buffers are no longer accessed.
    fn complete(&self, tag: u64, result: IoResult);
}

/// The token that answers an I/O exactly once. Dropped unanswered, it answers with [`IoError::Io`],
/// so that no request hangs.
#[must_use]
pub struct IoToken {
    sink: Option<Arc<dyn CompletionSink>>,
    tag: u64,
}

impl IoToken {
    /// A token that reports `tag` to `sink`.
    pub fn new(sink: Arc<dyn CompletionSink>, tag: u64) -> Self {
        Self { sink: Some(sink), tag }
    }

    /// Answers the I/O.
    pub fn complete(mut self, result: IoResult) {
        if let Some(sink) = self.sink.take() {
            sink.complete(self.tag, result);
        }
    }
}

impl IoToken {
    /// A token whose answer calls `then` with the result and this token. Layers use it to observe
    /// or delay answers.
    pub fn then(self, then: impl FnOnce(IoResult, Self) + Send + 'static) -> Self {
        Self::new(Arc::new(ThenSink(Mutex::new(Some((self, then))))), 0)
    }
}

struct ThenSink<F>(Mutex<Option<(IoToken, F)>>);

impl<F: FnOnce(IoResult, IoToken) + Send> CompletionSink for ThenSink<F> {
    fn complete(&self, _tag: u64, result: IoResult) {
        let taken = crate::sync::lock(&self.0).take();
        if let Some((done, then)) = taken {
            then(result, done);
        }
    }
}

impl Drop for IoToken {
    fn drop(&mut self) {
        if let Some(sink) = self.sink.take() {
            sink.complete(self.tag, Err(IoError::Io));
        }
    }
}

/// One I/O, owned by the backend from [`crate::Backend::submit`] until it is answered.
pub struct Io {
    /// The operation.
    pub kind: IoKind,
    /// Offset of the first byte in the store.
    pub offset: u64,
    /// Length in bytes; for reads and writes the sum of the buffers, for a flush zero.
    pub len: u64,
    /// The memory, in the order of the store; empty except for reads and writes.
    pub buffers: Few<Buffer>,
    /// The answer.
    pub done: IoToken,
}

impl Io {
    /// The range of the store.
    pub const fn range(&self) -> ByteRange {
        ByteRange::new(self.offset, self.len)
    }

    /// The data of a write, in order.
    ///
    /// # Panics
    /// If it is not a write.
    pub fn written(&self) -> impl Iterator<Item = &[u8]> {
        assert!(matches!(self.kind, IoKind::Write { .. }), "only a write has data");
        // SAFETY: the I/O is not answered while it is borrowed, because its token is in it.
        self.buffers.iter().map(|buffer| unsafe { buffer.as_slice() })
    }

    /// Fills a part of a read, which begins `skip` bytes after its start.
    ///
    /// # Panics
    /// If it is not a read, or ends before the bytes do.
    pub fn fill(&mut self, skip: u64, bytes: &[u8]) {
        assert_eq!(self.kind, IoKind::Read, "only a read is filled");
        let mut rest = bytes;
        for part in &window(&self.buffers, skip, bytes.len() as u64) {
            let (now, later) = rest.split_at(part.len());
            // SAFETY: the I/O is not answered while it is borrowed, because its token is in it, and
            // it is borrowed exclusively.
            unsafe { part.as_mut_slice() }.copy_from_slice(now);
            rest = later;
        }
    }

    /// Validates an I/O: returns it if it is within the size, in whole sectors, with the buffers of
    /// its kind, and permitted; otherwise answers it with an error.
    pub fn admit(self, description: &Description) -> Option<Self> {
        let buffer_bytes: u64 = self.buffers.iter().map(|buffer| buffer.len() as u64).sum();
        let buffers_fit = match self.kind {
            IoKind::Read | IoKind::Write { .. } => buffer_bytes == self.len,
            IoKind::Flush | IoKind::Discard | IoKind::Zero { .. } => self.buffers.is_empty(),
        };
        let range = self.range();
        if !buffers_fit || !range.fits(description.size_bytes()) || !range.is_sector_aligned() {
            self.done.complete(Err(IoError::Invalid));
            return None;
        }
        if description.read_only && self.kind.changes_data() {
            self.done.complete(Err(IoError::NotPermitted));
            return None;
        }
        Some(self)
    }

    /// Splits the I/O into pieces of at most `bytes_max` bytes, a multiple of the sector size. It
    /// is answered when its last piece is, with the first error if any.
    pub(crate) fn split(self, bytes_max: u64) -> Vec<Self> {
        if self.len <= bytes_max {
            return vec![self];
        }
        let count = self.len.div_ceil(bytes_max);
        let (kind, range) = (self.kind, self.range());
        let has_buffers = !self.buffers.is_empty();
        let pieces = (0..count).map(|index| {
            let skip = index * bytes_max;
            let len = bytes_max.min(range.len - skip);
            let buffers = if has_buffers { window(&self.buffers, skip, len) } else { Few::new() };
            (range.offset + skip, len, buffers)
        });
        let pieces: Vec<_> = pieces.collect();
        let join =
            Join { missing: AtomicU64::new(count), outcome: Mutex::new((Some(self.done), Ok(()))) };
        let join: Arc<dyn CompletionSink> = Arc::new(join);
        pieces
            .into_iter()
            .map(|(offset, len, buffers)| Self {
                kind,
                offset,
                len,
                buffers,
                done: IoToken::new(join.clone(), 0),
            })
            .collect()
    }
}

/// The `len` bytes of a sequence of buffers that start after `skip` bytes.
///
/// # Panics
/// If the buffers end before the `len` bytes do.
pub(crate) fn window(buffers: &[Buffer], mut skip: u64, mut len: u64) -> Few<Buffer> {
    let mut parts = Few::new();
    for buffer in buffers {
        let buffer_len = buffer.len as u64;
        if skip >= buffer_len {
            skip -= buffer_len;
            continue;
        }
        let part_len = (buffer_len - skip).min(len);
        if part_len > 0 {
            // SAFETY: `skip` is below the buffer's length, and the part ends inside it.
            let part = unsafe { Buffer::new(buffer.ptr.add(skip as usize), part_len as usize) };
            parts.push(part);
        }
        len -= part_len;
        skip = 0;
        if len == 0 {
            break;
        }
    }
    assert_eq!(len, 0, "the buffers hold the whole window");
    parts
}

/// Answers a split I/O when its last piece is answered.
struct Join {
    missing: AtomicU64,
    outcome: Mutex<(Option<IoToken>, IoResult)>,
}

impl CompletionSink for Join {
    fn complete(&self, _tag: u64, result: IoResult) {
        let mut outcome = crate::sync::lock(&self.outcome);
        if outcome.1.is_ok() {
            outcome.1 = result;
        }
        if self.missing.fetch_sub(1, Ordering::AcqRel) == 1
            && let Some(done) = outcome.0.take()
        {
            let result = outcome.1;
            drop(outcome);
            done.complete(result);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::IoWait;

    #[test]
    fn pieces_cover_the_io_and_answer_it_once() {
        let wait = IoWait::new(1);
        let mut bytes = vec![0u8; 5000];
        // SAFETY: nothing is read or written through the buffers in this test.
        let buffers = [1000, 1, 2999, 1000].map(|len| unsafe {
            let start = bytes.as_mut_ptr();
            Buffer::new(start, len)
        });
        let done = IoToken::new(wait.clone(), 0);
        let io = Io {
            kind: IoKind::Read,
            offset: 512,
            len: 5000,
            buffers: buffers.into_iter().collect(),
            done,
        };
        let pieces = io.split(1024);
        let lens: Vec<u64> = pieces.iter().map(|piece| piece.len).collect();
        assert_eq!(lens, [1024, 1024, 1024, 1024, 904]);
        assert!(pieces.is_sorted_by_key(|piece| piece.offset));
        for piece in &pieces {
            let bytes: usize = piece.buffers.iter().map(Buffer::len).sum();
            assert_eq!(bytes as u64, piece.len);
        }
        assert_eq!(pieces[0].buffers.len(), 3);
        for (index, piece) in pieces.into_iter().enumerate() {
            assert_eq!(wait.answer(0), None);
            piece.done.complete(if index == 1 { Err(IoError::NoSpace) } else { Ok(()) });
        }
        assert_eq!(wait.all(), [Err(IoError::NoSpace)]);
    }

    #[test]
    fn a_dropped_token_answers() {
        let wait = IoWait::new(2);
        drop(IoToken::new(wait.clone(), 0));
        let done = IoToken::new(wait.clone(), 1);
        drop(done.then(|result, done| done.complete(result.or(Err(IoError::NoSpace)))));
        assert_eq!(wait.all(), [Err(IoError::Io), Err(IoError::NoSpace)]);
    }
}
