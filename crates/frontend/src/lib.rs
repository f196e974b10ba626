//! The seam between a worker and its front ends.
//!
//! A front end speaks a protocol with clients: NBD over sockets, commands of a kernel driver, rings
//! in memory that a guest shares, calls of the same process. It parses their requests, hands them
//! to its worker, and gets completions back. It knows neither shards nor disks, and no other front
//! end.
//!
//! - [`FrontEnd`] is what a front end implements, once per worker, and [`Service`] what its workers
//!   share.
//! - [`WorkerContext`] is what the worker offers: it takes requests ([`RequestSink`]), counts
//!   clients and what they have in flight ([`Clients`], [`Quota`]), and gives access to the pool's
//!   memory ([`PoolAccess`]) and to sockets ([`Sockets`]).
//!
//! **One answer.** A request that [`RequestSink::submit`] has taken is answered through
//! [`FrontEnd::completed`] exactly once: it travels as a [`forebay_volume::Completion`], which
//! answers with an I/O error when it is dropped. The client's number may be in use for another
//! client by then; such an answer reaches no front end.
//!
//! **Back-pressure.** Memory of requests is limited where they come in. A front end asks for room
//! before it takes a request, and where there is none it stops reading from its client until
//! [`FrontEnd::room_free`], or until an answer or the tick makes [`Quota::is_full`] false. It keeps
//! no queue of its own.
//!
//! **The price.** A completion waits in a list until the event at hand has been handled, which
//! costs a copy of some 100 bytes per request. For that, front ends and dispatcher never call into
//! each other, and one worker may have several front ends.

mod context;
mod memory;
mod pool;
mod sockets;
mod volume;

pub use context::{
    ClientId, ClientRequest, Clients, ExtentQuery, Quota, Refusal, RequestSink, TryLater,
    WorkerContext,
};
pub use memory::{Memory, keep_at_most};
pub use pool::{PoolAccess, Reservation, Staged};
pub use sockets::{SocketEvent, Sockets, receive_into};
pub use volume::{ClientTimeouts, VolumeInfo};

use forebay_types::Extent;
use forebay_volume::Reply;
use std::any::Any;
use std::marker::PhantomData;
use std::sync::Arc;

/// State that the front ends of all workers share: listeners, settings.
pub trait Service: Send + Sync + 'static {
    /// The front end of one worker.
    type FrontEnd: FrontEnd;

    /// The workers exist, and can be sent messages.
    fn connect(&self, mailer: Mailer<<Self::FrontEnd as FrontEnd>::Message>);

    /// The front end of one worker, made on its thread.
    fn front_end(self: &Arc<Self>) -> Self::FrontEnd;
}

/// Sends messages to the front ends of all workers.
pub struct Mailer<M> {
    post: Arc<dyn Fn(usize, Box<dyn Any + Send>) + Send + Sync>,
    message: PhantomData<fn(M)>,
}

impl<M: Send + 'static> Mailer<M> {
    /// A mailer over a function that takes a boxed `M` to the worker of this number.
    pub fn new(post: impl Fn(usize, Box<dyn Any + Send>) + Send + Sync + 'static) -> Self {
        Self { post: Arc::new(post), message: PhantomData }
    }

    /// Has [`FrontEnd::message`] of a worker called. A worker that has ended drops the message.
    pub fn post(&self, worker: usize, message: M) {
        (self.post)(worker, Box::new(message));
    }
}

/// What a reactor reports to front ends.
#[derive(Debug)]
#[non_exhaustive]
pub enum Event<'a> {
    /// Something has happened on a socket.
    Socket(SocketEvent<'a>),
}

/// Whether a front end has kept the pins of an answer's data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "unreleased pins keep lines in the pool forever"]
pub enum Pins {
    /// The front end gives them back with [`PoolAccess::release`].
    Kept,
    /// The data has been copied, or is not needed: the worker gives them back at once.
    Released,
}

/// A front end on one worker. All calls come from the worker's thread.
pub trait FrontEnd: Sized {
    /// What other threads may tell it.
    type Message: Send + 'static;

    /// The reactor reports something. A front end passes over events of kinds that it has not asked
    /// for.
    fn event<C: WorkerContext>(&mut self, cx: &mut C, event: Event<'_>);

    /// A message has come.
    fn message<C: WorkerContext>(&mut self, cx: &mut C, message: Self::Message);

    /// A request is answered. Its client has not left.
    fn completed<C: WorkerContext>(
        &mut self,
        cx: &mut C,
        request: &ClientRequest,
        reply: Reply<'_, Memory>,
    ) -> Pins;

    /// A question for extents is answered; with an empty list where nothing is known.
    fn extents<C: WorkerContext>(&mut self, cx: &mut C, query: &ExtentQuery, extents: &[Extent]);

    /// Room that a client waits for may be free: its request is to be tried again.
    fn room_free<C: WorkerContext>(&mut self, cx: &mut C, client: ClientId);

    /// Resumes input that waited for room.
    fn resume_input<C: WorkerContext>(&mut self, cx: &mut C);

    /// Whether [`FrontEnd::resume_input`] has something to do.
    fn has_input(&self) -> bool;

    /// At the end of a turn: hands the answers that have gathered to the clients.
    fn end_turn<C: WorkerContext>(&mut self, cx: &mut C);

    /// Checks deadlines. Called a few times a second.
    fn tick<C: WorkerContext>(&mut self, cx: &mut C);

    /// Starts or stops accepting clients on this worker.
    fn accept<C: WorkerContext>(&mut self, cx: &mut C, accepts: bool);

    /// Takes no more requests of a client, and ends it once all are answered.
    fn drain_client<C: WorkerContext>(&mut self, cx: &mut C, client: ClientId);

    /// Ends a client at once.
    fn drop_client<C: WorkerContext>(&mut self, cx: &mut C, client: ClientId);

    /// Ends a client without waiting for the kernel. Memory that the kernel may still use stays.
    fn abandon_client<C: WorkerContext>(&mut self, cx: &mut C, client: ClientId);
}
