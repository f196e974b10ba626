//! Extent queries: which parts of a range hold data, in the backend or as dirty lines in the pool.
//!
//! The dirty ranges are read twice: before the backend is queried, and when its answer arrives.
//! Data that was written before the query is dirty the first time, or the backend has it. Data that
//! is written meanwhile is dirty the second time, or the query counts as the earlier one.
//!
//! A backend may block while it looks up extents, so workers do not call it. Each volume has a
//! queue of queries, and a thread that exists while the queue is not empty. A disk that hangs
//! delays only the queries of its own volume. If the queue is full, a query is answered at once
//! with no extents, which means "unknown" and is always a valid answer. The price is the start of a
//! thread for each burst of queries.

use super::Volume;
use crate::platform::locks::Lock;
use crate::shared::{Inbox, Message, Shards};
use forebay_engine::dirty_lines_in;
use forebay_frontend::ExtentQuery;
use forebay_protect::runs_of;
use forebay_threads::{Thread, contain};
use forebay_types::{ByteRange, Extent, VolumeId};
use std::collections::VecDeque;
use std::sync::Arc;

/// The maximum number of queued queries per volume.
const QUEUED_MAX: usize = 64;
/// The maximum number of dirty lines that a query reads from a shard. It bounds the time for which
/// the shard is locked.
const LINES_MAX: usize = 1024;

/// A query that is not answered yet. It is answered exactly once, on drop; without extents unless
/// [`PendingQuery::answer`] was called.
pub(crate) struct PendingQuery {
    inbox: Arc<Inbox>,
    query: ExtentQuery,
    extents: Vec<Extent>,
    /// The dirty ranges at the arrival of the query.
    dirty: DirtyRanges,
}

impl PendingQuery {
    pub(crate) const fn new(inbox: Arc<Inbox>, query: ExtentQuery, dirty: DirtyRanges) -> Self {
        Self { inbox, query, extents: Vec::new(), dirty }
    }

    fn answer(mut self, extents: Vec<Extent>) {
        self.extents = extents;
    }
}

impl Drop for PendingQuery {
    fn drop(&mut self) {
        let extents = std::mem::take(&mut self.extents);
        let dirty = std::mem::take(&mut self.dirty);
        self.inbox.post(Message::Extents { query: self.query, extents, dirty });
    }
}

/// The dirty parts of a range of a volume.
#[derive(Debug)]
pub(crate) struct DirtyRanges {
    ranges: Vec<ByteRange>,
    /// The end of the known part: no dirty ranges are known beyond this offset.
    end: u64,
}

impl Default for DirtyRanges {
    fn default() -> Self {
        Self { ranges: Vec::new(), end: u64::MAX }
    }
}

impl DirtyRanges {
    /// Adds the ranges that are dirty now. Requires that all shards know the volume, which is the
    /// case while it has clients.
    pub(crate) fn add(&mut self, shards: &Shards, id: VolumeId, range: ByteRange) {
        for shard in shards.each() {
            let mut lines = dirty_lines_in(&shard, id, range, LINES_MAX + 1);
            if lines.len() > LINES_MAX
                && let Some((key, _)) = lines.pop()
            {
                self.end = self.end.min(key.offset());
            }
            self.ranges.extend(lines.into_iter().flat_map(|(key, mask)| runs_of(key, mask)));
        }
    }

    /// The extents of `range` with the dirty parts as data. They end before the first
    /// offset whose dirty ranges are unknown; the client asks again for the rest.
    pub(crate) fn overlay(mut self, range: ByteRange, extents: &[Extent]) -> Vec<Extent> {
        self.ranges.sort_unstable_by_key(|range| range.offset);
        let mut ranges = self.ranges.into_iter().peekable();
        let (mut out, mut at, mut end) = (Vec::new(), range.offset, range.offset);
        for extent in extents {
            end += extent.len;
            while at < end.min(self.end) {
                while ranges.next_if(|dirty| dirty.end() <= at).is_some() {}
                let (until, is_dirty) = match ranges.peek() {
                    Some(dirty) if dirty.offset <= at => (dirty.end(), true),
                    next => (next.map_or(end, |dirty| dirty.offset), false),
                };
                let until = until.min(end).min(self.end);
                let (hole, zero) = (extent.hole && !is_dirty, extent.zero && !is_dirty);
                out.push(Extent { len: until - at, hole, zero });
                at = until;
            }
        }
        out
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
    pub(crate) fn query_extents(self: &Arc<Self>, pending: PendingQuery) {
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
        assert_eq!(queue.queued.len(), 1, "no query is left without a thread");
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
            debug_assert!(queue.has_thread && queue.queued.len() <= QUEUED_MAX);
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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn dirty_ranges_are_data_and_the_rest_is_as_the_disk_says(
            extents in prop::collection::vec((1u64..40, any::<bool>(), any::<bool>()), 0..8),
            ranges in prop::collection::vec((0u64..120, 1u64..30), 0..12),
            offset in 0u64..40,
            end in prop_oneof![Just(u64::MAX), 0u64..120],
        ) {
            let extents: Vec<_> =
                extents.into_iter().map(|(len, hole, zero)| Extent { len, hole, zero }).collect();
            let ranges: Vec<_> =
                ranges.into_iter().map(|(offset, len)| ByteRange::new(offset, len)).collect();
            let bytes = |extents: &[Extent]| -> Vec<(bool, bool)> {
                let of = |extent: &Extent| [(extent.hole, extent.zero)].repeat(extent.len as usize);
                extents.iter().flat_map(of).collect()
            };
            let is_dirty =
                |at: u64| ranges.iter().any(|range| range.offset <= at && at < range.end());
            let expected: Vec<_> = (offset..end)
                .zip(bytes(&extents))
                .map(|(at, of_disk)| if is_dirty(at) { (false, false) } else { of_disk })
                .collect();
            let len = extents.iter().map(|extent| extent.len).sum();
            let dirty = DirtyRanges { ranges: ranges.clone(), end };
            let merged = dirty.overlay(ByteRange::new(offset, len), &extents);
            prop_assert!(merged.iter().all(|extent| extent.len > 0));
            prop_assert_eq!(bytes(&merged), expected);
        }
    }
}
