//! What clients send: options, then requests, batch by batch.

use super::Worker;
use super::host::{ClientToken, Token, request_range};
use crate::budget::{HUGE_BYTES, Queue};
use crate::conn::{DIRECT_BYTES_MIN, Partial, Phase, Stage, Target, TlsSession};
use crate::memory::Memory;
use crate::pool::prefetch;
use crate::reactor::Reactor;
use crate::shared::{Shared, Volume};
use forebay_engine::LineKey;
use forebay_nbd::{Command, Negotiated, Parse, Request, Step};
use forebay_types::{IoError, LINE_BYTES, Stripes, limits::CONNECTION_REQUESTS_MAX};
use forebay_volume::{Host, Payload, RequestKind, shard_of};
use std::io;
use std::os::fd::AsRawFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// What to do with the input after a step.
enum Next {
    /// Look at what follows.
    Go(usize),
    /// Wait for more.
    Wait,
}

impl<R: Reactor> Worker<R> {
    /// Bytes have come, or the end, or an error; and `more` will come by itself, or not.
    pub(super) fn received(
        &mut self,
        index: u32,
        bytes: &[u8],
        result: io::Result<usize>,
        more: bool,
    ) {
        let Some(conn) = self.host.connections.get(index) else { return };
        conn.receiving = more;
        if conn.broken {
            self.host.connections.touch(index);
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
                self.host.connections.touch(index);
                self.feed(index, &plain);
                if matches!(outcome, Ok(false))
                    && let Some(conn) = self.host.connections.get(index)
                {
                    conn.drain();
                }
            }
        }
        self.receive_on(index);
    }

    /// The client has gone, or will say no more. What it asked for is still done.
    pub(super) fn client_left(&mut self, index: u32) {
        let Some(conn) = self.host.connections.get(index) else { return };
        if conn.partial.is_some() {
            tracing::debug!("a client left in the middle of a write; it has no effect");
        }
        conn.drain();
        self.host.connections.touch(index);
    }

    /// Input that had to wait may go on.
    pub(super) fn received_more(&mut self, index: u32) {
        self.feed(index, &[]);
        self.receive_on(index);
    }

    /// Asks for bytes if the connection wants them, and for no more if it has enough to do.
    pub(super) fn receive_on(&mut self, index: u32) {
        self.fill(index);
        let Some(conn) = self.host.connections.get(index) else { return };
        let wants = conn.wants_input() && !conn.wants_direct();
        if wants && !conn.receiving && !conn.filling {
            conn.receiving = true;
            let fd = conn.socket.as_raw_fd();
            self.host.reactor.receive(index, fd);
        } else if !wants && conn.receiving {
            self.host.reactor.pause(index);
        }
    }

    /// Takes what can be understood of the input, and keeps the rest.
    pub(super) fn feed(&mut self, index: u32, bytes: &[u8]) {
        let Some(conn) = self.host.connections.get(index) else { return };
        if conn.input.is_empty() {
            let taken = self.consume(index, bytes);
            if let Some(conn) = self.host.connections.get(index)
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
        if let Some(conn) = self.host.connections.get(index)
            && !matches!(conn.phase, Phase::Draining)
        {
            conn.input = input;
        }
    }

    /// Handles the input from its start, and returns how much of it was used.
    fn consume(&mut self, index: u32, bytes: &[u8]) -> usize {
        let mut at = 0;
        loop {
            let Some(conn) = self.host.connections.get(index) else { return bytes.len() };
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
        let Some(conn) = self.host.connections.get(index) else { return Next::Wait };
        let Phase::Handshake(handshake) = &mut conn.phase else { return Next::Go(0) };
        if conn.tls_next || (conn.paused && !conn.queued.is_empty()) {
            return Next::Wait;
        }
        conn.paused = false;
        if self.host.shared.stopping.load(Ordering::Relaxed) {
            handshake.shut_down();
        }
        let exports = crate::exports::ExportList { shared: &self.host.shared };
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
        self.host.connections.touch(index);
        let Some(conn) = self.host.connections.get(index) else { return Next::Wait };
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
        let volume = self.host.shared.volume(terms.export);
        let Some(conn) = self.host.connections.get(index) else { return };
        match volume {
            Some(volume) if !volume.leaving.load(Ordering::Relaxed) => {
                volume.connections.fetch_add(1, Ordering::Relaxed);
                conn.volume = Some(volume);
                conn.terms = Some(terms);
                conn.phase = Phase::Transmission;
                conn.deadline = None;
            }
            _ => conn.drain(),
        }
    }

    /// One request, or a piece of a payload.
    fn transmit(&mut self, index: u32, bytes: &[u8]) -> Next {
        let Some(conn) = self.host.connections.get(index) else { return Next::Wait };
        if conn.partial.is_some() {
            return self.fill_partial(index, bytes);
        }
        if conn.skip.is_some() {
            return self.skip_payload(index, bytes);
        }
        // Bytes may come after the connection was told to wait, and by then there may be room.
        // Each request asks anew, so that none is taken up by a connection that goes on waiting.
        let share = self.host.shared.share();
        conn.paused = conn.is_full(share);
        if conn.paused {
            self.leave_queue(index);
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
            self.host.connections.touch(index);
            return Next::Wait;
        }
        if request.error.is_some() {
            conn.skip = Some((payload_len as u64, request));
            return Next::Go(header);
        }
        if !self.has_room(index, &request, share) {
            return Next::Wait;
        }
        let body = &bytes[header..];
        if body.len() >= payload_len {
            let payload = match request.command {
                Command::Write => Payload::Borrowed(&body[..payload_len]),
                _ => Payload::None,
            };
            // The rest may have come while it waited for memory to come to.
            self.leave_queue(index);
            let len = header + payload_len;
            let stripes = self.host.stripes(terms.export);
            look_ahead(&self.host.shared, &terms, stripes, bytes, len);
            self.submit(index, &terms, &request, payload);
            return Next::Go(len);
        }
        if self.begin_payload(index, &terms, request) { Next::Go(header) } else { Next::Wait }
    }

    /// Makes room for a payload that comes in pieces, if there is any.
    fn begin_payload(&mut self, index: u32, terms: &Negotiated, request: Request) -> bool {
        let (now, patience) = (self.host.now, self.host.shared.patience);
        let payload_len = request.payload_len as usize;
        let in_lane = payload_len as u64 > HUGE_BYTES;
        let mut reservation = None;
        if !in_lane {
            let worker = self.host.worker;
            let Some(conn) = self.host.connections.get(index) else { return false };
            let ticket = (worker, index, conn.generation);
            reservation = self.host.shared.reserve(payload_len as u64, ticket);
            conn.paused = reservation.is_none();
            conn.waits_in = conn.paused.then_some(Queue::Payloads);
            if conn.paused {
                return false;
            }
        }
        let range = request.range();
        let staged = if in_lane || payload_len < DIRECT_BYTES_MIN {
            None
        } else {
            self.dispatcher.stage(&mut self.host, terms.export, range)
        };
        let target = match staged {
            Some(slots) => {
                let shared = Arc::clone(&self.host.shared);
                let divided = (terms.export, self.host.stripes(terms.export));
                Target::Pool(Stage::new(shared, divided, range, slots))
            }
            None => Target::Memory(Memory::new(payload_len)),
        };
        let Some(conn) = self.host.connections.get(index) else { return false };
        let end = patience.payload_end(now, payload_len as u64);
        conn.partial = Some(Partial { request, target, filled: 0, end, _reservation: reservation });
        conn.deadline = Some(now + patience.payload_pause);
        true
    }

    /// Whether there is memory for a request, by the connection's share or in the lane. If not, the
    /// connection waits until there is.
    fn has_room(&mut self, index: u32, request: &Request, share: u64) -> bool {
        if !matches!(request.command, Command::Read | Command::Write) {
            return true;
        }
        let worker = self.host.worker;
        let Some(conn) = self.host.connections.get(index) else { return false };
        let under_way = conn.bytes_under_way();
        if under_way > 0 && under_way + request.len > share {
            conn.paused = true;
            // Shares become smaller as clients come. Nobody waits behind who may not go.
            self.leave_queue(index);
            return false;
        }
        if request.len <= HUGE_BYTES {
            return true;
        }
        let ticket = (worker, index, conn.generation);
        let entered = self.host.shared.enter(Queue::Lane, request.len, ticket);
        conn.waits_in = (!entered).then_some(Queue::Lane);
        conn.paused = !entered;
        if entered {
            conn.lane_bytes += request.len;
        }
        entered
    }

    fn fill_partial(&mut self, index: u32, bytes: &[u8]) -> Next {
        let Some(conn) = self.host.connections.get(index) else { return Next::Wait };
        let Some(partial) = &mut conn.partial else { return Next::Wait };
        let taken = partial.copy(bytes);
        let whole = self.payload_came(index);
        if whole || taken > 0 { Next::Go(taken) } else { Next::Wait }
    }

    /// Bytes of a payload have come. Hands over the request if that was all; returns whether it
    /// was.
    pub(super) fn payload_came(&mut self, index: u32) -> bool {
        let (now, patience) = (self.host.now, self.host.shared.patience);
        let Some(conn) = self.host.connections.get(index) else { return false };
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
        let Some(conn) = self.host.connections.get(index) else { return Next::Wait };
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

    fn refuse(&mut self, index: u32, request: &Request, error: IoError, why: &str) {
        let worker = self.host.worker;
        let Some(conn) = self.host.connections.get(index) else { return };
        if let Some(terms) = conn.terms {
            conn.queued.push_header(|out| terms.reply_error(request.reply_to(), error, why, out));
        }
        if let Some(volume) = &conn.volume {
            volume.stats[worker].counts.errors.add(1);
        }
        self.host.connections.touch(index);
    }

    /// Hands a whole request to the dispatcher.
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
        let Some(conn) = self.host.connections.get(index) else { return };
        let flag = |flag: fn(&Volume) -> &AtomicBool| {
            conn.volume.as_ref().is_some_and(|volume| flag(volume).load(Ordering::Relaxed))
        };
        if request.command.is_write() && flag(|volume| &volume.read_only) {
            self.refuse(index, request, IoError::NotPermitted, "the volume is read-only");
            return;
        }
        let is_halted = |conn: &crate::conn::Conn| {
            conn.volume.as_ref().is_some_and(|volume| volume.power.is_halted())
        };
        if request.command.is_write() && is_halted(conn) {
            self.refuse(index, request, IoError::Shutdown, crate::protect::power::HALTED);
            return;
        }
        // A journal answers for what its disk does not.
        let untrusted = conn
            .volume
            .as_ref()
            .is_some_and(|volume| volume.flush.failure().is_some() && volume.journal.is_none());
        if untrusted && (request.fua || kind == RequestKind::Flush) {
            self.refuse(index, request, IoError::Io, crate::shared::FLUSH_FAILED);
            return;
        }
        if flag(|volume| &volume.leaving) || self.host.shared.stopping.load(Ordering::Relaxed) {
            self.refuse(index, request, IoError::Shutdown, "the server is stopping");
            return;
        }
        // What a request takes in memory until it is answered: erases and flushes take nothing.
        let len = match kind {
            RequestKind::Read | RequestKind::Write { .. } => request.len as u32,
            _ => 0,
        };
        let Some(conn) = self.host.connections.get(index) else { return };
        conn.requests_in_flight += 1;
        debug_assert!(conn.requests_in_flight <= CONNECTION_REQUESTS_MAX);
        conn.bytes_in_flight += u64::from(len);
        let token = ClientToken {
            conn: index,
            generation: conn.generation,
            to: request.reply_to(),
            kind,
            len,
            arrived: self.host.now,
        };
        let range = request_range(request.offset, request.len);
        let request = forebay_volume::Request { volume: terms.export, kind, range };
        self.dispatcher.submit(&mut self.host, Token::Client(token), request, payload);
    }

    /// The plain text before TLS has been sent: from here on all is ciphertext.
    pub(super) fn start_tls(&mut self, index: u32) {
        let Some(conn) = self.host.connections.get(index) else { return };
        conn.tls_next = false;
        if !conn.input.is_empty() {
            // Came in plain text, and would be read as if it had come through TLS.
            self.break_off(index, "plain text behind STARTTLS; possibly an injection");
            return;
        }
        let listener = self.listeners.get(conn.listener as usize).and_then(Option::as_ref);
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

/// Looks at the two requests behind one that is `len` bytes long, and has the memory on its way
/// that they will need: for a batch of random hits, waiting for it is a fifth of the work. The
/// second is taken to be as far behind the first as that is from this one. Wrong guesses cost
/// nothing but their own time. These requests are not validated yet.
fn look_ahead(shared: &Shared, terms: &Negotiated, stripes: Stripes, bytes: &[u8], len: usize) {
    let line = |at: usize| {
        let field: [u8; 8] = bytes.get(at + 16..at + 24)?.try_into().ok()?;
        let offset = u64::from_be_bytes(field);
        if offset >= terms.size_bytes {
            return None;
        }
        let shard = shard_of(terms.export, stripes, offset, shared.shards.len());
        Some((shard, LineKey::new(terms.export, offset / LINE_BYTES)))
    };
    if let Some((shard, key)) = line(2 * len) {
        prefetch(shared.hints[shard].place(key));
    }
    if let Some((shard, key)) = line(len)
        && let Some(slot) = shared.hints[shard].slot(key)
    {
        shared.pool.prefetch_line(shard, slot);
    }
}
