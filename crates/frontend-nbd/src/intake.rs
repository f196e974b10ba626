//! Incomplete payloads, and the memory that they are received into.
//!
//! A long payload is received directly into its final place: staged slots of the pool (see
//! `RequestSink::stage`), or memory of its request if the pool has too few free slots. The same
//! message also receives the next request's header, and nothing after it, because another payload
//! may follow. A short payload arrives in a receive buffer, together with other requests, and is
//! copied.

use forebay_frontend::{Memory, PayloadReservation, Staged};
use forebay_nbd::{NbdRequest, Negotiated, proto};
use forebay_volume::Payload;
use std::time::Instant;

/// The minimum length of payloads that are received directly, in bytes. The extra call costs less
/// than half of a copy of this length.
pub(crate) const DIRECT_BYTES_MIN: usize = 32 << 10;
/// Limit of vectors per message.
pub(crate) const IOVECS_MAX: usize = 1024;

/// The memory that a payload is received into.
pub(crate) enum PayloadTarget {
    /// Staged slots of the pool.
    Pool(Staged),
    /// Memory of the request.
    Memory(Memory),
}

/// A write with an incomplete payload.
pub(crate) struct PartialWrite {
    pub request: NbdRequest,
    pub target: PayloadTarget,
    pub filled: usize,
    /// The deadline of the whole payload.
    pub end: Instant,
    /// `None` for a huge payload, whose memory was reserved with its request.
    pub _reservation: Option<PayloadReservation>,
}

impl PartialWrite {
    /// Missing bytes.
    pub(crate) const fn left(&self) -> usize {
        self.request.payload_len as usize - self.filled
    }

    /// Copies the received bytes that belong to the payload, and returns how many.
    pub(crate) fn copy(&mut self, bytes: &[u8]) -> usize {
        let copied = bytes.len().min(self.left());
        let mut rest = &bytes[..copied];
        match &mut self.target {
            PayloadTarget::Memory(memory) => {
                memory.bytes_mut()[self.filled..self.filled + copied].copy_from_slice(rest);
            }
            PayloadTarget::Pool(staged) => {
                staged.each_piece(self.filled, |start, len| {
                    let (now, later) = rest.split_at(len.min(rest.len()));
                    // SAFETY: inside a slot staged for this payload: no other code reads or writes
                    // it, and no call that receives into it is in flight.
                    unsafe { std::ptr::copy_nonoverlapping(now.as_ptr(), start, now.len()) };
                    rest = later;
                    !rest.is_empty()
                });
                assert!(rest.is_empty(), "a payload is longer than its staged slots");
            }
        }
        self.filled += copied;
        copied
    }

    /// The request and its complete payload.
    pub(crate) fn payload(self) -> (NbdRequest, Payload<'static, Memory>) {
        assert_eq!(self.left(), 0, "a payload without its end would be written");
        let payload = match self.target {
            PayloadTarget::Pool(staged) => Payload::Staged(staged.take()),
            PayloadTarget::Memory(memory) => Payload::Owned(memory),
        };
        (self.request, payload)
    }

    /// Appends vectors for the missing bytes, as many as one message takes.
    fn push_vectors(&mut self, iovecs: &mut Vec<libc::iovec>) {
        let mut push = |start: *mut u8, len: usize| {
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
            PayloadTarget::Pool(staged) => staged.each_piece(self.filled, push),
            PayloadTarget::Memory(memory) => {
                let rest = &mut memory.bytes_mut()[self.filled..];
                push(rest.as_mut_ptr(), rest.len());
            }
        }
        // The header of the next request follows the payload in the same message.
        let bytes: usize = iovecs.iter().map(|vector| vector.iov_len).sum();
        debug_assert!(bytes == self.left() || iovecs.len() == IOVECS_MAX, "{bytes} of a payload");
    }
}

/// The message of a direct receive. It must not move while the call is in flight.
pub(crate) struct Intake {
    header: [u8; proto::EXTENDED_REQUEST_BYTES],
    iovecs: Vec<libc::iovec>,
    message: libc::msghdr,
}

// SAFETY: the pointers point into the boxed value itself and into the payload of its connection.
unsafe impl Send for Intake {}

impl Intake {
    pub(crate) fn new() -> Box<Self> {
        // SAFETY: an all-zero message header is an empty one.
        let message = unsafe { std::mem::zeroed() };
        Box::new(Self { header: [0; _], iovecs: Vec::new(), message })
    }

    /// A message for the missing bytes of a payload and the header after it.
    pub(crate) fn message(
        &mut self,
        partial: Option<&mut PartialWrite>,
        terms: &Negotiated,
    ) -> *mut libc::msghdr {
        self.iovecs.clear();
        if let Some(partial) = partial {
            partial.push_vectors(&mut self.iovecs);
        }
        if self.iovecs.len() < IOVECS_MAX {
            let iov_len = header_len(terms);
            let iov_base = self.header.as_mut_ptr().cast();
            self.iovecs.push(libc::iovec { iov_base, iov_len });
        }
        self.message.msg_iov = self.iovecs.as_mut_ptr();
        // The type differs between C libraries.
        self.message.msg_iovlen = self.iovecs.len() as _;
        &raw mut self.message
    }

    /// The header's buffer. Only the caller knows how many of its bytes have been received.
    pub(crate) const fn header(&self) -> [u8; proto::EXTENDED_REQUEST_BYTES] {
        self.header
    }
}

const fn header_len(terms: &Negotiated) -> usize {
    if terms.extended { proto::EXTENDED_REQUEST_BYTES } else { proto::REQUEST_BYTES }
}
