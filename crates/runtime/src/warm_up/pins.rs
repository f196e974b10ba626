//! Which pinned ranges are to be read.
//!
//! A volume's ranges are read when they are pinned. Later, lines of them may leave the pool: they
//! are found damaged or erased, or the volume bypasses the cache for a while. So the number of
//! lines in the pool is compared with that of the ranges every second, and the ranges are read
//! again if some are missing. Lines that are in the pool are not read from the disk again. If a
//! pass does not help, because the disk fails reads or the shard is full of dirty data, the next
//! ones follow at longer intervals.

use crate::shared::{Shared, Volume};
use forebay_types::PinnedRanges;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// The interval of checks, and of passes that do not help: the initial value, and the maximum.
const INTERVAL_MIN: Duration = Duration::from_secs(1);
const INTERVAL_MAX: Duration = Duration::from_secs(64);

/// A volume with pinned ranges.
struct Watched {
    volume: Weak<Volume>,
    /// The ranges were pinned, and no pass has begun since then. Lines in the pool may lack
    /// sectors.
    is_new: bool,
    next: Instant,
    interval: Duration,
}

/// A pass over the pinned ranges of a volume that is due.
pub(super) struct Pass {
    pub volume: Arc<Volume>,
    pub ranges: Arc<PinnedRanges>,
    /// It is the first one since the ranges were pinned.
    pub is_first: bool,
}

/// The volumes with pinned ranges.
#[derive(Default)]
pub(super) struct PinnedVolumes(Vec<Watched>);

impl PinnedVolumes {
    /// Records that the pinned ranges of a volume have changed.
    pub(super) fn changed(&mut self, weak: Weak<Volume>, now: Instant) {
        self.0.retain(|watched| !watched.volume.ptr_eq(&weak));
        if weak.upgrade().is_some_and(|volume| !volume.pins.get().ranges.is_empty()) {
            self.0.push(Watched { volume: weak, is_new: true, next: now, interval: INTERVAL_MIN });
        }
    }

    /// The passes that are due, and when to call this again. `is_busy` says whether a pass over a
    /// volume is in progress.
    pub(super) fn due(
        &mut self,
        shared: &Shared,
        is_busy: impl Fn(&Arc<Volume>) -> bool,
        now: Instant,
    ) -> (Vec<Pass>, Duration) {
        let mut passes = Vec::new();
        let mut wait = Duration::MAX;
        self.0.retain_mut(|watched| {
            let Some(volume) = watched.volume.upgrade() else { return false };
            let served = shared.volume(volume.id);
            if !served.is_some_and(|served| Arc::ptr_eq(&served, &volume)) {
                return false;
            }
            if now >= watched.next && !is_busy(&volume) && !shared.shards.is_bypass(volume.id) {
                passes.extend(watched.check(shared, volume, now));
            } else if now >= watched.next {
                watched.next = now + INTERVAL_MIN / 4;
            }
            wait = wait.min(watched.next.saturating_duration_since(now));
            true
        });
        (passes, wait)
    }
}

impl Watched {
    /// Begins a pass if lines are missing.
    fn check(&mut self, shared: &Shared, volume: Arc<Volume>, now: Instant) -> Option<Pass> {
        let ranges = volume.pins.get().ranges;
        let is_first = std::mem::take(&mut self.is_new);
        if !is_first && shared.shards.retained_lines(volume.id) >= ranges.lines() {
            self.interval = INTERVAL_MIN;
            self.next = now + self.interval;
            return None;
        }
        self.next = now + self.interval;
        self.interval = (self.interval * 2).min(INTERVAL_MAX);
        Some(Pass { volume, ranges, is_first })
    }
}
