//! A ring of a device: a client, whose requests have the numbers of their descriptors.

use crate::chain::{Chain, bytes_of, copy_in, copy_out, for_each, read_value};
use crate::inbox::{Notice, RingError, RingKey};
use crate::memory::GuestMemory;
use crate::ring::GuestRing;
use crate::setup::RingSetup;
use forebay_engine::Place;
use forebay_frontend::{
    ClientId, ClientRequest, EventCounters, Memory, PoolAccess, VolumeInfo, WorkerContext,
};
use forebay_types::{ByteRange, IoError, IoResult};
use forebay_vhost::block::{BlockOperation, EraseRange, NAME_BYTES, RequestStatus};
use forebay_volume::{Payload, Reply, RequestKind};
use std::collections::VecDeque;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The longest write whose data passes through memory of the worker, in bytes. Longer ones are
/// copied into slots of the pool, which costs more at first, but one copy less.
pub(crate) const SHORT_BYTES_MAX: usize = 16 << 10;

/// Bytes of a request that are submitted at once. Longer ones would wait for memory that one
/// request has at a time.
const PIECE_BYTES: u64 = 2 << 20;

/// Bytes of a request at most.
const REQUEST_BYTES_MAX: u64 = 32 << 20;

/// Whether a queue takes requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum GuestQueueStage {
    Serving,
    /// The monitor stops the ring: the requests taken are answered first.
    Stopping,
    /// The server stops, or the volume is removed: requests in flight are answered first.
    Draining,
    /// The client has left.
    Left,
}

/// A request in its place.
struct GuestRequest {
    kind: RequestKind,
    /// The bytes of the volume.
    range: ByteRange,
    /// Bytes of it that are answered.
    done: u64,
    /// Whether a piece of it is in the worker.
    is_submitted: bool,
    status: *mut u8,
    /// Keeps what the chain refers to.
    memory: Arc<GuestMemory>,
}

/// The place of a request, by the number of its descriptor.
#[derive(Default)]
struct RequestPlace {
    request: Option<GuestRequest>,
    chain: Chain,
}

/// A ring that this worker serves.
pub(crate) struct GuestQueue {
    setup: Box<RingSetup>,
    ring: GuestRing,
    client: ClientId,
    places: Vec<RequestPlace>,
    /// Requests that have been taken and are to be submitted, oldest first.
    waiting: VecDeque<u16>,
    stage: GuestQueueStage,
    /// The reactor has reported the last event of the kick.
    watch_has_ended: bool,
    /// A request has been answered, or added, since the last look at the ring.
    may_resume: bool,
    /// Answers that the guest has not been shown.
    has_answers: bool,
    is_broken: bool,
}

impl GuestQueue {
    /// Enters the volume of a ring as a client, and begins to serve it.
    ///
    /// # Errors
    /// The volume takes no clients, or the ring is not in the guest's memory.
    pub(crate) fn join<C: WorkerContext>(
        cx: &mut C,
        setup: Box<RingSetup>,
    ) -> Result<Self, RingError> {
        let client = cx.join(&setup.peer);
        let volume = find_volume(cx, &setup.volume).filter(|_| !cx.is_stopping());
        if volume.as_ref().is_some_and(|volume| volume.tls_only) {
            cx.leave(client, true);
            return Err(RingError::TlsOnly);
        }
        let entered = volume.filter(|volume| cx.enter(client, volume.id, false));
        if entered.is_none() {
            cx.leave(client, true);
            return Err(RingError::Closed);
        }
        let mut taken = Vec::new();
        let ring = match setup.ring(&mut taken) {
            Ok(ring) => ring,
            Err(error) => {
                cx.leave(client, true);
                return Err(error);
            }
        };
        let places = (0..ring.entries()).map(|_| RequestPlace::default()).collect();
        cx.sockets().watch_counter(setup.place, setup.kick.as_raw_fd());
        let mut queue = Self {
            setup,
            ring,
            client,
            places,
            waiting: VecDeque::new(),
            stage: GuestQueueStage::Serving,
            watch_has_ended: false,
            may_resume: true,
            has_answers: false,
            is_broken: false,
        };
        if !taken.is_empty() {
            tracing::info!(
                volume = %queue.setup.volume,
                ring = queue.setup.key.ring,
                requests = taken.len(),
                "requests that an earlier server had taken are served again"
            );
        }
        for head in taken {
            queue.begin(cx, head);
        }
        // An earlier server may have shown answers to the guest and ended before it interrupted it.
        queue.interrupt();
        Ok(queue)
    }

