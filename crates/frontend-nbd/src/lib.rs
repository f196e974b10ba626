//! The NBD front end: connections over sockets, with or without TLS.
//!
//! A worker's sockets receive bytes, the codec of `forebay-nbd` parses them into requests for the
//! worker, and the replies of a turn leave in one message per connection at its end. Long payloads
//! are received into slots of the pool, and data is sent from there: neither is copied in user
//! space.
//!
//! All workers share an [`NbdServer`]; each worker has its own [`NbdFrontEnd`]. Worker 0 accepts
//! clients and passes each to the worker that is to serve it.

mod accounts;
mod conn;
mod exports;
mod extents;
mod fill;
mod handover;
mod input;
mod intake;
mod listener;
mod output;
mod pieces;
mod replies;
mod send;
mod server;
mod table;
mod tls;

pub use accounts::{group_id, user_id, user_name};
pub use forebay_nbd::SessionError;
pub use forebay_nbd::Tls;
pub use handover::HandedOver;
pub use listener::{Listener, TlsSetup};
pub use server::{ConnectionOrigin, ListenerId, NbdMessage, NbdServer};

use conn::{Conn, ConnPhase};
use forebay_frontend::{
    ClientId, ClientRequest, ExtentQuery, FrontEnd, FrontEndEvent, Memory, Peer, Pins, SocketEvent,
    Sockets, WorkerContext, serve_io_on_this_thread,
};
use forebay_nbd::{Handshake, HandshakeConfig};
use forebay_types::Extent;
use forebay_volume::Reply;
use listener::{Admission, is_local, peer_of};
use output::ReplyOutput;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use table::Connections;

/// Ticks after which the socket of a listener is closed that accepts no clients any more. One may
/// come in the turn that asked the kernel to stop accepting, before the kernel knows of it.
const CLOSE_TICKS: u32 = 2;

/// The NBD front end of one worker.
pub struct NbdFrontEnd {
    server: Arc<NbdServer>,
    conns: Connections,
    /// The listeners of this worker's clients, by number, so that a lookup takes no lock.
    listeners: Vec<Option<Arc<Listener>>>,
    /// Listeners that failed to accept a client. The next tick retries them, because a shortage of
    /// descriptors or memory lasts a while.
    accept_later: Vec<u32>,
    /// Listeners that accept no clients any more, and the ticks until their sockets are closed:
    /// first, the kernel has to take what this turn asks for.
    closing: Vec<(u32, u32)>,
    /// Connections closed by force, by number, whose memory the kernel may still use.
    abandoned: Vec<(u32, Box<Conn>)>,
    /// Whether the kernel knows that this thread serves I/O.
    serves_io: bool,
}

/// The front end together with its worker, for one call.
struct Serving<'a, C> {
    nbd: &'a mut NbdFrontEnd,
    cx: &'a mut C,
}

impl NbdFrontEnd {
    fn new(server: Arc<NbdServer>) -> Self {
        Self {
            server,
            conns: Connections::default(),
            listeners: Vec::new(),
            accept_later: Vec::new(),
            closing: Vec::new(),
            abandoned: Vec::new(),
            serves_io: false,
        }
    }

    fn is_closing(&self, listener: u32) -> bool {
        self.server.listener(listener).is_none_or(|listener| listener.is_closing())
    }

    /// Closes the sockets of listeners that accept no clients any more, once nothing uses them.
    fn close_sockets(&mut self) {
        let server = &self.server;
        self.closing.retain_mut(|(number, ticks)| {
            *ticks = ticks.saturating_sub(1);
            if *ticks == 0
                && let Some(listener) = server.listener(*number)
            {
                listener.close();
            }
            *ticks > 0
        });
    }

    const fn with<'a, C: WorkerContext>(&'a mut self, cx: &'a mut C) -> Serving<'a, C> {
        Serving { nbd: self, cx }
    }
}

impl FrontEnd for NbdFrontEnd {
    type Message = NbdMessage;

    fn serves(&self, client: ClientId) -> bool {
        self.conns.has(client.number)
    }

    fn takes(event: &FrontEndEvent<'_>) -> bool {
        matches!(event, FrontEndEvent::Socket(_))
    }

