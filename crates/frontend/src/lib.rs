//! The interface between a worker and its front ends.
//!
//! A front end implements one client protocol: NBD over sockets, the commands of a kernel driver,
//! rings in memory shared with a guest, or calls within the process. It parses requests, submits
//! them to its worker, and receives completions. It depends neither on shards and disks nor on
//! other front ends.
//!
//! - A front end implements [`FrontEnd`], once per worker, and [`Service`] for the state that its
//!   workers share.
//! - The worker provides a [`WorkerContext`]: it accepts requests ([`RequestSink`]), counts and
//!   limits clients ([`Clients`], [`Quota`]), and gives access to the pool's memory
//!   ([`PoolAccess`]) and to sockets ([`Sockets`]).
//!
//! **One answer.** A request accepted by [`RequestSink::submit`] is answered through
//! [`FrontEnd::completed`] exactly once: it travels as a [`forebay_volume::Completion`], which
//! answers with an I/O error when dropped. If the client has left meanwhile, the answer reaches no
//! front end, even if another client has its number.
//!
//! **Back-pressure.** A front end reserves memory before it accepts a request. If none is free, it
//! stops reading from the client until [`FrontEnd::memory_free`], or until an answer or the tick
//! finds that [`Quota::is_full`] is false. It has no queue of its own.
//!
//! **Cost.** A completion waits in a list until the current event has been handled, at the cost of
//! a copy of some 100 bytes per request. In return, front ends and dispatcher never call each
//! other, and a worker may have several front ends.

mod commands;
mod composite;
mod context;
mod flusher;
mod memory;
mod pool;
mod sockets;
mod volume;

pub use commands::{DriverCommand, EventCounters};
pub use composite::{EitherMessage, FrontEndPair, PairOnWorker};
pub use context::{
    ClientHistory, ClientId, ClientRequest, Clients, ExtentQuery, LookAhead, Peer, Quota, Refusal,
    RequestSink, TryLater, WorkerContext,
};
pub use flusher::{check_can_serve_io, serve_io_on_this_thread};
pub use memory::{Memory, set_kept_bytes_max};
pub use pool::{PayloadReservation, PoolAccess, Staged};
pub use sockets::{SocketEvent, Sockets, receive_into};
pub use volume::{ClientTimeouts, VolumeInfo};

use forebay_types::Extent;
use forebay_volume::Reply;
use std::any::Any;
use std::marker::PhantomData;
use std::sync::Arc;

/// The state shared by the front ends of all workers: listeners, settings.
pub trait Service: Send + Sync + 'static {
    /// The front end of one worker.
    type FrontEnd: FrontEnd;

    /// Called once the workers exist and can receive messages.
    fn connect(&self, mailer: Mailer<<Self::FrontEnd as FrontEnd>::Message>);

    /// Makes the front end of one worker, on the worker's thread.
    fn front_end(self: &Arc<Self>) -> Self::FrontEnd;
}

/// Sends messages to the front ends of all workers.
pub struct Mailer<M> {
    post: Arc<dyn Fn(usize, Box<dyn Any + Send>) + Send + Sync>,
    message: PhantomData<fn(M)>,
}

impl<M: Send + 'static> Mailer<M> {
    /// A mailer over a function that delivers a boxed `M` to the worker with the given number.
    pub fn new(post: impl Fn(usize, Box<dyn Any + Send>) + Send + Sync + 'static) -> Self {
        Self { post: Arc::new(post), message: PhantomData }
    }

    /// Sends a message to [`FrontEnd::message`] of a worker. A worker that has ended drops it.
    pub fn post(&self, worker: usize, message: M) {
        (self.post)(worker, Box::new(message));
    }

    /// A mailer for messages that `wrap` makes messages of this one.
    pub fn wrapping<N: Send + 'static>(&self, wrap: fn(N) -> M) -> Mailer<N> {
        let post = Arc::clone(&self.post);
        Mailer::new(move |worker, message: Box<dyn Any + Send>| {
            let message = message.downcast::<N>().expect("a mailer posts messages of its type");
            post(worker, Box::new(wrap(*message)));
        })
    }
}

