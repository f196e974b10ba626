//! The reactor over io_uring: one system call per turn submits the requested operations and waits
//! for events.

use super::{BufferId, Event, FileOp, RECEIVE_BYTES, Reactor, reset_counter};
use forebay_frontend::{DriverCommand, EventCounters, Sockets};
use io_uring::types::{BufRingEntry, Fd, Timespec};
use io_uring::{EnterFlags, IoUring, cqueue, opcode, squeue};
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

const ENTRIES: u32 = 1024;
/// Receive buffers. The kernel uses them in turn, so with few of them the next one is still in the
/// processor's cache: with eight, a batch of 4 KiB writes takes a tenth more time.
const BUFFERS: u16 = 4;
const BUFFER_GROUP: u16 = 1;
/// Pauses of the processor between two looks at the time.
const LOOKS: u32 = 4;
/// A receive without bytes for this long is renewed; see [`Receiver`].
const RENEW_AFTER: Duration = Duration::from_millis(500);

/// The operation of an entry, in the upper half of its user data.
const WAKE: u64 = 0;
const ACCEPT: u64 = 1;
const RECEIVE: u64 = 2;
const SEND: u64 = 3;
const FILE: u64 = 4;
const CANCEL: u64 = 5;
const TIMER: u64 = 6;
const FILL: u64 = 7;
const COMMAND: u64 = 8;
const COUNTER: u64 = 9;
const ALARM: u64 = 10;

const fn user_data(kind: u64, key: u32) -> u64 {
    kind << 32 | key as u64
}

/// The reactor over io_uring.
pub(crate) struct UringReactor {
    ring: IoUring,
    buffers: BufferRing,
    events: VecDeque<Event>,
    wake: RawFd,
    timer: Box<Timespec>,
    timer_armed: bool,
    /// The time of [`Reactor::wake_by`], and when it is armed, its end.
    alarm: Box<Timespec>,
    alarm_at: Option<Instant>,
    /// Receives that found no buffer, oldest first. Before each wait, as many are repeated as there
    /// are buffers. Repeating one per returned buffer would not suffice: a receive that reports the
    /// end of its stream takes no buffer, so none would be returned for the next one.
    starved: VecDeque<(u32, RawFd)>,
    /// The descriptors of listeners by their numbers, to accept again.
    listeners: Vec<RawFd>,
    /// The connections by their numbers.
    connections: Vec<Receiver>,
    /// The watched counters by their keys; -1 where there is none, or its watch ends.
    counters: Vec<RawFd>,
    /// The time of the last search for silent receives.
    renewed: Instant,
}

/// The multishot receive of a connection.
///
/// Linux may fail to report the end of a stream that follows immediately after bytes: the receive
/// takes the bytes, and the kernel counts the event of the end as handled with them (liburing issue
/// 1549). No later event wakes the receive. So after each silence of [`RENEW_AFTER`] that follows
/// bytes, it is cancelled and repeated once. Even with the fix in Linux 7.0 and 6.18, one in 30,000
/// ends is not reported if the end races with the start of a receive on a Unix socket. Bytes are
/// always reported.
#[derive(Clone, Copy)]
struct Receiver {
    fd: RawFd,
    heard: Heard,
    /// The receive is being cancelled and will be repeated; the cancellation is not reported.
    renewing: bool,
    /// The receive is being cancelled, and is not repeated for lack of a buffer.
    stopping: bool,
}

/// When an armed receive last reported bytes.
#[derive(Clone, Copy, PartialEq)]
enum Heard {
    /// Never since it began or was renewed.
    Never,
    /// After the last search for silent receives.
    Recently,
    /// Before the last search for silent receives.
    Before,
}

impl Receiver {
    const NONE: Self = Self { fd: -1, heard: Heard::Never, renewing: false, stopping: false };
}

impl Sockets for UringReactor {
    fn accept(&mut self, listener: u32, fd: RawFd) {
        let entry = opcode::AcceptMulti::new(Fd(fd)).flags(libc::SOCK_CLOEXEC).build();
        self.push(entry.user_data(user_data(ACCEPT, listener)));
        *place(&mut self.listeners, listener, -1) = fd;
    }

    fn stop_accepting(&mut self, listener: u32, _fd: RawFd) {
        let entry = opcode::AsyncCancel::new(user_data(ACCEPT, listener)).build();
        self.push(entry.user_data(user_data(CANCEL, listener)));
        if let Some(fd) = self.listeners.get_mut(listener as usize) {
            *fd = -1;
        }
    }

