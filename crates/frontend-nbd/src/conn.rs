//! One connection: bytes in, requests out, replies in order of their making.

use crate::intake::{DIRECT_BYTES_MIN, Intake, Partial};
use crate::output::Output;
use crate::tls::TlsSession;
use forebay_frontend::ClientId;
use forebay_nbd::{Handshake, Negotiated, Request};
use std::os::fd::OwnedFd;
use std::time::Instant;

/// Where a connection stands.
pub(crate) enum Phase {
    /// Haggling over options.
    Handshake(Box<Handshake>),
    /// Serving requests.
    Transmission,
    /// Nothing is read any more: what is in flight is answered, then it is closed.
    Draining,
}

/// One client.
pub(crate) struct Conn {
    pub socket: OwnedFd,
    pub listener: u32,
    /// What the worker knows it by.
    pub client: ClientId,
    pub phase: Phase,
    /// What was agreed on with the client; kept while it drains.
    pub terms: Option<Negotiated>,
    /// Bytes that came and were not understood yet: less than a header, or what came while the
    /// connection had too much in flight.
    pub input: Vec<u8>,
    pub partial: Option<Partial>,
    /// The last request was a write with a long payload, and the next one may be: such payloads
    /// and the headers between them are received one by one.
    pub direct: bool,
    /// What they are received with.
    pub intake: Option<Box<Intake>>,
    /// Such a call is under way: the kernel may write to the payload's memory.
    pub filling: bool,
    /// Bytes of a refused write's payload still to be thrown away, and the request to refuse.
    pub skip: Option<(u64, Request)>,
    /// Being filled.
    pub queued: Output,
    /// Being sent.
    pub active: Output,
    pub tls: Option<Box<TlsSession>>,
    /// TLS starts when what is queued has been sent.
    pub tls_next: bool,
    /// The client was told that nothing follows.
    pub tls_closed: bool,
    pub sending: bool,
    pub receiving: bool,
    /// Input waits until less is in flight.
    pub paused: bool,
    /// The list of connections with something to do at the end of the turn has it.
    pub listed: bool,
    /// The socket is of no more use.
    pub broken: bool,
    /// Block status requests that wait for the backend.
    pub status_requests: Vec<Request>,
    /// When the client must have got to the transmission phase, or more of a payload must have
    /// come.
    pub deadline: Option<Instant>,
    /// When a message on its way must have gone, where others wait for its memory.
    pub fetch_by: Option<Instant>,
}

impl Conn {
    /// A connection that takes no requests yet.
    pub(crate) fn new(
        socket: OwnedFd,
        listener: u32,
        client: ClientId,
        handshake: Handshake,
    ) -> Self {
        Self {
            socket,
            listener,
            client,
            phase: Phase::Handshake(Box::new(handshake)),
            terms: None,
            input: Vec::new(),
            partial: None,
            direct: false,
            intake: None,
            filling: false,
            skip: None,
            queued: Output::default(),
            active: Output::default(),
            tls: None,
            tls_next: false,
            tls_closed: false,
            sending: false,
            receiving: false,
            paused: false,
            listed: false,
            broken: false,
            status_requests: Vec::new(),
            deadline: None,
            fetch_by: None,
        }
    }

    /// Whether bytes of the client are wanted at all.
    pub(crate) const fn wants_input(&self) -> bool {
        !self.paused && !self.broken && !self.tls_next && !matches!(self.phase, Phase::Draining)
    }

    /// Whether what comes next is to be received where it will stay.
    pub(crate) fn wants_direct(&self) -> bool {
        self.direct
            && self.skip.is_none()
            && match &self.partial {
                // The rest of a payload that others were received with is not worth a change.
                Some(partial) => !self.receiving || partial.left() >= DIRECT_BYTES_MIN,
                None => self.input.is_empty(),
            }
    }

    /// Bytes of a payload that is being received, and of replies that the client has not fetched.
    pub(crate) fn held_bytes(&self) -> u64 {
        let encrypted = self.tls.as_ref().map_or(0, |tls| tls.outgoing.len());
        let coming = self.partial.as_ref().map_or(0, |partial| partial.request.payload_len);
        let unsent = self.queued.bytes() + self.active.bytes() + encrypted;
        u64::from(coming) + unsent as u64
    }

    /// Whether every answer has been sent.
    pub(crate) fn has_sent(&self) -> bool {
        !self.sending && self.queued.is_empty() && self.active.is_empty()
    }

    /// Nothing is read any more; what is in flight is answered, and then the connection ends.
    pub(crate) fn drain(&mut self) {
        if !matches!(self.phase, Phase::Draining) {
            self.phase = Phase::Draining;
            self.input = Vec::new();
            // Memory that the kernel may write to stays until it says that it won't.
            if !self.filling {
                self.partial = None;
            }
            self.skip = None;
            self.deadline = None;
        }
    }
}
