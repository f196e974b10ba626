//! What a worker offers to its front ends.

use crate::{ClientPatience, Memory, PoolAccess, Reservation, Sockets, Staged, VolumeInfo};
use forebay_types::{ByteRange, IoError, VolumeId};
use forebay_volume::{Payload, RequestKind};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Instant;

/// Names a client of a worker: a connection, a queue of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientId {
    /// Its number among the clients of its worker; small, and used again.
    pub number: u32,
    /// Tells it from an earlier client with its number.
    pub generation: u32,
}

/// A request as its front end names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientRequest {
    /// Whose it is.
    pub client: ClientId,
    /// The client's name for it.
    pub cookie: u64,
    /// What is to be done.
    pub kind: RequestKind,
    /// The bytes of the volume that it works on, inside the volume.
    pub range: ByteRange,
}

/// A question of what of a range is allocated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExtentQuery {
    /// Whose it is.
    pub client: ClientId,
    /// The client's name for it.
    pub cookie: u64,
    /// The bytes of the volume that it is about, inside the volume.
    pub range: ByteRange,
}

/// Why a request is not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The error to answer.
    pub error: IoError,
    /// A line about it for people.
    pub reason: &'static str,
}

/// Takes requests.
pub trait RequestSink {
    /// Takes a request of a client that has entered a volume, to be answered through
    /// [`crate::FrontEnd::completed`] after the call at hand. A read or write has been granted room
    /// by [`Quota::admit`].
    ///
    /// # Errors
    /// The volume does not take it as things are; the refusal is the answer, and is counted.
    fn submit(
        &mut self,
        request: &ClientRequest,
        payload: Payload<'_, Memory>,
    ) -> Result<(), Refusal>;

    /// Counts a request that the front end has refused by itself.
    fn count_refusal(&mut self, client: ClientId);

    /// Asks what of a range is allocated, to be answered through [`crate::FrontEnd::extents`].
    /// Returns false where nothing is known: then there is no answer.
    #[must_use]
    fn query_extents(&mut self, query: ExtentQuery) -> bool;

    /// Takes slots of the pool for the payload of a write that is to come. `None` where there is no
    /// room for all of them, or the payload is huge.
    fn stage(&mut self, client: ClientId, range: ByteRange) -> Option<Staged>;

    /// Begins to bring the memory into the processor's cache that the next request of a batch, at
    /// the offset `next`, and the one behind it, at `second`, will need. A wrong guess costs
    /// nothing but its own time.
    fn look_ahead(&self, client: ClientId, next: Option<u64>, second: Option<u64>);
}

/// Limits what clients have in flight. `held` is what the front end itself holds for the client, in
/// bytes: payloads on their way in, answers that the client has not taken.
pub trait Quota {
    /// Requests and questions of a client that are not answered.
    fn in_flight(&self, client: ClientId) -> usize;

    /// Whether a client has so much in flight that nothing is to be read from it.
    fn is_full(&mut self, client: ClientId, held: u64) -> bool;

    /// Asks for room for a read or write of `bytes`. Where it is not granted, the client waits:
    /// with a place in a queue until [`crate::FrontEnd::room_free`], or until it is no longer full.
    #[must_use]
    fn admit(&mut self, client: ClientId, bytes: u64, held: u64) -> bool;

    /// Asks for room for a payload of `bytes` that comes in pieces, once its request has been
    /// admitted. A huge one has its room already, and needs no reservation.
    ///
    /// # Errors
    /// It is not granted; the client waits as with [`Quota::admit`].
    fn reserve(&mut self, client: ClientId, bytes: u64) -> Result<Option<Reservation>, TryLater>;

    /// Gives up a client's place in a queue for room, if it has one.
    fn stop_waiting(&mut self, client: ClientId);

    /// Gives back the room that a client no longer needs, at the end of a turn.
    fn settle(&mut self, client: ClientId, held: u64);

    /// Whether a client has room that others wait for.
    fn is_in_the_way(&self, client: ClientId) -> bool;
}

/// There is no room at the moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TryLater;

/// The clients of all front ends.
pub trait Clients {
    /// Counts a client that has connected, and says which worker is to serve it. The client is
    /// refused, and that is logged, where there are too many, or where it would take a descriptor
    /// that is kept for other uses.
    fn accept(&mut self, descriptor: Option<BorrowedFd<'_>>) -> Option<usize>;

    /// A client that was accepted can't be served after all.
    fn dismiss(&mut self);

    /// Gives an accepted client its number.
    fn join(&mut self) -> ClientId;

    /// A client has chosen a volume. Returns whether it may.
    #[must_use]
    fn enter(&mut self, client: ClientId, volume: VolumeId) -> bool;

    /// A client is gone. Answers to what it asked are dropped from now on. Its number is free for
    /// another one, unless the kernel may still report something under it.
    fn leave(&mut self, client: ClientId, reuse: bool);

    /// Passes on each volume that may be entered.
    fn each_volume(&self, each: &mut dyn FnMut(&VolumeInfo));
}

/// A worker as its front ends see it.
pub trait WorkerContext: RequestSink + Quota + Clients {
    /// Sockets of the worker's reactor.
    type Sockets: Sockets;
    /// The memory of the pool.
    type Pool: PoolAccess;

    /// The sockets of the reactor.
    fn sockets(&mut self) -> &mut Self::Sockets;

    /// The memory of the pool.
    fn pool(&self) -> &Arc<Self::Pool>;

    /// The time at the start of the turn.
    fn now(&self) -> Instant;

    /// How long clients may take.
    fn patience(&self) -> ClientPatience;

    /// Whether the program is stopping.
    fn is_stopping(&self) -> bool;
}
