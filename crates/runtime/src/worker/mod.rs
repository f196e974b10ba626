//! A worker: one thread, one reactor, its share of the clients.
//!
//! A turn of its loop: wait for events, take whole batches of requests from the sockets, answer
//! hits at once from the pool, gather the misses into I/Os, and at the end of the turn start the
//! I/Os and send each client's replies in one message. Nothing in it waits but the wait itself.

mod extents;
mod fill;
mod host;
mod input;
mod io;
mod output;
mod refusals;
mod tasks;

pub(crate) use host::{ClientToken, Token, WorkerHost, carry_out, release};
pub(crate) use tasks::{Left, Tasks};

use crate::budget::Queue;
use crate::conn::{Conn, Connections};
use crate::protect::patrol::Patrol;
use crate::reactor::{Event, Reactor};
use crate::server::Listener;
use crate::shared::{Message, Shared};
use forebay_nbd::{Handshake, HandshakeConfig};
use forebay_types::limits::CONNECTIONS_MAX;
use forebay_volume::Dispatcher;
use io::{Ended, Ios};
use refusals::Refusals;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// How often shards with dirty data are looked after.
const TICK_BUSY: Duration = Duration::from_millis(50);
/// How often a worker looks after the rest.
const TICK_IDLE: Duration = Duration::from_millis(500);

/// See the module's description.
pub(crate) struct Worker<R: Reactor> {
    pub(super) dispatcher: Dispatcher<WorkerHost<R>>,
    pub(super) host: WorkerHost<R>,
    pub(super) listeners: Vec<Option<Arc<Listener>>>,
    messages: Vec<Message>,
    /// Listeners that failed to accept a client: tried again with the next tick, as what is short
    /// stays short for a while.
    accept_later: Vec<u32>,
    /// Clients that were refused.
    refused: Refusals,
    /// Connections closed by force, by their numbers, whose memory the kernel may still use.
    pub(super) abandoned: Vec<(u32, Box<Conn>)>,
    next_tick: Instant,
    patrol: Patrol,
    pub(super) leaving: bool,
    /// It leaves although requests are not answered, once no I/O is in flight.
    pub(super) abandons_requests: bool,
}

impl<R: Reactor> Worker<R> {
    /// A worker with nothing to do. To be made on its own thread.
    pub(crate) fn new(shared: Arc<Shared>, worker: usize) -> std::io::Result<Self> {
        let inbox = Arc::clone(&shared.inboxes[worker]);
        let reactor = R::new(inbox.bell())?;
        let (now, started) = (Instant::now(), shared.started);
        let patrol = Patrol::new(&shared, worker, now);
        Ok(Self {
            patrol,
            dispatcher: Dispatcher::new(worker as u8),
            host: WorkerHost {
                shared,
                worker,
                reactor,
                connections: Connections::default(),
                ios: Ios::new(inbox, worker, started),
                ended: Vec::new(),
                volume: None,
                now,
            },
            listeners: Vec::new(),
            messages: Vec::new(),
            accept_later: Vec::new(),
            refused: Refusals::default(),
            abandoned: Vec::new(),
            next_tick: now,
            leaving: false,
            abandons_requests: false,
        })
    }

