//! The interface to the kernel: asynchronous I/O on sockets and files.
//!
//! A worker requests operations of its reactor: accept connections, receive bytes, send replies,
//! read and write files. It then waits once for events, and handles them. Front ends use the
//! operations of [`Sockets`] only. There are two reactors: io_uring (`uring`), where one system
//! call submits all operations and waits for events, and epoll (`epoll`), for machines that forbid
//! io_uring. A front end sends a reply that fits into the socket's buffer directly, without a
//! reactor. Most tests of the suite run on both.

mod epoll;
mod uring;

pub(crate) use epoll::EpollReactor;
pub(crate) use uring::UringReactor;

use forebay_frontend::{DriverCommand, EventCounters, Sockets};
use std::io;
use std::os::fd::RawFd;
use std::time::{Duration, Instant};

/// The size of a receive buffer in bytes, and the most that one system call receives.
pub(crate) const RECEIVE_BYTES: usize = 64 << 10;

/// The maximum number of receive buffers per worker; io_uring uses fewer.
pub(crate) const RECEIVE_BUFFERS_MAX: u16 = 8;

/// Identifies a receive buffer that is lent to the worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BufferId(pub u16);

/// An event. The result of a transfer is the number of bytes.
#[derive(Debug)]
pub(crate) enum Event {
    /// Another thread has posted a message.
    Woken,
    /// A client has connected.
    Accepted { listener: u32, result: io::Result<std::os::fd::OwnedFd> },
    /// Bytes were received into the start of the buffer; none at the end of the stream. With
    /// `more`, the next bytes are reported without another request.
    Received { conn: u32, buffer: Option<BufferId>, result: io::Result<usize>, more: bool },
    /// Bytes were received into the memory of a message; none at the end of the stream.
    Filled { conn: u32, result: io::Result<usize> },
    /// A message was sent.
    Sent { conn: u32, result: io::Result<usize> },
    /// A file operation has ended.
    File { tag: u32, result: io::Result<usize> },
    /// A command to a driver has ended.
    Command { key: u32, result: io::Result<usize> },
    /// A counter of another process has advanced.
    Counted { key: u32 },
    /// The watch of a counter has ended.
    CounterEnded { key: u32 },
}

/// A file operation. The caller keeps the memory that it points to valid until its event.
#[derive(Clone, Copy, Debug)]
pub(crate) enum FileOp {
    /// Reads into `iovecs`.
    Read { fd: RawFd, iovecs: *const libc::iovec, count: u32, offset: u64 },
    /// Writes from `iovecs`; with `durable`, to stable storage.
    Write { fd: RawFd, iovecs: *const libc::iovec, count: u32, offset: u64, durable: bool },
    /// Flushes the file's data to stable storage.
    Sync { fd: RawFd },
}

/// A reactor. The caller keeps descriptors open, and memory valid, until the event of each
/// operation.
pub(crate) trait Reactor: Sockets + EventCounters + Sized {
    /// The name of the I/O engine.
    const NAME: &'static str;

    /// Whether [`Reactor::file`] is supported.
    const FILES: bool;

    /// Creates a reactor that reports [`Event::Woken`] when the eventfd `wake` is not zero. Must be
    /// called on the thread that will use it.
    fn new(wake: RawFd) -> io::Result<Self>;

    /// Starts a file operation. Returns false if this reactor supports none.
    fn file(&mut self, tag: u32, op: FileOp) -> bool;

    /// Starts a command to a kernel driver. Returns false if this reactor has none.
    fn command(&mut self, command: DriverCommand) -> bool;

    /// Submits the requested operations, and waits for an event or a timeout. If the reactor keeps
    /// a timer armed across calls, an earlier timeout that has not expired applies instead.
    fn wait(&mut self, timeout: Duration) -> io::Result<()>;

    /// Submits the requested operations, and looks for an event for this long, without sleeping.
    /// [`Reactor::wait`] takes what there is. Does nothing where each look costs a system call.
    fn look(&mut self, _time: Duration) {}

    /// Makes the next [`Reactor::wait`] end at this time at the latest, within about a millisecond.
    fn wake_by(&mut self, at: Instant);

    /// Whether the kernel counts a wait of this reactor, or of the threads that do its file I/O, as
    /// pressure on the disks.
    fn counts_as_io_pressure(&self) -> bool;

    /// Takes the next event.
    fn event(&mut self) -> Option<Event>;

    /// The received bytes of a lent buffer.
    fn buffer(&self, buffer: BufferId, len: usize) -> &[u8];

    /// Returns a lent buffer.
    fn recycle(&mut self, buffer: BufferId);
}

/// Resets a counter of another process. Returns false if it cannot be read. Never waits, whatever
/// the other process does to the counter meanwhile.
fn reset_counter(fd: RawFd) -> bool {
    let mut count = [0; size_of::<u64>()];
    let iovec = libc::iovec { iov_base: count.as_mut_ptr().cast(), iov_len: count.len() };
    // SAFETY: the memory is valid for the call.
    let read = unsafe { libc::preadv2(fd, &raw const iovec, 1, -1, libc::RWF_NOWAIT) };
    // Another process may have read it first.
    read >= 0 || io::Error::last_os_error().kind() == io::ErrorKind::WouldBlock
}

#[cfg(test)]
mod tests;
