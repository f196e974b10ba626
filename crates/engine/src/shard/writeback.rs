//! Writing back, as the driver sees it: ticks, flushes and epochs.

use super::Shard;
use crate::index::meta::LineTable;
use crate::{Outbox, PartId};
use forebay_types::{IoResult, VolumeId};

impl<M: LineTable> Shard<M> {
    /// Starts what background write-back is due. Call it every 50 ms or so.
    pub fn tick(&mut self, now_ms: u64, out: &mut Outbox) {
        if !self.needs_tick() {
            return;
        }
        let passed_ms = self.quota.passed_ms(now_ms);
        for at in 0..self.volumes.end() {
            let volume = VolumeId(at as u16);
            if self.volumes.has(volume) {
                self.on(volume).destager().tick(now_ms, passed_ms, out);
            }
        }
    }

    /// Whether a tick has anything to look after. What was dirty may have gone another way, erased
    /// or written through, and then only a tick wakes throttled writers.
    pub const fn needs_tick(&self) -> bool {
        self.quota.dirty_lines() > 0 || self.quota.throttled() > 0
    }

    /// The next stop of the elevator is said to be here, by another shard.
    pub fn wake(&mut self, volume: VolumeId, now_ms: u64, out: &mut Outbox) {
        if self.has_volume(volume) {
            self.on(volume).destager().pump(now_ms, out);
        }
    }

    /// Begins to destage everything the volume has dirty. `None` means that the part is told when
    /// that is done; the disk's own cache is the caller's to flush after that.
    pub fn flush(
        &mut self,
        volume: VolumeId,
        part: PartId,
        now_ms: u64,
        out: &mut Outbox,
    ) -> Option<IoResult> {
        self.on(volume).destager().flush(part, now_ms, out)
    }

    /// From now on what is dirty of a volume is brought to its disk in order, by
    /// [`Shard::destage_epoch`] alone. What is dirty already counts as written now. To be said when
    /// the volume has been added.
    pub fn set_ordered(&mut self, volume: VolumeId) {
        self.volumes.get_mut(volume).writeback_mut().set_ordered();
    }

    /// The oldest epoch of which anything is dirty, where `current` is the driver's epoch: what is
    /// written from here on belongs to no earlier one.
    pub fn oldest_epoch(&mut self, volume: VolumeId, current: u64) -> Option<u64> {
        let mut lines = self.on(volume);
        lines.advance(current);
        lines.volume.writeback().epochs()?.oldest()
    }

    /// Whether something of the volume should be on its way to the disk: epochs that are over, or
    /// the one at hand because of its age, its amount or the mode.
    pub fn is_order_due(&mut self, volume: VolumeId, now_ms: u64) -> bool {
        self.on(volume).destager().is_order_due(now_ms)
    }

    /// Destages everything of the epochs up to `last`, which are over. `None` means that the part
    /// is told when that is done. What fails stays dirty, and is destaged by a later call.
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
}
