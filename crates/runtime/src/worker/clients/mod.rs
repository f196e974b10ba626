//! The clients of all front ends: their count, their requests in flight, and admission.
//!
//! Implements the interface of `forebay-frontend`. Each worker has a table of its clients. The
//! [`Budget`](crate::budget::Budget) that all workers share limits the memory of all requests. This
//! module counts a request when it is accepted and when its completion is delivered, so a front end
//! cannot miscount.

mod clock;
mod context;
mod in_flight;
mod limits;
mod refusals;
mod tally;
mod waiting;

pub(crate) use clock::ClientClock;
pub(crate) use context::Context;
pub(crate) use in_flight::{InFlight, Ticket};
pub(crate) use waiting::{has_left, waiting};

use crate::budget::{Queue, Waiter};
use crate::shared::{ConnectedClient, Shared, Volume};
use forebay_engine::LineHits;
use forebay_frontend::{ClientHistory, ClientId, ClientRequest, Memory, Peer};
use forebay_types::limits::CONNECTION_REQUESTS_MAX;
use forebay_types::{IoError, IoResult, VolumeId};
use forebay_volume::{Completion, CompletionBatch, CompletionQueue, RequestKind};
use limits::{LimitedClient, LimitedClients};
use refusals::Refusals;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Instant, SystemTime};
use tally::Tallies;

/// A request in flight.
pub(crate) struct Submitted {
    pub request: ClientRequest,
    /// The start of the turn in which it was submitted.
    pub arrived: Instant,
    /// Whether it begins where the previous request of its client and kind ends.
    pub is_sequential: bool,
    /// Its mark for [`crate::shared::Recorder::answer`]; zero if it is not recorded.
    pub recorded: u32,
    /// How long it waited for memory before it was accepted, in milliseconds, at most 65535.
    pub waited_ms: u16,
}

/// The duty to answer a client's request.
pub(crate) type ClientCompletion = Completion<Ticket, Memory>;
/// Answers to be delivered.
pub(crate) type Completions = CompletionQueue<Ticket, Memory>;
/// A batch of answers that is being delivered.
pub(crate) type Deliveries = CompletionBatch<Ticket, Memory>;

#[derive(Default)]
struct Client {
    /// The volume that it has entered.
    volume: Option<Arc<Volume>>,
    /// What identifies it in lists.
    id: u64,
    /// The other end of its connection.
    peer: Peer,
    /// When it has connected.
    joined: Option<SystemTime>,
    is_encrypted: bool,
    /// Bytes that it has read and written successfully.
    done_bytes: [u64; 2],
    /// Requests and extent queries in flight.
    requests: usize,
    /// Bytes of the requests in flight.
    bytes: u64,
    /// Bytes of the lane that it has acquired.
    lane_bytes: u64,
    /// The end offsets of its last read and of its last write, if it had one.
    ends: [Option<u64>; 2],
    /// The quota for which it is queued.
    queued_for: Option<Queue>,
    /// Since when its next request has waited for memory.
    queued_since: Option<Instant>,
    /// Its state with respect to the limits of its volume.
    limited: LimitedClient,
}

impl Client {
    fn is_full(&self, held: u64, share: u64) -> bool {
        self.requests >= CONNECTION_REQUESTS_MAX || self.bytes + held >= share
    }

    /// Counts an answer to a request of `bytes`, or to an extent query, without any.
    fn complete(&mut self, bytes: u64) {
        let requests = self.requests.checked_sub(1);
        self.requests = requests.expect("a request is answered once");
        let left = self.bytes.checked_sub(bytes);
        self.bytes = left.expect("an answered request was counted with its bytes");
    }

    /// Counts the bytes of a successful request.
    fn count_done(&mut self, request: &ClientRequest) {
        match request.kind {
            RequestKind::Read => self.done_bytes[0] += request.range.len,
            RequestKind::Write { .. } => self.done_bytes[1] += request.range.len,
            _ => {}
        }
    }

    fn history(&self) -> ClientHistory {
        let age = self.joined.and_then(|joined| joined.elapsed().ok()).unwrap_or_default();
        ClientHistory { id: self.id, age, done_bytes: self.done_bytes }
    }

