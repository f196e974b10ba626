//! The vhost-user front end: volumes as disks of virtual machines.
//!
//! A virtual machine monitor connects to the socket of a volume, and shares the memory of its
//! guest. Each ring of the guest's disk is a client of one worker, which takes requests from it,
//! copies data between the guest's memory and lines of the pool, and puts the answers of a turn
//! into it. No system call is needed for a request, only for an event in each direction when the
//! other side sleeps.
//!
//! One thread, `vhost`, serves the sockets of all volumes. It maps the guests' memory, and starts
//! and stops rings. What workers and guests do is independent of it.
//!
//! **A server that ends** leaves a record of the requests that it had taken, in memory that the
//! monitor keeps ([`forebay_vhost::inflight`]). The monitor connects again, and the next server
//! serves them again.
//!
//! **A hostile guest** controls all of its memory, rings included, at any time. A value is read
//! from there once, and checked before it is used. A hostile monitor may take the memory away as
//! well (`fault`).

mod chain;
mod fault;
mod inbox;
mod memory;
mod queue;
mod ring;
mod server;
mod session;
mod sessions;
mod setup;
mod socket;
mod workers;

pub use server::{ListenError, VhostServer};
pub use workers::VhostMessage;

use forebay_frontend::{
    ClientId, ClientRequest, ExtentQuery, FrontEnd, FrontEndEvent, Memory, Pins, WorkerContext,
};
use forebay_types::Extent;
use forebay_volume::Reply;
use inbox::Notice;
use queue::GuestQueue;
use setup::RingSetup;
use std::sync::Arc;

/// The vhost-user front end of one worker.
pub struct VhostFrontEnd {
    server: Arc<VhostServer>,
    /// The rings that this worker serves. The reactor may report events of a ring until its watch
    /// has ended, so a place is reused after that only.
    queues: Vec<Option<GuestQueue>>,
    /// The places of queues that may continue.
    resumed: Vec<usize>,
    /// The places of queues with answers of this turn.
    answered: Vec<usize>,
    /// An empty list.
    spare: Vec<usize>,
    /// Memory that payloads of short writes pass through.
    scratch: Memory,
}

impl VhostFrontEnd {
    fn new(server: Arc<VhostServer>) -> Self {
        let scratch = Memory::new(queue::SHORT_BYTES_MAX);
        let (resumed, answered, spare) = Default::default();
        Self { server, queues: Vec::new(), resumed, answered, spare, scratch }
    }

    /// The place of a queue.
    fn place(&self, is_it: impl Fn(&GuestQueue) -> bool) -> Option<usize> {
        self.queues.iter().position(|queue| queue.as_ref().is_some_and(&is_it))
    }

    fn place_of(&self, client: ClientId) -> Option<usize> {
        self.place(|queue| queue.client() == client && !queue.has_left())
    }

    /// Serves a ring.
    fn join<C: WorkerContext>(&mut self, cx: &mut C, mut setup: Box<RingSetup>, worker: usize) {
        let at = self.queues.iter().position(Option::is_none).unwrap_or_else(|| {
            self.queues.push(None);
            self.queues.len() - 1
        });
        setup.place = u32::try_from(at).expect("there are fewer queues than clients");
        let (key, control) = (setup.key, Arc::clone(&setup.control));
        let result = match GuestQueue::join(cx, setup) {
            Ok(queue) => {
                self.queues[at] = Some(queue);
                self.with(cx, at, |_, _, _| {});
                Ok(worker)
            }
            Err(error) => Err(error),
        };
        control.post(Notice::Started { key, result }.into());
    }

    /// Has the queue at a place do something. Removes it if it has ended.
    fn with<C: WorkerContext>(
        &mut self,
        cx: &mut C,
        place: usize,
        act: impl FnOnce(&mut GuestQueue, &mut C, &mut Memory),
    ) {
        let Some(Some(queue)) = self.queues.get_mut(place) else { return };
        act(queue, cx, &mut self.scratch);
        if queue.is_resumable() && !self.resumed.contains(&place) {
            self.resumed.push(place);
        }
        if queue.has_answers() && !self.answered.contains(&place) {
            self.answered.push(place);
        }
        if queue.has_ended() {
            self.queues[place] = None;
        }
    }

