//! Replies to send: headers in a buffer, data in the pool.
//!
//! A reply is a header and, for a read, segments. Without TLS, nothing is copied: the message for
//! the kernel points into the pool. The pins of its lines are released when everything has been
//! sent.

use crate::intake::IOVECS_MAX;
use forebay_engine::Place;
use forebay_frontend::{Memory, PoolAccess};
use forebay_types::IoError;
use forebay_volume::{ReplySegment, RequestKind};

/// A piece of the output.
#[derive(Clone, Copy)]
enum OutputPiece {
    /// Bytes of the header buffer.
    Header { from: u32, len: u32 },
    /// Bytes of the pool or of a request's memory.
    Data { base: *mut u8, len: u32 },
}

/// Replies, in sending order.
#[derive(Default)]
pub(crate) struct ReplyOutput {
    headers: Vec<u8>,
    pieces: Vec<OutputPiece>,
    /// The pins of the data.
    pinned: Vec<ReplySegment>,
    /// The memory of data outside the pool.
    memories: Vec<Memory>,
    bytes: usize,
    /// Pieces sent completely.
    sent: usize,
    /// Bytes sent of the next piece.
    sent_bytes: usize,
    iovecs: Vec<libc::iovec>,
    message: Option<Box<libc::msghdr>>,
}

// SAFETY: the pointers point into the pool, which is shared, and into memory that the output owns.
unsafe impl Send for ReplyOutput {}

impl ReplyOutput {
    pub(crate) fn is_empty(&self) -> bool {
        self.sent == self.pieces.len()
    }

    /// Bytes of all its replies, sent or not.
    pub(crate) const fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether some of it has been sent.
    const fn is_begun(&self) -> bool {
        self.sent > 0 || self.sent_bytes > 0
    }

    /// Whether it has no reply, no pin and no memory.
    pub(crate) const fn holds_nothing(&self) -> bool {
        self.bytes == 0 && self.pinned.is_empty() && self.memories.is_empty()
    }

    /// Appends what `write` appends to the header buffer.
    pub(crate) fn push_header(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        debug_assert!(!self.is_begun(), "the header buffer of a message must not move");
        let from = self.headers.len();
        write(&mut self.headers);
        let len = self.headers.len() - from;
        self.bytes += len;
        // Adjacent headers are one piece.
        if let Some(OutputPiece::Header { len: last, .. }) = self.pieces.last_mut() {
            *last += len as u32;
            return;
        }
        if len > 0 {
            self.pieces.push(OutputPiece::Header { from: from as u32, len: len as u32 });
        }
    }

    /// Appends the data of a read, and takes over its pins.
    pub(crate) fn push_data(
        &mut self,
        pool: &impl PoolAccess,
        segments: &[ReplySegment],
        memory: Option<&Memory>,
    ) {
        debug_assert!(!self.is_begun(), "replies are added to a message that is being sent");
        for &ReplySegment { shard, segment } in segments {
            let base = match segment.place {
                Place::Slot { slot, offset } => {
                    pool.line(usize::from(shard), slot).wrapping_add(offset as usize)
                }
                Place::Private { offset } => memory
                    .expect("private segments come with their memory")
                    .as_ptr()
                    .wrapping_add(offset as usize),
                Place::Discard => unreachable!("a reply has no discard buffer"),
            };
            self.bytes += segment.len as usize;
            if let Some(OutputPiece::Data { base: last, len }) = self.pieces.last_mut()
                && last.wrapping_add(*len as usize) == base
            {
                *len += segment.len;
            } else {
                self.pieces.push(OutputPiece::Data { base, len: segment.len });
            }
        }
        // Most replies have one segment, and copying a slice takes a call.
        match segments {
            [segment] => self.pinned.push(*segment),
            segments => self.pinned.extend_from_slice(segments),
        }
    }

    /// Keeps the memory of a reply until the reply is sent.
    pub(crate) fn keep(&mut self, memory: Memory) {
        self.memories.push(memory);
    }

    /// The next message to send, valid until `advance`. Nothing may be pushed before that, because
    /// the header buffer could move.
    pub(crate) fn message(&mut self) -> *const libc::msghdr {
        self.iovecs.clear();
        let headers = self.headers.as_mut_ptr();
        for piece in self.pieces[self.sent..].iter().take(IOVECS_MAX) {
            let (base, len) = match *piece {
                OutputPiece::Header { from, len } => (headers.wrapping_add(from as usize), len),
                OutputPiece::Data { base, len } => (base, len),
            };
            self.iovecs.push(libc::iovec { iov_base: base.cast(), iov_len: len as usize });
        }
        if let Some(first) = self.iovecs.first_mut() {
            first.iov_base = first.iov_base.cast::<u8>().wrapping_add(self.sent_bytes).cast();
            first.iov_len -= self.sent_bytes;
        }
        let message = self.message.get_or_insert_with(|| {
            // SAFETY: an all-zero message header is an empty one.
            Box::new(unsafe { std::mem::zeroed() })
        });
        message.msg_iov = self.iovecs.as_mut_ptr();
        // The type differs between C libraries.
        message.msg_iovlen = self.iovecs.len() as _;
        &raw const **message
    }

    /// Records that `bytes` of the message have been sent. Returns whether everything has been
    /// sent.
    pub(crate) fn advance(&mut self, pool: &impl PoolAccess, bytes: usize) -> bool {
        let mut bytes = bytes + self.sent_bytes;
        while self.sent < self.pieces.len() {
            let (OutputPiece::Header { len, .. } | OutputPiece::Data { len, .. }) =
                self.pieces[self.sent];
            if bytes < len as usize {
                break;
            }
            bytes -= len as usize;
            self.sent += 1;
        }
        self.sent_bytes = bytes;
        let done = self.is_empty();
        if done {
            debug_assert_eq!(bytes, 0, "more bytes are sent than replies have");
            self.clear(pool);
        }
        done
    }

    /// Passes everything to `write`, and clears the output.
    pub(crate) fn drain_to(&mut self, pool: &impl PoolAccess, mut write: impl FnMut(&[u8])) {
        assert!(!self.is_begun(), "a part of it has been sent in plaintext");
        for piece in &self.pieces {
            match *piece {
                OutputPiece::Header { from, len } => {
                    write(&self.headers[from as usize..(from + len) as usize]);
                }
                OutputPiece::Data { base, len } => {
                    // SAFETY: the pins and the memory of a piece are held as long as the piece.
                    write(unsafe { std::slice::from_raw_parts(base, len as usize) });
                }
            }
        }
        self.clear(pool);
    }

    /// Drops all replies and releases their pins.
    pub(crate) fn clear(&mut self, pool: &impl PoolAccess) {
        pool.release(&self.pinned);
        self.pinned.clear();
        self.memories.clear();
        self.pieces.clear();
        self.headers.clear();
        self.bytes = 0;
        self.sent = 0;
        self.sent_bytes = 0;
    }
}

/// The text sent with an error.
pub(crate) const fn error_text(error: IoError, kind: RequestKind) -> &'static str {
    match (error, kind) {
        (IoError::Shutdown, _) => "the server is stopping",
        (IoError::NoSpace, _) => "the backing store is full",
        (IoError::Io, RequestKind::Read) => "the backing store failed to read",
        (IoError::Io, RequestKind::Flush) => {
            "the backing store failed to write; dirty data is kept in the cache"
        }
        (IoError::Io, _) => "the backing store failed to write",
        _ => "",
    }
}
