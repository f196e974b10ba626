//! The track buffer: data that the disk has read ahead.
//!
//! After a read the head stays in place and reads ahead, up to a limit. A sequential read is thus
//! served at the speed of the platter, without another positioning. When the head moves away, the
//! data read remains in a few segments.

use super::platter::Platter;
use std::collections::VecDeque;

/// Read-ahead beyond the last read, in bytes.
const AHEAD_BYTES: u64 = 4 << 20;
/// Buffered data per stream, in bytes.
const SEGMENT_BYTES: u64 = 4 << 20;
/// Streams that remain in the buffer.
const SEGMENT_COUNT_MAX: usize = 8;

#[derive(Default)]
pub(super) struct DriveBuffer {
    stream: Option<OngoingRead>,
    /// Buffered ranges of earlier streams, the oldest first.
    segments: VecDeque<(u64, u64)>,
}

/// An ongoing read. The head was at `anchor` at `anchor_ns` and reads up to `limit`; the data from
/// `from` to the head is in the buffer.
struct OngoingRead {
    from: u64,
    anchor: u64,
    anchor_ns: u64,
    limit: u64,
}

impl OngoingRead {
    /// When everything before `offset` has been read, if it is within the limit. Data before the
    /// anchor has already been read, even if the head has yet to pass the anchor again.
    fn done_ns(&self, platter: &Platter, offset: u64) -> u64 {
        if offset <= self.anchor {
            return 0;
        }
        self.anchor_ns + platter.media_ns(offset) - platter.media_ns(self.anchor)
    }

    /// The position of the head.
    fn reached(&self, platter: &Platter, at_ns: u64) -> u64 {
        let elapsed_ns = at_ns.saturating_sub(self.anchor_ns);
        let reached = platter.offset_at(platter.media_ns(self.anchor) + elapsed_ns);
        reached.clamp(self.anchor.min(self.limit), self.limit)
    }
}

impl DriveBuffer {
    /// Whether a read can be served without positioning.
    pub(super) fn holds(&self, offset: u64, len: u64) -> bool {
        self.is_kept(offset, len)
            || self
                .stream
                .as_ref()
                .is_some_and(|stream| stream.from <= offset && offset <= stream.limit)
    }

    fn is_kept(&self, offset: u64, len: u64) -> bool {
        self.segments.iter().any(|&(from, to)| from <= offset && offset + len <= to)
    }

    /// Serves a read for which [`holds`](Self::holds) is true. Returns the time when the platter
    /// has delivered it. The stream continues after it.
    pub(super) fn serve(
        &mut self,
        platter: &Platter,
        size_bytes: u64,
        at_ns: u64,
        offset: u64,
        len: u64,
    ) -> u64 {
        if self.is_kept(offset, len) {
            return at_ns;
        }
        let Some(stream) = &mut self.stream else { return at_ns };
        let limit_ns = stream.done_ns(platter, stream.limit);
        if limit_ns <= at_ns {
            // The head had stopped at the limit: it resumes when that position comes by again.
            stream.anchor_ns = at_ns + platter.rotation_ns(stream.limit, at_ns);
            stream.anchor = stream.limit;
        }
        let end = offset + len;
        stream.limit = stream.limit.max((end + AHEAD_BYTES).min(size_bytes));
        stream.from = stream.from.max(end.saturating_sub(SEGMENT_BYTES));
        stream.done_ns(platter, end).max(at_ns)
    }

    /// A positioned read ended at `done_ns`: the head reads ahead from its end.
    pub(super) fn start(&mut self, size_bytes: u64, done_ns: u64, offset: u64, len: u64) {
        let anchor = offset + len;
        let limit = (anchor + AHEAD_BYTES).min(size_bytes);
        self.stream = Some(OngoingRead { from: offset, anchor, anchor_ns: done_ns, limit });
    }

    /// The head moves away at `at_ns`. Returns its position, if it was reading.
    pub(super) fn stop(&mut self, platter: &Platter, at_ns: u64) -> Option<u64> {
        let stream = self.stream.take()?;
        let reached = stream.reached(platter, at_ns);
        if self.segments.len() == SEGMENT_COUNT_MAX {
            self.segments.pop_front();
        }
        self.segments.push_back((stream.from, reached));
        Some(reached)
    }

    /// Invalidates buffered data of a range.
    pub(super) fn invalidate(&mut self, offset: u64, len: u64) {
        self.segments.retain(|&(from, to)| to <= offset || offset + len <= from);
    }
}
