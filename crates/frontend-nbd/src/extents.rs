//! Block status: queries for allocated extents. Other requests of the connection continue
//! meanwhile.

use crate::Serving;
use forebay_frontend::{ExtentQuery, WorkerContext};
use forebay_nbd::{NbdRequest, Negotiated};
use forebay_types::Extent;

impl<C: WorkerContext> Serving<'_, C> {
    /// Queries the backend, or answers at once if it cannot report extents.
    pub(crate) fn block_status(&mut self, index: u32, terms: &Negotiated, request: &NbdRequest) {
        let Some(conn) = self.nbd.conns.get(index) else { return };
        let (client, cookie, range) = (conn.client, request.cookie, request.range());
        if self.cx.query_extents(ExtentQuery { client, cookie, range }) {
            conn.status_requests.push(*request);
        } else {
            self.reply_extents(index, terms, request, &[]);
        }
    }

    /// Answers a block status request with the backend's extents; the list is empty if they are
    /// unknown.
    pub(crate) fn on_extents(&mut self, query: &ExtentQuery, extents: &[Extent]) {
        let index = query.client.number;
        let Some(conn) = self.nbd.conns.get(index) else { return };
        assert_eq!(conn.client, query.client, "extents of an earlier client");
        let is_same =
            |request: &NbdRequest| request.cookie == query.cookie && request.range() == query.range;
        let Some(at) = conn.status_requests.iter().position(is_same) else { return };
        let request = conn.status_requests.swap_remove(at);
        let terms = conn.terms.filter(|_| !conn.broken);
        self.resume(index);
        self.nbd.conns.mark_pending(index);
        if let Some(terms) = terms {
            self.reply_extents(index, &terms, &request, extents);
        }
    }

    fn reply_extents(
        &mut self,
        index: u32,
        terms: &Negotiated,
        request: &NbdRequest,
        extents: &[Extent],
    ) {
        let Some(conn) = self.nbd.conns.get(index) else { return };
        conn.queued.push_header(|out| {
            terms.reply_block_status(request, extents.iter().copied(), out);
        });
        self.nbd.conns.mark_pending(index);
    }
}
