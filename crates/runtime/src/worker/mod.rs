//! A worker: one thread, one reactor, its share of the clients.
//!
//! A turn of its loop: wait for events, have the front end hand in whole batches of requests,
//! answer hits at once from the pool, gather the misses into I/Os, and at the end of the turn start
//! the I/Os and have the front end send its replies. Nothing in it waits but the wait itself.

mod host;
mod io;
mod tasks;

pub(crate) use host::{Token, WorkerHost, carry_out, release};
pub(crate) use tasks::{Left, Tasks};

use crate::clients::{ClientTable, Completions, Context, Deliveries};
use crate::protect::patrol::Patrol;
use crate::reactor::{Event, Reactor};
use crate::shared::{Message, Shared};
use forebay_frontend::{FrontEnd, SocketEvent};
use forebay_volume::Dispatcher;
use io::{Ended, Ios};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How often shards with dirty data are looked after.
const TICK_BUSY: Duration = Duration::from_millis(50);
/// How often a worker looks after the rest.
const TICK_IDLE: Duration = Duration::from_millis(500);

/// See the module's description.
pub(crate) struct Worker<R: Reactor, F> {
    pub(super) dispatcher: Dispatcher<WorkerHost<R>>,
    pub(super) host: WorkerHost<R>,
    pub(super) front: F,
    /// Answers on their way to the front end.
    deliveries: Deliveries,
    messages: Vec<Message>,
    next_tick: Instant,
    patrol: Patrol,
    pub(super) leaving: bool,
    /// It leaves although requests are not answered, once no I/O is in flight.
    pub(super) abandons_requests: bool,
}

impl<R: Reactor, F: FrontEnd> Worker<R, F> {
    /// A worker with nothing to do. To be made on its own thread.
    pub(crate) fn new(shared: Arc<Shared>, worker: usize, front: F) -> std::io::Result<Self> {
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
                clients: ClientTable::default(),
                completions: Completions::default(),
                ios: Ios::new(inbox, worker, started),
                ended: Vec::new(),
                volume: None,
                now,
            },
            front,
            deliveries: Deliveries::default(),
            messages: Vec::new(),
            next_tick: now,
            leaving: false,
            abandons_requests: false,
        })
    }

    /// The front end, and what it sees of the worker.
    pub(crate) const fn parts(&mut self) -> (&mut F, Context<'_, R>) {
        let Self { dispatcher, host, front, .. } = self;
        (front, Context { dispatcher, host })
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
            Event::Accepted { listener, result } => {
                self.socket_event(SocketEvent::Accepted { listener, result });
            }
            Event::Received { conn, buffer, result, more } => {
                let len = *result.as_ref().unwrap_or(&0);
                let bytes: *const [u8] = match buffer {
                    Some(buffer) => self.host.reactor.buffer(buffer, len),
                    None => &[],
                };
                // SAFETY: the buffer is lent to us, and nobody writes to it, until it is recycled
                // below; the reactor's memory for buffers never moves.
                let bytes = unsafe { &*bytes };
                self.socket_event(SocketEvent::Received { conn, bytes, result, more });
                if let Some(buffer) = buffer {
                    self.host.reactor.recycle(buffer);
                }
            }
            Event::Filled { conn, result } => {
                self.socket_event(SocketEvent::Filled { conn, result });
            }
            Event::Sent { conn, result } => self.socket_event(SocketEvent::Sent { conn, result }),
            Event::File { tag, result } => {
                let WorkerHost { shared, ios, reactor, ended, .. } = &mut self.host;
                ios.file_done(shared, reactor, tag, result, ended);
                self.settle_ended();
            }
        }
        self.deliver();
    }

    fn socket_event(&mut self, event: SocketEvent<'_>) {
        let (front, mut context) = self.parts();
        front.event(&mut context, forebay_frontend::Event::Socket(event));
    }

    /// Gives the front end the answers that have gathered.
    pub(crate) fn deliver(&mut self) {
        let mut deliveries = std::mem::take(&mut self.deliveries);
        loop {
            self.host.completions.take(&mut deliveries);
            if deliveries.is_empty() {
                break;
            }
            let (front, mut context) = self.parts();
            deliveries.drain(|answered, segments| context.deliver(front, answered, segments));
        }
        self.deliveries = deliveries;
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
                Message::RoomFree { client } => {
                    let (front, mut context) = self.parts();
                    if context.host.clients.is_waiting(client) {
                        front.room_free(&mut context, client);
                    }
                }
                Message::Extents { query, extents } => {
                    let (front, mut context) = self.parts();
                    context.deliver_extents(front, &query, &extents);
                }
                Message::FrontEnd(message) => {
                    let message = message.downcast().expect("its own mailer has sent it");
                    let (front, mut context) = self.parts();
                    front.message(&mut context, *message);
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
            self.deliver();
            let (front, mut context) = self.parts();
            front.resume_input(&mut context);
            self.deliver();
            if !self.host.ended.is_empty() {
                continue;
            }
            let WorkerHost { ios, reactor, shared, .. } = &mut self.host;
            ios.start(shared, reactor);
            let (front, mut context) = self.parts();
            front.end_turn(&mut context);
            // Replies that went at once let input go on; nothing else would wake us for it.
            let is_over = !self.front.has_input() && self.host.completions.is_empty();
            if is_over && self.host.ended.is_empty() {
                break;
            }
        }
        self.host.clients.record_latencies(self.host.worker);
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
        let (front, mut context) = self.parts();
        front.tick(&mut context);
        let pause = if dirty { TICK_BUSY } else { TICK_IDLE };
        self.next_tick = self.host.now + pause;
    }
}
