//! Notices volumes whose clients gain nothing from write-back, because flushes wait for the disk.
//!
//! - *Clients flush after nearly every write.* Each of their writes is destaged at once, and a
//!   flush also waits for those of other clients that are in flight.
//! - *Flushes wait most of the time.* Writers that outpace the disk fill the memory after each
//!   flush, and the next one waits for all of that. A disk with one arm takes scattered writes
//!   slowly, and far more if they are sorted in memory: there, only a flush that waits long counts,
//!   and until it ends.
//!
//! The writes of such volumes go to the disk before they are acknowledged, as without a cache.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};

/// Flushes between two decisions.
const FLUSHES: u32 = 64;
/// Writes without a flush in one shard, after which clients no longer flush after every write.
pub(super) const WRITES_MAX: u32 = 64;
/// The time between two decisions by the waits of flushes, and a long wait, in milliseconds.
const WAITS_MS: u64 = 1_000;

/// The flushes and writes of a volume. Content is advisory, as that of [`super::elevator`].
#[derive(Debug, Default)]
pub(super) struct FlushShare {
    flushes: AtomicU32,
    writes: AtomicU32,
    follows_writes: AtomicBool,
    /// Shards in which a flush waits, since when, and the time up to which their wait has been
    /// counted.
    waiting: AtomicU32,
    since_ms: AtomicU64,
    counted_ms: AtomicU64,
    /// A flush waits for longer than [`WAITS_MS`].
    waits_long: AtomicBool,
    /// Since the last decision by waits: its time, milliseconds with a flush waiting, and whether
    /// there was a flush.
    decided_ms: AtomicU64,
    waited_ms: AtomicU64,
    flushed: AtomicBool,
    waits_most: AtomicBool,
}

impl FlushShare {
    /// Counts the writes of a shard since its last flush.
    pub(super) fn count_writes(&self, writes: u32) {
        self.writes.fetch_add(writes, Relaxed);
    }

    /// Counts a flush. A flush follows nearly every write if there are at most three writes for
    /// two flushes.
    pub(super) fn count_flush(&self) {
        self.flushed.store(true, Relaxed);
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

    /// Counts a flush that begins or ends to wait in a shard.
    pub(super) fn count_waiting(&self, begins: bool, now_ms: u64) {
        self.pass(now_ms);
        if !begins {
            if self.waiting.fetch_sub(1, Relaxed) == 1 {
                self.waits_long.store(false, Relaxed);
            }
        } else if self.waiting.fetch_add(1, Relaxed) == 0 {
            self.since_ms.store(now_ms, Relaxed);
        }
    }

    /// Counts the time of flushes that wait. They wait most of the time if it is more than half,
    /// and until there is no flush.
    pub(super) fn pass(&self, now_ms: u64) {
        let passed_ms = now_ms.saturating_sub(self.counted_ms.swap(now_ms, Relaxed));
        let waits = self.waiting.load(Relaxed) > 0;
        if waits {
            self.waited_ms.fetch_add(passed_ms, Relaxed);
            let is_long = now_ms >= self.since_ms.load(Relaxed) + WAITS_MS;
            self.waits_long.store(is_long, Relaxed);
        }
        let since_ms = now_ms.saturating_sub(self.decided_ms.load(Relaxed));
        if since_ms >= WAITS_MS {
            self.decided_ms.store(now_ms, Relaxed);
            let flushed = self.flushed.swap(false, Relaxed) || waits;
            let most = self.waited_ms.swap(0, Relaxed) * 2 > since_ms;
            self.waits_most.store(flushed && (most || self.waits_most.load(Relaxed)), Relaxed);
        }
    }

    /// Whether writes gain nothing from being acknowledged before the disk has them.
    pub(super) fn favours_disk(&self, has_one_arm: bool) -> bool {
        let waits = if has_one_arm { &self.waits_long } else { &self.waits_most };
        self.follows_writes.load(Relaxed) || waits.load(Relaxed)
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
            share.favours_disk(false)
        };
        assert!(follows(1, 1) && follows(3, 2));
        assert!(!follows(2, 1), "such a client gains from write-back");
        assert!(!follows(0, 1));
    }

    #[test]
    fn flushes_that_wait_most_of_the_time_are_noticed() {
        let share = FlushShare::default();
        let wait = |from_ms, until_ms| {
            share.count_flush();
            share.count_waiting(true, from_ms);
            share.count_waiting(false, until_ms);
            share.favours_disk(false)
        };
        assert!(!wait(0, 200));
        assert!(!wait(800, 1_000));
        assert!(wait(1_100, 2_000));
        // Nothing waits for memory any more, so the flushes are short.
        assert!(wait(2_500, 2_501) && wait(3_200, 3_201) && wait(4_000, 4_001));
        share.pass(4_300);
        assert!(share.favours_disk(false), "there was a flush since the last decision");
        share.pass(5_300);
        assert!(!share.favours_disk(false));
        share.count_waiting(true, 5_300);
        share.pass(6_300);
        share.pass(7_300);
        assert!(share.favours_disk(false), "a flush that has not ended counts");
        assert!(share.favours_disk(true), "it waits for long");
        share.count_waiting(false, 7_400);
        assert!(share.favours_disk(false) && !share.favours_disk(true));
    }
}
