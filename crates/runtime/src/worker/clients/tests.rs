//! A front end without sockets: requests arrive as messages, and answers are sent through channels.
//! It tests the contracts of the interface to front ends.

use super::bytes_of;
use crate::Runtime;
use crate::platform::reactor::EpollReactor;
use crate::rig::common::client::PATIENCE;
use crate::rig::{MIB, quiet_config, volume};
use crate::worker::Worker;
use forebay_backend::MemoryBackend;
use forebay_engine::Place;
use forebay_frontend::{
    ClientId, ClientRequest, ExtentQuery, FrontEnd, FrontEndEvent, Mailer, Memory, Peer, Pins,
    PoolAccess, Quota, RequestSink, Service, WorkerContext,
};
use forebay_types::{ByteRange, Extent, IoError, IoResult, VolumeConfig, VolumeId};
use forebay_volume::{Payload, Reply, RequestKind};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

const MEMORY_BYTES: u64 = 128 * MIB;
/// A request that takes the whole lane of huge requests.
const HUGE: ByteRange = ByteRange::new(0, 32 * MIB);

type Answer = (IoResult, Vec<u8>);

/// A request of a client, given by its index.
struct Submission {
    client: usize,
    kind: RequestKind,
    range: ByteRange,
    payload: Vec<u8>,
    sender: Sender<Answer>,
}

enum Command {
    Submit(Submission),
    /// Holds the memory of a client's further answers, as if they were not fetched.
    Hold(usize),
    /// Releases the held memory of a client.
    Release(usize),
    /// Sends the number of a client's requests in flight, and whether it is full.
    Inspect(usize, Sender<(usize, bool)>),
}

#[derive(Default)]
struct DirectService(OnceLock<Mailer<Command>>);

impl Service for DirectService {
    type FrontEnd = Direct;

    fn connect(&self, mailer: Mailer<Command>) {
        assert!(self.0.set(mailer).is_ok());
    }

    fn front_end(self: &Arc<Self>) -> Direct {
        Direct::default()
    }
}

impl DirectService {
    fn post(&self, command: Command) {
        self.0.get().unwrap().post(0, command);
    }

    fn submit(&self, client: usize, kind: RequestKind, range: ByteRange) -> Receiver<Answer> {
        self.write(client, kind, range, Vec::new())
    }

    fn write(
        &self,
        client: usize,
        kind: RequestKind,
        range: ByteRange,
        payload: Vec<u8>,
    ) -> Receiver<Answer> {
        let (sender, answer) = channel();
        self.post(Command::Submit(Submission { client, kind, range, payload, sender }));
        answer
    }

    fn inspect(&self, client: usize) -> (usize, bool) {
        let (sender, answer) = channel();
        self.post(Command::Inspect(client, sender));
        answer.recv_timeout(PATIENCE).unwrap()
    }
}

struct DirectClient {
    id: ClientId,
    holds: bool,
    held: u64,
}

#[derive(Default)]
struct Direct {
    clients: Vec<DirectClient>,
    submitted: Vec<Option<Sender<Answer>>>,
    waiting: Vec<Submission>,
    has_memory: bool,
}

impl Direct {
    fn client<C: WorkerContext>(&mut self, cx: &mut C, at: usize) -> &mut DirectClient {
        while self.clients.len() <= at {
            assert_eq!(cx.accept(None), Some(0), "there is one worker");
            let id = cx.join(&Peer::Unknown);
            assert!(cx.enter(id, VolumeId(0), false));
            self.clients.push(DirectClient { id, holds: false, held: 0 });
        }
        &mut self.clients[at]
    }

    fn submit<C: WorkerContext>(&mut self, cx: &mut C, submission: Submission) {
        let DirectClient { id: client, held, .. } = *self.client(cx, submission.client);
        if !cx.admit(client, submission.kind, submission.range.len, held) {
            self.waiting.push(submission);
            return;
        }
        let request = request(client, self.submitted.len() as u64, &submission);
        let payload = match &submission.payload[..] {
            [] => Payload::None,
            bytes => Payload::Borrowed(bytes),
        };
        match cx.submit(&request, payload) {
            Ok(()) => self.submitted.push(Some(submission.sender)),
            Err(refusal) => submission.sender.send((Err(refusal.error), Vec::new())).unwrap(),
        }
    }
}

const fn request(client: ClientId, cookie: u64, submission: &Submission) -> ClientRequest {
    ClientRequest { client, cookie, kind: submission.kind, range: submission.range }
}

impl FrontEnd for Direct {
    type Message = Command;

    fn serves(&self, client: ClientId) -> bool {
        self.clients.iter().any(|it| it.id == client)
    }

    fn message<C: WorkerContext>(&mut self, cx: &mut C, command: Command) {
        match command {
            Command::Submit(submission) => self.submit(cx, submission),
            Command::Hold(at) => self.client(cx, at).holds = true,
            Command::Release(at) => {
                let client = self.client(cx, at);
                (client.holds, client.held) = (false, 0);
            }
            Command::Inspect(at, sender) => {
                let DirectClient { id: client, held, .. } = *self.client(cx, at);
                sender.send((cx.in_flight(client), cx.is_full(client, held))).unwrap();
            }
        }
    }