    fn receive(&mut self, conn: u32, fd: RawFd) {
        // A multishot receive stays armed until it finds no buffer or is cancelled, which saves an
        // entry per receive.
        let entry = opcode::RecvMulti::new(Fd(fd), BUFFER_GROUP).build();
        self.push(entry.user_data(user_data(RECEIVE, conn)));
        *place(&mut self.connections, conn, Receiver::NONE) = Receiver { fd, ..Receiver::NONE };
    }

    fn pause(&mut self, conn: u32) {
        self.connections[conn as usize].renewing = false;
        self.cancel_receive(conn);
    }

    fn fill(&mut self, conn: u32, fd: RawFd, message: *mut libc::msghdr) {
        let entry = opcode::RecvMsg::new(Fd(fd), message).build();
        self.push(entry.user_data(user_data(FILL, conn)));
    }

    fn stop_input(&mut self, conn: u32, fd: RawFd) {
        let receiver = place(&mut self.connections, conn, Receiver::NONE);
        (receiver.renewing, receiver.stopping) = (false, true);
        let waiting = self.starved.len();
        self.starved.retain(|&(_, other)| other != fd);
        if self.starved.len() < waiting {
            self.receive_cancelled(conn);
        }
        for kind in [RECEIVE, FILL] {
            let entry = opcode::AsyncCancel::new(user_data(kind, conn)).build();
            self.push(entry.user_data(user_data(CANCEL, conn)));
        }
    }

    fn send(&mut self, conn: u32, fd: RawFd, message: *const libc::msghdr) {
        // With WAITALL, the kernel completes the send when the whole message is sent or the
        // connection has ended, so a message takes one event however slowly the client reads.
        let flags = (libc::MSG_NOSIGNAL | libc::MSG_WAITALL) as u32;
        let entry = opcode::SendMsg::new(Fd(fd), message).flags(flags).build();
        self.push(entry.user_data(user_data(SEND, conn)));
    }

    fn forget(&mut self, fd: RawFd) {
        // The descriptor may be reused for another connection.
        self.starved.retain(|&(_, other)| other != fd);
        for receiver in self.connections.iter_mut().filter(|receiver| receiver.fd == fd) {
            *receiver = Receiver::NONE;
        }
    }
}

impl EventCounters for UringReactor {
    fn watch_counter(&mut self, key: u32, fd: RawFd) {
        let entry = opcode::PollAdd::new(Fd(fd), libc::POLLIN as u32).build();
        self.push(entry.user_data(user_data(COUNTER, key)));
        *place(&mut self.counters, key, -1) = fd;
    }

    fn unwatch_counter(&mut self, key: u32) {
        *place(&mut self.counters, key, -1) = -1;
        let entry = opcode::AsyncCancel::new(user_data(COUNTER, key)).build();
        self.push(entry.user_data(user_data(CANCEL, key)));
    }
}

impl Reactor for UringReactor {
    const NAME: &'static str = "io_uring";
    const FILES: bool = true;

    fn new(wake: RawFd) -> io::Result<Self> {
        let mut builder = IoUring::builder();
        builder.setup_clamp().setup_cqsize(8 * ENTRIES).setup_submit_all();
        // With DEFER_TASKRUN, the kernel completes I/O while the worker waits, instead of
        // interrupting it.
        let mut fast = builder.clone();
        fast.setup_single_issuer().setup_defer_taskrun().setup_taskrun_flag();
        let ring = match fast.build(ENTRIES) {
            Ok(ring) => ring,
            Err(_) => builder.setup_coop_taskrun().setup_taskrun_flag().build(ENTRIES)?,
        };
        // Saves the lookup of the ring's descriptor in each call. Older kernels do not support
        // this.
        let _ = ring.submitter().register_ring_fd();
        let buffers = BufferRing::new(&ring)?;
        let mut reactor = Self {
            ring,
            buffers,
            events: VecDeque::new(),
            wake,
            timer: Box::new(Timespec::new()),
            timer_armed: false,
            alarm: Box::new(Timespec::new()),
            alarm_at: None,
            starved: VecDeque::new(),
            listeners: Vec::new(),
            connections: Vec::new(),
            counters: Vec::new(),
            renewed: Instant::now(),
        };
        reactor.probe_receive()?;
        reactor.watch_wake();
        Ok(reactor)
    }

    fn file(&mut self, tag: u32, op: FileOp) -> bool {
        let entry = match op {
            FileOp::Read { fd, iovecs, count, offset } => {
                opcode::Readv::new(Fd(fd), iovecs, count).offset(offset).build()
            }
            FileOp::Write { fd, iovecs, count, offset, durable } => {
                let flags = if durable { libc::RWF_DSYNC } else { 0 };
                opcode::Writev::new(Fd(fd), iovecs, count).offset(offset).rw_flags(flags).build()
            }
            FileOp::Sync { fd } => {
                opcode::Fsync::new(Fd(fd)).flags(io_uring::types::FsyncFlags::DATASYNC).build()
            }
        };
        self.push(entry.user_data(user_data(FILE, tag)));
        true
    }