    pub(crate) const fn client(&self) -> ClientId {
        self.client
    }

    pub(crate) const fn key(&self) -> RingKey {
        self.setup.key
    }

    /// Whether nothing refers to this queue any more.
    pub(crate) fn has_ended(&self) -> bool {
        self.stage == GuestQueueStage::Left && self.watch_has_ended
    }

    /// Whether [`GuestQueue::resume`] may find something to do.
    pub(crate) const fn is_resumable(&self) -> bool {
        self.may_resume
    }

    /// Whether there are answers for [`GuestQueue::show_answers`].
    pub(crate) const fn has_answers(&self) -> bool {
        self.has_answers
    }

    /// Replaces the interrupt of the guest.
    pub(crate) fn set_call(&mut self, call: Option<Arc<std::os::fd::OwnedFd>>) {
        self.setup.call = call;
        self.interrupt();
    }

    /// Interrupts the guest.
    fn interrupt(&self) {
        if let Some(call) = &self.setup.call {
            // A counter at its limit interrupts as well.
            let _ = rustix::io::write(call, &1_u64.to_ne_bytes());
        }
    }

    /// Replaces the memory of the guest, for requests that are taken from now on.
    pub(crate) fn set_memory(&mut self, memory: Arc<GuestMemory>) {
        let version = memory.version();
        self.setup.memory = memory;
        self.setup.notify(Notice::MemoryChanged { key: self.key(), version });
    }

    /// Notes that memory may be free.
    pub(crate) const fn may_continue(&mut self) {
        self.may_resume = true;
    }

    /// Notes the last event of the kick.
    pub(crate) fn watch_ended<C: WorkerContext>(&mut self, cx: &mut C) {
        self.watch_has_ended = true;
        if self.stage != GuestQueueStage::Left {
            self.break_ring("its event counter cannot be read");
            self.leave(cx);
        }
    }

    /// Whether the client has left: later answers are not of this queue.
    pub(crate) fn has_left(&self) -> bool {
        self.stage == GuestQueueStage::Left
    }

    /// Submits requests, as many as may be in flight.
    pub(crate) fn resume<C: WorkerContext>(&mut self, cx: &mut C, scratch: &mut Memory) {
        self.may_resume = false;
        loop {
            while let Some(&head) = self.waiting.front() {
                if self.stage == GuestQueueStage::Left || !self.submit(cx, head, scratch) {
                    return;
                }
                let first = self.waiting.pop_front();
                assert_eq!(first, Some(head), "requests are submitted in their order");
            }
            if self.stage != GuestQueueStage::Serving || self.is_broken || cx.is_stopping() {
                break;
            }
            match self.ring.take() {
                Ok(Some(head)) => self.begin(cx, head),
                Ok(None) if self.ring.ask_for_event() => {}
                Ok(None) => break,
                Err(_) => self.break_ring("it has an index that cannot be"),
            }
        }
        self.end_if_idle(cx);
    }

    /// Begins a request that was taken from the ring.
    fn begin<C: WorkerContext>(&mut self, cx: &mut C, head: u16) {
        let place = &mut self.places[usize::from(head)];
        if place.request.is_some() {
            return self.break_ring("it has a request twice");
        }
        let memory = Arc::clone(&self.setup.memory);
        let read = self.ring.chain(&memory, head, &mut place.chain);
        let head_of = read.ok().and_then(|()| place.chain.take_head());
        let Some((request, status)) = head_of.zip(place.chain.take_status()) else {
            cx.count_refusal(self.client);
            self.report("a request of the guest has no head, no status, or a wrong address");
            self.places[usize::from(head)].chain.clear();
            self.ring.put(head, 0);
            self.has_answers = true;
            return;
        };
        let kind = RequestKind::Flush;
        let none = ByteRange::new(0, 0);
        place.request =
            Some(GuestRequest { kind, range: none, done: 0, is_submitted: false, status, memory });
        let Some(operation) = request.operation() else {
            return self.finish(head, RequestStatus::Unsupported);
        };
        if operation == BlockOperation::Identify {
            let status = self.identify(head);
            return self.finish(head, status);
        }
        match self.parse(head, operation, request.offset()) {
            Ok((kind, range)) => {
                if let Some(request) = &mut self.places[usize::from(head)].request {
                    (request.kind, request.range) = (kind, range);
                }
                self.waiting.push_back(head);
            }
            Err(status) => {
                cx.count_refusal(self.client);
                self.finish(head, status);
            }
        }
    }

