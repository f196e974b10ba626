//! The interface of a worker to its front ends: requests, quotas, clients.
//!
//! Implements the traits of `forebay-frontend` over the worker's state, which it borrows for one
//! call.

use super::{Client, Submitted, Ticket, bytes_of, is_stable, is_write};
use crate::budget::{HUGE_BYTES, Queue, Waiter};
use crate::platform::reactor::Reactor;
use crate::pool::{CACHE_LINE_BYTES, prefetch};
use crate::shared::{DirtyRanges, PendingQuery, Served, Shared, SlowRequest, Volume};
use crate::worker::{Token, WorkerHost};
use forebay_engine::{LineKey, Slot, Uncached};
use forebay_frontend::{
    ClientHistory, ClientId, ClientRequest, ClientTimeouts, Clients, DriverCommand, ExtentQuery,
    FrontEnd, LookAhead, Memory, PayloadReservation, Peer, Pins, PoolAccess, Quota, Refusal,
    RequestSink, Staged, TryLater, VolumeInfo, WorkerContext,
};
use forebay_types::limits::CONNECTIONS_MAX;
use forebay_types::{ByteRange, Extent, IoError, IoResult, LINE_BYTES, VolumeId};
use forebay_volume::{
    AnsweredRequest, Dispatcher, Payload, Reply, ReplySegment, Request, RequestKind, WaitBreakdown,
    shard_of,
};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant, SystemTime};

/// The part of a line's data that is prefetched into the processor's cache before a read. Measured
/// with random reads of 4 KiB at depth 64: with none or a single cache line 2 % slower, with all
/// lines 12 % slower.
const READ_AHEAD_BYTES: usize = 4 * CACHE_LINE_BYTES;
/// As [`READ_AHEAD_BYTES`], before a write: with a single cache line 2 % slower.
const WRITE_AHEAD_BYTES: usize = 8 * CACHE_LINE_BYTES;

/// A worker, borrowed for one call of a front end.
pub(crate) struct Context<'a, R: Reactor> {
    pub dispatcher: &'a mut Dispatcher<WorkerHost<R>>,
    pub host: &'a mut WorkerHost<R>,
}