    fn command(&mut self, command: DriverCommand) -> bool {
        let DriverCommand { key, fd, op, argument } = command;
        let entry = opcode::UringCmd16::new(Fd(fd), op).cmd(argument).build();
        self.push(entry.user_data(user_data(COMMAND, key)));
        true
    }

    fn counts_as_io_pressure(&self) -> bool {
        !self.ring.params().is_feature_no_iowait()
    }

    fn wake_by(&mut self, at: Instant) {
        if self.alarm_at.is_some_and(|armed| armed <= at) {
            return;
        }
        // A later one that is armed already ends a wait for nothing.
        self.alarm_at = Some(at);
        *self.alarm = Timespec::from(at.saturating_duration_since(Instant::now()));
        let entry = opcode::Timeout::new(&raw const *self.alarm).build();
        self.push(entry.user_data(user_data(ALARM, 0)));
    }

    fn look(&mut self, time: Duration) {
        let started = Instant::now();
        if !self.ring.submission().is_empty() {
            // What cannot be submitted now is submitted by the wait.
            let _ = self.ring.submit();
        }
        while self.events.is_empty() && !self.has_completed() && started.elapsed() < time {
            for _ in 0..LOOKS {
                std::hint::spin_loop();
            }
        }
    }

    fn wait(&mut self, timeout: Duration) -> io::Result<()> {
        self.repeat_starved();
        if !self.timer_armed {
            // One timer serves many turns: arming one for each wait would cost more than the wait.
            *self.timer = Timespec::from(timeout);
            let entry = opcode::Timeout::new(&raw const *self.timer).build();
            self.push(entry.user_data(user_data(TIMER, 0)));
            self.timer_armed = true;
        }
        let pending = usize::from(self.events.is_empty());
        match self.submit_and_wait(pending) {
            Ok(_) => {}
            Err(error) => match error.raw_os_error() {
                Some(libc::ETIME | libc::EINTR | libc::EBUSY | libc::EAGAIN) => {}
                _ => return Err(error),
            },
        }
        self.collect();
        Ok(())
    }

    fn event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    fn buffer(&self, buffer: BufferId, len: usize) -> &[u8] {
        self.buffers.get(buffer, len)
    }

    fn recycle(&mut self, buffer: BufferId) {
        self.buffers.put(buffer);
    }
}

impl UringReactor {
    /// Whether the wait would end at once. No system call: with DEFER_TASKRUN, the kernel sets a
    /// flag if it has work that it does in the next call.
    fn has_completed(&mut self) -> bool {
        !self.ring.completion().is_empty() || self.ring.submission().taskrun()
    }

    fn push(&mut self, entry: squeue::Entry) {
        loop {
            // SAFETY: the memory of the entry is valid until its event. Callers ensure that for
            // messages and files, see `Reactor`; this reactor owns buffers, counters and timer.
            if unsafe { self.ring.submission().push(&entry) }.is_ok() {
                return;
            }
            // The queue is full. If the kernel is busy, the next iteration tries again.
            let _ = self.ring.submit();
        }
    }

    /// Submits the pending entries, and waits for this many events. The kernel would count the wait
    /// as one for I/O, because receives are armed: an idle server would look like an overloaded
    /// disk, in the pressure figures and in the statistics of the processors. Linux 6.15 and later
    /// have a flag that prevents this.
    fn submit_and_wait(&mut self, events: usize) -> io::Result<usize> {
        if events == 0 || self.counts_as_io_pressure() {
            return self.ring.submit_and_wait(events);
        }
        let entries = self.ring.submission().len();
        let flags = EnterFlags::GETEVENTS | EnterFlags::NO_IOWAIT;
        // SAFETY: the memory of the entries is valid until their events, see `push`; there is no
        // argument.
        unsafe {
            self.ring.submitter().enter::<libc::sigset_t>(
                entries as u32,
                events as u32,
                flags.bits(),
                None,
            )
        }
    }

