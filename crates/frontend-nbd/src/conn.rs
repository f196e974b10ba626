//! The state of one connection: input not yet parsed, a payload being received, and replies to send
//! in the order of their completion.

use crate::intake::{DIRECT_BYTES_MIN, Intake, PartialWrite};
use crate::listener::Admission;
use crate::output::ReplyOutput;
use crate::pieces::Pieces;
use crate::tls::TlsSession;
use forebay_frontend::{ClientId, Peer, Refusal};
use forebay_nbd::{Handshake, NbdRequest, Negotiated};
use std::os::fd::OwnedFd;
use std::time::Instant;

/// The phase of a connection.
pub(crate) enum ConnPhase {
    /// Negotiating options.
    Handshake(Box<Handshake>),
    /// Serving requests.
    Transmission,
    /// The current request is the last one that is read here. When all are answered, the connection
    /// goes to the next server.
    Leaving,
    /// No more input is read. The connection closes once all requests in flight are answered.
    Draining,
}

/// A request that has failed or is refused. Its payload, if it has one, is discarded before the
/// reply.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Skip {
    /// Bytes still to be discarded.
    pub left: u64,
    pub request: NbdRequest,
    /// The error of a piece that has failed. `None` if the request itself is invalid.
    pub failed: Option<Refusal>,
}

/// One client.
pub(crate) struct Conn {
    pub socket: OwnedFd,
    /// The listener that has accepted it, which counts the connection while this exists; none if
    /// another server has.
    pub listener: Option<(u32, Admission)>,
    /// The client's address, for the log.
    pub peer: Peer,
    /// The name of the volume that the client has chosen, for the log.
    pub volume: Option<Box<str>>,
    /// The worker's identifier of the client.
    pub client: ClientId,
    pub phase: ConnPhase,
    /// The result of the handshake; kept during draining.
    pub terms: Option<Negotiated>,
    /// Bytes not yet parsed: an incomplete header, or input that arrived while paused.
    pub input: Vec<u8>,
    pub partial: Option<PartialWrite>,
    /// The request that is carried out in pieces.
    pub pieces: Option<Pieces>,
    /// The last request was a write with a long payload, without TLS. The next payload is then
    /// probably long too, so payloads are received directly, each with the header after it in one
    /// call.
    pub direct: bool,
    /// The buffers of a direct receive.
    pub intake: Option<Box<Intake>>,
    /// A direct receive is in flight: the kernel may write to the payload's memory.
    pub filling: bool,
    /// A failed or refused request whose reply is still to come.
    pub skip: Option<Skip>,
    /// Replies collected during a turn.
    pub queued: ReplyOutput,
    /// Replies being sent.
    pub active: ReplyOutput,
    pub tls: Option<Box<TlsSession>>,
    /// TLS starts when the queued replies have been sent.
    pub tls_next: bool,
    /// The TLS close notification has been queued.
    pub tls_closed: bool,
    pub sending: bool,
    pub receiving: bool,
    /// Input waits for a free request slot, for memory, for an earlier request or piece, or for
    /// handshake replies to be sent.
    pub paused: bool,
    /// The connection is in [`crate::table::Connections::pending`].
    pub is_pending: bool,
    /// The socket has been shut down.
    pub broken: bool,
    /// Block status requests that wait for the backend.
    pub status_requests: Vec<NbdRequest>,
    /// The deadline of the handshake, or of the next piece of a payload.
    pub deadline: Option<Instant>,
    /// The deadline of the message being sent; it counts only while other clients wait for its
    /// memory.
    pub fetch_by: Option<Instant>,
}

impl Conn {
    /// A connection in this phase.
    pub(crate) fn new(
        socket: OwnedFd,
        listener: Option<(u32, Admission)>,
        (client, peer): (ClientId, Peer),
        phase: ConnPhase,
    ) -> Self {
        Self {
            peer,
            socket,
            listener,
            volume: None,
            client,
            phase,
            terms: None,
            input: Vec::new(),
            partial: None,
            pieces: None,
            direct: false,
            intake: None,
            filling: false,
            skip: None,
            queued: ReplyOutput::default(),
            active: ReplyOutput::default(),
            tls: None,
            tls_next: false,
            tls_closed: false,
            sending: false,
            receiving: false,
            paused: false,
            is_pending: false,
            broken: false,
            status_requests: Vec::new(),
            deadline: None,
            fetch_by: None,
        }
    }

    /// Whether to receive at all.
    pub(crate) const fn wants_input(&self) -> bool {
        let reads_on = match self.phase {
            ConnPhase::Handshake(_) | ConnPhase::Transmission => true,
            ConnPhase::Leaving => self.is_inside_request(),
            ConnPhase::Draining => false,
        };
        reads_on && !self.paused && !self.broken && !self.tls_next
    }

    /// Whether a request has begun whose payload, or whose pieces, are not complete.
    pub(crate) const fn is_inside_request(&self) -> bool {
        self.partial.is_some() || self.skip.is_some() || self.pieces.is_some()
    }

    /// Whether to receive the next bytes directly into their final place.
    pub(crate) fn wants_direct(&self) -> bool {
        self.direct
            && self.skip.is_none()
            && match &self.partial {
                // For the short rest of a payload, the switch from buffered receiving costs more
                // than it saves.
                Some(partial) => !self.receiving || partial.left() >= DIRECT_BYTES_MIN,
                None => self.input.is_empty(),
            }
    }

    /// Bytes of a payload being received, and of replies that the client has not fetched.
    pub(crate) fn held_bytes(&self) -> u64 {
        let encrypted = self.tls.as_ref().map_or(0, |tls| tls.outgoing.len());
        let payload = self.partial.as_ref().map_or(0, |partial| partial.request.payload_len);
        let unsent = self.queued.bytes() + self.active.bytes() + encrypted;
        u64::from(payload) + unsent as u64
    }

    /// Records that a message is being sent, which the client must fetch in time.
    pub(crate) fn begin_send(&mut self, fetch_by: Instant) {
        // The kernel reads the memory of a message until its send ends.
        assert!(!self.sending, "one message is sent at a time");
        self.sending = true;
        self.fetch_by = Some(fetch_by);
    }

    /// Whether every reply has been sent.
    pub(crate) fn has_sent(&self) -> bool {
        !self.sending && self.queued.is_empty() && self.active.is_empty()
    }

    /// Stops reading. The connection closes once all requests in flight are answered.
    pub(crate) fn drain(&mut self) {
        if !matches!(self.phase, ConnPhase::Draining) {
            self.phase = ConnPhase::Draining;
            self.input = Vec::new();
            // The kernel may write to the payload's memory until the call ends.
            if !self.filling {
                self.partial = None;
            }
            self.skip = None;
            self.deadline = None;
            // The answer to a piece in flight is still awaited, but no further piece is received.
            let is_over = |pieces: &mut Pieces| !pieces.is_read() && !pieces.is_in_flight();
            self.pieces.take_if(is_over);
        }
    }
}

/// How the parser continues after a step.
pub(crate) enum Parsed {
    /// With the bytes after the ones consumed.
    Consumed(usize),
    /// Later: the bytes are incomplete, or the connection is paused.
    Wait,
}