    fn with_client<C: WorkerContext>(
        &mut self,
        cx: &mut C,
        client: ClientId,
        act: impl FnOnce(&mut GuestQueue, &mut C, &mut Memory),
    ) {
        if let Some(place) = self.place_of(client) {
            self.with(cx, place, act);
        }
    }
}

impl FrontEnd for VhostFrontEnd {
    type Message = VhostMessage;

    fn serves(&self, client: ClientId) -> bool {
        !self.queues.is_empty() && self.place_of(client).is_some()
    }

    fn takes(event: &FrontEndEvent<'_>) -> bool {
        matches!(event, FrontEndEvent::Counted { .. } | FrontEndEvent::CounterEnded { .. })
    }

    fn event<C: WorkerContext>(&mut self, cx: &mut C, event: FrontEndEvent<'_>) {
        match event {
            FrontEndEvent::Counted { key } => self.with(cx, key as usize, |queue, cx, scratch| {
                queue.resume(cx, scratch);
            }),
            FrontEndEvent::CounterEnded { key } => {
                self.with(cx, key as usize, |queue, cx, _| queue.watch_ended(cx));
            }
            _ => {}
        }
    }

    fn message<C: WorkerContext>(&mut self, cx: &mut C, message: VhostMessage) {
        use workers::WorkerMessage as M;
        match message.0 {
            M::Distribute(setup) => self.server.distribute(cx, setup),
            M::Serve(setup, worker) => self.join(cx, setup, worker),
            M::Stop(key) => {
                if let Some(place) = self.place(|queue| queue.key() == key) {
                    self.with(cx, place, |queue, cx, _| queue.stop(cx));
                }
            }
            M::SetCall(key, call) => {
                if let Some(place) = self.place(|queue| queue.key() == key) {
                    self.with(cx, place, |queue, _, _| queue.set_call(call));
                }
            }
            M::SetMemory(key, memory) => {
                if let Some(place) = self.place(|queue| queue.key() == key) {
                    self.with(cx, place, |queue, _, _| queue.set_memory(memory));
                }
            }
        }
    }

    fn completed<C: WorkerContext>(
        &mut self,
        cx: &mut C,
        request: &ClientRequest,
        reply: Reply<'_, Memory>,
    ) -> Pins {
        self.with_client(cx, request.client, |queue, cx, _| queue.answer(cx, request, &reply));
        Pins::Released
    }

    fn extents<C: WorkerContext>(&mut self, _cx: &mut C, _query: &ExtentQuery, _: &[Extent]) {
        unreachable!("a block device has no query for extents");
    }

    fn memory_free<C: WorkerContext>(&mut self, cx: &mut C, client: ClientId) {
        self.with_client(cx, client, |queue, _, _| queue.may_continue());
    }

    fn resume_input<C: WorkerContext>(&mut self, cx: &mut C) {
        let mut places = std::mem::replace(&mut self.resumed, std::mem::take(&mut self.spare));
        for place in places.drain(..) {
            self.with(cx, place, GuestQueue::resume);
        }
        self.spare = places;
    }

    fn has_input(&self) -> bool {
        !self.resumed.is_empty()
    }

    fn end_turn<C: WorkerContext>(&mut self, cx: &mut C) {
        let mut places = std::mem::replace(&mut self.answered, std::mem::take(&mut self.spare));
        for place in places.drain(..) {
            self.with(cx, place, |queue, _, _| queue.show_answers());
        }
        self.spare = places;
    }

    fn tick<C: WorkerContext>(&mut self, cx: &mut C) {
        for place in 0..self.queues.len() {
            self.with(cx, place, GuestQueue::tick);
        }
    }

    fn accept<C: WorkerContext>(&mut self, _cx: &mut C, _accepts: bool) {}

    fn drain_client<C: WorkerContext>(&mut self, cx: &mut C, client: ClientId) {
        self.with_client(cx, client, |queue, cx, _| queue.drain(cx));
    }

    /// The monitor connects again, and continues its rings.
    fn hand_over_client<C: WorkerContext>(&mut self, _cx: &mut C, _client: ClientId) -> bool {
        false
    }

    fn drop_client<C: WorkerContext>(&mut self, cx: &mut C, client: ClientId) {
        self.with_client(cx, client, |queue, cx, _| queue.leave(cx));
    }

    fn abandon_client<C: WorkerContext>(&mut self, cx: &mut C, client: ClientId) {
        self.drop_client(cx, client);
    }
}
