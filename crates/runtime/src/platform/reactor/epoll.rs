//! The reactor over epoll, for machines that forbid io_uring. Each socket operation is tried first,
//! and the socket is watched only if the operation would block. File I/O is done by threads of the
//! backends.

use super::uring::drain_counter;
use super::{BufferId, Event, FileOp, RECEIVE_BUFFERS_MAX, RECEIVE_BYTES, Reactor, reset_counter};
use forebay_frontend::{DriverCommand, EventCounters, Sockets, receive_into};
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use std::collections::{HashMap, VecDeque};
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd, RawFd};
use std::time::{Duration, Instant};

const BUFFERS: u16 = RECEIVE_BUFFERS_MAX;
const EVENTS: usize = 256;
const WAKE_DATA: u64 = u64::MAX;
const LISTENER_BIT: u64 = 1 << 40;
const COUNTER_BIT: u64 = 1 << 41;
/// Lists of vectors kept for the next sends. More are in use only while that many clients fetch
/// their replies slowly.
const SPARE_LISTS_MAX: usize = 16;

/// The requested operations of a connection.
#[derive(Default)]
struct Requested {
    conn: u32,
    receive: bool,
    fill: Option<*mut libc::msghdr>,
    send: Option<Sending>,
    /// The socket was added to the epoll set.
    watched: bool,
}

/// A message that is being sent.
struct Sending {
    /// Its vectors; those from `next` on cover the bytes that are not sent yet.
    iovecs: Vec<libc::iovec>,
    next: usize,
    /// Bytes sent.
    sent: usize,
}

/// The reactor over epoll.
pub(crate) struct EpollReactor {
    epoll: OwnedFd,
    wake: RawFd,
    memory: Box<[u8]>,
    free: Vec<BufferId>,
    requested: HashMap<RawFd, Requested>,
    /// Connections whose receive is tried before the next wait.
    eager: Vec<RawFd>,
    /// Connections whose receive found no free buffer.
    starved: Vec<RawFd>,
    listeners: HashMap<u32, RawFd>,
    /// The watched counters by their keys.
    counters: HashMap<u32, RawFd>,
    events: VecDeque<Event>,
    /// The kernel's reports of one wait.
    ready: Vec<epoll::Event>,
    /// See [`Reactor::wake_by`].
    wake_by: Option<Instant>,
    /// Empty lists of vectors, for the next sends.
    spare: Vec<Vec<libc::iovec>>,
}

impl Sockets for EpollReactor {
    fn accept(&mut self, listener: u32, fd: RawFd) {
        let data = EventData::new_u64(LISTENER_BIT | u64::from(listener));
        let added = epoll::add(&self.epoll, borrow(fd), data, EventFlags::IN);
        match added {
            Ok(()) => {
                self.listeners.insert(listener, fd);
            }
            Err(error) => {
                let result = Err(error.into());
                self.events.push_back(Event::Accepted { listener, result });
            }
        }
    }

    fn stop_accepting(&mut self, listener: u32, fd: RawFd) {
        if self.listeners.remove(&listener).is_some() {
            let _ = epoll::delete(&self.epoll, borrow(fd));
        }
    }

    fn receive(&mut self, conn: u32, fd: RawFd) {
        let requested = self.requested.entry(fd).or_default();
        requested.conn = conn;
        debug_assert!(!requested.receive, "a connection has one receive at a time");
        requested.receive = true;
        self.eager.push(fd);
    }

    fn pause(&mut self, _conn: u32) {
        // A receive reports one event, so there is nothing to cancel.
    }

    fn fill(&mut self, conn: u32, fd: RawFd, message: *mut libc::msghdr) {
        let requested = self.requested.entry(fd).or_default();
        requested.conn = conn;
        assert!(requested.fill.is_none(), "a connection fills one message at a time");
        requested.fill = Some(message);
        self.try_fill(fd);
    }

    fn stop_input(&mut self, conn: u32, fd: RawFd) {
        let Some(requested) = self.requested.get_mut(&fd) else { return };
        if std::mem::take(&mut requested.receive) {
            let (buffer, result) = (None, cancelled());
            self.events.push_back(Event::Received { conn, buffer, result, more: false });
        }
        if requested.fill.take().is_some() {
            self.events.push_back(Event::Filled { conn, result: cancelled() });
        }
        self.starved.retain(|&other| other != fd);
    }

    fn send(&mut self, conn: u32, fd: RawFd, message: *const libc::msghdr) {
        let mut iovecs = self.spare.pop().unwrap_or_default();
        // SAFETY: the caller keeps the message and what it points to until the event.
        iovecs.extend_from_slice(unsafe {
            std::slice::from_raw_parts((*message).msg_iov, (*message).msg_iovlen as _)
        });
        let requested = self.requested.entry(fd).or_default();
        requested.conn = conn;
        assert!(requested.send.is_none(), "a connection sends one message at a time");
        requested.send = Some(Sending { iovecs, next: 0, sent: 0 });
        self.try_send(fd);
    }

