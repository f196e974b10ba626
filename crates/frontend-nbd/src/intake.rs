//! Payloads on their way in, and the memory they are received into.
//!
//! A long payload goes from the socket straight to where it will stay: slots of the pool that the
//! shards have lent (see `RequestSink::stage`), or, where the pool has no room, memory of its
//! request. Behind it, one message takes the next request's header, and no more: what follows that
//! may be a payload again. A short payload comes with others in a receive buffer and is copied.

use forebay_frontend::{Memory, Reservation, Staged};
use forebay_nbd::{Negotiated, Request, proto};
use forebay_volume::Payload;
use std::time::Instant;

/// Payloads from this length on, in bytes, have calls of their own to receive them. Such a call
/// costs less than half of what copying so much does.
pub(crate) const DIRECT_BYTES_MIN: usize = 32 << 10;
/// Vectors of one message.
const IOVECS_MAX: usize = 1024;

/// Where a payload is received to.
pub(crate) enum Target {
    /// The pool.
    Pool(Staged),
    /// Memory of the request.
    Memory(Memory),
}

/// A write whose payload has not come whole.
pub(crate) struct Partial {
    pub request: Request,
    pub target: Target,
    pub filled: usize,
    /// When all of it must have come.
    pub end: Instant,
    /// `None` for a huge one, whose room is in the lane.
    pub _reservation: Option<Reservation>,
}

impl Partial {
    /// Bytes that have not come yet.
    pub(crate) const fn left(&self) -> usize {
        self.request.payload_len as usize - self.filled
    }

    /// Takes bytes that have come, as far as they belong to the payload, and returns how many.
    pub(crate) fn copy(&mut self, bytes: &[u8]) -> usize {
        let taken = bytes.len().min(self.left());
        let mut rest = &bytes[..taken];
        match &mut self.target {
            Target::Memory(memory) => {
                memory.bytes_mut()[self.filled..self.filled + taken].copy_from_slice(rest);
            }
            Target::Pool(stage) => stage.each_piece(self.filled, |start, len| {
                let (now, later) = rest.split_at(len.min(rest.len()));
                // SAFETY: inside a slot that is staged for this payload: nobody else reads or
                // writes it, and no call to receive into it is under way.
                unsafe { std::ptr::copy_nonoverlapping(now.as_ptr(), start, now.len()) };
                rest = later;
                !rest.is_empty()
            }),
        }
        self.filled += taken;
        taken
    }

    /// The payload, which is whole.
    pub(crate) fn payload(self) -> (Request, Payload<'static, Memory>) {
        debug_assert_eq!(self.left(), 0);
        let payload = match self.target {
            Target::Pool(stage) => Payload::Staged(stage.take()),
            Target::Memory(memory) => Payload::Owned(memory),
        };
        (self.request, payload)
    }

    fn put_vectors(&mut self, iovecs: &mut Vec<libc::iovec>) {
        let mut put = |start: *mut u8, len: usize| {
            if let Some(last) = iovecs.last_mut()
                && last.iov_base.cast::<u8>().wrapping_add(last.iov_len) == start
            {
                last.iov_len += len;
                return true;
            }
            if iovecs.len() < IOVECS_MAX {
                iovecs.push(libc::iovec { iov_base: start.cast(), iov_len: len });
                return true;
            }
            false
        };
        match &mut self.target {
            Target::Pool(stage) => stage.each_piece(self.filled, put),
            Target::Memory(memory) => {
                let rest = &mut memory.bytes_mut()[self.filled..];
                put(rest.as_mut_ptr(), rest.len());
            }
        }
    }
}

/// What a message to receive into is made of. It stays where it is while a call is under way.
pub(crate) struct Intake {
    header: [u8; proto::EXTENDED_REQUEST_BYTES],
    iovecs: Vec<libc::iovec>,
    message: libc::msghdr,
}

// SAFETY: the pointers are into itself and into the payload that it is kept beside.
unsafe impl Send for Intake {}

impl Intake {
    pub(crate) fn new() -> Box<Self> {
        // SAFETY: an all-zero message header is an empty one.
        let message = unsafe { std::mem::zeroed() };
        Box::new(Self { header: [0; _], iovecs: Vec::new(), message })
    }

    /// A message for what is missing of a payload and for the header behind it.
    pub(crate) fn message(
        &mut self,
        partial: Option<&mut Partial>,
        terms: &Negotiated,
    ) -> *mut libc::msghdr {
        self.iovecs.clear();
        if let Some(partial) = partial {
            partial.put_vectors(&mut self.iovecs);
        }
        if self.iovecs.len() < IOVECS_MAX {
            let iov_len = header_len(terms);
            let iov_base = self.header.as_mut_ptr().cast();
            self.iovecs.push(libc::iovec { iov_base, iov_len });
        }
        self.message.msg_iov = self.iovecs.as_mut_ptr();
        self.message.msg_iovlen = self.iovecs.len();
        &raw mut self.message
    }

    /// The first bytes of the header, so many of which have come.
    pub(crate) const fn header(&self) -> [u8; proto::EXTENDED_REQUEST_BYTES] {
        self.header
    }
}

const fn header_len(terms: &Negotiated) -> usize {
    if terms.extended { proto::EXTENDED_REQUEST_BYTES } else { proto::REQUEST_BYTES }
}
