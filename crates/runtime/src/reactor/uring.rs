//! The ring: one system call a turn submits everything asked for and waits for what comes.

use super::{BufferId, Event, FileOp, RECEIVE_BYTES, Reactor};
use forebay_frontend::Sockets;
use io_uring::types::{BufRingEntry, Fd, Timespec};
use io_uring::{IoUring, cqueue, opcode, squeue};
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

const ENTRIES: u32 = 1024;
/// Few, because they are used in turn and should stay in the cache until their turn comes again:
/// with eight of them, a batch of writes of 4 KiB takes a tenth more time.
const BUFFERS: u16 = 4;
const BUFFER_GROUP: u16 = 1;

/// What an entry was for, in the upper half of its user data.
const WAKE: u64 = 0;
const ACCEPT: u64 = 1;
const RECEIVE: u64 = 2;
const SEND: u64 = 3;
const FILE: u64 = 4;
const CANCEL: u64 = 5;
const TIMER: u64 = 6;
const FILL: u64 = 7;

const fn user_data(kind: u64, key: u32) -> u64 {
    kind << 32 | key as u64
}

/// See the module's description.
pub(crate) struct UringReactor {
    ring: IoUring,
    buffers: BufferRing,
    events: VecDeque<Event>,
    wake: RawFd,
    timer: Box<Timespec>,
    timer_armed: bool,
    /// Receives that found no buffer, oldest first. They are asked for again before the next wait,
    /// as many as there are buffers. A buffer that comes back is no occasion to do so: a receive
    /// that ends without one, at the end of its connection, would be the last.
    starved: VecDeque<(u32, RawFd)>,
    /// The descriptors of listeners, and behind them of connections, by their numbers.
    descriptors: Vec<RawFd>,
}

impl Sockets for UringReactor {
    fn accept(&mut self, listener: u32, fd: RawFd) {
        let entry = opcode::AcceptMulti::new(Fd(fd)).flags(libc::SOCK_CLOEXEC).build();
        self.push(entry.user_data(user_data(ACCEPT, listener)));
        if self.descriptors.len() <= listener as usize {
            self.descriptors.resize(listener as usize + 1, -1);
        }
        self.descriptors[listener as usize] = fd;
    }

    fn stop_accepting(&mut self, listener: u32, _fd: RawFd) {
        let entry = opcode::AsyncCancel::new(user_data(ACCEPT, listener)).build();
        self.push(entry.user_data(user_data(CANCEL, listener)));
        if let Some(fd) = self.descriptors.get_mut(listener as usize) {
            *fd = -1;
        }
    }

    fn receive(&mut self, conn: u32, fd: RawFd) {
        // One entry serves until it runs out of buffers or is cancelled, so that the way from a
        // client's bytes to us is neither asked for nor set up again each time.
        let entry = opcode::RecvMulti::new(Fd(fd), BUFFER_GROUP).build();
        self.push(entry.user_data(user_data(RECEIVE, conn)));
        self.remember(conn, fd);
    }

    fn pause(&mut self, conn: u32) {
        let entry = opcode::AsyncCancel::new(user_data(RECEIVE, conn)).build();
        self.push(entry.user_data(user_data(CANCEL, conn)));
    }

    fn fill(&mut self, conn: u32, fd: RawFd, message: *mut libc::msghdr) {
        let entry = opcode::RecvMsg::new(Fd(fd), message).build();
        self.push(entry.user_data(user_data(FILL, conn)));
    }

    fn send(&mut self, conn: u32, fd: RawFd, message: *const libc::msghdr) {
        // WAITALL makes the kernel go on until the message is sent or the connection is gone, so a
        // message is one event however slowly the client reads.
        let flags = (libc::MSG_NOSIGNAL | libc::MSG_WAITALL) as u32;
        let entry = opcode::SendMsg::new(Fd(fd), message).flags(flags).build();
        self.push(entry.user_data(user_data(SEND, conn)));
    }

    fn forget(&mut self, fd: RawFd) {
        // Another connection may get the descriptor.
        self.starved.retain(|&(_, other)| other != fd);
    }
}

impl Reactor for UringReactor {
    const NAME: &'static str = "io_uring";
    const FILES: bool = true;

