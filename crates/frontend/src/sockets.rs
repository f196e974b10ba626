//! Sockets of a worker's reactor: asked for now, and reported later.

use std::io;
use std::os::fd::{OwnedFd, RawFd};

/// What has happened on a socket.
#[derive(Debug)]
pub enum SocketEvent<'a> {
    /// A client has connected, or accepting has failed, and goes on only when it is asked for.
    Accepted {
        /// The listener's number.
        listener: u32,
        /// The client's socket.
        result: io::Result<OwnedFd>,
    },
    /// Bytes have come.
    Received {
        /// The number of the client.
        conn: u32,
        /// The bytes, for the time of the call.
        bytes: &'a [u8],
        /// How many there are; none if the peer has closed.
        result: io::Result<usize>,
        /// Whether the next ones are reported without being asked for.
        more: bool,
    },
    /// So many bytes have been received into a message; none if the peer has closed.
    Filled {
        /// The number of the client.
        conn: u32,
        /// How many bytes have come.
        result: io::Result<usize>,
    },
    /// A message has been sent.
    Sent {
        /// The number of the client.
        conn: u32,
        /// How many bytes of it have gone.
        result: io::Result<usize>,
    },
}

/// See the module's description. Connections are named by the numbers of their clients.
/// Descriptors stay open, and memory stays valid, until the event.
pub trait Sockets {
    /// Reports every client that connects to `fd`, until it is stopped or an error is reported.
    fn accept(&mut self, listener: u32, fd: RawFd);

    /// Stops that.
    fn stop_accepting(&mut self, listener: u32, fd: RawFd);

    /// Reports the bytes that come on a connection, until an event says that there is no more.
    fn receive(&mut self, conn: u32, fd: RawFd);

    /// Makes that end soon. Bytes that are on their way are still reported.
    fn pause(&mut self, conn: u32);

    /// Receives into the memory of a message, as soon as anything comes, and reports it once. Not
    /// while bytes are received by [`Sockets::receive`].
    fn fill(&mut self, conn: u32, fd: RawFd, message: *mut libc::msghdr);

    /// Sends a message on a connection and reports it, once, when all is sent or nothing goes.
    fn send(&mut self, conn: u32, fd: RawFd, message: *const libc::msghdr);

    /// A connection is about to be closed; nothing of it is under way.
    fn forget(&mut self, fd: RawFd);
}

/// Receives into the memory of a message what is there already.
///
/// # Errors
/// `WouldBlock` where there is nothing, and what the socket says.
///
/// # Safety
/// The message and the memory that it points to are valid, and nothing else uses that memory.
pub unsafe fn receive_into(fd: RawFd, message: *mut libc::msghdr) -> io::Result<usize> {
    loop {
        // SAFETY: as the caller promises.
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