    /// The verb and the range of a request.
    fn parse(
        &self,
        head: u16,
        operation: BlockOperation,
        offset: Option<u64>,
    ) -> Result<(RequestKind, ByteRange), RequestStatus> {
        let chain = &self.places[usize::from(head)].chain;
        let fua = !self.setup.is_write_back.load(Ordering::Relaxed);
        let (kind, offset, len) = match operation {
            BlockOperation::Flush => return Ok((RequestKind::Flush, ByteRange::new(0, 0))),
            BlockOperation::Read => (RequestKind::Read, offset, bytes_of(&chain.writable)),
            BlockOperation::Write => {
                (RequestKind::Write { fua }, offset, bytes_of(&chain.readable))
            }
            BlockOperation::Discard | BlockOperation::WriteZeroes => {
                let erased =
                    read_value::<EraseRange>(&chain.readable).ok_or(RequestStatus::Failed)?;
                let may_unmap = erased.may_unmap().ok_or(RequestStatus::Unsupported)?;
                let (offset, len) = erased.range().ok_or(RequestStatus::Failed)?;
                let kind = match operation {
                    BlockOperation::Discard if may_unmap => return Err(RequestStatus::Unsupported),
                    BlockOperation::Discard => RequestKind::Trim { fua },
                    _ => RequestKind::Zero { fua, unmap: may_unmap },
                };
                (kind, Some(offset), len)
            }
            BlockOperation::Identify => return Err(RequestStatus::Unsupported),
        };
        let offset = offset.ok_or(RequestStatus::Failed)?;
        let end = offset.checked_add(len).ok_or(RequestStatus::Failed)?;
        let moves_data = matches!(kind, RequestKind::Read | RequestKind::Write { .. });
        if len == 0
            || end > self.setup.bytes.load(Ordering::Relaxed)
            || !len.is_multiple_of(forebay_vhost::block::SECTOR)
            || moves_data && len > REQUEST_BYTES_MAX
        {
            return Err(RequestStatus::Failed);
        }
        Ok((kind, ByteRange::new(offset, len)))
    }

    /// Tells the guest the name of the device.
    fn identify(&self, head: u16) -> RequestStatus {
        let mut name = [0; NAME_BYTES];
        let bytes = self.setup.volume.as_bytes();
        let len = bytes.len().min(NAME_BYTES);
        name[..len].copy_from_slice(&bytes[..len]);
        let chain = &self.places[usize::from(head)].chain;
        // SAFETY: the source is the array above.
        match unsafe { copy_in(&chain.writable, 0, name.as_ptr(), NAME_BYTES) } {
            true => RequestStatus::Ok,
            false => RequestStatus::Failed,
        }
    }

    /// Submits the next piece of a request. Returns false if it has to wait.
    fn submit<C: WorkerContext>(&mut self, cx: &mut C, head: u16, scratch: &mut Memory) -> bool {
        let place = &mut self.places[usize::from(head)];
        let Some(request) = &mut place.request else { return true };
        let moves_data = matches!(request.kind, RequestKind::Read | RequestKind::Write { .. });
        let range = match moves_data {
            true => {
                let left = request.range.len - request.done;
                ByteRange::new(request.range.offset + request.done, left.min(PIECE_BYTES))
            }
            false => request.range,
        };
        if cx.is_full(self.client, 0) || !cx.admit(self.client, request.kind, range.len, 0) {
            return false;
        }
        let client = self.client;
        let (kind, from) = (request.kind, request.done as usize);
        let payload = match kind {
            RequestKind::Write { .. } => {
                take_payload(cx, client, (range, from), &place.chain, scratch)
            }
            _ => Payload::None,
        };
        if request.memory.is_lost() {
            // What was copied may be zeroes that the guest has not written.
            self.finish(head, RequestStatus::Failed);
            self.break_ring("its monitor has taken memory away");
            return true;
        }
        request.is_submitted = true;
        let of_client = ClientRequest { client, cookie: u64::from(head), kind, range };
        if let Err(refusal) = cx.submit(&of_client, payload) {
            request.is_submitted = false;
            if self.withholds(cx, Err(refusal.error)) {
                return false;
            }
            self.finish(head, status_of(Err(refusal.error)));
        }
        true
    }

