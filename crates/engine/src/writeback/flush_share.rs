//! Notices clients that flush after nearly every write.
//!
//! Write-back brings them nothing if a flush waits for the disk: each of their writes is destaged
//! at once, and a flush also waits for those of other clients that are in flight.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};

/// Flushes between two decisions.
const FLUSHES: u32 = 64;
/// Writes without a flush in one shard, after which clients no longer flush after every write.
pub(super) const WRITES_MAX: u32 = 64;

/// The flushes and writes of a volume. Content is advisory, as that of [`super::elevator`].
#[derive(Debug, Default)]
pub(super) struct FlushShare {
    flushes: AtomicU32,
    writes: AtomicU32,
    follows_writes: AtomicBool,
}

impl FlushShare {
    /// Counts the writes of a shard since its last flush.
    pub(super) fn count_writes(&self, writes: u32) {
        self.writes.fetch_add(writes, Relaxed);
    }

    /// Counts a flush. A flush follows nearly every write if there are at most three writes for
    /// two flushes.
    pub(super) fn count_flush(&self) {
        if self.flushes.fetch_add(1, Relaxed) + 1 >= FLUSHES {
            let writes = self.writes.swap(0, Relaxed);
            self.follows_writes.store(writes > 0 && writes <= FLUSHES / 2 * 3, Relaxed);
            self.flushes.store(0, Relaxed);
        }
    }

    /// Records that clients write without flushing.
    pub(super) fn clear(&self) {
        self.follows_writes.store(false, Relaxed);
    }

    /// Whether a flush follows nearly every write.
    pub(super) fn follows_writes(&self) -> bool {
        self.follows_writes.load(Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_that_flush_after_every_write_are_noticed() {
        let follows = |writes: u32, flushes: u32| {
            let share = FlushShare::default();
            (0..10 * FLUSHES).for_each(|_| {
                share.count_writes(writes);
                (0..flushes).for_each(|_| share.count_flush());
            });
            share.follows_writes()
        };
        assert!(follows(1, 1) && follows(3, 2));
        assert!(!follows(2, 1), "such a client gains from write-back");
        assert!(!follows(0, 1));
    }
}
