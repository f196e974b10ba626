//! Requests that are carried out in pieces, because there is little memory.
//!
//! Memory for a whole request of 32 MiB would take half of a cache of 64 MiB, so a cache with less
//! than 512 MiB carries out a huge request in pieces (see [`Quota::piece_bytes`]), one at a time.
//! The connection does nothing else meanwhile, so answers to pieces are not mixed with others.
//!
//! A write is answered after its last piece. A read is answered with a chunk for each piece, if the
//! client has negotiated that and does not want a single chunk. Otherwise its reply is one header
//! and all data, and no error can be reported after the header: all pieces are read once, to find
//! out whether all can be read, and then again, to be sent. If a piece fails only the second time,
//! the connection is closed.
//!
//! The price: such a read uses the disk twice, unless the pool holds it. If a write fails, or its
//! client disconnects within the payload, earlier pieces have been written.
//!
//! [`Quota::piece_bytes`]: forebay_frontend::Quota::piece_bytes

use crate::Serving;
use crate::conn::{Conn, ConnPhase, Parsed, Skip};
use crate::output::error_text;
use forebay_frontend::{ClientRequest, Memory, Pins, PoolAccess, Refusal, WorkerContext};
use forebay_nbd::{NbdCommand, NbdRequest, Negotiated};
use forebay_volume::{Payload, Reply};

/// What is done with the pieces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PiecesPass {
    /// They are received and written.
    Write,
    /// They are read and dropped, to see whether they can be read.
    Check,
    /// They are read and sent.
    Send,
}

/// A request in pieces.
pub(crate) struct Pieces {
    request: NbdRequest,
    pass: PiecesPass,
    /// The length of a piece in bytes. Pieces end at multiples of it.
    piece_bytes: u64,
    /// Each piece of a read is answered with a chunk of its own.
    has_chunks: bool,
    /// Bytes answered in this pass.
    done: u64,
    /// The next piece is submitted and not yet answered.
    in_flight: bool,
}

impl Pieces {
    fn new(request: NbdRequest, piece_bytes: u64, terms: &Negotiated) -> Self {
        let has_chunks = terms.structured && !request.df;
        let pass = match (request.command, has_chunks) {
            (NbdCommand::Write, _) => PiecesPass::Write,
            (_, false) => PiecesPass::Check,
            (_, true) => PiecesPass::Send,
        };
        Self { request, pass, piece_bytes, has_chunks, done: 0, in_flight: false }
    }

    /// The next piece, as a request of its own.
    fn next(&self) -> NbdRequest {
        let offset = self.request.offset + self.done;
        let to_boundary = self.piece_bytes - offset % self.piece_bytes;
        let len = to_boundary.min(self.request.len - self.done);
        // A piece is at most 1 MiB long.
        let payload_len = if self.pass == PiecesPass::Write { len as u32 } else { 0 };
        NbdRequest { offset, len, payload_len, ..self.request }
    }

    const fn is_done(&self) -> bool {
        self.done == self.request.len
    }

    /// Whether this is a read, which continues even after the client has stopped sending.
    pub(crate) const fn is_read(&self) -> bool {
        !matches!(self.pass, PiecesPass::Write)
    }

    /// Whether a piece is submitted and not yet answered.
    pub(crate) const fn is_in_flight(&self) -> bool {
        self.in_flight
    }

    pub(crate) const fn submitted(&mut self) {
        assert!(!self.in_flight, "one piece is in flight at a time");
        self.in_flight = true;
    }
}

