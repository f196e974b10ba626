//! The shard's calls for writeback: ticks, flushes and epochs.

use super::{Shard, shares};
use crate::line::meta::LineTable;
use crate::writeback::quota::DirtyQuota;
use crate::{Outbox, PartId};
use forebay_types::{IoResult, VolumeId};

impl<M: LineTable> Shard<M> {
    /// The dirty quota, to change its limits.
    pub const fn quota(&mut self) -> &mut DirtyQuota {
        &mut self.quota
    }

    /// Starts the background destages that are due. Call it about every 50 ms.
    pub fn tick(&mut self, now_ms: u64, out: &mut Outbox) {
        if !self.needs_tick() {
            return;
        }
        shares::trim(self);
        let passed_ms = self.quota.take_passed_ms(now_ms);
        for at in 0..self.volumes.end() {
            let volume = VolumeId(at as u16);
            if self.volumes.has(volume) {
                self.on(volume).destager().tick(now_ms, passed_ms, out);
            }
        }
    }

    /// Whether the shard needs ticks: it has dirty lines, throttled writers, unanswered flushes, or
    /// volumes with more lines than their shares.
    /// If the last dirty lines were erased or written through, only a tick wakes the writers; if
    /// they were lost and then abandoned, only a tick answers the flushes.
    pub fn needs_tick(&self) -> bool {
        self.quota.dirty_lines() > 0
            || self.quota.throttled() > 0
            || shares::needs_trim(self)
            || self.volumes.iter().any(|volume| volume.writeback().needs_tick())
    }

    /// Continues the elevator in this shard: publishes the next stop of the shard, and destages
    /// there if it is the elevator's next one.
    pub fn wake(&mut self, volume: VolumeId, now_ms: u64, out: &mut Outbox) {
        if self.has_volume(volume) {
            self.on(volume).destager().pump(now_ms, out);
        }
    }

    /// Destages all dirty lines of a volume. `None` if destages are in flight: the part is answered
    /// when they have completed. The driver then flushes the disk's cache.
    pub fn flush(
        &mut self,
        volume: VolumeId,
        part: PartId,
        now_ms: u64,
        out: &mut Outbox,
    ) -> Option<IoResult> {
        self.on(volume).destager().flush(part, true, now_ms, out)
    }

    /// The oldest epoch with dirty lines. `current` is the driver's epoch; later writes belong to
    /// it or to a later one.
    pub fn oldest_epoch(&mut self, volume: VolumeId, current: u64) -> Option<u64> {
        let mut lines = self.on(volume);
        lines.advance_epoch(current);
        lines.volume.writeback().epochs()?.oldest()
    }

    /// Whether a destage of an ordered volume is due: a closed epoch is dirty, or the current one
    /// must be closed because of its age, the amount of dirty data or the mode.
    pub fn is_order_due(&mut self, volume: VolumeId, now_ms: u64) -> bool {
        self.on(volume).destager().is_order_due(now_ms)
    }

    /// Destages the epochs up to `last`, all of them closed. `None` if destages are in flight: the
    /// part is answered when they have completed. Lines that fail stay dirty for a later call.
    pub fn destage_epoch(
        &mut self,
        volume: VolumeId,
        last: u64,
        part: PartId,
        now_ms: u64,
        out: &mut Outbox,
    ) -> Option<IoResult> {
        self.on(volume).destager().destage_epoch(last, part, now_ms, out)
    }

    /// Destages the epochs below `epoch` without rate limits from now on, because a part waits for
    /// them: those of the run in progress, and those of later runs.
    ///
    /// # Panics
    /// If the volume is not ordered.
    pub fn expedite_epochs(&mut self, volume: VolumeId, epoch: u64, now_ms: u64, out: &mut Outbox) {
        self.on(volume).destager().expedite_epochs(epoch, now_ms, out);
    }
}

/// As [`Shard::flush`], but at the pace of background writeback, for a checkpoint of a journal:
/// with the limits of [`crate::ShardVolume::set_pace`], until a flush comes or
/// [`crate::ShardVolume::set_log_distance`] leaves too little.
pub fn checkpoint<M: LineTable>(
    shard: &mut Shard<M>,
    volume: VolumeId,
    part: PartId,
    now_ms: u64,
    out: &mut Outbox,
) -> Option<IoResult> {
    shard.on(volume).destager().flush(part, false, now_ms, out)
}
