//! Input of connections: parses options, then requests with their payloads, and submits them.
//!
//! Each connection's bytes are handled in order. A connection without memory for its next request
//! keeps its unparsed input and is paused.

use crate::Serving;
use crate::conn::{ConnPhase, Parsed, Skip};
use crate::exports::ExportList;
use crate::intake::{DIRECT_BYTES_MIN, PartialWrite, PayloadTarget};
use crate::pieces::Pieces;
use crate::tls::TlsSession;
use forebay_frontend::{
    ClientRequest, LookAhead, Memory, PayloadReservation, Refusal, Sockets, WorkerContext,
};
use forebay_nbd::{HandshakeStep, NbdCommand, NbdRequest, Negotiated, Parse};
use forebay_threads::contain;
use forebay_types::IoError;
use forebay_volume::{Payload, RequestKind};
use std::io;
use std::os::fd::AsRawFd;

impl<C: WorkerContext> Serving<'_, C> {
    /// Handles received bytes, the end of the stream, or an error. With `more`, receiving continues
    /// by itself.
    pub(crate) fn on_received(
        &mut self,
        index: u32,
        bytes: &[u8],
        result: io::Result<usize>,
        more: bool,
    ) {
        let Some(conn) = self.nbd.conns.get(index) else { return };
        debug_assert!(conn.receiving && !conn.filling, "bytes were received out of order");
        conn.receiving = more;
        if conn.broken {
            self.nbd.conns.mark_pending(index);
            return;
        }
        match result {
            // `pause` has cancelled the operation. Receiving restarts when the connection is below
            // its limits.
            Err(error) if error.raw_os_error() == Some(libc::ECANCELED) => {
                self.update_receiving(index);
                return;
            }
            Err(error) => {
                self.fail(index, &error);
                return;
            }
            Ok(0) => {
                self.on_end_of_stream(index);
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
                    // The connection drains first, so that the client gets the TLS alert.
                    let number = conn.listener.as_ref().map(|(number, _)| *number as usize);
                    let listener = number.and_then(|number| self.nbd.listeners.get(number));
                    let listener = listener.and_then(Option::as_ref).map(|it| &*it.address);
                    tracing::info!(client = %conn.peer, listener, %error, "TLS session failed");
                    conn.drain();
                }
                self.nbd.conns.mark_pending(index);
                self.feed(index, &plain);
                if matches!(outcome, Ok(false))
                    && let Some(conn) = self.nbd.conns.get(index)
                {
                    conn.drain();
                }
            }
        }
        self.update_receiving(index);
    }

    /// Drains a connection whose client has closed it. Complete requests are still carried out.
    pub(crate) fn on_end_of_stream(&mut self, index: u32) {
        let Some(conn) = self.nbd.conns.get(index) else { return };
        if conn.partial.is_some() {
            tracing::debug!("client closed its connection during a write, partial write discarded");
        }
        conn.drain();
        self.nbd.conns.mark_pending(index);
    }

    /// Continues input that was paused.
    pub(crate) fn continue_input(&mut self, index: u32) {
        self.continue_draining(index);
        self.feed(index, &[]);
        self.update_receiving(index);
    }

    /// Starts or pauses receiving, as the state of the connection requires.
    pub(crate) fn update_receiving(&mut self, index: u32) {
        self.fill(index);
        let Some(conn) = self.nbd.conns.get(index) else { return };
        if matches!(conn.phase, ConnPhase::Leaving) && !conn.wants_input() {
            if conn.receiving || conn.filling {
                self.cx.sockets().stop_input(index, conn.socket.as_raw_fd());
            } else {
                // It may be given up now.
                self.nbd.conns.mark_pending(index);
            }
            return;
        }
        let wants = conn.wants_input() && !conn.wants_direct();
        if wants && !conn.receiving && !conn.filling {
            conn.receiving = true;
            let fd = conn.socket.as_raw_fd();
            self.cx.sockets().receive(index, fd);
        } else if !wants && conn.receiving {
            self.cx.sockets().pause(index);
        }
    }

    /// Parses as much of the input as possible, and keeps the rest.
    pub(crate) fn feed(&mut self, index: u32, bytes: &[u8]) {
        let Some(conn) = self.nbd.conns.get(index) else { return };
        if conn.input.is_empty() {
            let consumed = self.consume(index, bytes);
            if let Some(conn) = self.nbd.conns.get(index)
                && !matches!(conn.phase, ConnPhase::Draining)
            {
                conn.input.extend_from_slice(&bytes[consumed..]);
            }
            return;
        }
        let mut input = std::mem::take(&mut conn.input);
        input.extend_from_slice(bytes);
        let consumed = self.consume(index, &input);
        input.drain(..consumed);
        if let Some(conn) = self.nbd.conns.get(index)
            && !matches!(conn.phase, ConnPhase::Draining)
        {
            conn.input = input;
        }
    }

    /// Parses `bytes` and returns how many were consumed.
    fn consume(&mut self, index: u32, bytes: &[u8]) -> usize {
        let mut at = 0;
        loop {
            let Some(conn) = self.nbd.conns.get(index) else { return bytes.len() };
            if conn.broken {
                return bytes.len();
            }
            let rest = &bytes[at..];
            let next = match conn.phase {
                ConnPhase::Draining => return bytes.len(),
                ConnPhase::Handshake(_) => self.negotiate(index, rest),
                ConnPhase::Transmission | ConnPhase::Leaving => self.transmit(index, rest),
            };
            match next {
                Parsed::Consumed(bytes) => at += bytes,
                Parsed::Wait => return at,
            }
        }
    }

    fn negotiate(&mut self, index: u32, bytes: &[u8]) -> Parsed {
        let Some(conn) = self.nbd.conns.get(index) else { return Parsed::Wait };
        let ConnPhase::Handshake(handshake) = &mut conn.phase else {
            return Parsed::Consumed(0);
        };
        if conn.tls_next || (conn.paused && !conn.queued.is_empty()) {
            return Parsed::Wait;
        }
        conn.paused = false;
        if self.cx.is_stopping() {
            handshake.shut_down();
        }
        let exports = ExportList(&*self.cx);
        let mut consumed = 0;
        let mut step = HandshakeStep::NeedMore;
        // A panic ends only this connection: the handshake changes no state but its own.
        let advanced = contain(|| {
            let queued = &mut conn.queued;
            queued.push_header(|out| (consumed, step) = handshake.advance(bytes, &exports, out));
        });
        if advanced.is_err() {
            self.disconnect(index, "internal error in the handshake; see the panic above");
            return Parsed::Wait;
        }
        self.nbd.conns.mark_pending(index);
        let Some(conn) = self.nbd.conns.get(index) else { return Parsed::Wait };
        match step {
            HandshakeStep::NeedMore if consumed == 0 => return Parsed::Wait,
            HandshakeStep::NeedMore => {}
            // Input continues when the replies have been sent, at the end of the turn.
            HandshakeStep::Flush => conn.paused = true,
            HandshakeStep::StartTls => conn.tls_next = true,
            HandshakeStep::Enter(terms) => self.enter(index, terms),
            HandshakeStep::Close(reason) => {
                tracing::debug!(client = %conn.peer, %reason, "handshake ended");
                conn.drain();
            }
        }
        Parsed::Consumed(consumed)
    }

    /// Enters the transmission phase on the volume that the client has chosen.
    pub(crate) fn enter(&mut self, index: u32, terms: Negotiated) {
        let Some(conn) = self.nbd.conns.get(index) else { return };
        if self.cx.enter(conn.client, terms.export, conn.tls.is_some()) {
            self.cx.each_volume(&mut |volume| {
                if volume.id == terms.export {
                    conn.volume = Some(volume.name.as_str().into());
                }
            });
            conn.terms = Some(terms);
            conn.phase = ConnPhase::Transmission;
            conn.deadline = None;
        } else {
            conn.drain();
        }
    }

    /// Parses one request, or takes a piece of a payload.
    fn transmit(&mut self, index: u32, bytes: &[u8]) -> Parsed {
        let Some(conn) = self.nbd.conns.get(index) else { return Parsed::Wait };
        if conn.partial.is_some() {
            return self.fill_partial(index, bytes);
        }
        if conn.skip.is_some() {
            return self.skip_payload(index, bytes);
        }
        if conn.pieces.is_some() {
            return self.continue_pieces(index);
        }
        if matches!(conn.phase, ConnPhase::Leaving) {
            return Parsed::Wait;
        }
        // Checked for each request: bytes may arrive while the connection is paused, and memory may
        // be free by then. A full connection leaves the queue for memory, so that it blocks no
        // other client.
        let client = conn.client;
        conn.paused = self.cx.is_full(client, conn.held_bytes());
        if conn.paused {
            self.cx.stop_waiting(client);
            return Parsed::Wait;
        }
        let Some(terms) = conn.terms else { return Parsed::Wait };
        let parse = terms.parse(bytes);
        let (request, header) = match &parse {
            Parse::NeedMore => return Parsed::Wait,
            Parse::Broken(reason) => {
                self.disconnect(index, &reason.to_string());
                return Parsed::Wait;
            }
            Parse::Request { request, header_len } => (request, *header_len),
        };
        let payload_len = request.payload_len as usize;
        conn.direct = payload_len >= DIRECT_BYTES_MIN && conn.tls.is_none();
        if request.command == NbdCommand::Disconnect {
            conn.drain();
            self.nbd.conns.mark_pending(index);
            return Parsed::Wait;
        }
        if request.error.is_some() {
            let request = *request;
            return self.skip_refused(index, request, header, bytes);
        }
        match self.begin_pieces(index, request) {
            Some(true) => return Parsed::Consumed(header),
            Some(false) => return Parsed::Wait,
            None => {}
        }
        if !self.admit(index, request) {
            return Parsed::Wait;
        }
        let body = &bytes[header..];
        if body.len() >= payload_len {
            let payload = match request.command {
                NbdCommand::Write => Payload::Borrowed(&body[..payload_len]),
                _ => Payload::None,
            };
            // The payload may have completed while the connection waited for memory to receive it.
            self.cx.stop_waiting(client);
            let len = header + payload_len;
            let offset = |at: usize| offset_at(&terms, bytes, at);
            let writes = request.command == NbdCommand::Write;
            let guess = LookAhead { next: offset(len), second: offset(2 * len), writes };
            self.cx.look_ahead(client, guess);
            self.submit(index, &terms, request, payload);
            return Parsed::Consumed(len);
        }
        if self.begin_payload(index, *request) { Parsed::Consumed(header) } else { Parsed::Wait }
    }

    /// Skips the payload of a request that is refused, unless the volume has grown meanwhile, so
    /// that the request is inside it: the kernel's client knows of that by other means than the
    /// protocol.
    fn skip_refused(
        &mut self,
        index: u32,
        request: NbdRequest,
        header: usize,
        bytes: &[u8],
    ) -> Parsed {
        let Some(conn) = self.nbd.conns.get(index) else { return Parsed::Wait };
        let known = conn.terms.as_mut().map(|terms| &mut terms.size_bytes);
        if let Some(known) = known.filter(|known| !request.range().fits(**known)) {
            let size_bytes = self.cx.volume_bytes(conn.client);
            if size_bytes > *known {
                *known = size_bytes;
                return self.transmit(index, bytes);
            }
        }
        conn.skip = Some(Skip { left: u64::from(request.payload_len), request, failed: None });
        Parsed::Consumed(header)
    }

    /// Reserves memory for a payload that arrives in pieces. If none is free, pauses the connection
    /// and returns false.
    fn begin_payload(&mut self, index: u32, request: NbdRequest) -> bool {
        let Some(conn) = self.nbd.conns.get(index) else { return false };
        let Ok(reservation) = self.cx.reserve(conn.client, u64::from(request.payload_len)) else {
            conn.paused = true;
            return false;
        };
        conn.paused = false;
        self.receive_payload(index, request, reservation);
        true
    }

    /// Starts to receive a payload into slots of the pool, or into memory.
    pub(crate) fn receive_payload(
        &mut self,
        index: u32,
        request: NbdRequest,
        reservation: Option<PayloadReservation>,
    ) {
        let (now, timeouts) = (self.cx.client_time(), self.cx.client_timeouts());
        let payload_len = request.payload_len as usize;
        let Some(conn) = self.nbd.conns.get(index) else { return };
        let (client, range) = (conn.client, request.range());
        let is_long = payload_len >= DIRECT_BYTES_MIN;
        let staged = if is_long { self.cx.stage(client, range) } else { None };
        let target = match staged {
            Some(staged) => PayloadTarget::Pool(staged),
            None => PayloadTarget::Memory(Memory::new(payload_len)),
        };
        let Some(conn) = self.nbd.conns.get(index) else { return };
        assert!(conn.partial.is_none(), "the payload of another request is being received");
        let end = timeouts.payload_end(now, payload_len as u64);
        conn.partial =
            Some(PartialWrite { request, target, filled: 0, end, _reservation: reservation });
        conn.deadline = Some(now + timeouts.payload_pause);
    }

    /// Admits a request, with its memory. If it has to wait, pauses the connection and returns
    /// false.
    fn admit(&mut self, index: u32, request: &NbdRequest) -> bool {
        let Some(kind) = kind_of(request) else { return true };
        let Some(conn) = self.nbd.conns.get(index) else { return false };
        let granted = self.cx.admit(conn.client, kind, request.len, conn.held_bytes());
        conn.paused = !granted;
        granted
    }

    fn fill_partial(&mut self, index: u32, bytes: &[u8]) -> Parsed {
        let Some(conn) = self.nbd.conns.get(index) else { return Parsed::Wait };
        let Some(partial) = &mut conn.partial else { return Parsed::Wait };
        let copied = partial.copy(bytes);
        let is_complete = self.on_payload_progress(index);
        if is_complete || copied > 0 { Parsed::Consumed(copied) } else { Parsed::Wait }
    }

    /// Submits the write if its payload is complete, and returns whether it is. If not, extends the
    /// deadline.
    pub(crate) fn on_payload_progress(&mut self, index: u32) -> bool {
        let (now, timeouts) = (self.cx.client_time(), self.cx.client_timeouts());
        let Some(conn) = self.nbd.conns.get(index) else { return false };
        let Some(partial) = &conn.partial else { return false };
        if partial.left() > 0 {
            conn.deadline = Some(partial.end.min(now + timeouts.payload_pause));
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

    /// Discards the payload of a refused request, then answers the request.
    fn skip_payload(&mut self, index: u32, bytes: &[u8]) -> Parsed {
        let Some(conn) = self.nbd.conns.get(index) else { return Parsed::Wait };
        let Some(skip) = &mut conn.skip else { return Parsed::Wait };
        let skipped = skip.left.min(bytes.len() as u64);
        skip.left -= skipped;
        if skip.left > 0 {
            return if skipped > 0 { Parsed::Consumed(skipped as usize) } else { Parsed::Wait };
        }
        let Skip { request, failed, .. } = *skip;
        conn.skip = None;
        if let Some(failure) = failed {
            // The piece that failed is counted already.
            self.reply_refusal(index, &request, failure);
            return Parsed::Consumed(skipped as usize);
        }
        let error = request.error.unwrap_or(IoError::Invalid);
        let reason = match error {
            IoError::NotPermitted => "the volume is read-only",
            IoError::NoSpace => "past the end of the volume",
            IoError::Overflow => "request exceeds the maximum length; see the block size limits",
            IoError::NotSupported => "fast zeroing is not supported on this volume",
            _ => "invalid request: misaligned, out of range, or unknown command",
        };
        self.refuse(index, &request, error, reason);
        Parsed::Consumed(skipped as usize)
    }

    /// Refuses an invalid request.
    fn refuse(&mut self, index: u32, request: &NbdRequest, error: IoError, reason: &'static str) {
        let Some(conn) = self.nbd.conns.get(index) else { return };
        self.cx.count_refusal(conn.client);
        self.reply_refusal(index, request, Refusal { error, reason });
    }

    fn reply_refusal(&mut self, index: u32, request: &NbdRequest, refusal: Refusal) {
        let Refusal { error, reason } = refusal;
        if self.withhold(index, error) {
            return;
        }
        let Some(conn) = self.nbd.conns.get(index) else { return };
        if let Some(terms) = conn.terms {
            let to = request.reply_to();
            conn.queued.push_header(|out| terms.reply_error(to, error, reason, out));
        }
        self.nbd.conns.mark_pending(index);
    }

    /// Submits a complete request to the worker.
    pub(crate) fn submit(
        &mut self,
        index: u32,
        terms: &Negotiated,
        request: &NbdRequest,
        payload: Payload<'_, Memory>,
    ) {
        if request.command == NbdCommand::BlockStatus {
            return self.block_status(index, terms, request);
        }
        let Some(kind) = kind_of(request) else { return };
        let Some(conn) = self.nbd.conns.get(index) else { return };
        let (client, cookie) = (conn.client, request.cookie);
        let is_piece = conn.pieces.as_mut().map(Pieces::submitted).is_some();
        let submitted = ClientRequest { client, cookie, kind, range: request.range() };
        match self.cx.submit(&submitted, payload) {
            Err(refusal) if is_piece => self.fail_piece(index, refusal),
            Err(refusal) => self.reply_refusal(index, request, refusal),
            Ok(()) => {}
        }
    }

    /// Starts TLS, after the last plaintext reply has been sent.
    pub(crate) fn start_tls(&mut self, index: u32) {
        let Some(conn) = self.nbd.conns.get(index) else { return };
        assert!(conn.has_sent() && conn.tls.is_none(), "plaintext is sent after TLS has begun");
        conn.tls_next = false;
        if !conn.input.is_empty() {
            // Plaintext input would be parsed as if it had been authenticated by TLS.
            self.disconnect(index, "plaintext after STARTTLS, possibly an injection");
            return;
        }
        let number = conn.listener.as_ref().map(|(number, _)| *number as usize);
        let listener = number.and_then(|number| self.nbd.listeners.get(number));
        let listener = listener.and_then(Option::as_ref);
        // The newest, also if a reload has changed it since the greeting.
        let Some(config) = listener.and_then(|listener| listener.tls.config()) else {
            self.disconnect(index, "TLS is not configured");
            return;
        };
        let session = match TlsSession::new(&config) {
            Ok(session) => session,
            Err(error) => {
                tracing::warn!(%error, "cannot begin a TLS session");
                self.disconnect(index, "TLS cannot be started");
                return;
            }
        };
        conn.tls = Some(Box::new(session));
        if let ConnPhase::Handshake(handshake) = &mut conn.phase {
            handshake.tls_established();
        }
        self.update_receiving(index);
    }
}

/// The offset field of the request that begins at `at` in the input, if all requests of the batch
/// have equal lengths, as the caller assumes. It is not validated, and serves only to prefetch into
/// the processor's cache: cache misses take a fifth of the time of a batch of random hits.
fn offset_at(terms: &Negotiated, bytes: &[u8], at: usize) -> Option<u64> {
    let field: [u8; 8] = bytes.get(at + 16..at + 24)?.try_into().ok()?;
    Some(u64::from_be_bytes(field)).filter(|&offset| offset < terms.size_bytes)
}

/// What a request asks of the worker; `None` if it is no request to the volume's data.
const fn kind_of(request: &NbdRequest) -> Option<RequestKind> {
    Some(match request.command {
        NbdCommand::Read => RequestKind::Read,
        NbdCommand::Write => RequestKind::Write { fua: request.fua },
        NbdCommand::Flush => RequestKind::Flush,
        NbdCommand::Trim => RequestKind::Trim { fua: request.fua },
        NbdCommand::WriteZeroes => RequestKind::Zero { fua: request.fua, unmap: !request.no_hole },
        NbdCommand::Cache => RequestKind::Prefetch,
        NbdCommand::BlockStatus | NbdCommand::Disconnect | NbdCommand::Unknown => return None,
    })
}