    fn event<C: WorkerContext>(&mut self, cx: &mut C, event: FrontEndEvent<'_>) {
        let FrontEndEvent::Socket(event) = event else { return };
        let mut serving = self.with(cx);
        match event {
            SocketEvent::Accepted { listener, result } => serving.on_accepted(listener, result),
            SocketEvent::Received { conn, bytes, result, more } => {
                serving.on_received(conn, bytes, result, more);
            }
            SocketEvent::Filled { conn, result } => serving.on_filled(conn, result),
            SocketEvent::Sent { conn, result } => serving.on_sent(conn, result),
        }
    }

    fn message<C: WorkerContext>(&mut self, cx: &mut C, message: NbdMessage) {
        match message {
            NbdMessage::Assign { socket, origin } => self.with(cx).assign(socket, origin),
            NbdMessage::Connection { socket, origin } => self.with(cx).serve(socket, origin),
            NbdMessage::Listen { listener } => self.with(cx).listen(listener),
            NbdMessage::Close { listener } => self.with(cx).close_listener(listener),
        }
    }

    fn completed<C: WorkerContext>(
        &mut self,
        cx: &mut C,
        request: &ClientRequest,
        reply: Reply<'_, Memory>,
    ) -> Pins {
        self.with(cx).reply(request, reply)
    }

    fn extents<C: WorkerContext>(&mut self, cx: &mut C, query: &ExtentQuery, extents: &[Extent]) {
        self.with(cx).on_extents(query, extents);
    }

    fn memory_free<C: WorkerContext>(&mut self, _cx: &mut C, client: ClientId) {
        if let Some(conn) = self.conns.get(client.number) {
            conn.paused = false;
            self.conns.resumed.push(client.number);
        }
    }

    fn resume_input<C: WorkerContext>(&mut self, cx: &mut C) {
        while let Some(conn) = self.conns.resumed.pop() {
            self.with(cx).continue_input(conn);
        }
    }

    fn has_input(&self) -> bool {
        !self.conns.resumed.is_empty()
    }

    fn end_turn<C: WorkerContext>(&mut self, cx: &mut C) {
        while let Some(conn) = self.conns.pending.pop() {
            self.with(cx).finish_turn(conn);
        }
    }

    fn tick<C: WorkerContext>(&mut self, cx: &mut C) {
        for listener in std::mem::take(&mut self.accept_later) {
            self.with(cx).listen(listener);
        }
        self.close_sockets();
        for conn in self.conns.all() {
            self.with(cx).check_deadlines(conn);
        }
    }

    fn accept<C: WorkerContext>(&mut self, cx: &mut C, accepts: bool) {
        if accepts {
            self.server.each_listener(|number, fd| cx.sockets().accept(number, fd));
        } else {
            self.accept_later.clear();
            self.server.each_listener(|number, fd| cx.sockets().stop_accepting(number, fd));
        }
    }

    fn drain_client<C: WorkerContext>(&mut self, _cx: &mut C, client: ClientId) {
        let Some(conn) = self.conns.get(client.number) else { return };
        if !matches!(conn.phase, ConnPhase::Draining) {
            conn.drain();
            self.conns.mark_pending(client.number);
        }
    }

    fn hand_over_client<C: WorkerContext>(&mut self, cx: &mut C, client: ClientId) -> bool {
        self.with(cx).hand_over(client.number)
    }

    fn drop_client<C: WorkerContext>(&mut self, cx: &mut C, client: ClientId) {
        self.with(cx).disconnect(client.number, "");
    }

    fn abandon_client<C: WorkerContext>(&mut self, cx: &mut C, client: ClientId) {
        self.with(cx).abandon(client.number);
    }
}

