//! The sockets of a worker's reactor: calls that start an operation, and events that report its
//! results.

use std::io;
use std::os::fd::{OwnedFd, RawFd};

/// A result of an operation on a socket.
#[derive(Debug)]
pub enum SocketEvent<'a> {
    /// A client has connected. After an error, accepting has stopped until it is requested again.
    Accepted {
        /// The listener's number.
        listener: u32,
        /// The client's socket.
        result: io::Result<OwnedFd>,
    },
    /// [`Sockets::receive`] has received bytes.
    Received {
        /// The number of the client.
        conn: u32,
        /// The bytes, valid during the call.
        bytes: &'a [u8],
        /// The number of bytes; 0 if the peer has closed.
        result: io::Result<usize>,
        /// Whether receiving continues without another call.
        more: bool,
    },
    /// [`Sockets::fill`] has received bytes.
    Filled {
        /// The number of the client.
        conn: u32,
        /// The number of bytes; 0 if the peer has closed.
        result: io::Result<usize>,
    },
    /// [`Sockets::send`] has ended.
    Sent {
        /// The number of the client.
        conn: u32,
        /// The number of bytes sent.
        result: io::Result<usize>,
    },
}

/// Operations on sockets. A connection has the number of its client. The caller keeps descriptors
/// open, and memory valid, until the event.
pub trait Sockets {
    /// Reports every client that connects to `fd`, until stopped or an error is reported.
    fn accept(&mut self, listener: u32, fd: RawFd);

    fn stop_accepting(&mut self, listener: u32, fd: RawFd);

    /// Receives from a connection, until an event has `more` set to false.
    fn receive(&mut self, conn: u32, fd: RawFd);

    /// Stops receiving soon. Events in flight, or one more event, are still reported.
    fn pause(&mut self, conn: u32);

    /// Receives once into the memory of a message, as soon as bytes arrive. Must not overlap with
    /// [`Sockets::receive`].
    fn fill(&mut self, conn: u32, fd: RawFd, message: *mut libc::msghdr);

    /// Ends a receive and a fill of a connection soon, if there are any. Each reports at least one
    /// more event: what it has received until then, or `ECANCELED`. Bytes that it does not report
    /// stay in the socket.
    fn stop_input(&mut self, conn: u32, fd: RawFd);

    /// Sends a message. One event reports when all is sent, or sending has failed.
    fn send(&mut self, conn: u32, fd: RawFd, message: *const libc::msghdr);

    /// Drops the state of a connection that is about to be closed and has no send or fill in
    /// flight. The caller ignores later events of a receive.
    fn forget(&mut self, fd: RawFd);
}

/// Receives what has already arrived into the memory of a message.
///
/// # Errors
/// `WouldBlock` if nothing has arrived, and the errors of the socket.
///
/// # Safety
/// The message and the memory that it points to must be valid, and not otherwise in use.
pub unsafe fn receive_into(fd: RawFd, message: *mut libc::msghdr) -> io::Result<usize> {
    loop {
        // SAFETY: guaranteed by the caller.
        let received = unsafe { libc::recvmsg(fd, message, libc::MSG_DONTWAIT) };
        if received >= 0 {
            return Ok(received as usize);
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}
