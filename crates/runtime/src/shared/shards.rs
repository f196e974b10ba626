//! The shards of the cache, each with its lock, and operations on all of them.
//!
//! A thread holds the lock of one shard at a time, so a sum over the shards is not a snapshot. A
//! volume that is being added or removed may be in only some of them.

use super::Volume;
use crate::platform::locks::{Lock, Locked, assert_may_wait, order};
use crate::pool::MappedLines;
use forebay_engine::{
    Elevator, Hints, Protection, Shard, abandon_unclaimed, begin_forecast, end_former_forecasts,
    set_dirty_lines_max, set_pool_share,
};
use forebay_types::{
    HoldOut, LINE_BYTES, Mode, PinnedRanges, PoolShare, VolumeConfig, VolumeId, WriteShare,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::time::Duration;

/// Slots examined per lock while clean lines are dropped, pins are applied or forecasts end. That
/// takes a fraction of a millisecond.
const SLOTS_PER_LOCK: u32 = 2048;
/// A [`Shards::write_share`] that is not set: the default applies.
const NO_SHARE: u8 = u8::MAX;

/// Long enough for a woken thread to run and to lock the shard, if a processor is free. The kernel
/// adds up to 50 us.
const WAKE_TIME: Duration = Duration::from_micros(20);
/// The name of a shard in the message of a panic.
const SHARD: &str = "a shard";

/// Hands a shard the settings of a volume that it decides by.
fn configure(shard: &mut Shard<MappedLines>, shards: usize, id: VolumeId, config: &VolumeConfig) {
    let volume = shard.volume_mut(id);
    volume.set_mode(config.mode);
    volume.set_frozen(config.frozen);
    volume.set_unsafe_ups(config.unsafe_supply);
    set_pool_share(shard, id, PoolShare::of_config(config));
    let lines_max = config.loss_limit.map(|bytes| (bytes / LINE_BYTES) as usize / shards);
    set_dirty_lines_max(shard, id, lines_max);
}

/// The lock of a shard.
struct ShardLock {
    lock: Lock<Shard<MappedLines>, { order::SHARD }>,
    /// The threads that wait for the lock.
    waiting: AtomicUsize,
}

/// The shards. See the module.
pub(crate) struct Shards {
    shards: Vec<ShardLock>,
    /// Lock-free lookups in the shards' indexes, for prefetching.
    hints: Vec<Hints>,
    /// The percentage of the share for writes, or [`NO_SHARE`].
    write_percent: AtomicU8,
}

impl ShardLock {
    #[cold]
    fn wait(&self) -> Locked<'_, Shard<MappedLines>> {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let locked = self.lock.lock_unbroken(SHARD);
        let before = self.waiting.fetch_sub(1, Ordering::Relaxed);
        debug_assert!(before > 0, "this thread was counted as waiting");
        locked
    }
}

impl Shards {
    pub(crate) fn new(shards: Vec<Shard<MappedLines>>) -> Self {
        let shards = shards.into_iter().map(|shard| {
            let hints = shard.slots().hints();
            (hints, ShardLock { lock: Lock::new(shard), waiting: AtomicUsize::new(0) })
        });
        let (hints, shards): (_, Vec<_>) = shards.unzip();
        // `PoolAccess::release` has a bit for each.
        assert!(!shards.is_empty() && shards.len() <= u64::BITS as usize);
        Self { shards, hints, write_percent: AtomicU8::new(NO_SHARE) }
    }

    /// The number of shards.
    pub(crate) const fn len(&self) -> usize {
        self.shards.len()
    }