    /// Answers a piece of a request of this queue.
    pub(crate) fn answer<C: WorkerContext>(
        &mut self,
        cx: &mut C,
        piece: &ClientRequest,
        reply: &Reply<'_, Memory>,
    ) {
        let head = piece.cookie as u16;
        let place = &mut self.places[usize::from(head)];
        let request = place.request.as_mut().filter(|request| request.is_submitted);
        let request = request.expect("a request is answered once");
        request.is_submitted = false;
        self.may_resume = true;
        if reply.result.is_ok() {
            if piece.kind == RequestKind::Read {
                give_data(&**cx.pool(), &place.chain, request.done as usize, piece.range, reply);
            }
            request.done += piece.range.len;
        }
        let is_whole = request.done == request.range.len;
        if self.withholds(cx, reply.result) || reply.result.is_ok() && !is_whole {
            self.waiting.push_back(head);
        } else {
            self.finish(head, status_of(reply.result));
        }
        self.end_if_idle(cx);
    }

    /// Ends a request.
    fn finish(&mut self, head: u16, status: RequestStatus) {
        let place = &mut self.places[usize::from(head)];
        let request = place.request.take().expect("a request ends once");
        place.chain.clear();
        let data = match request.kind {
            RequestKind::Read => request.done as u32,
            _ => 0,
        };
        // SAFETY: the last byte of the request's memory, which `memory` keeps.
        unsafe { request.status.write_volatile(status as u8) };
        self.ring.put(head, data + 1);
        self.has_answers = true;
    }

    /// Shows the guest the answers of the turn, and interrupts it if it wants that.
    pub(crate) fn show_answers(&mut self) {
        self.has_answers = false;
        if self.ring.publish() {
            self.interrupt();
        }
        if self.stage == GuestQueueStage::Serving && !self.is_broken {
            // The guest may have added requests meanwhile, before it is asked for an event.
            self.may_resume = true;
        }
    }

    /// Whether a request is not answered, because the server is stopping: the next one serves it.
    fn withholds(&self, cx: &impl WorkerContext, result: IoResult) -> bool {
        result == Err(IoError::Shutdown) && cx.is_stopping() && self.setup.inflight.is_some()
    }

    fn is_idle(&self, cx: &impl WorkerContext) -> bool {
        let withheld = cx.is_stopping() && self.setup.inflight.is_some();
        cx.in_flight(self.client) == 0 && (withheld || self.waiting.is_empty())
    }

    /// Ends what waits for the last answer.
    fn end_if_idle<C: WorkerContext>(&mut self, cx: &mut C) {
        if matches!(self.stage, GuestQueueStage::Stopping | GuestQueueStage::Draining)
            && self.is_idle(cx)
        {
            self.leave(cx);
        }
    }

    /// Stops the ring for the monitor, once the requests that were taken are answered.
    pub(crate) fn stop<C: WorkerContext>(&mut self, cx: &mut C) {
        if self.stage == GuestQueueStage::Serving {
            self.stage = GuestQueueStage::Stopping;
            self.may_resume = true;
        }
        self.end_if_idle(cx);
    }

    /// Takes no more requests, and leaves once those in flight are answered.
    pub(crate) fn drain<C: WorkerContext>(&mut self, cx: &mut C) {
        if self.stage == GuestQueueStage::Serving {
            self.stage = GuestQueueStage::Draining;
            self.may_resume = true;
        }
        self.end_if_idle(cx);
    }

    /// Leaves the volume. Requests that are not answered wait for the next server, if this one
    /// stops and the monitor keeps a record of them. Otherwise they fail.
    pub(crate) fn leave<C: WorkerContext>(&mut self, cx: &mut C) {
        if self.stage == GuestQueueStage::Left {
            return;
        }
        cx.leave(self.client, true);
        self.stage = GuestQueueStage::Left;
        self.waiting.clear();
        if !cx.is_stopping() || self.setup.inflight.is_none() {
            for head in 0..self.ring.entries() {
                if self.places[usize::from(head)].request.is_some() {
                    self.finish(head, RequestStatus::Failed);
                }
            }
        }
        self.show_answers();
        self.may_resume = false;
        if !self.watch_has_ended {
            cx.sockets().unwatch_counter(self.setup.place);
        }
        self.setup.notify(Notice::Ended { key: self.key(), base: self.ring.next_available() });
    }