impl<R: Reactor> Context<'_, R> {
    /// Delivers an answer to the front end of its client.
    pub(crate) fn deliver<F: FrontEnd>(
        &mut self,
        front: &mut F,
        answered: AnsweredRequest<Ticket, Memory>,
        segments: &[ReplySegment],
    ) {
        let AnsweredRequest { ticket, result, memory, line_hits, is_lost, trail, .. } = answered;
        let submitted = self.host.in_flight.get(&ticket);
        let request = submitted.request;
        if is_lost {
            tracing::error!(?request, "request lost by a bug, answered with an error: report this");
        }
        let has_waited = trail.is_some() || submitted.waited_ms > 0;
        if has_waited {
            let served = served(result, line_hits.uncached);
            self.host.judge(submitted, served, trail.as_deref());
        }
        let WorkerHost { shared, clients, in_flight, worker, recorder, .. } = &mut *self.host;
        let submitted = in_flight.get(&ticket);
        if let Some(recorder) = recorder {
            recorder.answer(
                submitted.recorded,
                submitted.arrived,
                served(result, line_hits.uncached),
            );
        }
        let result = clients.complete(*worker, submitted, result, line_hits, has_waited);
        in_flight.remove(ticket);
        let Some(result) = result else { return shared.release(segments) };
        let reply = Reply { result, segments, memory, line_hits, trail: None };
        if front.completed(self, &request, reply) == Pins::Released {
            self.host.shared.release(segments);
        }
    }

    /// Delivers the answer to an extent query to the front end of its client.
    pub(crate) fn deliver_extents<F: FrontEnd>(
        &mut self,
        front: &mut F,
        query: &ExtentQuery,
        extents: &[Extent],
        mut dirty: DirtyRanges,
    ) {
        let Some(volume) = self.host.clients.complete_query(query.client) else { return };
        // Data that has become dirty meanwhile is not in the backend's answer.
        dirty.add(&self.host.shared.shards, volume, query.range);
        front.extents(self, query, &dirty.overlay(query.range, extents));
    }

    /// Accepts a request of a client that has entered a volume, and counts it.
    pub(super) fn begin(&mut self, request: &ClientRequest) -> Result<(Ticket, VolumeId), Refusal> {
        let WorkerHost { shared, clients, in_flight, recorder, now, .. } = &mut *self.host;
        let Some(client) = clients.get_mut(request.client) else { return Err(NOT_ENTERED) };
        client.limited.submitted();
        let Some(volume) = &client.volume else { return Err(NOT_ENTERED) };
        if let Some(refusal) = refusal(shared, volume, request.kind) {
            return Err(refusal);
        }
        let id = volume.id;
        let recorded = match recorder {
            None => 0,
            Some(recorder) => recorder.begin(volume, request, *now),
        };
        client.requests += 1;
        client.bytes += bytes_of(request);
        let (ticket, submitted) = in_flight.add(request, *now);
        submitted.is_sequential = client.continues(request);
        submitted.recorded = recorded;
        if let Some(since) = client.queued_since.take() {
            submitted.waited_ms = waited_ms(since, *now);
        }
        Ok((ticket, id))
    }

    /// Releases the slots that hold the payload of a refused request.
    fn unstage(&mut self, request: &ClientRequest, slots: &[Slot]) {
        let client = self.host.clients.get(request.client);
        if let Some(volume) = client.and_then(|client| client.volume.as_ref())
            && !slots.is_empty()
        {
            let id = volume.id;
            self.dispatcher.unstage(self.host, id, request.range, slots);
        }
    }

    const fn waiter(&self, id: ClientId) -> Waiter {
        (self.host.worker, id.number, id.generation)
    }

    /// Whether a client may have another `bytes` in flight beside the memory that it holds.
    fn is_within_share(&mut self, id: ClientId, bytes: u64, held: u64) -> bool {
        let waiter = self.waiter(id);
        let WorkerHost { shared, clients, .. } = &mut *self.host;
        let share = clients.share(shared);
        let Some(client) = clients.get_mut(id) else { return false };
        let in_flight = client.bytes + held;
        if in_flight > 0 && in_flight + bytes > share {
            // If the client is queued, its share has shrunk since, because new clients have
            // connected. While it exceeds the share, it must not block the queue.
            client.stop_waiting(shared, waiter);
            return false;
        }
        true
    }

    /// Acquires memory of the lane, or queues the client. Returns whether the memory is granted.
    fn acquire_lane(&mut self, id: ClientId, bytes: u64) -> bool {
        let waiter = self.waiter(id);
        let WorkerHost { shared, clients, now, .. } = &mut *self.host;
        let Some(client) = clients.get_mut(id) else { return false };
        let granted = shared.acquire(Queue::Lane, bytes, waiter);
        client.queue((!granted).then_some(Queue::Lane), *now);
        if granted {
            client.lane_bytes += bytes;
            assert!(client.queued_for.is_none(), "a client that has memory waits for none");
        }
        granted
    }

    /// Counts a new client with all clients, or counts its refusal.
    fn count_client(&mut self, descriptor: Option<BorrowedFd<'_>>) -> bool {
        let WorkerHost { shared, clients, now, .. } = &mut *self.host;
        let count = shared.connections.fetch_add(1, Ordering::Relaxed);
        let admits = |fd: BorrowedFd<'_>| shared.descriptors.admit(fd.as_raw_fd());
        let has_descriptor = descriptor.is_none_or(admits);
        if count >= CONNECTIONS_MAX as u64 || !has_descriptor {
            shared.connections.fetch_sub(1, Ordering::Relaxed);
            clients.refusals.count(*now, has_descriptor, shared.descriptors);
            return false;
        }
        true
    }

    /// Removes a client from the connection counts.
    fn uncount_client(&self) {
        let shared = &self.host.shared;
        let before = shared.connections.fetch_sub(1, Ordering::Relaxed);
        assert!(before > 0, "a client that leaves was counted");
        let own = &shared.worker_connections[self.host.worker];
        assert!(own.fetch_sub(1, Ordering::Relaxed) > 0, "and with its worker");
    }
}

impl<R: Reactor> WorkerHost<R> {
    /// Decides whether a request that has waited was slow, and records it if so.
    #[cold]
    fn judge(&self, submitted: &Submitted, served: Served, trail: Option<&WaitBreakdown>) {
        let Submitted { request, arrived, waited_ms, .. } = submitted;
        let client = self.clients.get(request.client);
        let Some(volume) = client.and_then(|client| client.volume.as_ref()) else { return };
        let memory = Duration::from_millis(u64::from(*waited_ms));
        let took = memory + arrived.elapsed();
        if volume.slow.is_passed_by(took) {
            let (what, trail) = ((request.kind, request.range), trail.copied().unwrap_or_default());
            volume.slow.add(SlowRequest::new(what, served, (took, memory), trail));
        }
    }
}

