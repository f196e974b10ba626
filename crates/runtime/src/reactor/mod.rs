//! The seam to the kernel: sockets and files, asked for now and reported later. What front ends
//! may ask of it is in [`Sockets`]; events of other kinds would come beside those of sockets.
//!
//! A worker asks its reactor for connections to accept, bytes to receive, replies to send and
//! files to read and write, waits once for whatever has happened, and handles the events. There
//! are two: a ring (`uring`), where one system call waits and brings what has come, and readiness
//! (`epoll`), for machines that forbid rings. Replies that a socket takes at once are sent without
//! either. The suite runs on both.

mod epoll;
mod uring;

pub(crate) use epoll::EpollReactor;
pub(crate) use uring::UringReactor;

use forebay_frontend::Sockets;
use std::io;
use std::os::fd::RawFd;
use std::time::Duration;

/// Bytes of one receive buffer: what one system call brings at most.
pub(crate) const RECEIVE_BYTES: usize = 64 << 10;

/// Receive buffers of one worker, at most: the ring does with fewer.
pub(crate) const RECEIVE_BUFFERS_MAX: u16 = 8;

/// Names a receive buffer that is lent to the worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BufferId(pub u16);

/// What has happened.
#[derive(Debug)]
pub(crate) enum Event {
    /// Another thread has left a message.
    Woken,
    /// A client has connected.
    Accepted { listener: u32, result: io::Result<std::os::fd::OwnedFd> },
    /// Bytes have come, `len` of them at the start of the buffer; none if the peer has closed. If
    /// there is `more`, the next ones are reported without being asked for.
    Received { conn: u32, buffer: Option<BufferId>, result: io::Result<usize>, more: bool },
    /// So many bytes have been received into a message; none if the peer has closed.
    Filled { conn: u32, result: io::Result<usize> },
    /// A message has been sent, as many bytes of it as the result says.
    Sent { conn: u32, result: io::Result<usize> },
    /// A file operation has ended.
    File { tag: u32, result: io::Result<usize> },
}

/// A file operation. Memory that it points to stays valid until its event.
#[derive(Clone, Copy, Debug)]
pub(crate) enum FileOp {
    /// Scatter into `iovecs`.
    Read { fd: RawFd, iovecs: *const libc::iovec, count: u32, offset: u64 },
    /// Gather from `iovecs`.
    Write { fd: RawFd, iovecs: *const libc::iovec, count: u32, offset: u64, durable: bool },
    /// Data to stable storage.
    Sync { fd: RawFd },
}

/// See the module's description. Descriptors stay open, and memory stays valid, until the event.
pub(crate) trait Reactor: Sockets + Sized {
    /// The name shown to people.
    const NAME: &'static str;

    /// A reactor that reports [`Event::Woken`] when `wake`, an event counter, is not zero. To be
    /// called on the thread that will use it.
    fn new(wake: RawFd) -> io::Result<Self>;

    /// Starts a file operation, unless this reactor leaves files to others.
    fn file(&mut self, tag: u32, op: FileOp) -> bool;

    /// Whether [`Reactor::file`] does anything.
    const FILES: bool;

    /// Submits what was asked for and waits until something has happened or the time is up. The
    /// time of a later call may count only when that of an earlier one is up.
    fn wait(&mut self, timeout: Duration) -> io::Result<()>;

    /// The next event, if there is one.
    fn event(&mut self) -> Option<Event>;

    /// The bytes of a lent buffer.
    fn buffer(&self, buffer: BufferId, len: usize) -> &[u8];

    /// Gives a buffer back.
    fn recycle(&mut self, buffer: BufferId);
}

#[cfg(test)]
mod tests;