impl<C: WorkerContext> Serving<'_, C> {
    /// Starts accepting clients at a listener.
    fn listen(&mut self, number: u32) {
        let listener = self.nbd.server.listener(number);
        if let Some(fd) = listener.and_then(|listener| listener.open_fd()) {
            self.cx.sockets().accept(number, fd);
        }
    }

    /// Stops accepting clients at a listener, after those that have connected already.
    fn close_listener(&mut self, number: u32) {
        let Some(listener) = self.nbd.server.listener(number) else { return };
        let Some(fd) = listener.fd() else { return };
        self.cx.sockets().stop_accepting(number, fd);
        while let Some(client) = listener.next_waiting() {
            self.on_accepted(number, Ok(client));
        }
        listener.refuse();
        self.nbd.closing.push((number, CLOSE_TICKS));
    }

    /// Passes a new client to the worker with the fewest clients.
    fn on_accepted(&mut self, listener: u32, result: std::io::Result<OwnedFd>) {
        let socket = match result {
            Ok(socket) => socket,
            // `stop_accepting` has cancelled the operation.
            Err(error) if error.raw_os_error() == Some(libc::ECANCELED) => return,
            Err(_) if self.nbd.is_closing(listener) => return,
            Err(error) => {
                tracing::warn!(%error, "accept failed, trying again later");
                self.nbd.accept_later.push(listener);
                return;
            }
        };
        self.assign(socket, ConnectionOrigin::Listener(listener));
    }

    fn assign(&mut self, socket: OwnedFd, origin: ConnectionOrigin) {
        if self.cx.is_stopping() || self.nbd.server.is_handing_over() {
            self.nbd.server.give_up_unserved(socket, origin);
        } else if let Some(worker) = self.cx.accept(Some(socket.as_fd())) {
            self.nbd.server.pass_to(worker, socket, origin);
        }
    }

    /// Starts serving a client, with the greeting of the handshake, or in the transmission phase.
    fn serve(&mut self, socket: OwnedFd, origin: ConnectionOrigin) {
        if self.nbd.server.is_handing_over() {
            self.cx.cancel_accept();
            self.nbd.server.give_up_unserved(socket, origin);
            return;
        }
        let peer = peer_of(&socket);
        if !self.nbd.serves_io && is_local(&peer) {
            // It may be a block device of this machine. Without the capability, the server says so
            // when such a device is attached.
            self.nbd.serves_io = serve_io_on_this_thread().is_ok();
        }
        match origin {
            ConnectionOrigin::Listener(listener) => self.greet(socket, peer, listener),
            ConnectionOrigin::Session(record) => {
                let client = self.cx.join(&peer);
                let conn = Conn::new(socket, None, (client, peer), ConnPhase::Transmission);
                let index = self.nbd.conns.insert(conn);
                self.continue_session(index, &record);
            }
        }
    }

    /// Starts the handshake of a client.
    fn greet(&mut self, socket: OwnedFd, peer: Peer, listener: u32) {
        let Some(settings) = self.nbd.server.listener(listener) else {
            self.cx.cancel_accept();
            return;
        };
        let listeners = &mut self.nbd.listeners;
        if listeners.len() <= listener as usize {
            listeners.resize(listener as usize + 1, None);
        }
        settings.prepare(&socket);
        let admission = Admission::by(&settings);
        let mut handshake = Handshake::new(HandshakeConfig { tls: settings.tls.policy() });
        listeners[listener as usize] = Some(settings);
        let mut greeting = ReplyOutput::default();
        greeting.push_header(|out| handshake.greeting(out));
        let client = self.cx.join(&peer);
        let phase = ConnPhase::Handshake(Box::new(handshake));
        let mut conn = Conn::new(socket, Some((listener, admission)), (client, peer), phase);
        conn.queued = greeting;
        conn.deadline = Some(self.cx.client_time() + self.cx.client_timeouts().handshake);
        let index = self.nbd.conns.insert(conn);
        self.update_receiving(index);
        self.nbd.conns.mark_pending(index);
    }

    fn check_deadlines(&mut self, index: u32) {
        let Some(conn) = self.nbd.conns.get(index) else { return };
        let now = self.cx.client_time();
        if conn.deadline.is_some_and(|deadline| deadline <= now) {
            self.disconnect(index, "handshake or payload timeout");
        } else if conn.fetch_by.is_some_and(|time| time <= now)
            && self.cx.blocks_others(conn.client)
        {
            self.disconnect(index, "replies not read in time while other clients wait for memory");
        } else {
            self.resume(index);
        }
    }
}
