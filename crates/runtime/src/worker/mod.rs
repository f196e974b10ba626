//! A worker: one thread with a reactor and a share of the clients.
//!
//! In each turn of its loop, a worker waits for events, and passes them to the front end, which
//! submits whole batches of requests. Hits are answered from the pool at once, misses become I/Os.
//! At the end of the turn, the worker starts the I/Os, and the front end sends the replies. Only
//! the wait for events blocks.

mod clients;
mod crew;
mod host;
mod io;
mod needs;
mod polling;
mod tasks;

pub(crate) use crew::Crew;
pub use crew::Engine;
pub(crate) use host::{Token, WorkerHost, carry_out};

use self::clients::{ClientClock, ClientTable, Completions, Context, Deliveries, InFlight};
use crate::journal::distance;
use crate::platform::reactor::{Event, Reactor};
use crate::protect::patrol::Patrol;
use crate::shared::{Inbox, Message, Shared};
use forebay_frontend::{ClientId, FrontEnd, FrontEndEvent, SocketEvent};
use forebay_volume::Dispatcher;
use io::{Ended, Ios};
use needs::PendingNeeds;
use polling::Polling;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The interval of ticks while a shard of the worker has dirty data, and otherwise.
const TICK_BUSY: Duration = Duration::from_millis(50);
const TICK_IDLE: Duration = Duration::from_millis(500);

/// A worker. See the module.
pub(crate) struct Worker<R: Reactor, F> {
    dispatcher: Dispatcher<WorkerHost<R>>,
    host: WorkerHost<R>,
    front: F,
    /// Buffers to reuse, for answers and messages.
    deliveries: Deliveries,
    messages: Vec<Message>,
    next_tick: Instant,
    patrol: Patrol,
    polling: Polling,
    /// Clients that were asked to leave for the next process.
    leaving: Vec<ClientId>,
    /// The loop ends once no request and no I/O is in flight.
    stopping: bool,
    /// The loop ends although requests are unanswered, once no I/O is in flight.
    abandons_requests: bool,
}

impl<R: Reactor, F: FrontEnd> Worker<R, F> {
    /// Creates a worker. Must be called on the worker's thread.
    pub(crate) fn new(shared: Arc<Shared>, worker: usize, front: F) -> std::io::Result<Self> {
        let inbox = Arc::clone(&shared.inboxes[worker]);
        let reactor = R::new(inbox.eventfd())?;
        let (now, started) = (Instant::now(), shared.started);
        let patrol = Patrol::new(&shared, worker, now);
        Ok(Self {
            patrol,
            dispatcher: Dispatcher::new(u8::try_from(worker).expect("there are few workers")),
            host: WorkerHost {
                shared,
                worker,
                reactor,
                clients: ClientTable::default(),
                in_flight: InFlight::default(),
                completions: Completions::default(),
                ios: Ios::new(inbox, worker, started),
                ended: Vec::new(),
                volume: None,
                needs: PendingNeeds::default(),
                recorder: None,
                now,
                client_clock: ClientClock::new(now),
            },
            front,
            deliveries: Deliveries::default(),
            messages: Vec::new(),
            next_tick: now,
            polling: Polling::new(now),
            leaving: Vec::new(),
            stopping: false,
            abandons_requests: false,
        })
    }

    /// See [`Reactor::counts_as_io_pressure`].
    pub(crate) fn counts_as_io_pressure(&self) -> bool {
        self.host.reactor.counts_as_io_pressure()
    }

    /// Borrows the front end and its view of the worker.
    pub(crate) const fn parts(&mut self) -> (&mut F, Context<'_, R>) {
        let Self { dispatcher, host, front, .. } = self;
        (front, Context { dispatcher, host })
    }