    fn completed<C: WorkerContext>(
        &mut self,
        cx: &mut C,
        request: &ClientRequest,
        reply: Reply<'_, Memory>,
    ) -> Pins {
        let mut bytes = Vec::new();
        for segment in reply.segments {
            let Place::Slot { slot, offset } = segment.segment.place else { continue };
            let line = cx.pool().line(usize::from(segment.shard), slot);
            // SAFETY: the line is pinned until this function returns.
            bytes.extend_from_slice(unsafe {
                std::slice::from_raw_parts(
                    line.add(offset as usize).cast_const(),
                    segment.segment.len as usize,
                )
            });
        }
        let client = self.clients.iter_mut().find(|client| client.id == request.client).unwrap();
        client.held += if client.holds { bytes_of(request) } else { 0 };
        let sender =
            self.submitted[request.cookie as usize].take().expect("a request is answered once");
        let _ = sender.send((reply.result, bytes));
        Pins::Released
    }

    fn memory_free<C: WorkerContext>(&mut self, _: &mut C, _: ClientId) {
        self.has_memory = true;
    }

    fn resume_input<C: WorkerContext>(&mut self, cx: &mut C) {
        if std::mem::take(&mut self.has_memory) {
            for submission in std::mem::take(&mut self.waiting) {
                self.submit(cx, submission);
            }
        }
    }

    fn has_input(&self) -> bool {
        self.has_memory
    }

    fn end_turn<C: WorkerContext>(&mut self, cx: &mut C) {
        self.clients.iter().for_each(|client| cx.release_unused(client.id, client.held));
    }

    fn takes(_: &FrontEndEvent<'_>) -> bool {
        false
    }