impl<R: Reactor> RequestSink for Context<'_, R> {
    fn submit(
        &mut self,
        request: &ClientRequest,
        payload: Payload<'_, Memory>,
    ) -> Result<(), Refusal> {
        match self.begin(request) {
            Ok((ticket, volume)) => {
                let token = Token::Client(self.host.completions.begin(ticket));
                let request = Request { volume, kind: request.kind, range: request.range };
                self.dispatcher.submit(self.host, token, request, payload);
                Ok(())
            }
            Err(refusal) => {
                self.count_refusal(request.client);
                self.unstage(request, payload.staged());
                Err(refusal)
            }
        }
    }

    fn count_refusal(&mut self, client: ClientId) {
        let client = self.host.clients.get(client);
        if let Some(volume) = client.and_then(|client| client.volume.as_ref()) {
            let counts = &volume.stats[self.host.worker].counts;
            counts.errors.add(1);
            counts.refused.add(1);
        }
    }

    fn query_extents(&mut self, query: ExtentQuery) -> bool {
        let WorkerHost { shared, clients, worker, .. } = &mut *self.host;
        let Some(client) = clients.get_mut(query.client) else { return false };
        let Some(volume) = client.volume.clone() else { return false };
        // The backend does not report dirty data. A range that is dirty now has either been
        // destaged or is still dirty when the backend is queried.
        let mut dirty = DirtyRanges::default();
        dirty.add(&shared.shards, volume.id, query.range);
        client.requests += 1;
        let inbox = Arc::clone(&shared.inboxes[*worker]);
        volume.query_extents(PendingQuery::new(inbox, query, dirty));
        true
    }

    fn stage(&mut self, client: ClientId, range: ByteRange) -> Option<Staged> {
        let volume = self.host.clients.get(client)?.volume.as_ref()?;
        if range.len > HUGE_BYTES {
            return None;
        }
        let (id, stripes) = (volume.id, volume.stripes);
        let slots = self.dispatcher.stage(self.host, id, range)?;
        let pool = Arc::clone(&self.host.shared);
        Some(Staged::new(pool, (id, stripes), range, slots))
    }

    fn look_ahead(&self, client: ClientId, guess: LookAhead) {
        let client = self.host.clients.get(client);
        let Some(volume) = client.and_then(|client| client.volume.as_ref()) else { return };
        let shared = &self.host.shared;
        let place = |offset: u64| {
            let shard = shard_of(volume.id, volume.stripes, offset, shared.shards.len());
            (shard, LineKey::new(volume.id, offset / LINE_BYTES))
        };
        if let Some((shard, key)) = guess.second.map(place) {
            prefetch(shared.shards.hints(shard).bucket_address(key));
        }
        if let Some((shard, key)) = guess.next.map(place)
            && let Some(slot) = shared.shards.hints(shard).slot(key)
        {
            let data_bytes = if guess.writes { WRITE_AHEAD_BYTES } else { READ_AHEAD_BYTES };
            shared.pool.prefetch_line(shard, slot, data_bytes);
        }
    }
}

/// The time from `since` to `now`, at least a millisecond.
fn waited_ms(since: Instant, now: Instant) -> u16 {
    let ms = now.saturating_duration_since(since).as_millis();
    u16::try_from(ms).unwrap_or(u16::MAX).max(1)
}

/// How a request was served, for a recording and for slow requests.
fn served(result: IoResult, uncached: Option<Uncached>) -> Served {
    match (result, uncached) {
        (Err(_), _) => Served::Error,
        (Ok(()), Some(reason)) => Served::Uncached(reason),
        (Ok(()), None) => Served::Pool,
    }
}

const NOT_ENTERED: Refusal = Refusal { error: IoError::Invalid, reason: "no volume selected" };