    /// Probes for multishot receives, a feature of Linux 6.0, with one byte over a socket pair. A
    /// probe is more reliable than the version, because distributions backport features.
    fn probe_receive(&mut self) -> io::Result<()> {
        use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, socketpair};
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        self.receive(0, ours.as_raw_fd());
        rustix::net::send(&theirs, &[1], SendFlags::empty())?;
        drop(theirs);
        let mut more = true;
        while more {
            self.ring.submit_and_wait(1)?;
            self.collect();
            while let Some(event) = self.events.pop_front() {
                let Event::Received { buffer, result, more: is_armed, .. } = event else {
                    continue;
                };
                let received = result?;
                if let Some(buffer) = buffer {
                    self.recycle(buffer);
                }
                if received == 1 && !is_armed {
                    return Err(io::ErrorKind::Unsupported.into());
                }
                more = is_armed;
            }
        }
        Ok(())
    }

    fn watch_wake(&mut self) {
        let entry = opcode::PollAdd::new(Fd(self.wake), libc::POLLIN as u32).build();
        self.push(entry.user_data(user_data(WAKE, 0)));
    }

    /// Repeats receives that found no buffer, until one of them reports an event or all are
    /// submitted. A receive without pending bytes takes no buffer and stays armed, so the buffer is
    /// free for the next one.
    fn repeat_starved(&mut self) {
        // Each connection once: completions of other receives may still hold buffers.
        for _ in 0..self.starved.len() {
            let free = u32::from(BUFFERS) - self.buffers.lent;
            for _ in 0..free {
                let Some((conn, fd)) = self.starved.pop_front() else { return };
                self.receive(conn, fd);
            }
            if self.starved.is_empty() || !self.events.is_empty() {
                // The wait that follows submits the entries.
                return;
            }
            let _ = self.ring.submit();
            self.collect();
        }
    }

    fn collect(&mut self) {
        loop {
            let Some(entry) = self.ring.completion().next() else { return };
            let key = entry.user_data() as u32;
            let result = match entry.result() {
                result if result < 0 => Err(io::Error::from_raw_os_error(-result)),
                result => Ok(result as usize),
            };
            match entry.user_data() >> 32 {
                WAKE => {
                    drain_counter(self.wake);
                    self.watch_wake();
                    self.events.push_back(Event::Woken);
                }
                ACCEPT => self.accepted(key, result, entry.flags()),
                RECEIVE => self.received(key, result, entry.flags()),
                FILL => self.events.push_back(Event::Filled { conn: key, result }),
                SEND => self.events.push_back(Event::Sent { conn: key, result }),
                FILE => self.events.push_back(Event::File { tag: key, result }),
                COUNTER => self.counted(key, result.is_ok()),
                COMMAND => self.events.push_back(Event::Command { key, result }),
                TIMER => {
                    self.timer_armed = false;
                    self.renew_silent();
                }
                ALARM => self.alarm_at = None,
                _ => {}
            }
        }
    }

    fn counted(&mut self, key: u32, is_ready: bool) {
        let fd = self.counters[key as usize];
        if fd >= 0 && is_ready && reset_counter(fd) {
            self.watch_counter(key, fd);
            self.events.push_back(Event::Counted { key });
        } else {
            self.events.push_back(Event::CounterEnded { key });
        }
    }

    fn accepted(&mut self, listener: u32, result: io::Result<usize>, flags: u32) {
        let fd = self.listeners[listener as usize];
        if !cqueue::more(flags) && fd >= 0 && result.is_ok() {
            self.accept(listener, fd);
        }
        let result = result.map(|fd| {
            // SAFETY: the kernel has created this descriptor for the accepted connection.
            unsafe { OwnedFd::from_raw_fd(fd as RawFd) }
        });
        self.events.push_back(Event::Accepted { listener, result });
    }

    fn received(&mut self, conn: u32, result: io::Result<usize>, flags: u32) {
        let buffer = cqueue::buffer_select(flags).map(BufferId);
        let more = cqueue::more(flags);
        let receiver = &mut self.connections[conn as usize];
        let fd = receiver.fd;
        receiver.heard = if more { Heard::Recently } else { Heard::Never };
        let is_renewed = !more && std::mem::take(&mut receiver.renewing);
        let stopping = receiver.stopping;
        match result.as_ref().err().and_then(io::Error::raw_os_error) {
            Some(libc::ENOBUFS) if stopping => {
                self.receive_cancelled(conn);
                return;
            }
            Some(libc::ENOBUFS) => {
                self.starved.push_back((conn, fd));
                return;
            }
            Some(libc::ECANCELED) if is_renewed => {
                self.receive(conn, fd);
                return;
            }
            _ => {}
        }
        self.buffers.lent += u32::from(buffer.is_some());
        assert!(self.buffers.lent <= u32::from(BUFFERS), "a buffer is lent once at a time");
        self.events.push_back(Event::Received { conn, buffer, result, more });
    }

    /// Reports the end of a receive that is not armed.
    fn receive_cancelled(&mut self, conn: u32) {
        let result = Err(io::Error::from_raw_os_error(libc::ECANCELED));
        self.events.push_back(Event::Received { conn, buffer: None, result, more: false });
    }

    fn cancel_receive(&mut self, conn: u32) {
        let entry = opcode::AsyncCancel::new(user_data(RECEIVE, conn)).build();
        self.push(entry.user_data(user_data(CANCEL, conn)));
    }

    /// Renews the receives that have reported bytes, but none lately; see [`Receiver`].
    fn renew_silent(&mut self) {
        let now = Instant::now();
        if now.saturating_duration_since(self.renewed) < RENEW_AFTER {
            return;
        }
        self.renewed = now;
        for conn in 0..self.connections.len() {
            let receiver = &mut self.connections[conn];
            let heard = receiver.heard;
            receiver.heard = match heard {
                Heard::Recently => Heard::Before,
                _ => Heard::Never,
            };
            if heard == Heard::Before && !receiver.stopping {
                receiver.renewing = true;
                self.cancel_receive(conn as u32);
            }
        }
    }
}