    /// Takes nothing more from a ring that the guest or its monitor has broken.
    fn break_ring(&mut self, reason: &'static str) {
        if !self.is_broken {
            self.is_broken = true;
            self.report(reason);
        }
    }

    fn report(&self, reason: &'static str) {
        let (volume, ring) = (&self.setup.volume, self.setup.key.ring);
        self.setup.reports.note(|| {
            tracing::warn!(%volume, ring, reason, "a guest has broken the ring of its disk");
        });
    }

    /// Called a few times a second.
    pub(crate) fn tick<C: WorkerContext>(&mut self, cx: &mut C, scratch: &mut Memory) {
        if self.ring.is_lost() {
            self.break_ring("its monitor has taken memory away");
            self.leave(cx);
        }
        self.end_if_idle(cx);
        if self.stage != GuestQueueStage::Left {
            self.resume(cx, scratch);
        }
    }
}

/// Takes the data of a piece of a write, from a byte of the request on.
fn take_payload<'a, C: WorkerContext>(
    cx: &mut C,
    client: ClientId,
    (range, from): (ByteRange, usize),
    chain: &Chain,
    scratch: &'a mut Memory,
) -> Payload<'a, Memory> {
    let len = range.len as usize;
    if len <= SHORT_BYTES_MAX {
        let bytes = &mut scratch.bytes_mut()[..len];
        assert!(copy_out(&chain.readable, from, bytes), "the data is as long as its range");
        return Payload::Borrowed(bytes);
    }
    if let Some(staged) = cx.stage(client, range) {
        let mut at = from;
        staged.each_piece(0, |memory, len| {
            let mut to = memory;
            let copied = for_each(&chain.readable, at, len, |piece| {
                // SAFETY: staged slots belong to this payload until they are handed over.
                unsafe { std::ptr::copy_nonoverlapping(piece.start, to, piece.len) };
                to = to.wrapping_add(piece.len);
            });
            assert_eq!(copied, len, "the data is as long as its range");
            at += len;
            true
        });
        return Payload::Staged(staged.take());
    }
    let mut memory = Memory::new(len);
    let is_whole = copy_out(&chain.readable, from, memory.bytes_mut());
    assert!(is_whole, "the data is as long as its range");
    Payload::Owned(memory)
}

/// Gives the guest the data of a piece of a read.
fn give_data(
    pool: &impl PoolAccess,
    chain: &Chain,
    from: usize,
    range: ByteRange,
    reply: &Reply<'_, Memory>,
) {
    let mut at = from;
    for segment in reply.segments {
        let (shard, segment) = (usize::from(segment.shard), segment.segment);
        let memory = match segment.place {
            Place::Slot { slot, offset } => pool.line(shard, slot).wrapping_add(offset as usize),
            Place::Private { offset } => {
                let memory = reply.memory.as_ref();
                let memory = memory.expect("private segments come with their memory");
                memory.as_ptr().wrapping_add(offset as usize)
            }
            Place::Discard => unreachable!("a reply has no discard buffer"),
        };
        let len = segment.len as usize;
        // SAFETY: the lines are pinned, and the memory is kept, until the answer is handled.
        let is_whole = unsafe { copy_in(&chain.writable, at, memory, len) };
        assert!(is_whole, "the guest's memory is as long as the range");
        at += len;
    }
    assert_eq!(at - from, range.len as usize, "the data of a read is as long as its range");
}

const fn status_of(result: IoResult) -> RequestStatus {
    match result {
        Ok(()) => RequestStatus::Ok,
        Err(IoError::NotSupported) => RequestStatus::Unsupported,
        Err(_) => RequestStatus::Failed,
    }
}

pub(crate) fn find_volume(cx: &impl WorkerContext, name: &str) -> Option<VolumeInfo> {
    let mut found = None;
    cx.each_volume(&mut |volume| {
        if volume.name == name {
            found = Some(volume.clone());
        }
    });
    found
}
