//! Replies on their way to a client: headers in a buffer, data where it is in the pool.
//!
//! A reply is a header and, for a read, segments. Nothing is copied: the message that goes to the
//! kernel points into the pool, and the pins that keep those lines are given back when it is sent.

use forebay_engine::Place;
use forebay_frontend::{Memory, PoolAccess};
use forebay_volume::ReplySegment;

/// Vectors of one message.
const IOVECS_MAX: usize = 1024;

/// A piece of the output.
#[derive(Clone, Copy)]
enum Piece {
    /// Bytes of the header buffer.
    Header { from: u32, len: u32 },
    /// Bytes of the pool or of a request's memory.
    Data { base: *mut u8, len: u32 },
}

/// Replies in the order in which they go.
#[derive(Default)]
pub(crate) struct Output {
    headers: Vec<u8>,
    pieces: Vec<Piece>,
    /// The pins that the data is under.
    pinned: Vec<ReplySegment>,
    /// The memory that data outside the pool is in.
    memories: Vec<Memory>,
    bytes: usize,
    /// Pieces sent.
    sent: usize,
    /// Bytes sent of the piece after those.
    sent_bytes: usize,
    iovecs: Vec<libc::iovec>,
    message: Option<Box<libc::msghdr>>,
}

// SAFETY: the pointers are into the pool, which is shared, and into memory that the output owns.
unsafe impl Send for Output {}

impl Output {
    pub(crate) fn is_empty(&self) -> bool {
        self.sent == self.pieces.len()
    }

    /// Bytes of all replies in it.
    pub(crate) const fn bytes(&self) -> usize {
        self.bytes
    }

    /// Appends what `write` appends to the header buffer.
    pub(crate) fn push_header(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        let from = self.headers.len();
        write(&mut self.headers);
        let len = self.headers.len() - from;
        self.bytes += len;
        // Headers without data between them are one piece.
        if let Some(Piece::Header { len: last, .. }) = self.pieces.last_mut() {
            *last += len as u32;
            return;
        }
        if len > 0 {
            self.pieces.push(Piece::Header { from: from as u32, len: len as u32 });
        }
    }

    /// Appends the data of a read, and takes over its pins.
    pub(crate) fn push_data(
        &mut self,
        pool: &impl PoolAccess,
        segments: &[ReplySegment],
        memory: Option<&Memory>,
    ) {
        for &ReplySegment { shard, segment } in segments {
            let base = match segment.place {
                Place::Slot { slot, offset } => {
                    pool.line(usize::from(shard), slot).wrapping_add(offset as usize)
                }
                Place::Private { offset } => memory
                    .expect("private segments come with their memory")
                    .as_ptr()
                    .wrapping_add(offset as usize),
                Place::Discard => unreachable!("a reply has no bytes to throw away"),
            };
            self.bytes += segment.len as usize;
            if let Some(Piece::Data { base: last, len }) = self.pieces.last_mut()
                && last.wrapping_add(*len as usize) == base
            {
                *len += segment.len;
            } else {
                self.pieces.push(Piece::Data { base, len: segment.len });
            }
        }
        self.pinned.extend_from_slice(segments);
    }

    /// Keeps the memory of a reply until it is sent.
    pub(crate) fn keep(&mut self, memory: Memory) {
        self.memories.push(memory);
    }

    /// The next message to send. It is valid until `advance`, and the output must not move a
    /// header before that: nothing is pushed while a message is on its way.
    pub(crate) fn message(&mut self) -> *const libc::msghdr {
        self.iovecs.clear();
        let headers = self.headers.as_mut_ptr();
        for piece in self.pieces[self.sent..].iter().take(IOVECS_MAX) {
            let (base, len) = match *piece {
                Piece::Header { from, len } => (headers.wrapping_add(from as usize), len),
                Piece::Data { base, len } => (base, len),
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
        message.msg_iovlen = self.iovecs.len();
        &raw const **message
    }

    /// So many bytes of the message have been sent. Returns whether nothing is left.
    pub(crate) fn advance(&mut self, pool: &impl PoolAccess, bytes: usize) -> bool {
        let mut bytes = bytes + self.sent_bytes;
        while self.sent < self.pieces.len() {
            let (Piece::Header { len, .. } | Piece::Data { len, .. }) = self.pieces[self.sent];
            if bytes < len as usize {
                break;
            }
            bytes -= len as usize;
            self.sent += 1;
        }
        self.sent_bytes = bytes;
        let done = self.is_empty();
        if done {
            self.clear(pool);
        }
        done
    }

    /// Copies everything to `write`, and is empty then.
    pub(crate) fn drain_to(&mut self, pool: &impl PoolAccess, mut write: impl FnMut(&[u8])) {
        for piece in &self.pieces {
            match *piece {
                Piece::Header { from, len } => {
                    write(&self.headers[from as usize..(from + len) as usize]);
                }
                Piece::Data { base, len } => {
                    // SAFETY: pinned, or memory that is kept here, for as long as the piece is.
                    write(unsafe { std::slice::from_raw_parts(base, len as usize) });
                }
            }
        }
        self.clear(pool);
    }

    /// Forgets everything, and lets go of the lines.
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
