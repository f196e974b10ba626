//! Block status: what of a volume is allocated.
//!
//! Where the pool may hold data that the disk has not, all of it is. Otherwise the backend is asked
//! beside the worker, and the connection's other requests go on meanwhile.

use super::Worker;
use crate::inquiry::Asker;
use crate::reactor::Reactor;
use forebay_backend::Extent;
use forebay_nbd::{Negotiated, Request};
use forebay_types::VolumeId;
use std::sync::Arc;

impl<R: Reactor> Worker<R> {
    /// Answers what is known without the backend, and has the backend asked otherwise.
    pub(super) fn block_status(&mut self, index: u32, terms: &Negotiated, request: &Request) {
        let dirty = self.is_dirty(terms.export);
        let worker = self.host.worker;
        let Some(conn) = self.host.connections.get(index) else { return };
        let Some(volume) = conn.volume.clone().filter(|_| !dirty) else {
            self.reply_extents(index, terms, request, &[]);
            return;
        };
        conn.requests_in_flight += 1;
        let inbox = Arc::clone(&self.host.shared.inboxes[worker]);
        volume.inquire(Asker::new(inbox, index, conn.generation, *request));
    }

    /// The backend has said what is allocated, or nothing.
    pub(super) fn extents_known(
        &mut self,
        index: u32,
        generation: u32,
        request: &Request,
        extents: &[Extent],
    ) {
        let share = self.host.shared.share();
        let asked = self.host.connections.get(index).filter(|conn| conn.generation == generation);
        let Some(conn) = asked else { return };
        conn.requests_in_flight -= 1;
        let resumes = conn.paused && !conn.is_full(share);
        conn.paused &= !resumes;
        let terms = conn.terms.filter(|_| !conn.broken);
        if resumes {
            self.host.connections.resumed.push(index);
        }
        self.host.connections.touch(index);
        if let Some(terms) = terms {
            // Looked at again: what became dirty meanwhile is not in the backend's answer.
            let dirty = self.is_dirty(terms.export);
            self.reply_extents(index, &terms, request, if dirty { &[] } else { extents });
        }
    }

    /// A volume with clients is served, so the shards know it.
    fn is_dirty(&self, volume: VolumeId) -> bool {
        let shared = &self.host.shared;
        (0..shared.shards.len()).any(|shard| shared.shard(shard).dirty_lines(volume) > 0)
    }

    fn reply_extents(
        &mut self,
        index: u32,
        terms: &Negotiated,
        request: &Request,
        extents: &[Extent],
    ) {
        let Some(conn) = self.host.connections.get(index) else { return };
        conn.queued.push_header(|out| {
            let extents = extents.iter().map(|extent| forebay_nbd::Extent {
                len: extent.len,
                hole: extent.hole,
                zero: extent.zero,
            });
            terms.reply_block_status(request, extents, out);
        });
        self.host.connections.touch(index);
    }
}