    fn new(wake: RawFd) -> io::Result<Self> {
        let mut builder = IoUring::builder();
        builder.setup_clamp().setup_cqsize(8 * ENTRIES).setup_submit_all();
        // The kernel does its deferred work when we wait for it, instead of interrupting us.
        let fast = builder.clone().setup_single_issuer().setup_defer_taskrun().build(ENTRIES);
        let ring = match fast {
            Ok(ring) => ring,
            Err(_) => builder.setup_coop_taskrun().build(ENTRIES)?,
        };
        // Saves looking the descriptor up at every call; older kernels do without.
        let _ = ring.submitter().register_ring_fd();
        let buffers = BufferRing::new(&ring)?;
        let mut reactor = Self {
            ring,
            buffers,
            events: VecDeque::new(),
            wake,
            timer: Box::new(Timespec::new()),
            timer_armed: false,
            starved: VecDeque::new(),
            descriptors: Vec::new(),
        };
        reactor.try_receiving()?;
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

    fn wait(&mut self, timeout: Duration) -> io::Result<()> {
        self.feed_starved();
        if !self.timer_armed {
            // One timer for many turns: to arm one at each wait would cost more than the wait.
            *self.timer = Timespec::from(timeout);
            let entry = opcode::Timeout::new(&raw const *self.timer).build();
            self.push(entry.user_data(user_data(TIMER, 0)));
            self.timer_armed = true;
        }
        let pending = usize::from(self.events.is_empty());
        match self.ring.submit_and_wait(pending) {
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
    fn push(&mut self, entry: squeue::Entry) {
        loop {
            // SAFETY: what the entry points to stays valid until its event: callers promise it
            // for messages and files (see the trait), and buffers and counters are ours.
            if unsafe { self.ring.submission().push(&entry) }.is_ok() {
                return;
            }
            // The queue is full: hand over what is in it. A busy kernel is asked again.
            let _ = self.ring.submit();
        }
    }

    /// Receives a byte over a pair of sockets, as connections will receive theirs. What a kernel
    /// can do is tried, not concluded from its version: receiving again and again for one entry
    /// came with Linux 6.0.
    fn try_receiving(&mut self) -> io::Result<()> {
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
                let Event::Received { buffer, result, more: goes_on, .. } = event else { continue };
                let came = result?;
                if let Some(buffer) = buffer {
                    self.recycle(buffer);
                }
                if came == 1 && !goes_on {
                    return Err(io::ErrorKind::Unsupported.into());
                }
                more = goes_on;
            }
        }
        Ok(())
    }

    fn watch_wake(&mut self) {
        let entry = opcode::PollAdd::new(Fd(self.wake), libc::POLLIN as u32).build();
        self.push(entry.user_data(user_data(WAKE, 0)));
    }

    /// Connections are numbered from zero, so a table serves to find a connection's descriptor
    /// again. Listeners use the numbers from the other end of the same table.
    fn remember(&mut self, conn: u32, fd: RawFd) {
        let at = conn as usize + LISTENERS_MAX;
        if self.descriptors.len() <= at {
            self.descriptors.resize(at + 1, -1);
        }
        self.descriptors[at] = fd;
    }

    /// Asks again for receives that found no buffer, until one of them has something to report or
    /// all are asked for. Where nothing has come yet, the kernel takes no buffer: that receive
    /// waits for bytes from then on, and the buffer is there for the next.
    fn feed_starved(&mut self) {
        // Each connection once: the kernel may hold buffers whose completions are still to come.
        for _ in 0..self.starved.len() {
            let free = u32::from(BUFFERS) - self.buffers.lent;
            for _ in 0..free {
                let Some((conn, fd)) = self.starved.pop_front() else { return };
                self.receive(conn, fd);
            }
            if self.starved.is_empty() || !self.events.is_empty() {
                // What was asked for is submitted by the wait that follows.
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
                TIMER => self.timer_armed = false,
                _ => {}
            }
        }
    }

    fn accepted(&mut self, listener: u32, result: io::Result<usize>, flags: u32) {
        let fd = self.descriptors[listener as usize];
        if !cqueue::more(flags) && fd >= 0 && result.is_ok() {
            self.accept(listener, fd);
        }
        let result = result.map(|fd| {
            // SAFETY: the kernel has just made this descriptor for us.
            unsafe { OwnedFd::from_raw_fd(fd as RawFd) }
        });
        self.events.push_back(Event::Accepted { listener, result });
    }

    fn received(&mut self, conn: u32, result: io::Result<usize>, flags: u32) {
        let buffer = cqueue::buffer_select(flags).map(BufferId);
        if let Err(error) = &result
            && error.raw_os_error() == Some(libc::ENOBUFS)
        {
            let fd = self.descriptors[conn as usize + LISTENERS_MAX];
            self.starved.push_back((conn, fd));
            return;
        }
        self.buffers.lent += u32::from(buffer.is_some());
        let more = cqueue::more(flags);
        self.events.push_back(Event::Received { conn, buffer, result, more });
    }
}

/// Listeners that a reactor can have.
const LISTENERS_MAX: usize = 64;

/// Buffers that the kernel takes from as bytes come, so that an idle connection needs none.
struct BufferRing {
    entries: *mut BufRingEntry,
    memory: Box<[u8]>,
    layout: std::alloc::Layout,
    tail: u16,
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
        // SAFETY: the ring's memory is freed by `drop`, after the ring itself (see the order of
        // the fields of the reactor).
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
        let start = usize::from(buffer.0) * RECEIVE_BYTES;
        &self.memory[start..start + len]
    }

    fn put(&mut self, buffer: BufferId) {
        let start = usize::from(buffer.0) * RECEIVE_BYTES;
        let address = self.memory[start..].as_mut_ptr() as u64;
        // SAFETY: the index is inside the ring, whose entries up to the tail are the kernel's and
        // those behind it ours; the tail is published after the entry is written.
        unsafe {
            let entry = &mut *self.entries.add(usize::from(self.tail % BUFFERS));
            entry.set_addr(address);
            entry.set_len(RECEIVE_BYTES as u32);
            entry.set_bid(buffer.0);
            self.tail = self.tail.wrapping_add(1);
            let tail = BufRingEntry::tail(self.entries).cast::<AtomicU16>();
            (*tail).store(self.tail, Ordering::Release);
        }
        self.lent -= 1;
    }
}

impl Drop for BufferRing {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout; the kernel's ring is gone already.
        unsafe { std::alloc::dealloc(self.entries.cast(), self.layout) }
    }
}

/// Takes what an event counter has counted.
pub(super) fn drain_counter(fd: RawFd) {
    let mut count = [0u8; 8];
    // SAFETY: reads eight bytes into eight bytes; the counter does not block.
    unsafe { libc::read(fd, count.as_mut_ptr().cast(), count.len()) };
}