/// An event of the reactor.
#[derive(Debug)]
#[non_exhaustive]
pub enum FrontEndEvent<'a> {
    /// An event of a socket.
    Socket(SocketEvent<'a>),
    /// A command to a kernel driver has ended.
    Command {
        /// See [`DriverCommand::key`].
        key: u32,
        /// What the driver has returned.
        result: std::io::Result<usize>,
    },
    /// A counter has advanced; see [`EventCounters`].
    Counted {
        /// The front end's name of the counter.
        key: u32,
    },
    /// The last event of a counter: its watch was ended, or is not possible.
    CounterEnded {
        /// The front end's name of the counter.
        key: u32,
    },
}

/// The owner of the pins of a reply's data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "unreleased pins keep lines in the pool forever"]
pub enum Pins {
    /// The front end, which releases them with [`PoolAccess::release`].
    Kept,
    /// The worker, which releases them at once: the data has been copied, or is not needed.
    Released,
}

/// A front end on one worker. All calls come from the worker's thread.
pub trait FrontEnd: Sized {
    /// Messages from other threads.
    type Message: Send + 'static;

    /// Whether a client of the worker is one of this front end.
    fn serves(&self, client: ClientId) -> bool;

    /// Whether this front end requests events of this kind. Of those of a worker, one does.
    fn takes(event: &FrontEndEvent<'_>) -> bool;

    /// Handles an event of the reactor. A front end ignores kinds of events that it has not
    /// requested.
    fn event<C: WorkerContext>(&mut self, cx: &mut C, event: FrontEndEvent<'_>);

    /// Handles a message sent by [`Mailer::post`].
    fn message<C: WorkerContext>(&mut self, cx: &mut C, message: Self::Message);

    /// Delivers the answer to a request of a client that has not left.
    fn completed<C: WorkerContext>(
        &mut self,
        cx: &mut C,
        request: &ClientRequest,
        reply: Reply<'_, Memory>,
    ) -> Pins;

    /// Delivers the answer to a query for extents; an empty list if they are unknown.
    fn extents<C: WorkerContext>(&mut self, cx: &mut C, query: &ExtentQuery, extents: &[Extent]);

    /// Reports that memory for which a client waits may be free. The front end then retries the
    /// client's waiting request.
    fn memory_free<C: WorkerContext>(&mut self, cx: &mut C, client: ClientId);

    /// Resumes input that waited for memory.
    fn resume_input<C: WorkerContext>(&mut self, cx: &mut C);

    /// Whether [`FrontEnd::resume_input`] has input to resume.
    fn has_input(&self) -> bool;

    /// Sends the replies of the turn, at its end.
    fn end_turn<C: WorkerContext>(&mut self, cx: &mut C);

    /// Checks deadlines. Called a few times a second.
    fn tick<C: WorkerContext>(&mut self, cx: &mut C);

    /// Starts or stops accepting clients on this worker.
    fn accept<C: WorkerContext>(&mut self, cx: &mut C, accepts: bool);

    /// Stops reading from a client, and disconnects it once all its requests are answered.
    fn drain_client<C: WorkerContext>(&mut self, cx: &mut C, client: ClientId);

    /// Has a client leave for the next process: reads no further request of it, answers those that
    /// it has read, and then gives the connection up, so that its service can hand it over. Returns
    /// false, and changes nothing, if that is not possible with this client.
    #[must_use]
    fn hand_over_client<C: WorkerContext>(&mut self, cx: &mut C, client: ClientId) -> bool;

    /// Disconnects a client at once.
    fn drop_client<C: WorkerContext>(&mut self, cx: &mut C, client: ClientId);

    /// Removes a client without waiting for the kernel. Memory that the kernel may still use stays
    /// allocated.
    fn abandon_client<C: WorkerContext>(&mut self, cx: &mut C, client: ClientId);
}
