//! Block status: what of a volume is allocated. The connection's other requests go on while the
//! backend is asked.

use crate::Serving;
use forebay_frontend::{ExtentQuery, WorkerContext};
use forebay_nbd::{Negotiated, Request};
use forebay_types::Extent;

impl<C: WorkerContext> Serving<'_, C> {
    /// Answers where nothing is known, and has the backend asked otherwise.
    pub(crate) fn block_status(&mut self, index: u32, terms: &Negotiated, request: &Request) {
        let Some(conn) = self.nbd.conns.get(index) else { return };
        let (client, cookie, range) = (conn.client, request.cookie, request.range());
        if self.cx.query_extents(ExtentQuery { client, cookie, range }) {
            conn.status_requests.push(*request);
        } else {
            self.reply_extents(index, terms, request, &[]);
        }
    }

    /// The backend has said what is allocated, or nothing.
    pub(crate) fn extents_known(&mut self, asked: &ExtentQuery, extents: &[Extent]) {
        let index = asked.client.number;
        let Some(conn) = self.nbd.conns.get(index) else { return };
        let is_it =
            |request: &Request| request.cookie == asked.cookie && request.range() == asked.range;
        let Some(at) = conn.status_requests.iter().position(is_it) else { return };
        let request = conn.status_requests.swap_remove(at);
        let terms = conn.terms.filter(|_| !conn.broken);
        self.resume(index);
        self.nbd.conns.touch(index);
        if let Some(terms) = terms {
            self.reply_extents(index, &terms, &request, extents);
        }
    }

    fn reply_extents(
        &mut self,
        index: u32,
        terms: &Negotiated,
        request: &Request,
        extents: &[Extent],
    ) {
        let Some(conn) = self.nbd.conns.get(index) else { return };
        conn.queued.push_header(|out| {
            terms.reply_block_status(request, extents.iter().copied(), out);
        });
        self.nbd.conns.touch(index);
    }
}
