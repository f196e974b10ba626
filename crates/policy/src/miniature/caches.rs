//! The miniatures of all sizes, and what streams have read ahead.

use super::cache::MiniatureCache;
use super::{LineAccess, Misses, PoolSize, ReadKind};
use crate::Hint;

/// See the module.
pub(super) struct Caches {
    pub of_sizes: [MiniatureCache; PoolSize::COUNT],
}

impl Caches {
    /// The size of this value in bytes, heap included.
    pub(super) fn bytes(&self) -> usize {
        size_of::<Self>() + self.of_sizes.iter().map(MiniatureCache::heap_bytes).sum::<usize>()
    }

    /// A client accesses a line. Returns the sizes at which the line was missed, and how it was
    /// read.
    pub(super) fn access(&mut self, line: u32, access: LineAccess) -> (Misses, ReadKind) {
        let [.., largest] = &self.of_sizes;
        let kind = match access {
            LineAccess { hint: Hint::Write, .. } => ReadKind::Missed,
            LineAccess { was_ahead: true, .. } => ReadKind::Ahead,
            LineAccess { is_hit: true, .. } if largest.is_in_sequence(line) => ReadKind::InSequence,
            LineAccess { is_hit: true, .. } => ReadKind::Hit,
            LineAccess { .. } => ReadKind::Missed,
        };
        if matches!(kind, ReadKind::Ahead | ReadKind::InSequence) {
            // In a pool that lacks the line, a stream would have read it ahead.
            self.access_all(line, Hint::Stream, access.admits);
            self.set_in_sequence(line, kind == ReadKind::InSequence);
            return (Misses::default(), kind);
        }
        let misses = self.access_all(line, access.hint, access.admits);
        if kind == ReadKind::Missed && access.hint != Hint::Write {
            self.set_in_sequence(line, false);
        }
        if let Some(share) = access.dirty_share {
            self.of_sizes.iter_mut().for_each(|cache| cache.set_dirty(line, share));
        }
        (misses, kind)
    }

    fn access_all(&mut self, line: u32, hint: Hint, admits: bool) -> Misses {
        let mut misses = 0;
        for (at, cache) in self.of_sizes.iter_mut().enumerate() {
            if admits {
                misses |= u8::from(cache.access(line, hint)) << at;
            } else {
                cache.touch(line, hint);
            }
        }
        Misses(misses)
    }

    /// A stream reads a line ahead, or passes over it.
    pub(super) fn prefetch(&mut self, line: u32) {
        self.of_sizes.iter_mut().for_each(|cache| cache.prefetch(line));
    }

    /// The largest miniature remembers how lines were last read.
    pub(super) fn set_in_sequence(&mut self, line: u32, is_in_sequence: bool) {
        let [.., largest] = &mut self.of_sizes;
        largest.set_in_sequence(line, is_in_sequence);
    }
}