    /// Continues the history of a client that another process has served.
    fn continue_history(&mut self, history: ClientHistory) {
        self.id = history.id;
        self.done_bytes = history.done_bytes;
        self.joined = self.joined.map(|now| now.checked_sub(history.age).unwrap_or(now));
    }

    fn listed(&self) -> ConnectedClient {
        ConnectedClient {
            id: self.id,
            volume: self.volume.as_ref().map(|volume| volume.name.clone()),
            peer: self.peer.clone(),
            is_encrypted: self.is_encrypted,
            joined: self.joined.unwrap_or(SystemTime::UNIX_EPOCH),
            requests: self.requests,
            read_bytes: self.done_bytes[0],
            written_bytes: self.done_bytes[1],
        }
    }

    /// Queues it for a quota, or records that it no longer waits.
    fn queue(&mut self, queue: Option<Queue>, now: Instant) {
        self.queued_for = queue;
        if queue.is_some() {
            self.queued_since.get_or_insert(now);
        }
    }

    /// Whether a request begins where the previous one of this kind ends.
    fn continues(&mut self, request: &ClientRequest) -> bool {
        let end = match request.kind {
            RequestKind::Read => &mut self.ends[0],
            RequestKind::Write { .. } => &mut self.ends[1],
            _ => return false,
        };
        let continues = *end == Some(request.range.offset);
        *end = Some(request.range.end());
        continues
    }

    /// Leaves the queue, if it is in one.
    fn stop_waiting(&mut self, shared: &Shared, waiter: Waiter) {
        if self.limited.is_waiting() {
            self.leave_limits(shared, waiter);
        }
        if let Some(queue) = self.queued_for.take() {
            shared.wake_waiter(shared.budget.quota(queue).cancel(waiter));
        }
    }
}

/// The clients of one worker.
#[derive(Default)]
pub(crate) struct ClientTable {
    /// By number, with the generation of its current or next client.
    places: Vec<(u32, Option<Client>)>,
    /// Numbers for reuse.
    free: Vec<u32>,
    len: usize,
    /// See [`ClientTable::answered`].
    answered: u64,
    tallies: Tallies,
    refusals: Refusals,
    /// The share of one client in bytes, and the number of clients that it was computed for.
    share: (u64, u64),
    limited: LimitedClients,
}

impl ClientTable {
    fn insert(&mut self, client: Client) -> ClientId {
        let number = self.free.pop().unwrap_or_else(|| {
            self.places.push((0, None));
            (self.places.len() - 1) as u32
        });
        let (generation, place) = &mut self.places[number as usize];
        assert!(place.is_none(), "a free number has no client");
        *place = Some(client);
        self.len += 1;
        ClientId { number, generation: *generation }
    }

    /// Removes a client. With `reuse`, another client may get its number.
    fn remove(&mut self, id: ClientId, reuse: bool) -> Option<Client> {
        let (generation, place) = self.places.get_mut(id.number as usize)?;
        let client = place.take_if(|_| *generation == id.generation)?;
        *generation = generation.wrapping_add(1);
        if reuse {
            self.free.push(id.number);
        }
        let left = self.len.checked_sub(1);
        self.len = left.expect("a client that leaves was in the table");
        assert!(self.len + self.free.len() <= self.places.len(), "a number has one client");
        Some(client)
    }

    fn get(&self, id: ClientId) -> Option<&Client> {
        let (generation, client) = self.places.get(id.number as usize)?;
        client.as_ref().filter(|_| *generation == id.generation)
    }

    fn get_mut(&mut self, id: ClientId) -> Option<&mut Client> {
        let (generation, client) = self.places.get_mut(id.number as usize)?;
        client.as_mut().filter(|_| *generation == id.generation)
    }

    /// The number of requests that were answered to clients so far.
    pub(crate) const fn answered(&self) -> u64 {
        self.answered
    }

    /// Whether a client is connected.
    pub(crate) fn has(&self, id: ClientId) -> bool {
        self.get(id).is_some()
    }