    fn forget(&mut self, fd: RawFd) {
        if self.requested.remove(&fd).is_some_and(|requested| requested.watched) {
            let _ = epoll::delete(&self.epoll, borrow(fd));
        }
        self.eager.retain(|&other| other != fd);
        self.starved.retain(|&other| other != fd);
    }
}

impl EventCounters for EpollReactor {
    fn watch_counter(&mut self, key: u32, fd: RawFd) {
        let data = EventData::new_u64(COUNTER_BIT | u64::from(key));
        match epoll::add(&self.epoll, borrow(fd), data, EventFlags::IN) {
            Ok(()) => {
                self.counters.insert(key, fd);
            }
            Err(_) => self.events.push_back(Event::CounterEnded { key }),
        }
    }

    fn unwatch_counter(&mut self, key: u32) {
        if let Some(fd) = self.counters.remove(&key) {
            let _ = epoll::delete(&self.epoll, borrow(fd));
            self.events.push_back(Event::CounterEnded { key });
        }
    }
}

impl Reactor for EpollReactor {
    const NAME: &'static str = "epoll";
    const FILES: bool = false;

    fn new(wake: RawFd) -> io::Result<Self> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        let data = EventData::new_u64(WAKE_DATA);
        epoll::add(&epoll, borrow(wake), data, EventFlags::IN)?;
        Ok(Self {
            epoll,
            wake,
            memory: vec![0; RECEIVE_BYTES * usize::from(BUFFERS)].into_boxed_slice(),
            free: (0..BUFFERS).map(BufferId).collect(),
            requested: HashMap::new(),
            eager: Vec::new(),
            starved: Vec::new(),
            listeners: HashMap::new(),
            counters: HashMap::new(),
            events: VecDeque::new(),
            ready: Vec::with_capacity(EVENTS),
            wake_by: None,
            spare: Vec::new(),
        })
    }

    fn file(&mut self, _tag: u32, _op: FileOp) -> bool {
        false
    }

    fn command(&mut self, _command: DriverCommand) -> bool {
        false
    }

    fn counts_as_io_pressure(&self) -> bool {
        true
    }

    fn wake_by(&mut self, at: Instant) {
        self.wake_by = Some(at);
    }

    fn wait(&mut self, timeout: Duration) -> io::Result<()> {
        let timeout = match self.wake_by.take() {
            None => timeout,
            Some(at) => timeout.min(at.saturating_duration_since(Instant::now())),
        };
        for at in 0..self.eager.len() {
            self.try_receive(self.eager[at]);
        }
        self.eager.clear();
        let timeout = if self.events.is_empty() { timeout } else { Duration::ZERO };
        let timeout = rustix::time::Timespec {
            tv_sec: timeout.as_secs() as i64,
            tv_nsec: i64::from(timeout.subsec_nanos()),
        };
        let reports = rustix::buffer::spare_capacity(&mut self.ready);
        match epoll::wait(&self.epoll, reports, Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let mut ready = std::mem::take(&mut self.ready);
        for event in ready.drain(..) {
            let data = event.data.u64();
            if data == WAKE_DATA {
                drain_counter(self.wake);
                self.events.push_back(Event::Woken);
            } else if data & LISTENER_BIT != 0 {
                self.accept_all(data as u32);
            } else if data & COUNTER_BIT != 0 {
                self.counted(data as u32);
            } else {
                let fd = data as RawFd;
                self.try_send(fd);
                self.try_receive(fd);
                self.try_fill(fd);
                self.watch(fd);
            }
        }
        self.ready = ready;
        Ok(())
    }

    fn event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    fn buffer(&self, buffer: BufferId, len: usize) -> &[u8] {
        assert!(len <= RECEIVE_BYTES, "the next bytes are of another connection");
        debug_assert!(!self.free.contains(&buffer), "the buffer is lent");
        let start = usize::from(buffer.0) * RECEIVE_BYTES;
        &self.memory[start..start + len]
    }

    fn recycle(&mut self, buffer: BufferId) {
        debug_assert!(!self.free.contains(&buffer), "a buffer is returned once");
        self.free.push(buffer);
        self.eager.append(&mut self.starved);
    }
}

impl EpollReactor {
    fn counted(&mut self, key: u32) {
        let Some(&fd) = self.counters.get(&key) else { return };
        match reset_counter(fd) {
            true => self.events.push_back(Event::Counted { key }),
            false => self.unwatch_counter(key),
        }
    }

    fn accept_all(&mut self, listener: u32) {
        let Some(&fd) = self.listeners.get(&listener) else { return };
        loop {
            let flags = rustix::net::SocketFlags::CLOEXEC;
            match rustix::net::accept_with(borrow(fd), flags) {
                Ok(fd) => self.events.push_back(Event::Accepted { listener, result: Ok(fd) }),
                Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => return,
                Err(error) => {
                    let result = Err(error.into());
                    self.events.push_back(Event::Accepted { listener, result });
                    // Otherwise the kernel would report the waiting client in each wait.
                    self.stop_accepting(listener, fd);
                    return;
                }
            }
        }
    }