/// The place of a number in a list, which grows as needed.
fn place<T: Copy>(list: &mut Vec<T>, number: u32, empty: T) -> &mut T {
    let number = number as usize;
    if list.len() <= number {
        list.resize(number + 1, empty);
    }
    &mut list[number]
}

/// A ring of provided buffers. The kernel takes a buffer when bytes arrive, so idle connections
/// hold none.
struct BufferRing {
    entries: *mut BufRingEntry,
    memory: Box<[u8]>,
    layout: std::alloc::Layout,
    tail: u16,
    /// Buffers in events that the worker has not recycled.
    lent: u32,
}

impl BufferRing {
    fn new(ring: &IoUring) -> io::Result<Self> {
        let bytes = size_of::<BufRingEntry>() * usize::from(BUFFERS);
        let layout = std::alloc::Layout::from_size_align(bytes, 4096)
            .expect("the size is small and the alignment a power of two");
        // SAFETY: the layout is not empty.
        let entries = unsafe { std::alloc::alloc_zeroed(layout) }.cast::<BufRingEntry>();
        if entries.is_null() {
            std::alloc::handle_alloc_error(layout);
        }
        // SAFETY: `drop` frees the memory after the ring is closed, because the reactor declares
        // the field `ring` before `buffers`.
        unsafe {
            ring.submitter().register_buf_ring_with_flags(
                entries as u64,
                BUFFERS,
                BUFFER_GROUP,
                0,
            )?;
        }
        let memory = vec![0; RECEIVE_BYTES * usize::from(BUFFERS)].into_boxed_slice();
        let mut buffers = Self { entries, memory, layout, tail: 0, lent: u32::from(BUFFERS) };
        for buffer in 0..BUFFERS {
            buffers.put(BufferId(buffer));
        }
        Ok(buffers)
    }

    fn get(&self, buffer: BufferId, len: usize) -> &[u8] {
        assert!(len <= RECEIVE_BYTES, "the next bytes are of another connection");
        let start = usize::from(buffer.0) * RECEIVE_BYTES;
        &self.memory[start..start + len]
    }

    fn put(&mut self, buffer: BufferId) {
        let start = usize::from(buffer.0) * RECEIVE_BYTES;
        let address = self.memory[start..].as_mut_ptr() as u64;
        // SAFETY: the index is inside the ring. The kernel reads entries up to the tail only, and
        // the tail is published after the entry is written.
        unsafe {
            let entry = &mut *self.entries.add(usize::from(self.tail % BUFFERS));
            entry.set_addr(address);
            entry.set_len(RECEIVE_BYTES as u32);
            entry.set_bid(buffer.0);
            self.tail = self.tail.wrapping_add(1);
            let tail = BufRingEntry::tail(self.entries).cast::<AtomicU16>();
            (*tail).store(self.tail, Ordering::Release);
        }
        let left = self.lent.checked_sub(1);
        self.lent = left.expect("a buffer that is returned was lent");
    }
}

impl Drop for BufferRing {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout, and the kernel's ring is closed.
        unsafe { std::alloc::dealloc(self.entries.cast(), self.layout) }
    }
}

/// Resets an eventfd to zero.
pub(super) fn drain_counter(fd: RawFd) {
    let mut count = [0u8; 8];
    // SAFETY: reads eight bytes into eight bytes. The eventfd does not block.
    unsafe { libc::read(fd, count.as_mut_ptr().cast(), count.len()) };
}