/// The refusal of a request of this kind in the current state of the volume, if any. Inlined, the
/// kind is not copied: see [`super::in_flight`].
#[inline(always)]
fn refusal(shared: &Shared, volume: &Volume, kind: RequestKind) -> Option<Refusal> {
    let refuse = |error, reason| Some(Refusal { error, reason });
    if is_write(kind) && volume.read_only.load(Ordering::Relaxed) {
        return refuse(IoError::NotPermitted, "the volume is read-only");
    }
    if is_write(kind) && volume.power.is_halted() {
        return refuse(IoError::Shutdown, crate::protect::power::HALTED);
    }
    // A journal keeps writes durable although the disk has failed a flush.
    if is_stable(kind) && !volume.journal.is_used() && volume.flush.failure().is_some() {
        return refuse(IoError::Io, crate::shared::FLUSH_FAILED);
    }
    if shared.stopping.load(Ordering::Relaxed) {
        return refuse(IoError::Shutdown, "the server is stopping");
    }
    if volume.is_closed.load(Ordering::Relaxed) {
        return refuse(IoError::Shutdown, "the volume is being added, restored or removed");
    }
    None
}

impl<R: Reactor> Quota for Context<'_, R> {
    fn in_flight(&self, client: ClientId) -> usize {
        self.host.clients.get(client).map_or(0, |client| client.requests)
    }

    fn is_full(&mut self, client: ClientId, held: u64) -> bool {
        let share = self.host.clients.share(&self.host.shared);
        self.host.clients.get(client).is_some_and(|client| client.is_full(held, share))
    }

    fn admit(&mut self, id: ClientId, kind: RequestKind, len: u64, held: u64) -> bool {
        let moves_data = matches!(kind, RequestKind::Read | RequestKind::Write { .. });
        // A client with too much memory leaves all queues, and one that waits for a limit gets no
        // memory.
        if moves_data && !self.is_within_share(id, len, held) || !self.passes_limits(id, kind, len)
        {
            return false;
        }
        if !moves_data || len <= HUGE_BYTES {
            return true;
        }
        self.acquire_lane(id, len)
    }

    fn piece_bytes(&self, bytes: u64) -> Option<u64> {
        self.host.shared.budget.piece_bytes(bytes)
    }

    fn admit_piece(&mut self, id: ClientId, bytes: u64, held: u64) -> bool {
        // The limits count each piece, and it does not matter for them whether it is a write.
        self.is_within_share(id, bytes, held)
            && self.passes_limits(id, RequestKind::Read, bytes)
            && self.acquire_lane(id, bytes)
    }

    fn reserve(
        &mut self,
        id: ClientId,
        bytes: u64,
    ) -> Result<Option<PayloadReservation>, TryLater> {
        if bytes > HUGE_BYTES {
            return Ok(None);
        }
        let waiter = self.waiter(id);
        let WorkerHost { shared, clients, now, .. } = &mut *self.host;
        let Some(client) = clients.get_mut(id) else { return Err(TryLater) };
        let granted = shared.acquire(Queue::Payloads, bytes, waiter);
        client.queue((!granted).then_some(Queue::Payloads), *now);
        if granted {
            Ok(Some(PayloadReservation::new(Arc::clone(shared) as _, bytes)))
        } else {
            Err(TryLater)
        }
    }

    fn stop_waiting(&mut self, id: ClientId) {
        let waiter = self.waiter(id);
        let WorkerHost { shared, clients, .. } = &mut *self.host;
        if let Some(client) = clients.get_mut(id) {
            client.stop_waiting(shared, waiter);
        }
    }

    fn release_unused(&mut self, id: ClientId, held: u64) {
        let WorkerHost { shared, clients, .. } = &mut *self.host;
        let Some(client) = clients.get_mut(id) else { return };
        let unused = client.lane_bytes.saturating_sub(client.bytes + held);
        if unused > 0 {
            client.lane_bytes -= unused;
            shared.wake_waiter(shared.budget.quota(Queue::Lane).release(unused));
        }
    }

    fn blocks_others(&self, client: ClientId) -> bool {
        let holds_lane = |client: &Client| client.lane_bytes > 0;
        self.host.clients.get(client).is_some_and(holds_lane)
            && self.host.shared.budget.quota(Queue::Lane).has_waiters()
    }
}

