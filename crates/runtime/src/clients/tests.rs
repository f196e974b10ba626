//! A second front end, in this process: requests come as messages, answers go through channels. It
//! shows that the seam needs no socket, and tests the promises of the seam.

use super::bytes_of;
use crate::Runtime;
use crate::reactor::EpollReactor;
use crate::rig::common::client::PATIENCE;
use crate::rig::{MIB, quiet_config, volume};
use crate::worker::Worker;
use forebay_backend::MemoryBackend;
use forebay_engine::Place;
use forebay_frontend::{
    ClientId, ClientRequest, Event, ExtentQuery, FrontEnd, Mailer, Memory, Pins, PoolAccess, Quota,
    RequestSink, Service, WorkerContext,
};
use forebay_types::{ByteRange, Extent, IoError, IoResult, VolumeId};
use forebay_volume::{Payload, Reply, RequestKind};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, OnceLock};

const MEMORY_BYTES: u64 = 128 * MIB;
/// As much as all huge requests together may have.
const HUGE: ByteRange = ByteRange::new(0, 32 * MIB);

type Told = (IoResult, Vec<u8>);

/// A request of a client that is named by its place in a list.
struct Ask {
    client: usize,
    kind: RequestKind,
    range: ByteRange,
    payload: Vec<u8>,
    tell: Sender<Told>,
}

enum Word {
    Ask(Ask),
    /// Has the front end hold the answers of a client that come from now on.
    Keep(usize),
    /// Lets a client's answers go.
    Release(usize),
    /// Tells how many requests a client has in flight, and whether it is full.
    Look(usize, Sender<(usize, bool)>),
}

#[derive(Default)]
struct DirectService(OnceLock<Mailer<Word>>);

impl Service for DirectService {
    type FrontEnd = Direct;

    fn connect(&self, mailer: Mailer<Word>) {
        assert!(self.0.set(mailer).is_ok());
    }

    fn front_end(self: &Arc<Self>) -> Direct {
        Direct::default()
    }
}

impl DirectService {
    fn say(&self, word: Word) {
        self.0.get().unwrap().post(0, word);
    }

    fn ask(&self, client: usize, kind: RequestKind, range: ByteRange) -> Receiver<Told> {
        self.write(client, kind, range, Vec::new())
    }

    fn write(
        &self,
        client: usize,
        kind: RequestKind,
        range: ByteRange,
        payload: Vec<u8>,
    ) -> Receiver<Told> {
        let (tell, told) = channel();
        self.say(Word::Ask(Ask { client, kind, range, payload, tell }));
        told
    }

    fn look(&self, client: usize) -> (usize, bool) {
        let (tell, told) = channel();
        self.say(Word::Look(client, tell));
        told.recv_timeout(PATIENCE).unwrap()
    }
}

struct DirectClient {
    id: ClientId,
    keeps: bool,
    held: u64,
}

#[derive(Default)]
struct Direct {
    clients: Vec<DirectClient>,
    asked: Vec<Option<Sender<Told>>>,
    waiting: Vec<Ask>,
    may_go_on: bool,
}

impl Direct {
    fn client<C: WorkerContext>(&mut self, cx: &mut C, at: usize) -> &mut DirectClient {
        while self.clients.len() <= at {
            assert_eq!(cx.accept(None), Some(0), "there is one worker");
            let id = cx.join();
            assert!(cx.enter(id, VolumeId(0)));
            self.clients.push(DirectClient { id, keeps: false, held: 0 });
        }
        &mut self.clients[at]
    }

    fn ask<C: WorkerContext>(&mut self, cx: &mut C, ask: Ask) {
        let DirectClient { id: client, held, .. } = *self.client(cx, ask.client);
        if bytes_of(&request(client, 0, &ask)) > 0 && !cx.admit(client, ask.range.len, held) {
            self.waiting.push(ask);
            return;
        }
        let request = request(client, self.asked.len() as u64, &ask);
        let payload = match &ask.payload[..] {
            [] => Payload::None,
            bytes => Payload::Borrowed(bytes),
        };
        match cx.submit(&request, payload) {
            Ok(()) => self.asked.push(Some(ask.tell)),
            Err(refusal) => ask.tell.send((Err(refusal.error), Vec::new())).unwrap(),
        }
    }
}

const fn request(client: ClientId, cookie: u64, ask: &Ask) -> ClientRequest {
    ClientRequest { client, cookie, kind: ask.kind, range: ask.range }
}

impl FrontEnd for Direct {
    type Message = Word;

