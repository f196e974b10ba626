//! Clients of all front ends: their number, their requests in flight, and admission.
//!
//! Implements the seam in `forebay-frontend`. Each worker has a table of its clients; the
//! [`Budget`] that all workers share limits the memory of all requests. A request is counted when
//! it is taken and when its completion is delivered, so a front end can neither forget to count
//! nor count twice.

mod budget;
mod context;
mod inquiry;
mod refusals;
mod tally;

pub(crate) use budget::{Budget, Entry, HUGE_BYTES, Queue, Waiter};
pub(crate) use context::Context;
pub(crate) use inquiry::Inquiries;

use crate::server::VolumeSettings;
use crate::shared::{Shared, Volume};
use forebay_engine::Touched;
use forebay_frontend::{ClientId, ClientRequest, Memory, VolumeInfo};
use forebay_types::limits::CONNECTION_REQUESTS_MAX;
use forebay_types::{IoError, IoResult, VolumeId};
use forebay_volume::{Completion, CompletionBatch, CompletionQueue, RequestKind};
use refusals::Refusals;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;
use tally::Tallies;

/// A request in flight.
pub(crate) struct Submitted {
    pub request: ClientRequest,
    /// When its bytes had come.
    pub arrived: Instant,
}

/// The duty to answer a client's request.
pub(crate) type ClientCompletion = Completion<Submitted, Memory>;
/// Answers that are to be delivered.
pub(crate) type Completions = CompletionQueue<Submitted, Memory>;
/// Answers that are being delivered.
pub(crate) type Deliveries = CompletionBatch<Submitted, Memory>;

/// One client.
#[derive(Default)]
struct Client {
    /// The volume it entered.
    volume: Option<Arc<Volume>>,
    requests: usize,
    bytes: u64,
    /// Room that its huge requests have in the lane, in bytes.
    lane_bytes: u64,
    /// Where it has a place in the queue.
    waits_in: Option<Queue>,
}

impl Client {
    fn is_full(&self, held: u64, share: u64) -> bool {
        self.requests >= CONNECTION_REQUESTS_MAX || self.bytes + held >= share
    }

    /// Gives up the place in a queue, if there is one.
    fn stop_waiting(&mut self, shared: &Shared, waiter: Waiter) {
        if let Some(queue) = self.waits_in.take() {
            shared.call_next(shared.budget.room(queue).give_up(waiter));
        }
    }
}

/// The clients of one worker.
#[derive(Default)]
pub(crate) struct ClientTable {
    /// By number, with the generation of the client that has the number or of the next.
    places: Vec<(u32, Option<Client>)>,
    free: Vec<u32>,
    len: usize,
    tallies: Tallies,
    refusals: Refusals,
    /// What one client may have under way, and the number of clients that this is for.
    share: (u64, u64),
}

impl ClientTable {
    fn insert(&mut self) -> ClientId {
        let number = self.free.pop().unwrap_or_else(|| {
            self.places.push((0, None));
            (self.places.len() - 1) as u32
        });
        let (generation, place) = &mut self.places[number as usize];
        *place = Some(Client::default());
        self.len += 1;
        ClientId { number, generation: *generation }
    }

    /// Takes a client out. Unless its number may be used again, no other client gets it.
    fn remove(&mut self, id: ClientId, reuse: bool) -> Option<Client> {
        let (generation, place) = self.places.get_mut(id.number as usize)?;
        let client = place.take_if(|_| *generation == id.generation)?;
        *generation = generation.wrapping_add(1);
        if reuse {
            self.free.push(id.number);
        }
        self.len -= 1;
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

    /// Clients that have not left.
    pub(crate) const fn len(&self) -> usize {
        self.len
    }

    /// The clients that entered a volume, or all.
    pub(crate) fn of(&self, volume: Option<VolumeId>) -> Vec<ClientId> {
        let numbered = self.places.iter().zip(0..);
        let clients = numbered.filter_map(|((generation, client), number)| {
            let entered = client.as_ref()?.volume.as_ref().map(|entered| entered.id);
            let id = ClientId { number, generation: *generation };
            (volume.is_none() || entered == volume).then_some(id)
        });
        clients.collect()
    }

    /// Whether a client waits for room, and may be told that there is some.
    pub(crate) fn is_waiting(&self, id: ClientId) -> bool {
        self.get(id).is_some_and(|client| client.waits_in.is_some())
    }

    /// Counts an answer. Returns the result as it may be given, if the client has not left.
    fn answered(
        &mut self,
        worker: usize,
        submitted: &Submitted,
        result: IoResult,
        touched: Touched,
    ) -> Option<IoResult> {
        let request = &submitted.request;
        let (generation, place) = self.places.get_mut(request.client.number as usize)?;
        let client = place.as_mut().filter(|_| *generation == request.client.generation)?;
        client.requests -= 1;
        client.bytes -= bytes_of(request);
        let volume = client.volume.as_ref().expect("a client with requests has entered a volume");
        let result = unless_halted(volume, request.kind, result);
        let class = tally::count(volume, worker, request, result, touched);
        self.tallies.add(volume, class, submitted.arrived);
        Some(result)
    }

    /// A question of a client is answered. Returns the volume that it was about, if the client has
    /// not left.
    pub(crate) fn question_answered(&mut self, id: ClientId) -> Option<VolumeId> {
        let client = self.get_mut(id)?;
        client.requests -= 1;
        client.volume.as_ref().map(|volume| volume.id)
    }

    /// What one client may have under way, in bytes.
    fn share(&mut self, shared: &Shared) -> u64 {
        let clients = shared.connections.load(Ordering::Relaxed).max(1);
        if self.share.1 != clients {
            self.share = (shared.budget.share(clients), clients);
        }
        self.share.0
    }

    /// Records the latencies of the turn.
    pub(crate) fn record_latencies(&mut self, worker: usize) {
        self.tallies.record(worker);
    }
}

/// What clients are told of a volume.
pub(crate) fn info_of(id: VolumeId, settings: &VolumeSettings) -> VolumeInfo {
    let description = settings.backend.description();
    VolumeInfo {
        id,
        name: settings.name.clone(),
        description: settings.description.clone(),
        size_bytes: description.size_bytes,
        read_only: settings.read_only || description.read_only,
        rotational: settings.geometry.rotational == Some(true),
        block_bytes: description.alignment_bytes,
        can_trim: description.can_discard,
        can_fast_zero: description.can_zero_fast,
        tls_only: settings.tls_only,
    }
}

/// What a request takes in memory until it is answered: erases and flushes take nothing.
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

/// Whether a request is answered from stable storage only.
const fn is_stable(kind: RequestKind) -> bool {
    matches!(
        kind,
        RequestKind::Flush
            | RequestKind::Write { fua: true }
            | RequestKind::Trim { fua: true }
            | RequestKind::Zero { fua: true, .. }
    )
}

/// The result as it may be given: a write that completes after its volume was halted is not in the
/// vault's copy, so no client may rely on it.
fn unless_halted(volume: &Volume, kind: RequestKind, result: IoResult) -> IoResult {
    if is_write(kind) && volume.power.is_halted() {
        return result.and(Err(IoError::Shutdown));
    }
    result
}

#[cfg(test)]
mod tests;
