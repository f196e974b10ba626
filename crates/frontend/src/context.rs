//! The services of a worker for its front ends: requests, memory limits, clients.

use crate::{
    ClientTimeouts, DriverCommand, EventCounters, Memory, PayloadReservation, PoolAccess, Sockets,
    Staged, VolumeInfo,
};
use forebay_types::{ByteRange, IoError, VolumeId};
use forebay_volume::{Payload, RequestKind};
use std::fmt;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Identifies a client of a worker: a connection, or a queue of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientId {
    /// Its number among the clients of its worker; small, and reused.
    pub number: u32,
    /// Distinguishes it from earlier clients with the same number.
    pub generation: u32,
}

/// The other end of a client's connection.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Peer {
    /// It is not known.
    #[default]
    Unknown,
    /// The process of this machine that has connected the socket. A client in the kernel outlives
    /// it.
    Process {
        /// The number of the process.
        id: u32,
        /// The number of its user, when it connected.
        user: u32,
    },
    /// An address and port.
    Address(Box<str>),
    /// The kernel, for the users of the ublk device with this number.
    Ublk(u32),
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown => f.write_str("unknown"),
            Self::Process { id, .. } => write!(f, "process {id}"),
            Self::Address(address) => f.write_str(address),
            Self::Ublk(device) => write!(f, "/dev/ublkb{device}"),
        }
    }
}

/// What is known of a client that stays the same when another process continues to serve it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClientHistory {
    /// Its number in lists.
    pub id: u64,
    /// How long it has been connected.
    pub age: Duration,
    /// Bytes that it has read and written successfully.
    pub done_bytes: [u64; 2],
}

/// A request as its front end identifies it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientRequest {
    pub client: ClientId,
    /// The client's identifier of the request.
    pub cookie: u64,
    /// The verb.
    pub kind: RequestKind,
    /// The bytes, inside the volume.
    pub range: ByteRange,
}

/// A query for the allocated extents of a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExtentQuery {
    pub client: ClientId,
    /// The client's identifier of the query.
    pub cookie: u64,
    /// The bytes, inside the volume.
    pub range: ByteRange,
}

/// The error that refuses a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The error to answer.
    pub error: IoError,
    /// The reason, as human-readable text.
    pub reason: &'static str,
}

/// Accepts requests.
pub trait RequestSink {
    /// Submits a request of a client that has entered a volume. The answer goes to
    /// [`crate::FrontEnd::completed`], after the current call. [`Quota::admit`] must have admitted
    /// it.
    ///
    /// # Errors
    /// The volume refuses such requests now. The refusal is the answer, and is already counted.
    fn submit(
        &mut self,
        request: &ClientRequest,
        payload: Payload<'_, Memory>,
    ) -> Result<(), Refusal>;

    /// Counts a request that the front end itself has refused.
    fn count_refusal(&mut self, client: ClientId);

    /// Queries the allocated extents of a range. The answer goes to [`crate::FrontEnd::extents`].
    /// Returns false if the backend cannot report extents; no answer follows then.
    #[must_use]
    fn query_extents(&mut self, query: ExtentQuery) -> bool;

    /// Reserves pool slots for the payload of a later write. `None` if there are too few free
    /// slots, or the payload is huge.
    fn stage(&mut self, client: ClientId, range: ByteRange) -> Option<Staged>;

    /// Prefetches metadata and data of the next requests of a batch into the processor's cache.
    fn look_ahead(&self, client: ClientId, guess: LookAhead);
}

/// What the next requests of a batch are expected to be. A wrong guess only wastes time.
#[derive(Clone, Copy, Debug)]
pub struct LookAhead {
    /// The offset of the next request: the metadata and the start of the data of its first line are
    /// prefetched.
    pub next: Option<u64>,
    /// The offset of the request after it: the index entry of its first line is prefetched.
    pub second: Option<u64>,
    /// Whether the requests are writes. When the shard's lock is released, the processor waits
    /// until it has stored all data of a write, so more of the line is prefetched.
    pub writes: bool,
}

/// Limits the requests and the request memory of clients. `held` is the memory that the front end
/// itself holds for the client, in bytes: payloads being received, and replies that the client has
/// not fetched. It must become free without a further request being admitted. What requests hold
/// that wait for their admission does not count: a client that has nothing in flight would wait for
/// itself.
pub trait Quota {
    /// Unanswered requests and queries of a client.
    fn in_flight(&self, client: ClientId) -> usize;

    /// Whether a client is at its limit, so that the front end must stop reading from it.
    fn is_full(&mut self, client: ClientId, held: u64) -> bool;