    /// Serves until told to leave.
    pub(crate) fn run(mut self) -> std::io::Result<()> {
        loop {
            let next = self.patrol.next().map_or(self.next_tick, |next| next.min(self.next_tick));
            let timeout = match self.leaving {
                true => TICK_BUSY,
                false => next.saturating_duration_since(self.host.now),
            };
            self.host.reactor.wait(timeout)?;
            self.host.now = Instant::now();
            let mut idle = true;
            while let Some(event) = self.host.reactor.event() {
                idle = false;
                self.handle(event);
            }
            if self.host.now >= self.next_tick && !self.leaving {
                self.tick();
            }
            self.end_turn();
            if !self.leaving {
                self.patrol.poll(&self.host.shared, idle, self.host.now);
            }
            let is_done = self.dispatcher.in_flight() == 0 || self.abandons_requests;
            if self.leaving && is_done && self.host.ios.is_idle() {
                self.host.shared.inboxes[self.host.worker].close();
                return Ok(());
            }
        }
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Woken => self.read_messages(),
            Event::Accepted { listener, result } => match result {
                Ok(socket) => self.accepted(socket, listener),
                // What was cancelled is the listening itself.
                Err(error) if error.raw_os_error() == Some(libc::ECANCELED) => {}
                Err(error) => {
                    tracing::warn!(%error, "accept failed, trying again later");
                    self.accept_later.push(listener);
                }
            },
            Event::Received { conn, buffer, result, more } => {
                let len = *result.as_ref().unwrap_or(&0);
                let bytes: *const [u8] = match buffer {
                    Some(buffer) => self.host.reactor.buffer(buffer, len),
                    None => &[],
                };
                // SAFETY: the buffer is lent to us, and nobody writes to it, until it is recycled
                // below; the reactor's memory for buffers never moves.
                self.received(conn, unsafe { &*bytes }, result, more);
                if let Some(buffer) = buffer {
                    self.host.reactor.recycle(buffer);
                }
            }
            Event::Filled { conn, result } => self.filled(conn, result),
            Event::Sent { conn, result } => self.sent(conn, result),
            Event::File { tag, result } => {
                let WorkerHost { shared, ios, reactor, ended, .. } = &mut self.host;
                ios.file_done(shared, reactor, tag, result, ended);
                self.settle_ended();
            }
        }
    }

    fn read_messages(&mut self) {
        let mut messages = std::mem::take(&mut self.messages);
        self.host.shared.inboxes[self.host.worker].take(&mut messages);
        for message in messages.drain(..) {
            match message {
                Message::IoDone { tag, result } => {
                    let WorkerHost { shared, ios, reactor, ended, .. } = &mut self.host;
                    ios.done(shared, reactor, tag, result, ended);
                    self.settle_ended();
                }
                Message::BlockFree { tag } => {
                    let WorkerHost { ios, reactor, .. } = &mut self.host;
                    ios.go_on(reactor, tag);
                }
                Message::Answer(answer) => self.dispatcher.answer(&mut self.host, answer),
                Message::RoomFree { conn } => {
                    if let Some(waiting) = self.host.connections.get(conn)
                        && waiting.waits_in.is_some()
                    {
                        waiting.paused = false;
                        self.host.connections.resumed.push(conn);
                    }
                }
                Message::Connection { socket, listener } => self.serve(socket, listener),
                Message::Extents { conn, generation, request, extents } => {
                    self.extents_known(conn, generation, &request, &extents);
                }
                Message::Task(task) => task(self),
            }
        }
        self.messages = messages;
    }

    /// Tells the dispatcher what has ended.
    fn settle_ended(&mut self) {
        while let Some(ended) = self.host.ended.pop() {
            match ended {
                Ended::Shard { shard, id, result } => {
                    self.dispatcher.complete(&mut self.host, shard, id, result);
                }
                Ended::Flush { job, result } => {
                    self.dispatcher.flushed(&mut self.host, job, result);
                }
            }
        }
    }

    /// Starts what the turn has gathered.
    fn end_turn(&mut self) {
        loop {
            self.settle_ended();
            while let Some(conn) = self.host.connections.resumed.pop() {
                self.received_more(conn);
            }
            if !self.host.ended.is_empty() {
                continue;
            }
            let WorkerHost { ios, reactor, shared, .. } = &mut self.host;
            ios.start(shared, reactor);
            while let Some(conn) = self.host.connections.touched.pop() {
                self.look_after(conn);
            }
            // Replies that went at once let input go on; nothing else would wake us for it.
            if self.host.connections.resumed.is_empty() && self.host.ended.is_empty() {
                break;
            }
        }
        self.host.connections.record_latencies(self.host.worker);
    }

    /// A client has connected: the worker with the fewest gets it.
    fn accepted(&mut self, socket: OwnedFd, listener: u32) {
        let shared = &self.host.shared;
        if shared.stopping.load(Ordering::Relaxed) {
            return;
        }
        let connections = shared.connections.fetch_add(1, Ordering::Relaxed);
        let has_descriptor = shared.descriptors.admit(socket.as_raw_fd());
        if connections >= CONNECTIONS_MAX as u64 || !has_descriptor {
            shared.connections.fetch_sub(1, Ordering::Relaxed);
            self.refused.count(self.host.now, has_descriptor, shared.descriptors);
            return;
        }
        let fewest = shared.worker_connections.iter().enumerate();
        let (worker, load) = fewest
            .min_by_key(|(_, load)| load.load(Ordering::Relaxed))
            .expect("there is at least this worker");
        load.fetch_add(1, Ordering::Relaxed);
        if worker == self.host.worker {
            self.serve(socket, listener);
        } else {
            shared.inboxes[worker].post(Message::Connection { socket, listener });
        }
    }

    /// Begins to talk to a client.
    fn serve(&mut self, socket: OwnedFd, listener: u32) {
        let Some(settings) = self.host.shared.listener(listener) else {
            self.forget_connection();
            return;
        };
        if self.listeners.len() <= listener as usize {
            self.listeners.resize(listener as usize + 1, None);
        }
        settings.prepare(&socket);
        let mut handshake = Handshake::new(HandshakeConfig { tls: settings.tls_policy });
        let mut conn = Conn::new(socket, listener, Handshake::new(HandshakeConfig::default()));
        conn.queued.push_header(|out| handshake.greeting(out));
        conn.phase = crate::conn::Phase::Handshake(Box::new(handshake));
        conn.deadline = Some(self.host.now + self.host.shared.patience.handshake);
        self.listeners[listener as usize] = Some(settings);
        let fd = conn.socket.as_raw_fd();
        conn.receiving = true;
        let index = self.host.connections.insert(conn);
        self.host.reactor.receive(index, fd);
        self.host.connections.touch(index);
    }

    pub(super) fn forget_connection(&self) {
        let shared = &self.host.shared;
        shared.connections.fetch_sub(1, Ordering::Relaxed);
        shared.worker_connections[self.host.worker].fetch_sub(1, Ordering::Relaxed);
    }

    /// Tells a shard whose disks are being read, which writes are worth gathering, and how fast it
    /// may write back.
    fn note_volumes(&self, number: usize) {
        let shared = &self.host.shared;
        let now_ms = forebay_volume::Host::now_ms(&self.host);
        let volumes = shared.volumes.all();
        let mut shard = shared.shard(number);
        for volume in &volumes {
            if shard.has_volume(volume.id) {
                shard.set_reading(volume.id, volume.reads.are_on(now_ms));
                shard.set_gather_below(volume.id, volume.gather.status().below_bytes);
                let pace = volume.govern.sample(volume.id, (number, &shard), &volume.reads, now_ms);
                shard.set_pace(volume.id, pace);
            }
        }
    }

    /// Accepts clients again where that has failed.
    fn accept_again(&mut self) {
        for number in std::mem::take(&mut self.accept_later) {
            if let Some(listener) = self.host.shared.listener(number) {
                self.host.reactor.accept(number, listener.fd());
            }
        }
    }

    /// Looks after what time brings: deadlines of clients, write-back of this worker's shards.
    fn tick(&mut self) {
        let workers = self.host.shared.inboxes.len();
        let shards = self.host.shared.shards.len();
        let mut dirty = false;
        for shard in (self.host.worker..shards).step_by(workers) {
            self.note_volumes(shard);
            if self.host.shared.shard(shard).needs_tick() {
                dirty = true;
                self.dispatcher.tick(&mut self.host, shard);
            }
        }
        self.accept_again();
        let (now, share) = (self.host.now, self.host.shared.share());
        for index in self.host.connections.all() {
            let Some(conn) = self.host.connections.get(index) else { continue };
            if conn.deadline.is_some_and(|deadline| deadline <= now) {
                self.break_off(index, "it took too long");
            } else if conn.lane_bytes > 0
                && conn.fetch_by.is_some_and(|time| time <= now)
                && self.host.shared.budget.room(Queue::Lane).is_wanted()
            {
                self.break_off(index, "it does not fetch its replies, and others need the memory");
            } else if conn.paused && !conn.is_full(share) {
                conn.paused = false;
                self.host.connections.resumed.push(index);
            }
        }
        let pause = if dirty { TICK_BUSY } else { TICK_IDLE };
        self.next_tick = now + pause;
    }
}
