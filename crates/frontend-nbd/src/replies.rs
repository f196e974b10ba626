//! Encoding of answers as NBD replies: a header, and the pinned data of a read.

use crate::Serving;
use crate::conn::Conn;
use crate::output::error_text;
use forebay_frontend::{ClientRequest, Memory, Pins, PoolAccess, WorkerContext};
use forebay_nbd::ReplyTo;
use forebay_types::IoError;
use forebay_volume::{Reply, RequestKind};

impl<C: WorkerContext> Serving<'_, C> {
    /// Queues the answer to a request.
    pub(crate) fn reply(&mut self, request: &ClientRequest, reply: Reply<'_, Memory>) -> Pins {
        let index = request.client.number;
        let Some(conn) = self.nbd.conns.get(index) else { return Pins::Released };
        debug_assert_eq!(conn.client, request.client, "data of an earlier client's request");
        // While a request is carried out in pieces, nothing else of its connection is in flight.
        if conn.pieces.is_some() {
            return self.on_piece(request, reply);
        }
        if conn.paused && !self.cx.is_full(request.client, conn.held_bytes()) {
            conn.paused = false;
            self.nbd.conns.resumed.push(index);
        }
        if let Err(error) = reply.result
            && self.withhold(index, error)
        {
            return Pins::Released;
        }
        match self.nbd.conns.mark_pending(index) {
            Some(conn) if !conn.broken => conn.write_reply(&**self.cx.pool(), request, reply),
            _ => Pins::Released,
        }
    }
}

impl<C: WorkerContext> Serving<'_, C> {
    /// Ends a connection instead of answering a request that has failed because the server is
    /// stopping, or the volume leaves it. A client that connects again sends it to the next server,
    /// or to another host: for many of them, a block device of Linux for example, any error is
    /// final. Returns false if the answer is due.
    pub(crate) fn withhold(&mut self, index: u32, error: IoError) -> bool {
        let client = self.nbd.conns.get(index).map(|conn| conn.client);
        if !client.is_some_and(|client| self.cx.may_succeed_elsewhere(client, error)) {
            return false;
        }
        if let Some(conn) = self.nbd.conns.get(index) {
            conn.drain();
            self.nbd.conns.mark_pending(index);
        }
        true
    }
}

impl Conn {
    // Inlined so that the reply is not copied: see `Completion::answer`.
    #[inline(always)]
    fn write_reply(
        &mut self,
        pool: &impl PoolAccess,
        request: &ClientRequest,
        reply: Reply<'_, Memory>,
    ) -> Pins {
        let Some(terms) = self.terms else { return Pins::Released };
        let to = ReplyTo { cookie: request.cookie, offset: request.range.offset };
        match reply.result {
            Err(error) => {
                let text = error_text(error, request.kind);
                self.queued.push_header(|out| terms.reply_error(to, error, text, out));
            }
            Ok(()) if request.kind == RequestKind::Read => {
                let len = request.range.len as u32;
                self.queued.push_header(|out| terms.reply_read_header(to, len, out));
                self.queued.push_data(pool, reply.segments, reply.memory.as_ref());
                if let Some(memory) = reply.memory {
                    self.queued.keep(memory);
                }
                return Pins::Kept;
            }
            Ok(()) => self.queued.push_header(|out| terms.reply_ok(to, out)),
        }
        Pins::Released
    }
}