impl<C: WorkerContext> Serving<'_, C> {
    /// Begins a request in pieces, unless another request of its connection is in flight. Returns
    /// whether it has begun; `None` if this request is not carried out in pieces.
    pub(crate) fn begin_pieces(&mut self, index: u32, request: &NbdRequest) -> Option<bool> {
        if !matches!(request.command, NbdCommand::Read | NbdCommand::Write) {
            return None;
        }
        let piece_bytes = self.cx.piece_bytes(request.len)?;
        let conn = self.nbd.conns.get(index)?;
        let terms = conn.terms?;
        conn.paused = self.cx.in_flight(conn.client) > 0;
        if !conn.paused {
            conn.pieces = Some(Pieces::new(*request, piece_bytes, &terms));
        }
        Some(!conn.paused)
    }

    /// Submits the next piece, or starts to receive it. Pauses the connection if the previous piece
    /// is in flight, or no memory is free.
    pub(crate) fn continue_pieces(&mut self, index: u32) -> Parsed {
        let Some(conn) = self.nbd.conns.get(index) else { return Parsed::Wait };
        let Some(pieces) = &conn.pieces else { return Parsed::Wait };
        let piece = pieces.next();
        conn.paused =
            pieces.in_flight || !self.cx.admit_piece(conn.client, piece.len, conn.held_bytes());
        if conn.paused {
            return Parsed::Wait;
        }
        if piece.command == NbdCommand::Write {
            self.receive_payload(index, piece, None);
        } else if let Some(terms) = conn.terms {
            self.submit(index, &terms, &piece, Payload::None);
        }
        Parsed::Consumed(0)
    }

    /// Continues a read in pieces of a client that has stopped sending.
    pub(crate) fn continue_draining(&mut self, index: u32) {
        if let Some(conn) = self.nbd.conns.get(index)
            && matches!(conn.phase, ConnPhase::Draining)
            && !conn.broken
            && conn.pieces.as_ref().is_some_and(Pieces::is_read)
        {
            let _ = self.continue_pieces(index);
        }
    }

    /// Handles the answer to a piece.
    pub(crate) fn on_piece(&mut self, request: &ClientRequest, reply: Reply<'_, Memory>) -> Pins {
        let index = request.client.number;
        let Some(conn) = self.nbd.conns.get(index) else { return Pins::Released };
        let Some(pieces) = &mut conn.pieces else { return Pins::Released };
        let is_next = pieces.in_flight && request.range == pieces.next().range();
        assert!(is_next, "the answer to {request:?} is not the one to the piece in flight");
        pieces.in_flight = false;
        if conn.broken {
            self.nbd.conns.mark_pending(index);
            return Pins::Released;
        }
        conn.paused = false;
        let pins = match reply.result {
            Err(error) => {
                self.fail_piece(index, Refusal { error, reason: error_text(error, request.kind) });
                Pins::Released
            }
            Ok(()) => conn.take_piece(&**self.cx.pool(), request.range.len, reply),
        };
        self.nbd.conns.resumed.push(index);
        self.nbd.conns.mark_pending(index);
        pins
    }

    /// Ends a request in pieces whose next piece has failed or was refused.
    pub(crate) fn fail_piece(&mut self, index: u32, refusal: Refusal) {
        let Refusal { error, reason } = refusal;
        let Some(conn) = self.nbd.conns.get(index) else { return };
        let (Some(pieces), Some(terms)) = (conn.pieces.take(), conn.terms) else { return };
        let received = pieces.done + pieces.next().len;
        let Pieces { request, pass, done, has_chunks, .. } = pieces;
        if self.withhold(index, error) {
            return;
        }
        let Some(conn) = self.nbd.conns.get(index) else { return };
        if pass == PiecesPass::Send && !has_chunks && done > 0 {
            return self.disconnect(index, "a read failed after its reply had begun");
        }
        if pass == PiecesPass::Write && received < request.len {
            // The reply follows the rest of the payload. While the connection drains, no more of
            // the payload is received, and the client gets no reply.
            if !matches!(conn.phase, ConnPhase::Draining) {
                assert!(conn.skip.is_none(), "the payload of another request is discarded");
                let left = request.len - received;
                conn.skip = Some(Skip { left, request, failed: Some(refusal) });
            }
            return;
        }
        let to = request.reply_to();
        conn.queued.push_header(|out| terms.reply_error(to, error, reason, out));
        self.nbd.conns.mark_pending(index);
    }
}

impl Conn {
    /// Accounts for a piece of `len` bytes that has succeeded. Queues the data of a read, or the
    /// reply after the last piece of a write.
    fn take_piece(&mut self, pool: &impl PoolAccess, len: u64, reply: Reply<'_, Memory>) -> Pins {
        let is_draining = matches!(self.phase, ConnPhase::Draining);
        let (Some(pieces), Some(terms)) = (&mut self.pieces, self.terms) else {
            return Pins::Released;
        };
        let (to, at, total) = (pieces.request.reply_to(), pieces.done, pieces.request.len);
        let (pass, has_chunks) = (pieces.pass, pieces.has_chunks);
        pieces.done += len;
        let is_last = pieces.is_done();
        match pass {
            PiecesPass::Check if is_last => {
                pieces.pass = PiecesPass::Send;
                pieces.done = 0;
            }
            PiecesPass::Check => {}
            PiecesPass::Write if is_last => {
                self.pieces = None;
                self.queued.push_header(|out| terms.reply_ok(to, out));
            }
            // The rest of the payload is not received any more.
            PiecesPass::Write if is_draining => self.pieces = None,
            PiecesPass::Write => {}
            PiecesPass::Send => {
                if is_last {
                    self.pieces = None;
                }
                self.queued.push_header(|out| match (has_chunks, at) {
                    (true, _) => {
                        terms.put_data_chunk_header(to, to.offset + at, len as u32, is_last, out);
                    }
                    (false, 0) => terms.reply_read_header(to, total as u32, out),
                    (false, _) => {}
                });
                self.queued.push_data(pool, reply.segments, reply.memory.as_ref());
                if let Some(memory) = reply.memory {
                    self.queued.keep(memory);
                }
                return Pins::Kept;
            }
        }
        Pins::Released
    }
}
