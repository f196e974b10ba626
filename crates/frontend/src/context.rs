//! What a worker offers to its front ends.

use crate::{ClientTimeouts, Memory, PoolAccess, Reservation, Sockets, Staged, VolumeInfo};
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
    /// The client that asks.
    pub client: ClientId,
    /// The client's name for it.
    pub cookie: u64,
    /// The verb.
    pub kind: RequestKind,
    /// The bytes of the volume that it works on, inside the volume.
    pub range: ByteRange,
}

/// A question for the allocated parts of a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExtentQuery {
    /// The client that asks.
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
    /// The volume does not take such requests at present. The refusal is the answer, and is
    /// counted.
    fn submit(
        &mut self,
        request: &ClientRequest,
        payload: Payload<'_, Memory>,
    ) -> Result<(), Refusal>;

    /// Counts a request that the front end has refused by itself.
    fn count_refusal(&mut self, client: ClientId);

    /// Asks which parts of a range are allocated, to be answered through
    /// [`crate::FrontEnd::extents`]. Returns false where nothing is known: then no answer follows.
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

    /// Asks for room for a read or write of `bytes`. If it is not granted, the request is to be
    /// tried again after [`crate::FrontEnd::room_free`], or when the client is no longer full.
    #[must_use]
    fn admit(&mut self, client: ClientId, bytes: u64, held: u64) -> bool;

    /// Asks for room for a payload of `bytes` that comes in pieces, once its request has been
    /// admitted. A huge one has its room already, and needs no reservation.
    ///
    /// # Errors
    /// It is not granted; the request is to be tried again as with [`Quota::admit`].
    fn reserve(&mut self, client: ClientId, bytes: u64) -> Result<Option<Reservation>, TryLater>;

    /// Gives up a client's place in a queue for room, if it has one.
    fn stop_waiting(&mut self, client: ClientId);

    /// Gives back room that a client no longer needs. To be called at the end of a turn.
    fn release_unused(&mut self, client: ClientId, held: u64);

    /// Whether a client has room that other clients wait for.
    fn blocks_others(&self, client: ClientId) -> bool;
}

/// There is no room at the moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TryLater;

/// The clients of all front ends.
pub trait Clients {
    /// Counts a client that has connected, and returns the worker that is to serve it. Refuses the
    /// client, and logs that, where there are too many, or where its descriptor is one of those
    /// reserved for control and disks.
    fn accept(&mut self, descriptor: Option<BorrowedFd<'_>>) -> Option<usize>;

    /// Undoes [`Clients::accept`] on the worker that was to serve the client.
    fn cancel_accept(&mut self);

    /// Gives an accepted client its number.
    fn join(&mut self) -> ClientId;

    /// A client has chosen a volume. Returns false if the volume takes no new clients.
    #[must_use]
    fn enter(&mut self, client: ClientId, volume: VolumeId) -> bool;

    /// A client is gone. Answers to its requests are dropped from now on. With `reuse`, its number
    /// is free for another client; without, as the kernel may still report something under it.
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
    fn patience(&self) -> ClientTimeouts;

    /// Whether the program is stopping.
    fn is_stopping(&self) -> bool;
}