    /// Admits the next request of a client, of `len` bytes, by the limits of its volume, and
    /// reserves the memory of a read or write. If this returns false, the front end retries the
    /// request after [`crate::FrontEnd::memory_free`], or once the client is no longer full.
    #[must_use]
    fn admit(&mut self, client: ClientId, kind: RequestKind, len: u64, held: u64) -> bool;

    /// The length of the pieces, in bytes, in which a read or write of `bytes` should be submitted
    /// because there is little memory; `None` if it is submitted whole.
    fn piece_bytes(&self, bytes: u64) -> Option<u64>;

    /// As [`Quota::admit`], for a piece. It needs no [`Quota::reserve`].
    #[must_use]
    fn admit_piece(&mut self, client: ClientId, bytes: u64, held: u64) -> bool;

    /// Reserves memory for an incomplete payload of `bytes`, whose rest is still to be received,
    /// after its request has been admitted. A huge request already has its memory, and gets no
    /// reservation.
    ///
    /// # Errors
    /// No memory is free; the front end retries the request as with [`Quota::admit`].
    fn reserve(
        &mut self,
        client: ClientId,
        bytes: u64,
    ) -> Result<Option<PayloadReservation>, TryLater>;

    /// Removes a client from the queues for memory and for limits.
    fn stop_waiting(&mut self, client: ClientId);

    /// Releases memory that a client no longer needs. Called at the end of a turn.
    fn release_unused(&mut self, client: ClientId, held: u64);

    /// Whether other clients wait for memory that this client has.
    fn blocks_others(&self, client: ClientId) -> bool;
}

/// No memory is free at the moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TryLater;

/// The clients of all front ends.
pub trait Clients {
    /// Counts a new client, and returns the worker that is to serve it. Refuses the client, and
    /// logs that at a limited rate, if there are too many clients, or if its descriptor is in the
    /// range reserved for control and disks.
    fn accept(&mut self, descriptor: Option<BorrowedFd<'_>>) -> Option<usize>;

    /// As [`Clients::accept`], for a client that only this worker can serve. Returns false if it is
    /// refused.
    #[must_use]
    fn accept_here(&mut self) -> bool;

    /// Undoes [`Clients::accept`], on the worker that was to serve the client.
    fn cancel_accept(&mut self);

    /// Assigns a number to an accepted client.
    fn join(&mut self, peer: &Peer) -> ClientId;

    /// What is known of a client.
    fn history(&self, client: ClientId) -> ClientHistory;

    /// Continues the history of a client that another process has served.
    fn continue_history(&mut self, client: ClientId, history: ClientHistory);

    /// Assigns a client to the volume that it has chosen. Returns false if the volume takes no new
    /// clients.
    #[must_use]
    fn enter(&mut self, client: ClientId, volume: VolumeId, is_encrypted: bool) -> bool;

    /// The size in bytes of the volume that a client has entered, which may have grown since; 0 if
    /// it has entered none.
    fn volume_bytes(&self, client: ClientId) -> u64;

    /// Removes a client. Later answers to its requests are dropped. With `reuse`, its number
    /// becomes free. Without, the number stays taken, because the kernel may still report events
    /// under it.
    fn leave(&mut self, client: ClientId, reuse: bool);

    /// Calls `each` for every volume that may be entered.
    fn each_volume(&self, each: &mut dyn FnMut(&VolumeInfo));
}

/// A worker as its front ends see it.
pub trait WorkerContext: RequestSink + Quota + Clients {
    /// The type of the reactor's sockets.
    type Sockets: Sockets + EventCounters;
    /// The type of the pool's memory.
    type Pool: PoolAccess;

    /// The sockets of the reactor.
    fn sockets(&mut self) -> &mut Self::Sockets;

    /// The memory of the pool.
    fn pool(&self) -> &Arc<Self::Pool>;

    /// Starts a command to a kernel driver. Returns false if the reactor cannot.
    #[must_use]
    fn command(&mut self, command: DriverCommand) -> bool;

    /// The time at the start of the turn, for timeouts of clients. This clock does not advance
    /// while the worker is stalled.
    fn client_time(&self) -> Instant;

    /// The time limits for clients.
    fn client_timeouts(&self) -> ClientTimeouts;

    /// Whether the program is stopping.
    fn is_stopping(&self) -> bool;

    /// Whether a request that has failed with `error` may succeed for a client that connects again:
    /// the program is stopping, or the volume leaves this server, because it is to stand by, is
    /// removed, or was taken over.
    fn may_succeed_elsewhere(&self, client: ClientId, error: IoError) -> bool;
}