    fn event<C: WorkerContext>(&mut self, _: &mut C, _: FrontEndEvent<'_>) {}
    fn extents<C: WorkerContext>(&mut self, _: &mut C, _: &ExtentQuery, _: &[Extent]) {}
    fn tick<C: WorkerContext>(&mut self, _: &mut C) {}
    fn accept<C: WorkerContext>(&mut self, _: &mut C, _: bool) {}

    fn drain_client<C: WorkerContext>(&mut self, cx: &mut C, client: ClientId) {
        cx.leave(client, true);
    }

    fn hand_over_client<C: WorkerContext>(&mut self, _: &mut C, _: ClientId) -> bool {
        false
    }

    fn drop_client<C: WorkerContext>(&mut self, cx: &mut C, client: ClientId) {
        cx.leave(client, true);
    }

    fn abandon_client<C: WorkerContext>(&mut self, cx: &mut C, client: ClientId) {
        cx.leave(client, true);
    }
}

fn start() -> (Runtime, Arc<DirectService>) {
    let service = Arc::new(DirectService::default());
    let runtime = Runtime::start(quiet_config(MEMORY_BYTES), &service).unwrap();
    let disk = Arc::new(MemoryBackend::new(64 * MIB).unwrap());
    assert_eq!(runtime.volumes().add(volume("disk", disk)).unwrap(), VolumeId(0));
    (runtime, service)
}

#[test]
fn a_front_end_without_sockets_is_served() {
    let (runtime, service) = start();
    let range = ByteRange::new(8192, 4096);
    let written = service.write(0, RequestKind::Write { fua: false }, range, vec![7; 4096]);
    assert_eq!(written.recv_timeout(PATIENCE).unwrap(), (Ok(()), Vec::new()));
    let read = service.submit(0, RequestKind::Read, range);
    assert_eq!(read.recv_timeout(PATIENCE).unwrap(), (Ok(()), vec![7; 4096]));
    let flushed = service.submit(0, RequestKind::Flush, ByteRange::new(0, 0));
    assert_eq!(flushed.recv_timeout(PATIENCE).unwrap().0, Ok(()));
    assert_eq!(service.inspect(0), (0, false));
    let volume = runtime.named("disk").unwrap();
    volume.read_only.store(true, std::sync::atomic::Ordering::Relaxed);
    let refused = service.write(0, RequestKind::Write { fua: false }, range, vec![8; 4096]);
    assert_eq!(refused.recv_timeout(PATIENCE).unwrap().0, Err(IoError::NotPermitted));
    let status = runtime.status().unwrap();
    let requests = &status.volumes[0].requests;
    assert_eq!(
        (status.connections, requests.reads(), requests.writes(), requests.errors),
        (1, 1, 1, 1)
    );
    runtime.stop(|_| {}).unwrap();
}

#[test]
fn a_client_that_waits_for_memory_is_woken() {
    let (runtime, service) = start();
    service.post(Command::Hold(0));
    let first = service.submit(0, RequestKind::Read, HUGE);
    assert_eq!(first.recv_timeout(PATIENCE).unwrap().0, Ok(()));
    let second = service.submit(1, RequestKind::Read, HUGE);
    assert_eq!(service.inspect(1), (0, false), "the unfetched answer occupies the lane");
    assert!(second.try_recv().is_err());
    service.post(Command::Release(0));
    assert_eq!(second.recv_timeout(PATIENCE).unwrap().0, Ok(()));
    runtime.stop(|_| {}).unwrap();
}

/// A lost completion is answered with an error, and the request is no longer counted.
#[test]
fn a_lost_request_is_answered_with_an_error() {
    let (runtime, _service) = start();
    let shared = Arc::clone(runtime.shared());
    let mut worker = Worker::<EpollReactor, Direct>::new(shared, 0, Direct::default()).unwrap();
    let (sender, answer) = channel();
    let (front, mut cx) = worker.parts();
    let client = front.client(&mut cx, 0).id;
    front.submitted.push(Some(sender));
    let (kind, range) = (RequestKind::Read, ByteRange::new(0, 4096));
    let request = ClientRequest { client, cookie: 0, kind, range };
    let (ticket, _) = cx.begin(&request).unwrap();
    let completion = cx.host.completions.begin(ticket);
    assert_eq!((cx.in_flight(client), answer.try_recv().is_ok()), (1, false));
    drop(completion);
    worker.deliver();
    assert_eq!(answer.try_recv().unwrap(), (Err(IoError::Io), Vec::new()));
    let (front, mut cx) = worker.parts();
    assert_eq!(cx.in_flight(client), 0);
    front.drop_client(&mut cx, client);
    drop(worker);
    runtime.stop(|_| {}).unwrap();
}

/// A volume may become read-only while the payload of a write is being received.
#[test]
fn a_refused_write_releases_the_slots_of_its_payload() {
    let (runtime, _service) = start();
    let shared = Arc::clone(runtime.shared());
    let volume = runtime.named("disk").unwrap();
    volume.read_only.store(true, std::sync::atomic::Ordering::Relaxed);
    let mut worker = Worker::<EpollReactor, Direct>::new(shared, 0, Direct::default()).unwrap();
    let (front, mut cx) = worker.parts();
    let client = front.client(&mut cx, 0).id;
    let (kind, range) = (RequestKind::Write { fua: false }, ByteRange::new(0, MIB));
    let request = ClientRequest { client, cookie: 0, kind, range };
    // Much more than the pool holds.
    for _ in 0..4 * MEMORY_BYTES / MIB {
        let staged = cx.stage(client, range).expect("nothing else is in the pool");
        let refusal = cx.submit(&request, Payload::Staged(staged.take())).unwrap_err();
        assert_eq!(refusal.error, IoError::NotPermitted);
    }
    front.drop_client(&mut cx, client);
    drop(worker);
    runtime.stop(|_| {}).unwrap();
}

/// No kind of request holds memory while it waits for a limit, and no request of a volume that is
/// being removed waits.
#[test]
fn requests_wait_for_a_limit_without_memory_and_not_for_a_closed_volume() {
    let (runtime, service) = start();
    let limit = |iops_limit| {
        let config = VolumeConfig { iops_limit, ..VolumeConfig::default() };
        runtime.volumes().change("disk", config, false).unwrap();
    };
    limit(Some(1));
    let range = ByteRange::new(0, 4096);
    let first = service.submit(0, RequestKind::Read, range);
    assert_eq!(first.recv_timeout(PATIENCE).unwrap().0, Ok(()));
    let huge = service.submit(0, RequestKind::Read, HUGE);
    let erase = service.submit(1, RequestKind::Trim { fua: false }, range);
    let flush = service.submit(2, RequestKind::Flush, ByteRange::new(0, 0));
    assert_eq!(flush.recv_timeout(PATIENCE).unwrap().0, Ok(()), "a flush is not limited");
    assert_eq!([0, 1].map(|client| service.inspect(client)), [(0, false); 2]);
    assert!(
        !runtime.shared().budget.has_waiters(),
        "a client that waits for a limit asks for no memory"
    );
    limit(None);
    for waiting in [huge, erase] {
        assert_eq!(waiting.recv_timeout(PATIENCE).unwrap().0, Ok(()));
    }
    let status = runtime.status().unwrap();
    assert_eq!(status.volumes[0].requests.limited, 2);
    limit(Some(1));
    let volume = runtime.named("disk").unwrap();
    let passes = service.submit(0, RequestKind::Read, range);
    assert_eq!(passes.recv_timeout(PATIENCE).unwrap().0, Ok(()));
    volume.is_closed.store(true, std::sync::atomic::Ordering::Relaxed);
    let refused = service.submit(0, RequestKind::Read, range);
    assert_eq!(refused.recv_timeout(Duration::from_millis(900)).unwrap().0, Err(IoError::Shutdown));
    volume.is_closed.store(false, std::sync::atomic::Ordering::Relaxed);
    runtime.stop(|_| {}).unwrap();
}