    fn try_receive(&mut self, fd: RawFd) {
        let Some(requested) = self.requested.get_mut(&fd).filter(|requested| requested.receive)
        else {
            return;
        };
        let Some(buffer) = self.free.pop() else {
            self.starved.push(fd);
            return;
        };
        let start = usize::from(buffer.0) * RECEIVE_BYTES;
        let memory = &mut self.memory[start..start + RECEIVE_BYTES];
        let flags = rustix::net::RecvFlags::DONTWAIT;
        match rustix::net::recv(borrow(fd), memory, flags) {
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => {
                self.free.push(buffer);
                self.watch(fd);
            }
            result => {
                requested.receive = false;
                let result = result.map(|(len, _)| len).map_err(Into::into);
                let conn = requested.conn;
                self.events.push_back(Event::Received {
                    conn,
                    buffer: Some(buffer),
                    result,
                    more: false,
                });
            }
        }
    }

    fn try_fill(&mut self, fd: RawFd) {
        let Some(requested) = self.requested.get_mut(&fd) else { return };
        let Some(message) = requested.fill else { return };
        // SAFETY: the caller of `fill` keeps the message and its memory until the event.
        let result = unsafe { receive_into(fd, message) };
        if matches!(&result, Err(error) if error.kind() == io::ErrorKind::WouldBlock) {
            self.watch(fd);
            return;
        }
        requested.fill = None;
        let conn = requested.conn;
        self.events.push_back(Event::Filled { conn, result });
    }

    fn try_send(&mut self, fd: RawFd) {
        let Some(requested) = self.requested.get_mut(&fd) else { return };
        let Some(sending) = &mut requested.send else { return };
        let result = loop {
            if sending.next == sending.iovecs.len() {
                break Ok(sending.sent);
            }
            // SAFETY: an all-zero message header is an empty one.
            let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
            message.msg_iov = sending.iovecs[sending.next..].as_mut_ptr();
            // The type differs between C libraries.
            message.msg_iovlen = (sending.iovecs.len() - sending.next) as _;
            let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
            // SAFETY: the caller of `send` keeps the memory of the vectors until the event.
            let sent = unsafe { libc::sendmsg(fd, &raw const message, flags) };
            if sent >= 0 {
                sending.advance(sent as usize);
                continue;
            }
            let error = io::Error::last_os_error();
            match error.kind() {
                io::ErrorKind::Interrupted => {}
                io::ErrorKind::WouldBlock => {
                    self.watch(fd);
                    return;
                }
                _ => break Err(error),
            }
        };
        let conn = requested.conn;
        if let Some(Sending { mut iovecs, .. }) = requested.send.take()
            && self.spare.len() < SPARE_LISTS_MAX
        {
            iovecs.clear();
            self.spare.push(iovecs);
        }
        self.events.push_back(Event::Sent { conn, result });
    }

    /// Watches a connection for the operations that would block.
    fn watch(&mut self, fd: RawFd) {
        let Some(requested) = self.requested.get_mut(&fd) else { return };
        let mut flags = EventFlags::ONESHOT;
        flags.set(EventFlags::IN, requested.receive || requested.fill.is_some());
        flags.set(EventFlags::OUT, requested.send.is_some());
        if !flags.intersects(EventFlags::IN | EventFlags::OUT) {
            return;
        }
        let data = EventData::new_u64(fd as u64);
        let result = if requested.watched {
            epoll::modify(&self.epoll, borrow(fd), data, flags)
        } else {
            epoll::add(&self.epoll, borrow(fd), data, flags)
        };
        requested.watched = true;
        if let Err(error) = result {
            let conn = requested.conn;
            if std::mem::take(&mut requested.receive) {
                let (buffer, result) = (None, Err(error.into()));
                self.events.push_back(Event::Received { conn, buffer, result, more: false });
            }
            if requested.fill.take().is_some() {
                self.events.push_back(Event::Filled { conn, result: Err(error.into()) });
            }
            if requested.send.take().is_some() {
                self.events.push_back(Event::Sent { conn, result: Err(error.into()) });
            }
        }
    }
}

impl Sending {
    fn advance(&mut self, mut sent: usize) {
        self.sent += sent;
        while sent > 0 {
            let iovec = &mut self.iovecs[self.next];
            if sent < iovec.iov_len {
                iovec.iov_len -= sent;
                // SAFETY: `sent` is less than the length of the vector's memory.
                iovec.iov_base = unsafe { iovec.iov_base.cast::<u8>().add(sent) }.cast();
                return;
            }
            sent -= iovec.iov_len;
            self.next += 1;
        }
        while self.iovecs.get(self.next).is_some_and(|iovec| iovec.iov_len == 0) {
            self.next += 1;
        }
    }
}

fn cancelled() -> io::Result<usize> {
    Err(io::Error::from_raw_os_error(libc::ECANCELED))
}

fn borrow<'a>(fd: RawFd) -> BorrowedFd<'a> {
    // SAFETY: callers keep descriptors open until the event, see `Reactor`.
    unsafe { BorrowedFd::borrow_raw(fd) }
}
