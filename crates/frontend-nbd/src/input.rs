//! What clients send: options, then requests, batch by batch.

use crate::Serving;
use crate::conn::Phase;
use crate::exports::ExportList;
use crate::intake::{DIRECT_BYTES_MIN, Partial, Target};
use crate::tls::TlsSession;
use forebay_frontend::{ClientRequest, Memory, Refusal, Sockets, WorkerContext};
use forebay_nbd::{Command, Negotiated, Parse, Request, Step};
use forebay_types::IoError;
use forebay_volume::{Payload, RequestKind};
use std::io;
use std::os::fd::AsRawFd;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// What to do with the input after a step.
enum Next {
    /// Look at what follows.
    Go(usize),
    /// Wait for more.
    Wait,
}

impl<C: WorkerContext> Serving<'_, C> {
    /// Bytes have come, or the end, or an error; and `more` will come by itself, or not.
    pub(crate) fn received(
        &mut self,
        index: u32,
        bytes: &[u8],
        result: io::Result<usize>,
        more: bool,
    ) {
        let Some(conn) = self.nbd.conns.get(index) else { return };
        conn.receiving = more;
        if conn.broken {
            self.nbd.conns.touch(index);
            return;
        }
        match result {
            // The receiving was ended by us; it begins again when the connection has room.
            Err(error) if error.raw_os_error() == Some(libc::ECANCELED) => {
                self.receive_on(index);
                return;
            }
            Err(_) => {
                self.break_off(index, "");
                return;
            }
            Ok(0) => {
                self.client_left(index);
                return;
            }
            Ok(_) => {}
        }
        match &mut conn.tls {
            None => self.feed(index, bytes),
            Some(tls) => {
                let mut plain = Vec::new();
                let outcome = tls.receive(bytes, &mut plain);
                if let Err(error) = &outcome {
                    // The alert that says why goes out before the end.
                    tracing::info!("TLS with a client failed: {error}");
                    conn.drain();
                }
                self.nbd.conns.touch(index);
                self.feed(index, &plain);
                if matches!(outcome, Ok(false))
                    && let Some(conn) = self.nbd.conns.get(index)
                {
                    conn.drain();
                }
            }
        }
        self.receive_on(index);
    }

    /// The client has gone, or will say no more. What it asked for is still done.
    pub(crate) fn client_left(&mut self, index: u32) {
        let Some(conn) = self.nbd.conns.get(index) else { return };
        if conn.partial.is_some() {
            tracing::debug!("a client left in the middle of a write; it has no effect");
        }
        conn.drain();
        self.nbd.conns.touch(index);
    }

    /// Input that had to wait may go on.
    pub(crate) fn received_more(&mut self, index: u32) {
        self.feed(index, &[]);
        self.receive_on(index);
    }

    /// Asks for bytes if the connection wants them, and for no more if it has enough to do.
    pub(crate) fn receive_on(&mut self, index: u32) {
        self.fill(index);
        let Some(conn) = self.nbd.conns.get(index) else { return };
        let wants = conn.wants_input() && !conn.wants_direct();
        if wants && !conn.receiving && !conn.filling {
            conn.receiving = true;
            let fd = conn.socket.as_raw_fd();
            self.cx.sockets().receive(index, fd);
        } else if !wants && conn.receiving {
            self.cx.sockets().pause(index);
        }
    }

    /// Takes what can be understood of the input, and keeps the rest.
    pub(crate) fn feed(&mut self, index: u32, bytes: &[u8]) {
        let Some(conn) = self.nbd.conns.get(index) else { return };
        if conn.input.is_empty() {
            let taken = self.consume(index, bytes);
            if let Some(conn) = self.nbd.conns.get(index)
                && !matches!(conn.phase, Phase::Draining)
            {
                conn.input.extend_from_slice(&bytes[taken..]);
            }
            return;
        }
        let mut input = std::mem::take(&mut conn.input);
        input.extend_from_slice(bytes);
        let taken = self.consume(index, &input);
        input.drain(..taken);
        if let Some(conn) = self.nbd.conns.get(index)
            && !matches!(conn.phase, Phase::Draining)
        {
            conn.input = input;
        }
    }

    /// Handles the input from its start, and returns how much of it was used.
    fn consume(&mut self, index: u32, bytes: &[u8]) -> usize {
        let mut at = 0;
        loop {
            let Some(conn) = self.nbd.conns.get(index) else { return bytes.len() };
            if conn.broken {
                return bytes.len();
            }
            let rest = &bytes[at..];
            let next = match conn.phase {
                Phase::Draining => return bytes.len(),
                Phase::Handshake(_) => self.negotiate(index, rest),
                Phase::Transmission => self.transmit(index, rest),
            };
            match next {
                Next::Go(taken) => at += taken,
                Next::Wait => return at,
            }
        }
    }

    fn negotiate(&mut self, index: u32, bytes: &[u8]) -> Next {
        let Some(conn) = self.nbd.conns.get(index) else { return Next::Wait };
        let Phase::Handshake(handshake) = &mut conn.phase else { return Next::Go(0) };
        if conn.tls_next || (conn.paused && !conn.queued.is_empty()) {
            return Next::Wait;
        }
        conn.paused = false;
        if self.cx.is_stopping() {
            handshake.shut_down();
        }
        let exports = ExportList(&*self.cx);
        let mut taken = 0;
        let mut step = Step::NeedMore;
        // One client's panic is not another's: the handshake touches nothing but its own state.
        let advanced = catch_unwind(AssertUnwindSafe(|| {
            conn.queued.push_header(|out| (taken, step) = handshake.advance(bytes, &exports, out));
        }));
        if advanced.is_err() {
            self.break_off(index, "its handshake failed an assertion; see the log above");
            return Next::Wait;
        }
        self.nbd.conns.touch(index);
        let Some(conn) = self.nbd.conns.get(index) else { return Next::Wait };
        match step {
            Step::NeedMore if taken == 0 => return Next::Wait,
            Step::NeedMore => {}
            // Sent at the end of the turn; input goes on when that is done.
            Step::Flush => conn.paused = true,
            Step::StartTls => conn.tls_next = true,
            Step::Enter(terms) => self.enter(index, terms),
            Step::Close(reason) => {
                tracing::debug!("a client's handshake ended: {reason}");
                conn.drain();
            }
        }
        Next::Go(taken)
    }

    /// The client has chosen a volume.
    fn enter(&mut self, index: u32, terms: Negotiated) {
        let Some(conn) = self.nbd.conns.get(index) else { return };
        if self.cx.enter(conn.client, terms.export) {
            conn.terms = Some(terms);
            conn.phase = Phase::Transmission;
            conn.deadline = None;
        } else {
            conn.drain();
        }
    }

    /// One request, or a piece of a payload.
    fn transmit(&mut self, index: u32, bytes: &[u8]) -> Next {
        let Some(conn) = self.nbd.conns.get(index) else { return Next::Wait };
        if conn.partial.is_some() {
            return self.fill_partial(index, bytes);
        }
        if conn.skip.is_some() {
            return self.skip_payload(index, bytes);
        }
        // Bytes may come after the connection was told to wait, and by then there may be room.
        // Each request asks anew, so that none is taken up by a connection that goes on waiting.
        let client = conn.client;
        conn.paused = self.cx.is_full(client, conn.held_bytes());
        if conn.paused {
            self.cx.stop_waiting(client);
            return Next::Wait;
        }
        let Some(terms) = conn.terms else { return Next::Wait };
        let (request, header) = match terms.parse(bytes) {
            Parse::NeedMore => return Next::Wait,
            Parse::Broken(reason) => {
                self.break_off(index, &reason.to_string());
                return Next::Wait;
            }
            Parse::Request { request, header_len } => (request, header_len),
        };
        let payload_len = request.payload_len as usize;
        conn.direct = payload_len >= DIRECT_BYTES_MIN && conn.tls.is_none();
        if request.command == Command::Disconnect {
            conn.drain();
            self.nbd.conns.touch(index);
            return Next::Wait;
        }
        if request.error.is_some() {
            conn.skip = Some((payload_len as u64, request));
            return Next::Go(header);
        }
        if !self.has_room(index, &request) {
            return Next::Wait;
        }
        let body = &bytes[header..];
        if body.len() >= payload_len {
            let payload = match request.command {
                Command::Write => Payload::Borrowed(&body[..payload_len]),
                _ => Payload::None,
            };
            // The rest may have come while it waited for memory to come to.
            self.cx.stop_waiting(client);
            let len = header + payload_len;
            let offset = |at: usize| offset_at(&terms, bytes, at);
            self.cx.look_ahead(client, offset(len), offset(2 * len));
            self.submit(index, &terms, &request, payload);
            return Next::Go(len);
        }
        if self.begin_payload(index, request) { Next::Go(header) } else { Next::Wait }
    }

    /// Makes room for a payload that comes in pieces, if there is any.
    fn begin_payload(&mut self, index: u32, request: Request) -> bool {
        let (now, patience) = (self.cx.now(), self.cx.patience());
        let payload_len = request.payload_len as usize;
        let Some(conn) = self.nbd.conns.get(index) else { return false };
        let client = conn.client;
        let Ok(reservation) = self.cx.reserve(client, payload_len as u64) else {
            conn.paused = true;
            return false;
        };
        conn.paused = false;
        let range = request.range();
        let is_long = payload_len >= DIRECT_BYTES_MIN;
        let staged = if is_long { self.cx.stage(client, range) } else { None };
        let target = match staged {
            Some(staged) => Target::Pool(staged),
            None => Target::Memory(Memory::new(payload_len)),
        };
        let Some(conn) = self.nbd.conns.get(index) else { return false };
        let end = patience.payload_end(now, payload_len as u64);
        conn.partial = Some(Partial { request, target, filled: 0, end, _reservation: reservation });
        conn.deadline = Some(now + patience.payload_pause);
        true
    }

    /// Whether there is memory for a request, by the connection's share or in the lane. If not, the
    /// connection waits until there is.
    fn has_room(&mut self, index: u32, request: &Request) -> bool {
        if !matches!(request.command, Command::Read | Command::Write) {
            return true;
        }
        let Some(conn) = self.nbd.conns.get(index) else { return false };
        let granted = self.cx.admit(conn.client, request.len, conn.held_bytes());
        conn.paused = !granted;
        granted
    }

    fn fill_partial(&mut self, index: u32, bytes: &[u8]) -> Next {
        let Some(conn) = self.nbd.conns.get(index) else { return Next::Wait };
        let Some(partial) = &mut conn.partial else { return Next::Wait };
        let taken = partial.copy(bytes);
        let whole = self.payload_came(index);
        if whole || taken > 0 { Next::Go(taken) } else { Next::Wait }
    }

    /// Bytes of a payload have come. Hands over the request if that was all; returns whether it
    /// was.
    pub(crate) fn payload_came(&mut self, index: u32) -> bool {
        let (now, patience) = (self.cx.now(), self.cx.patience());
        let Some(conn) = self.nbd.conns.get(index) else { return false };
        let Some(partial) = &conn.partial else { return false };
        if partial.left() > 0 {
            conn.deadline = Some(partial.end.min(now + patience.payload_pause));
            return false;
        }
        conn.deadline = None;
        let terms = conn.terms;
        if let Some((partial, terms)) = conn.partial.take().zip(terms) {
            let (request, payload) = partial.payload();
            self.submit(index, &terms, &request, payload);
        }
        true
    }

    /// Throws away the payload of a refused request, then refuses it.
    fn skip_payload(&mut self, index: u32, bytes: &[u8]) -> Next {
        let Some(conn) = self.nbd.conns.get(index) else { return Next::Wait };
        let Some((left, request)) = &mut conn.skip else { return Next::Wait };
        let taken = (*left).min(bytes.len() as u64);
        *left -= taken;
        if *left > 0 {
            return if taken > 0 { Next::Go(taken as usize) } else { Next::Wait };
        }
        let request = *request;
        conn.skip = None;
        let error = request.error.unwrap_or(IoError::Invalid);
        let why = match error {
            IoError::NotPermitted => "the volume is read-only",
            IoError::NoSpace => "past the end of the volume",
            IoError::Overflow => "more than one request may carry; see the block size limits",
            IoError::NotSupported => "zeroing would be as slow as writing here",
            _ => "misaligned, past the end, or not understood",
        };
        self.refuse(index, &request, error, why);
        Next::Go(taken as usize)
    }

    /// Refuses a request that is not valid.
    fn refuse(&mut self, index: u32, request: &Request, error: IoError, reason: &'static str) {
        let Some(conn) = self.nbd.conns.get(index) else { return };
        self.cx.count_refusal(conn.client);
        self.reply_refusal(index, request, Refusal { error, reason });
    }

    fn reply_refusal(&mut self, index: u32, request: &Request, refusal: Refusal) {
        let Refusal { error, reason } = refusal;
        let Some(conn) = self.nbd.conns.get(index) else { return };
        if let Some(terms) = conn.terms {
            let to = request.reply_to();
            conn.queued.push_header(|out| terms.reply_error(to, error, reason, out));
        }
        self.nbd.conns.touch(index);
    }

    /// Hands a whole request to the worker.
    fn submit(
        &mut self,
        index: u32,
        terms: &Negotiated,
        request: &Request,
        payload: Payload<'_, Memory>,
    ) {
        let kind = match request.command {
            Command::Read => RequestKind::Read,
            Command::Write => RequestKind::Write { fua: request.fua },
            Command::Flush => RequestKind::Flush,
            Command::Trim => RequestKind::Trim { fua: request.fua },
            Command::WriteZeroes => RequestKind::Zero { fua: request.fua, unmap: !request.no_hole },
            Command::Cache => RequestKind::Prefetch,
            Command::BlockStatus => return self.block_status(index, terms, request),
            Command::Disconnect | Command::Unknown => return,
        };
        let Some(conn) = self.nbd.conns.get(index) else { return };
        let (client, cookie) = (conn.client, request.cookie);
        let asked = ClientRequest { client, cookie, kind, range: request.range() };
        if let Err(refusal) = self.cx.submit(&asked, payload) {
            self.reply_refusal(index, request, refusal);
        }
    }

    /// The plain text before TLS has been sent: from here on all is ciphertext.
    pub(crate) fn start_tls(&mut self, index: u32) {
        let Some(conn) = self.nbd.conns.get(index) else { return };
        conn.tls_next = false;
        if !conn.input.is_empty() {
            // Came in plain text, and would be read as if it had come through TLS.
            self.break_off(index, "plain text behind STARTTLS; possibly an injection");
            return;
        }
        let listener = self.nbd.listeners.get(conn.listener as usize).and_then(Option::as_ref);
        let session = listener
            .and_then(|listener| listener.tls.as_ref())
            .and_then(|config| TlsSession::new(&config.current()).ok());
        let Some(session) = session else {
            self.break_off(index, "TLS is not configured");
            return;
        };
        conn.tls = Some(Box::new(session));
        if let Phase::Handshake(handshake) = &mut conn.phase {
            handshake.tls_established();
        }
        self.receive_on(index);
    }
}

/// The offset of the request that may begin at a place in the input, to look ahead: for a batch of
/// random hits, waiting for memory is a fifth of the work. The second request behind the one at
/// hand is taken to be as far behind the first as that is from this one. These are not validated
/// yet.
fn offset_at(terms: &Negotiated, bytes: &[u8], at: usize) -> Option<u64> {
    let field: [u8; 8] = bytes.get(at + 16..at + 24)?.try_into().ok()?;
    Some(u64::from_be_bytes(field)).filter(|&offset| offset < terms.size_bytes)
}
