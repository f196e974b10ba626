//! I/O in flight. A request belongs to librbd from its submission until its callback, which answers
//! it; the buffers of the I/O are valid until that answer.
//!
//! Callbacks come on threads of librbd, which must not wait or be ended: they store the answer with
//! the completion's sink, and never hold what would close the image.

use super::ceph::{Ceph, Handle, ZEROES_ALLOCATED};
use super::connection::Fence;
use crate::log::LogLimiter;
use crate::sync::lock;
use crate::{Io, IoKind, IoToken};
use forebay_types::{ByteRange, Few, IoError, IoResult};
use libc::{c_int, iovec};
use std::ptr::null_mut;
use std::sync::{Arc, Condvar, Mutex, PoisonError};

/// Counts the I/Os in flight.
#[derive(Default)]
pub(super) struct InFlight {
    count: Mutex<u64>,
    is_zero: Condvar,
}

impl InFlight {
    fn begin(&self) {
        *lock(&self.count) += 1;
    }

    fn end(&self) {
        let mut count = lock(&self.count);
        *count -= 1;
        if *count == 0 {
            self.is_zero.notify_all();
        }
    }

    /// Waits until all I/Os in flight are answered.
    pub(super) fn wait_for_all(&self) {
        let mut count = lock(&self.count);
        while *count > 0 {
            count = self.is_zero.wait(count).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// What the requests of an image need when they complete.
pub(super) struct Completer {
    pub(super) ceph: &'static Ceph,
    pub(super) in_flight: Arc<InFlight>,
    pub(super) results: Results,
}

/// What the results of librbd mean.
pub(super) struct Results {
    pub(super) fence: Arc<Fence>,
    /// Pool and image, for the log.
    pub(super) place: String,
    pub(super) error_limiter: LogLimiter,
}

struct Request {
    completer: Arc<Completer>,
    kind: IoKind,
    range: ByteRange,
    /// The buffers as librbd takes them. It stores into those of a read after the call.
    vectors: Few<iovec>,
    done: IoToken,
}

// SAFETY: the addresses are those of the I/O's buffers, which any thread may access until the
// answer.
unsafe impl Send for Request {}

impl Completer {
    /// Submits an I/O to the open image `image`, which stays open until `in_flight` is zero.
    pub(super) fn submit(self: &Arc<Self>, image: Handle, io: Io) {
        if self.results.fence.is_up() {
            return io.done.complete(Err(IoError::Io));
        }
        let range = io.range();
        let vectors = io
            .buffers
            .iter()
            .map(|buffer| iovec { iov_base: buffer.as_ptr().cast(), iov_len: buffer.len() })
            .collect();
        let (completer, kind, done) = (self.clone(), io.kind, io.done);
        let request = Box::new(Request { completer, kind, range, vectors, done });
        self.in_flight.begin();
        let (address, count) = (request.vectors.as_ptr(), request.vectors.len() as c_int);
        let argument = Box::into_raw(request);
        let rbd = &self.ceph.rbd;
        let mut completion = null_mut();
        // SAFETY: the callback gets the request, which lives until then. The image is open, and the
        // request has the buffers, whose memory is valid until the answer.
        let result = unsafe {
            let create = rbd.aio_create_completion;
            let created = create(argument.cast(), on_complete, &raw mut completion);
            assert!(created >= 0, "librbd makes completions without a condition");
            match kind {
                IoKind::Read => (rbd.aio_readv)(image, address, count, range.offset, completion),
                IoKind::Write { .. } => {
                    (rbd.aio_writev)(image, address, count, range.offset, completion)
                }
                IoKind::Flush => (rbd.aio_flush)(image, completion),
                IoKind::Discard => (rbd.aio_discard)(image, range.offset, range.len, completion),
                IoKind::Zero { unmap } => {
                    let flags = if unmap { 0 } else { ZEROES_ALLOCATED };
                    let len = range.len as usize;
                    (rbd.aio_write_zeroes)(image, range.offset, len, completion, flags, 0)
                }
            }
        };
        if result < 0 {
            // SAFETY: a call that fails leaves the completion alone: there will be no callback, and
            // both are released here.
            let request = unsafe {
                (rbd.aio_release)(completion);
                Box::from_raw(argument)
            };
            request.finish(result as isize);
        }
    }
}

impl Results {
    /// Fences the connection.
    pub(super) fn fence(&self, reason: &str) {
        if self.fence.raise() {
            tracing::error!(
                image = %self.place,
                reason,
                "another client has taken over: nothing is read or written over this connection \
                 any more"
            );
        }
    }

    /// The answer for an error number. Fences the connection if the cluster has shut it out.
    fn failed(&self, errno: i32, kind: IoKind, range: ByteRange) -> IoError {
        let error = match errno {
            libc::ESHUTDOWN => {
                self.fence("the cluster shuts this client out");
                // `Shutdown` would mean that this server is stopping.
                IoError::Io
            }
            libc::EROFS => {
                self.fence("the lock of the image is lost");
                IoError::Io
            }
            errno => IoError::from_errno(errno),
        };
        if let Some(count) = self.error_limiter.admit() {
            let reason = std::io::Error::from_raw_os_error(errno);
            let outcome = match errno {
                libc::ETIMEDOUT => "unknown: it may still be carried out",
                _ => "failed",
            };
            let image = &*self.place;
            tracing::error!(image, ?kind, %range, error = %reason, outcome, count, "I/O failed");
        }
        error
    }

    fn answer(&self, result: isize, kind: IoKind, range: ByteRange) -> IoResult {
        if result < 0 {
            let errno = i32::try_from(-result).unwrap_or(libc::EIO);
            return Err(self.failed(errno, kind, range));
        }
        // The image has become smaller.
        let is_short = kind == IoKind::Read && (result as u64) < range.len;
        if is_short { Err(self.failed(libc::EIO, kind, range)) } else { Ok(()) }
    }
}

/// Answers a request. Called on a thread of librbd.
unsafe extern "C" fn on_complete(completion: Handle, argument: Handle) {
    // SAFETY: the argument is the request of this completion, which has one callback.
    let request = unsafe { Box::from_raw(argument.cast::<Request>()) };
    let rbd = &request.completer.ceph.rbd;
    // SAFETY: the completion is that of this callback, and is released once.
    let result = unsafe {
        let result = (rbd.aio_get_return_value)(completion);
        (rbd.aio_release)(completion);
        result
    };
    request.finish(result);
}

impl Request {
    fn finish(self, result: isize) {
        let Self { completer, kind, range, done, .. } = self;
        done.complete(completer.results.answer(result, kind, range));
        completer.in_flight.end();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timeout_is_no_success_and_no_fence_and_a_lost_lock_is_both() {
        let range = ByteRange::new(0, 4096);
        let write = IoKind::Write { fua: false };
        for (errno, error, is_fence) in [
            (libc::ETIMEDOUT, IoError::Io, false),
            (libc::EIO, IoError::Io, false),
            (libc::ENOSPC, IoError::NoSpace, false),
            (libc::EDQUOT, IoError::NoSpace, false),
            (libc::ESHUTDOWN, IoError::Io, true),
            (libc::EROFS, IoError::Io, true),
        ] {
            let place = "rbd/disk".to_owned();
            let (fence, error_limiter) = Default::default();
            let results = Results { fence, place, error_limiter };
            assert_eq!(results.answer(0, write, range), Ok(()));
            assert_eq!(results.answer(4096, IoKind::Read, range), Ok(()));
            // What a shrunk image no longer has.
            assert_eq!(results.answer(512, IoKind::Read, range), Err(IoError::Io));
            assert_eq!(results.answer(-errno as isize, write, range), Err(error), "{errno}");
            assert_eq!(results.fence.is_up(), is_fence, "{errno}");
        }
    }
}