    /// Runs the loop until [`Tasks::stop`] was called and no I/O is in flight, and no request
    /// either unless they are abandoned.
    pub(crate) fn run(mut self) -> std::io::Result<()> {
        loop {
            let next = self.patrol.next().map_or(self.next_tick, |next| next.min(self.next_tick));
            let timeout = match self.stopping {
                true => TICK_BUSY,
                false => next.saturating_duration_since(self.host.now),
            };
            if let Some(at) = self.host.clients.next_limited() {
                self.host.reactor.wake_by(at);
            }
            self.wait(timeout)?;
            self.inbox().begin_turn();
            self.host.client_clock.advance(self.host.now);
            let mut idle = true;
            while let Some(event) = self.host.reactor.event() {
                idle = false;
                self.handle(event);
            }
            if self.host.now >= self.next_tick && !self.stopping {
                self.tick();
            }
            let (front, mut context) = self.parts();
            context.wake_limited(front);
            self.end_turn();
            if !self.stopping {
                self.patrol.poll(&self.host.shared, idle, self.host.now);
            }
            let is_done = self.dispatcher.in_flight() == 0 || self.abandons_requests;
            if self.stopping && is_done && self.host.ios.is_idle() {
                let is_answered = self.abandons_requests || self.host.in_flight.is_empty();
                assert!(is_answered, "a worker answers its requests before it ends");
                self.inbox().close();
                self.host.ios.leave();
                return Ok(());
            }
        }
    }

    /// Waits for events, and sets the time of the turn that begins.
    fn wait(&mut self, timeout: Duration) -> std::io::Result<()> {
        let Self { host, polling, .. } = self;
        let began = Instant::now();
        let background = &host.shared.background;
        let (answered, has_spare) = (host.clients.answered(), background.has_spare_processors());
        let look = polling.look_for(began, answered, has_spare).min(timeout);
        if !look.is_zero() {
            host.reactor.look(look);
            background.count_polling(began.elapsed());
        }
        host.reactor.wait(timeout)?;
        host.now = Instant::now();
        polling.waited(host.now - began);
        Ok(())
    }