    /// The number of clients.
    pub(crate) const fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn of(&self, volume: Option<VolumeId>) -> Vec<ClientId> {
        let numbered = self.places.iter().zip(0..);
        let clients = numbered.filter_map(|((generation, client), number)| {
            let entered = client.as_ref()?.volume.as_ref().map(|entered| entered.id);
            let id = ClientId { number, generation: *generation };
            (volume.is_none() || entered == volume).then_some(id)
        });
        clients.collect()
    }

    /// All clients, as they are listed.
    pub(crate) fn list(&self) -> impl Iterator<Item = (ClientId, ConnectedClient)> {
        self.places.iter().zip(0..).filter_map(|((generation, client), number)| {
            let id = ClientId { number, generation: *generation };
            Some((id, client.as_ref()?.listed()))
        })
    }

    /// Whether a client is queued for memory, or for the limits of its volume.
    pub(crate) fn is_waiting(&self, id: ClientId) -> bool {
        self.get(id)
            .is_some_and(|client| client.queued_for.is_some() || client.limited.is_waiting())
    }

    /// Counts an answer. `is_judged` if it has been decided whether the request was slow. Returns
    /// the result for the client; `None` if the client has left.
    fn complete(
        &mut self,
        worker: usize,
        submitted: &Submitted,
        result: IoResult,
        line_hits: LineHits,
        is_judged: bool,
    ) -> Option<IoResult> {
        let request = &submitted.request;
        let (generation, place) = self.places.get_mut(request.client.number as usize)?;
        let client = place.as_mut().filter(|_| *generation == request.client.generation)?;
        client.complete(bytes_of(request));
        self.answered += 1;
        let volume = client.volume.as_ref().expect("a client with requests has entered a volume");
        let result = unless_halted(volume, request.kind, result);
        if let Some(class) = tally::count(volume, worker, submitted, result, line_hits) {
            let compared = tally::compared(volume, submitted, result, line_hits);
            self.tallies.add(volume, (class, compared), submitted.arrived, is_judged);
        }
        if result.is_ok() {
            client.count_done(request);
        }
        Some(result)
    }

    /// Counts the answer to an extent query. Returns the volume; `None` if the client has left.
    pub(crate) fn complete_query(&mut self, id: ClientId) -> Option<VolumeId> {
        let client = self.get_mut(id)?;
        client.complete(0);
        client.volume.as_ref().map(|volume| volume.id)
    }

    /// The share of one client in bytes.
    fn share(&mut self, shared: &Shared) -> u64 {
        let clients = shared.connections.load(Ordering::Relaxed).max(1);
        if self.share.1 != clients {
            self.share = (shared.budget.share(clients), clients);
        }
        self.share.0
    }

    /// Records the latencies of the turn. Returns the time, if it was needed for that.
    pub(crate) fn record_latencies(&mut self, worker: usize) -> Option<Instant> {
        self.tallies.record(worker)
    }
}

/// The memory that a request takes until it is answered: none for erases and flushes.
const fn bytes_of(request: &ClientRequest) -> u64 {
    match request.kind {
        RequestKind::Read | RequestKind::Write { .. } => request.range.len,
        _ => 0,
    }
}

/// Whether a request changes the volume.
const fn is_write(kind: RequestKind) -> bool {
    matches!(kind, RequestKind::Write { .. } | RequestKind::Trim { .. } | RequestKind::Zero { .. })
}

/// Whether a request is acknowledged from stable storage only.
const fn is_stable(kind: RequestKind) -> bool {
    matches!(
        kind,
        RequestKind::Flush
            | RequestKind::Write { fua: true }
            | RequestKind::Trim { fua: true }
            | RequestKind::Zero { fua: true, .. }
    )
}

/// The result for the client. A write that completes after its volume was halted may be missing in
/// the dump, so it is answered with an error.
fn unless_halted(volume: &Volume, kind: RequestKind, result: IoResult) -> IoResult {
    if is_write(kind) && volume.power.is_halted() {
        return result.and(Err(IoError::Shutdown));
    }
    result
}

#[cfg(test)]
mod leaving_tests;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod ublk_tests;