    /// # Panics
    /// After a panic in the engine, the shard cannot be trusted. Every thread that needs it panics,
    /// too, and the process ends.
    pub(crate) fn lock(&self, shard: usize) -> Locked<'_, Shard<MappedLines>> {
        let shard = &self.shards[shard];
        shard.lock.try_lock_unbroken(SHARD).unwrap_or_else(|| shard.wait())
    }

    /// Lets the threads that wait for a shard have it. A thread that works on a shard in several
    /// steps calls this between them, without the lock. Otherwise it would usually lock the shard
    /// again before a waiting thread has woken up. `sched_yield` would also help, but on a busy
    /// machine it can cost a whole time slice, even if no thread waits.
    pub(crate) fn give_way(&self, shard: usize) {
        assert_may_wait();
        if self.shards[shard].waiting.load(Ordering::Relaxed) > 0 {
            std::thread::sleep(WAKE_TIME);
        }
    }

    /// Locks one shard after the other.
    pub(crate) fn each(&self) -> impl Iterator<Item = Locked<'_, Shard<MappedLines>>> {
        (0..self.len()).map(|shard| self.lock(shard))
    }

    /// As [`Shards::each`], without the shards that do not have the volume.
    fn each_with(&self, id: VolumeId) -> impl Iterator<Item = Locked<'_, Shard<MappedLines>>> {
        self.each().filter(move |shard| shard.has_volume(id))
    }

    /// The lock-free lookups in a shard.
    pub(crate) fn hints(&self, shard: usize) -> &Hints {
        &self.hints[shard]
    }

    /// Adds a volume to all shards.
    pub(crate) fn add_volume(&self, volume: &Volume, protection: Protection) {
        let config = volume.config.read().clone();
        let size_bytes = volume.size_bytes();
        let geometry = &volume.geometry;
        let elevator =
            Elevator::new(self.len(), geometry.stripe_cache_bytes, geometry.has_one_arm());
        for (number, mut shard) in self.each().enumerate() {
            shard.add_volume(volume.id, size_bytes, config.mode);
            let in_shard = shard.volume_mut(volume.id);
            in_shard.set_stripes(volume.stripes);
            in_shard.set_elevator(Arc::clone(&elevator), number);
            in_shard.set_protection(protection);
            if volume.order.is_some() {
                in_shard.set_ordered();
            }
            configure(&mut shard, self.len(), volume.id, &config);
        }
    }

    /// Removes a volume from all shards. It must be clean and without operations.
    pub(crate) fn remove_volume(&self, id: VolumeId) {
        self.each().for_each(|mut shard| shard.remove_volume(id));
    }

    /// Hands the settings of a volume to all shards.
    pub(crate) fn configure(&self, id: VolumeId, config: &VolumeConfig) {
        self.each().for_each(|mut shard| configure(&mut shard, self.len(), id, config));
    }

    /// Sets what preserves the acknowledged data of a volume that is not on its disk yet. There is
    /// none, so the log of a journal does not fill up because of it.
    pub(crate) fn set_protection(&self, id: VolumeId, protection: Protection) {
        self.each_with(id).for_each(|mut shard| {
            let volume = shard.volume_mut(id);
            volume.set_protection(protection);
            volume.set_log_distance(1, 1);
        });
    }

    /// Makes a volume larger, whose disk has grown to `size_bytes`.
    pub(crate) fn grow(&self, id: VolumeId, size_bytes: u64) {
        self.each_with(id).for_each(|mut shard| shard.volume_mut(id).grow(size_bytes));
    }

    /// Sets which regions of a volume are held out.
    pub(crate) fn set_hold_out(&self, id: VolumeId, hold_out: HoldOut) {
        let shards = self.each().filter(|shard| shard.has_volume(id));
        shards.for_each(|mut shard| shard.volume_mut(id).set_hold_out(hold_out));
    }

    /// The cache mode of a volume. `None` while it is being added or removed.
    pub(crate) fn mode(&self, id: VolumeId) -> Option<Mode> {
        // All shards have the same mode.
        let shard = self.lock(0);
        shard.has_volume(id).then(|| shard.volume(id).mode())
    }

    /// The share for writes; `None` for the default.
    pub(crate) fn write_share(&self) -> Option<WriteShare> {
        WriteShare::of_percent(self.write_percent.load(Ordering::Relaxed))
    }

    /// Sets the share for writes.
    pub(crate) fn set_write_share(&self, share: Option<WriteShare>) {
        let percent = share.map_or(NO_SHARE, WriteShare::percent);
        self.write_percent.store(percent, Ordering::Relaxed);
        self.each().for_each(|mut shard| shard.quota().set_share(share));
    }

    /// Whether a slot can be used without an eviction.
    pub(crate) fn has_room(&self) -> bool {
        self.each().any(|shard| shard.slots().warm().has_free_slot())
    }

    /// The bytes of lines that the shards may hold now.
    pub(crate) fn usable_bytes(&self) -> u64 {
        self.each().map(|shard| u64::from(shard.slots().slabs().usable()) * LINE_BYTES).sum()
    }

    /// Begins a forecast. Lines that are preloaded for forecasts from now on belong to it.
    pub(crate) fn begin_forecast(&self) {
        self.each().for_each(|mut shard| begin_forecast(&mut *shard));
    }

    /// Ends earlier forecasts: unless their lines are used, they are evicted before others.
    pub(crate) fn end_former_forecasts(&self) {
        for shard in 0..self.len() {
            while end_former_forecasts(&mut *self.lock(shard), SLOTS_PER_LOCK as usize) {
                self.give_way(shard);
            }
        }
    }

    /// Counts two kinds of lines of a volume: those that have joined a forecast while it was
    /// current, and those among them that were used while it was still current.
    pub(crate) fn forecast_lines(&self, id: VolumeId) -> (u64, u64) {
        self.each().fold((0, 0), |(lines, used), shard| {
            let (more_lines, more_used) = shard.slots().warm().forecast_lines(id);
            (lines + more_lines, used + more_used)
        })
    }

    /// Resident lines of a volume.
    pub(crate) fn resident_lines(&self, id: VolumeId) -> u64 {
        self.each().map(|shard| shard.slots().resident_lines(id)).sum()
    }

    /// Lines of pinned ranges of a volume that are in the pool.
    pub(crate) fn retained_lines(&self, id: VolumeId) -> u64 {
        self.each().map(|shard| shard.slots().warm().retained_lines(id)).sum()
    }

    /// Sets the pinned ranges of a volume, and applies them to its lines in the pool. `lines` has
    /// the number of lines of the ranges that each shard owns.
    pub(crate) fn set_pinned(&self, id: VolumeId, ranges: &Arc<PinnedRanges>, lines: &[u64]) {
        assert!(lines.is_empty() || lines.len() == self.len(), "a number of lines for each shard");
        for (shard, &lines) in lines.iter().enumerate() {
            let mut locked = self.lock(shard);
            if !locked.has_volume(id) {
                continue;
            }
            locked.pinned().set(id, ranges, lines);
            drop(locked);
            let mut next = Some(0);
            while let Some(first) = next {
                next = self.lock(shard).pinned().follow(id, first, SLOTS_PER_LOCK);
                self.give_way(shard);
            }
        }
    }

    /// Whether a volume bypasses the cache. True if it is being added or removed.
    pub(crate) fn is_bypass(&self, id: VolumeId) -> bool {
        self.mode(id).is_none_or(|mode| mode == Mode::Bypass)
    }

    /// Operations of the volume in progress.
    pub(crate) fn operations(&self, id: VolumeId) -> u64 {
        self.each_with(id).map(|shard| u64::from(shard.volume(id).operations())).sum()
    }

    /// Bytes of the volume in dirty lines.
    pub(crate) fn dirty_bytes(&self, id: VolumeId) -> u64 {
        let lines: usize = self.each_with(id).map(|shard| shard.volume(id).dirty_lines()).sum();
        lines as u64 * LINE_BYTES
    }

    /// Whether sectors of a volume are lost. All shards must have the volume.
    pub(crate) fn has_lost(&self, id: VolumeId) -> bool {
        self.each().any(|shard| shard.volume(id).lost_sectors() > 0)
    }

    /// Abandons the lost sectors of a volume: reads return the content of the disk.
    pub(crate) fn abandon_lost(&self, id: VolumeId) {
        self.each_with(id).for_each(|mut shard| shard.abandon_lost(id));
    }

    /// Dirty bytes in the pool of a volume that is not served.
    pub(crate) fn unclaimed_bytes(&self, id: VolumeId) -> u64 {
        self.each().map(|shard| shard.unclaimed(id)).sum::<u64>() * LINE_BYTES
    }

    /// Drops all lines of a volume that has not been added. Returns the dirty bytes.
    pub(crate) fn abandon_unclaimed(&self, id: VolumeId) -> u64 {
        self.each().map(|mut shard| abandon_unclaimed(&mut shard, id)).sum::<u64>() * LINE_BYTES
    }

    /// Multiplies the counts of a volume's miss-ratio curve by `keep`.
    pub(crate) fn decay_curve(&self, id: VolumeId, keep: f64) {
        self.each_with(id).for_each(|mut shard| shard.volume_mut(id).decay_curve(keep));
    }

    /// Tells the prediction of a volume for other sizes of the pool that time has passed.
    pub(crate) fn pass_time(&self, id: VolumeId, elapsed: Duration) {
        let seconds = elapsed.as_secs_f64();
        self.each_with(id).for_each(|mut shard| shard.volume_mut(id).pass_time(seconds));
    }

    /// Drops all clean lines of a volume. Examines a limited number of slots per lock of a shard,
    /// because workers wait for the lock.
    pub(crate) fn drop_clean(&self, id: VolumeId) {
        for shard in 0..self.len() {
            let has_lines = self.lock(shard).slots().resident_lines(id) > 0;
            let mut next = has_lines.then_some(0);
            while let Some(first) = next {
                next = self.lock(shard).drop_clean(id, first, SLOTS_PER_LOCK);
                self.give_way(shard);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Runtime;
    use crate::rig::{MIB, common::client::PATIENCE, quiet_config};
    use std::time::Instant;

    /// One thread locks a shard again and again, as the resizer does. Another one waits for it.
    #[test]
    fn a_thread_that_waits_for_a_shard_is_counted_and_given_way() {
        let server = forebay_frontend_nbd::NbdServer::new();
        let runtime = Runtime::start(quiet_config(64 * MIB), &server).unwrap();
        // It locks shards, too.
        runtime.stop_collapser();
        let shards = &runtime.shared().shards;
        let waiting = || shards.shards[0].waiting.load(Ordering::Relaxed);
        let deadline = Instant::now() + PATIENCE;
        std::thread::scope(|scope| {
            let locked = shards.lock(0);
            let waiter = scope.spawn(|| drop(shards.lock(0)));
            while waiting() == 0 {
                assert!(Instant::now() < deadline, "the thread is not counted");
                std::thread::yield_now();
            }
            drop(locked);
            while !waiter.is_finished() {
                assert!(Instant::now() < deadline, "the thread never gets the shard");
                drop(shards.lock(0));
                shards.give_way(0);
            }
        });
        // A worker may wait at this moment.
        while waiting() > 0 {
            assert!(Instant::now() < deadline, "a thread is counted that does not wait");
            std::thread::yield_now();
        }
        runtime.stop(|_| {}).unwrap();
    }
}
