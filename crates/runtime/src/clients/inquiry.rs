//! Extent queries: which parts of a range the backend has allocated.
//!
//! A backend may block while it looks up extents, so workers do not call it. Each volume has a
//! queue of queries, and a thread that exists while the queue is not empty. A disk that hangs
//! delays only the queries of its own volume. If the queue is full, a query is answered at once
//! with no extents, which means "unknown" and is always a valid answer. The price is the start of a
//! thread for each burst of queries.

use crate::locks::Lock;
use crate::shared::{Inbox, Message, Volume};
use forebay_frontend::ExtentQuery;
use forebay_threads::{Thread, contain};
use forebay_types::Extent;
use std::collections::VecDeque;
use std::sync::Arc;

/// The maximum number of queued queries per volume.
const QUEUED_MAX: usize = 64;

/// A query that is not answered yet. It is answered exactly once, on drop; without extents unless
/// [`PendingQuery::answer`] was called.
pub(super) struct PendingQuery {
    inbox: Arc<Inbox>,
    query: ExtentQuery,
    extents: Vec<Extent>,
}

impl PendingQuery {
    pub(super) const fn new(inbox: Arc<Inbox>, query: ExtentQuery) -> Self {
        Self { inbox, query, extents: Vec::new() }
    }

    fn answer(mut self, extents: Vec<Extent>) {
        self.extents = extents;
    }
}

impl Drop for PendingQuery {
    fn drop(&mut self) {
        let extents = std::mem::take(&mut self.extents);
        self.inbox.post(Message::Extents { query: self.query, extents });
    }
}

/// The extent queries of a volume.
#[derive(Default)]
pub(crate) struct ExtentQueries(Lock<Queue>);

#[derive(Default)]
struct Queue {
    queued: VecDeque<PendingQuery>,
    /// A thread runs the queued queries.
    has_thread: bool,
}

impl Volume {
    /// Queues a query, and starts the thread that runs it.
    pub(super) fn query_extents(self: &Arc<Self>, pending: PendingQuery) {
        let mut queue = self.extent_queries.0.lock();
        if queue.queued.len() >= QUEUED_MAX {
            drop(queue);
            drop(pending);
            return;
        }
        queue.queued.push_back(pending);
        if queue.has_thread {
            return;
        }
        queue.has_thread = true;
        drop(queue);
        let volume = Arc::clone(self);
        let work = move || volume.run_extent_queries();
        if let Err(error) = Thread::named("extents").spawn(work) {
            tracing::warn!(
                volume = self.name,
                %error,
                "cannot start the thread for extent queries, reporting everything as allocated"
            );
            let mut queue = self.extent_queries.0.lock();
            queue.has_thread = false;
            let unanswered = std::mem::take(&mut queue.queued);
            drop(queue);
            drop(unanswered);
        }
    }

    /// Runs queries until the queue is empty.
    fn run_extent_queries(&self) {
        loop {
            let mut queue = self.extent_queries.0.lock();
            let Some(pending) = queue.queued.pop_front() else {
                queue.has_thread = false;
                return;
            };
            drop(queue);
            let range = pending.query.range;
            // A panic of the backend must not leave the other queries unanswered.
            let extents = contain(|| self.backend.extents(range));
            pending.answer(extents.unwrap_or_default());
        }
    }
}