impl<R: Reactor> Clients for Context<'_, R> {
    fn accept(&mut self, descriptor: Option<BorrowedFd<'_>>) -> Option<usize> {
        if !self.count_client(descriptor) {
            return None;
        }
        let workers = self.host.shared.worker_connections.iter().enumerate();
        let (worker, load) = workers
            .min_by_key(|(_, load)| load.load(Ordering::Relaxed))
            .expect("there is at least this worker");
        load.fetch_add(1, Ordering::Relaxed);
        Some(worker)
    }

    fn accept_here(&mut self) -> bool {
        let is_accepted = self.count_client(None);
        if is_accepted {
            let own = &self.host.shared.worker_connections[self.host.worker];
            own.fetch_add(1, Ordering::Relaxed);
        }
        is_accepted
    }

    fn cancel_accept(&mut self) {
        self.uncount_client();
    }

    fn join(&mut self, peer: &Peer) -> ClientId {
        let WorkerHost { shared, clients, .. } = &mut *self.host;
        let id = shared.clients_joined.fetch_add(1, Ordering::Relaxed) + 1;
        let (peer, joined) = (peer.clone(), Some(SystemTime::now()));
        clients.insert(Client { id, peer, joined, ..Client::default() })
    }

    fn history(&self, client: ClientId) -> ClientHistory {
        self.host.clients.get(client).map(Client::history).unwrap_or_default()
    }

    fn continue_history(&mut self, client: ClientId, history: ClientHistory) {
        if let Some(client) = self.host.clients.get_mut(client) {
            client.continue_history(history);
        }
    }

    fn enter(&mut self, client: ClientId, volume: VolumeId, is_encrypted: bool) -> bool {
        let Some(client) = self.host.clients.get_mut(client) else { return false };
        let Some(volume) = self.host.shared.volume(volume) else { return false };
        if client.volume.is_some() || volume.is_closed.load(Ordering::Relaxed) {
            return false;
        }
        volume.connections.fetch_add(1, Ordering::Relaxed);
        client.volume = Some(volume);
        client.is_encrypted = is_encrypted;
        true
    }

    fn volume_bytes(&self, client: ClientId) -> u64 {
        let client = self.host.clients.get(client);
        let volume = client.and_then(|client| client.volume.as_ref());
        volume.map_or(0, |volume| volume.size_bytes())
    }

    fn leave(&mut self, id: ClientId, reuse: bool) {
        let waiter = self.waiter(id);
        let WorkerHost { shared, clients, .. } = &mut *self.host;
        let Some(mut client) = clients.remove(id, reuse) else { return };
        client.stop_waiting(shared, waiter);
        client.leave_limits(shared, waiter);
        if client.lane_bytes > 0 {
            shared.wake_waiter(shared.budget.quota(Queue::Lane).release(client.lane_bytes));
        }
        if let Some(volume) = &client.volume {
            let before = volume.connections.fetch_sub(1, Ordering::Relaxed);
            assert!(before > 0, "a client that leaves a volume had entered it");
        }
        self.uncount_client();
    }

    fn each_volume(&self, each: &mut dyn FnMut(&VolumeInfo)) {
        for volume in self.host.shared.volumes.all() {
            if !volume.is_closed.load(Ordering::Relaxed) {
                each(&volume.info.read());
            }
        }
    }
}

impl<R: Reactor> WorkerContext for Context<'_, R> {
    type Sockets = R;
    type Pool = Shared;

    fn sockets(&mut self) -> &mut R {
        &mut self.host.reactor
    }

    fn pool(&self) -> &Arc<Shared> {
        &self.host.shared
    }

    fn command(&mut self, command: DriverCommand) -> bool {
        self.host.reactor.command(command)
    }

    fn client_time(&self) -> Instant {
        self.host.client_clock.time()
    }

    fn client_timeouts(&self) -> ClientTimeouts {
        self.host.shared.timeouts.for_clients()
    }

    fn is_stopping(&self) -> bool {
        self.host.shared.stopping.load(Ordering::Relaxed)
    }

    fn may_succeed_elsewhere(&self, client: ClientId, error: IoError) -> bool {
        let client = self.host.clients.get(client);
        let Some(volume) = client.and_then(|client| client.volume.as_ref()) else { return false };
        // Until the clients of a volume that was taken over are disconnected, what they ask for
        // fails in any way.
        let is_lost = volume.backend.is_taken_over() || volume.has_lost_journal();
        let is_ending = self.is_stopping() || volume.is_closed.load(Ordering::Relaxed);
        is_lost || (is_ending && error == IoError::Shutdown)
    }
}