    fn message<C: WorkerContext>(&mut self, cx: &mut C, word: Word) {
        match word {
            Word::Ask(ask) => self.ask(cx, ask),
            Word::Keep(at) => self.client(cx, at).keeps = true,
            Word::Release(at) => {
                let client = self.client(cx, at);
                (client.keeps, client.held) = (false, 0);
            }
            Word::Look(at, tell) => {
                let DirectClient { id: client, held, .. } = *self.client(cx, at);
                tell.send((cx.in_flight(client), cx.is_full(client, held))).unwrap();
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
            // SAFETY: the line is under a pin until this returns.
            bytes.extend_from_slice(unsafe {
                std::slice::from_raw_parts(
                    line.add(offset as usize).cast_const(),
                    segment.segment.len as usize,
                )
            });
        }
        let client = self.clients.iter_mut().find(|client| client.id == request.client).unwrap();
        client.held += if client.keeps { bytes_of(request) } else { 0 };
        let tell = self.asked[request.cookie as usize].take().expect("one answer for each request");
        let _ = tell.send((reply.result, bytes));
        Pins::Released
    }

    fn room_free<C: WorkerContext>(&mut self, _: &mut C, _: ClientId) {
        self.may_go_on = true;
    }

    fn resume_input<C: WorkerContext>(&mut self, cx: &mut C) {
        if std::mem::take(&mut self.may_go_on) {
            for ask in std::mem::take(&mut self.waiting) {
                self.ask(cx, ask);
            }
        }
    }

    fn has_input(&self) -> bool {
        self.may_go_on
    }

    fn end_turn<C: WorkerContext>(&mut self, cx: &mut C) {
        self.clients.iter().for_each(|client| cx.release_unused(client.id, client.held));
    }

    fn event<C: WorkerContext>(&mut self, _: &mut C, _: Event<'_>) {}
    fn extents<C: WorkerContext>(&mut self, _: &mut C, _: &ExtentQuery, _: &[Extent]) {}
    fn tick<C: WorkerContext>(&mut self, _: &mut C) {}
    fn accept<C: WorkerContext>(&mut self, _: &mut C, _: bool) {}

    fn drain_client<C: WorkerContext>(&mut self, cx: &mut C, client: ClientId) {
        cx.leave(client, true);
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
    assert_eq!(runtime.add_volume(volume("disk", disk)).unwrap(), VolumeId(0));
    (runtime, service)
}

#[test]
fn a_front_end_without_sockets_is_served() {
    let (runtime, service) = start();
    let range = ByteRange::new(8192, 4096);
    let written = service.write(0, RequestKind::Write { fua: false }, range, vec![7; 4096]);
    assert_eq!(written.recv_timeout(PATIENCE).unwrap(), (Ok(()), Vec::new()));
    let read = service.ask(0, RequestKind::Read, range);
    assert_eq!(read.recv_timeout(PATIENCE).unwrap(), (Ok(()), vec![7; 4096]));
    let flushed = service.ask(0, RequestKind::Flush, ByteRange::new(0, 0));
    assert_eq!(flushed.recv_timeout(PATIENCE).unwrap().0, Ok(()));
    assert_eq!(service.look(0), (0, false));
    let volume = runtime.named("disk").unwrap();
    volume.read_only.store(true, std::sync::atomic::Ordering::Relaxed);
    let refused = service.write(0, RequestKind::Write { fua: false }, range, vec![8; 4096]);
    assert_eq!(refused.recv_timeout(PATIENCE).unwrap().0, Err(IoError::NotPermitted));
    let status = runtime.status().unwrap();
    let requests = status.volumes[0].requests;
    assert_eq!(
        (status.connections, requests.reads, requests.writes, requests.errors),
        (1, 1, 1, 1)
    );
    runtime.stop(|_| {}).unwrap();
}

#[test]
fn a_client_without_room_is_called_when_there_is_some() {
    let (runtime, service) = start();
    service.say(Word::Keep(0));
    let first = service.ask(0, RequestKind::Read, HUGE);
    assert_eq!(first.recv_timeout(PATIENCE).unwrap().0, Ok(()));
    let second = service.ask(1, RequestKind::Read, HUGE);
    assert_eq!(service.look(1), (0, false), "the room is the first one's while it is not fetched");
    assert!(second.try_recv().is_err());
    service.say(Word::Release(0));
    assert_eq!(second.recv_timeout(PATIENCE).unwrap().0, Ok(()));
    runtime.stop(|_| {}).unwrap();
}

/// A completion that the worker loses is an error for the client, and no longer counts.
#[test]
fn a_lost_request_is_answered_with_an_error() {
    let (runtime, _service) = start();
    let shared = Arc::clone(&runtime.shared);
    let mut worker = Worker::<EpollReactor, Direct>::new(shared, 0, Direct::default()).unwrap();
    let (tell, told) = channel();
    let (front, mut cx) = worker.parts();
    let client = front.client(&mut cx, 0).id;
    front.asked.push(Some(tell));
    let (kind, range) = (RequestKind::Read, ByteRange::new(0, 4096));
    let request = ClientRequest { client, cookie: 0, kind, range };
    let (completion, _) = cx.begin(&request).unwrap();
    assert_eq!((cx.in_flight(client), told.try_recv().is_ok()), (1, false));
    drop(completion);
    worker.deliver();
    assert_eq!(told.try_recv().unwrap(), (Err(IoError::Io), Vec::new()));
    let (front, mut cx) = worker.parts();
    assert_eq!(cx.in_flight(client), 0);
    front.drop_client(&mut cx, client);
    drop(worker);
    runtime.stop(|_| {}).unwrap();
}

/// A volume may become read-only while the payload of a write comes.
#[test]
fn a_refused_write_gives_back_the_slots_of_its_payload() {
    let (runtime, _service) = start();
    let shared = Arc::clone(&runtime.shared);
    let volume = runtime.named("disk").unwrap();
    volume.read_only.store(true, std::sync::atomic::Ordering::Relaxed);
    let mut worker = Worker::<EpollReactor, Direct>::new(shared, 0, Direct::default()).unwrap();
    let (front, mut cx) = worker.parts();
    let client = front.client(&mut cx, 0).id;
    let (kind, range) = (RequestKind::Write { fua: false }, ByteRange::new(0, MIB));
    let request = ClientRequest { client, cookie: 0, kind, range };
    // Four times what the pool holds.
    for _ in 0..4 * MEMORY_BYTES / MIB {
        let staged = cx.stage(client, range).expect("nothing else is in the pool");
        let refusal = cx.submit(&request, Payload::Staged(staged.take())).unwrap_err();
        assert_eq!(refusal.error, IoError::NotPermitted);
    }
    front.drop_client(&mut cx, client);
    drop(worker);
    runtime.stop(|_| {}).unwrap();
}