    fn inbox(&self) -> &Inbox {
        &self.host.shared.inboxes[self.host.worker]
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
                // SAFETY: nothing writes to the lent buffer until it is recycled below, and the
                // reactor's memory for buffers never moves.
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
            Event::Command { key, result } => {
                let (front, mut context) = self.parts();
                front.event(&mut context, FrontEndEvent::Command { key, result });
            }
            Event::Counted { key } => {
                let (front, mut context) = self.parts();
                front.event(&mut context, FrontEndEvent::Counted { key });
            }
            Event::CounterEnded { key } => {
                let (front, mut context) = self.parts();
                front.event(&mut context, FrontEndEvent::CounterEnded { key });
            }
            Event::File { tag, result } => {
                let WorkerHost { shared, ios, reactor, ended, .. } = &mut self.host;
                ios.file_done(shared, reactor, tag, result, ended);
                self.report_ended();
            }
        }
        self.deliver();
    }

    fn socket_event(&mut self, event: SocketEvent<'_>) {
        let (front, mut context) = self.parts();
        front.event(&mut context, FrontEndEvent::Socket(event));
    }

    /// Delivers the pending answers to the front end.
    pub(crate) fn deliver(&mut self) {
        let mut deliveries = std::mem::take(&mut self.deliveries);
        loop {
            self.host.completions.take(&mut deliveries);
            if deliveries.is_empty() {
                break;
            }
            let (front, mut context) = self.parts();
            deliveries.drain(|answer, segments| context.deliver(front, answer, segments));
        }
        self.deliveries = deliveries;
    }

    fn read_messages(&mut self) {
        let mut messages = std::mem::take(&mut self.messages);
        self.inbox().take(&mut messages);
        for message in messages.drain(..) {
            match message {
                Message::IoDone { tag, result } => {
                    let WorkerHost { shared, ios, reactor, ended, .. } = &mut self.host;
                    ios.done(shared, reactor, tag, result, ended);
                    self.report_ended();
                }
                Message::BlockFree { tag } => {
                    let WorkerHost { ios, reactor, .. } = &mut self.host;
                    ios.resume(reactor, tag);
                }
                Message::Answer(answer) => {
                    let worker = usize::from(forebay_volume::worker_of(answer.part));
                    assert_eq!(
                        worker, self.host.worker,
                        "an answer goes to the worker of its part"
                    );
                    self.dispatcher.answer(&mut self.host, answer);
                }
                Message::MemoryFree { client } => {
                    let (front, mut context) = self.parts();
                    if context.host.clients.is_waiting(client) {
                        front.memory_free(&mut context, client);
                    }
                }
                Message::Extents { query, extents, dirty } => {
                    let (front, mut context) = self.parts();
                    context.deliver_extents(front, &query, &extents, dirty);
                }
                Message::FrontEnd(message) => {
                    let message = message.downcast().expect("sent by the front end's own mailer");
                    let (front, mut context) = self.parts();
                    front.message(&mut context, *message);
                }
                Message::Task(task) => task(self),
            }
        }
        self.messages = messages;
    }

    /// Reports ended I/Os to the dispatcher.
    fn report_ended(&mut self) {
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

    /// Starts the I/Os of the turn, and makes the front end send its replies.
    fn end_turn(&mut self) {
        loop {
            self.report_ended();
            self.deliver();
            let (front, mut context) = self.parts();
            front.resume_input(&mut context);
            self.deliver();
            if !self.host.ended.is_empty() {
                continue;
            }
            self.start_ios();
            // I/Os that were completed at once are answered together with the hits of the turn.
            let has_messages = self.inbox().end_turn();
            if has_messages {
                self.read_messages();
                self.deliver();
            }
            let (front, mut context) = self.parts();
            front.end_turn(&mut context);
            if has_messages {
                // The I/Os that follow from them start after the replies, to delay none, and what
                // completes of them is left to the next turn, so that this one ends.
                self.start_ios();
            }
            // Replies that were sent immediately may have freed memory for input, and no event
            // reports that.
            let is_over = !self.front.has_input() && self.host.completions.is_empty();
            if is_over && self.host.ended.is_empty() {
                break;
            }
            self.inbox().begin_turn();
        }
        self.parts().1.end_limited_turns();
        let now = self.host.clients.record_latencies(self.host.worker);
        if let Some(recorder) = &mut self.host.recorder {
            recorder.end_turn(now);
        }
    }

    fn start_ios(&mut self) {
        let WorkerHost { ios, reactor, shared, volume, .. } = &mut self.host;
        ios.start(shared, reactor, volume);
    }

    /// Updates the inputs of a shard's writeback for each volume: whether its disk is being read
    /// for a client or needed by other programs, the gather threshold, the pace, and the space that
    /// its journal has left.
    fn update_volumes(&self, number: usize) {
        let shared = &self.host.shared;
        let now_ms = forebay_volume::Host::now_ms(&self.host);
        let volumes = shared.volumes.all();
        let mut shard = shared.shard(number);
        for volume in &volumes {
            if shard.has_volume(volume.id) {
                let in_shard = shard.volume_mut(volume.id);
                in_shard.set_reading(shared.slows_writeback(volume, now_ms));
                in_shard.set_gather_below(volume.gather.status().below_bytes);
                let pace =
                    volume.govern.sample(volume.id, (number, &shard), &volume.disk.reads, now_ms);
                let in_shard = shard.volume_mut(volume.id);
                in_shard.set_pace(pace);
                let used = volume.journal.get().filter(|_| in_shard.dirty_lines() > 0);
                if let Some(used) = used {
                    let (left, all) = distance(&used.journal, used.number);
                    in_shard.set_log_distance(left, all);
                }
            }
        }
    }

    /// Handles timeouts of clients, and the writeback of this worker's shards.
    fn tick(&mut self) {
        let workers = self.host.shared.inboxes.len();
        let shards = self.host.shared.shards.len();
        let mut dirty = false;
        for shard in (self.host.worker..shards).step_by(workers) {
            self.update_volumes(shard);
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
