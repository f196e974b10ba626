//! FLUSH: brings to the disk what was dirty when it came.
//!
//! A flush takes a copy of the volume's dirty set, an eighth of a byte per line, and is done when
//! each line in it has been destaged once. Lines that clients dirty again meanwhile do not hold it
//! up: an operation's data never changes under it, so whatever finishes after the flush came
//! carries at least what was acknowledged before.

use crate::index::meta::LineTable;
use crate::sabotage::PlantedBug;
use crate::volume::{FlushJob, VolumeState};
use crate::{Outbox, PartId, Shard, Slot};
use forebay_types::{IoError, IoResult, VolumeId};

impl<M: LineTable> Shard<M> {
    /// Begins to destage everything the volume has dirty. `None` means that the part is told when
    /// that is done; the disk's own cache is the caller's to flush after that.
    pub fn flush(
        &mut self,
        volume: VolumeId,
        part: PartId,
        now_ms: u64,
        out: &mut Outbox,
    ) -> Option<IoResult> {
        let state = self.volume_mut(volume);
        if state.dirty.is_empty() {
            return Some(Ok(()));
        }
        let mut remaining = state.dirty.clone();
        let mut error = None;
        if state.lost_sectors > 0 {
            // What nobody has can't be brought to the disk.
            error = Some(IoError::Io);
            let dirty = self.volume(volume).dirty.iter();
            dirty.filter(|&slot| self.slots.get(slot).destageable() == 0).for_each(|slot| {
                remaining.remove(slot);
            });
        }
        let error = error.filter(|_| !self.is_planted(PlantedBug::FlushDespiteLoss));
        self.volume_mut(volume).flushes.push(FlushJob { part, remaining, error });
        self.sweep_all(volume);
        self.pump(volume, now_ms, out);
        None
    }
}

impl VolumeState {
    /// A dirty line has moved; a flush that waits for it waits for the new slot, unless the old
    /// one is being destaged right now: that carries all the flush is about.
    pub(crate) fn dirty_moved(&mut self, old: Slot, new: Slot, destaging: bool) {
        self.dirty.remove(old);
        self.dirty.insert(new);
        let aged = self.aged.remove(old);
        if !destaging {
            if aged {
                // It is as old as it was; a line that moved again and again would never go.
                self.aged.insert(new);
            }
            for flush in &mut self.flushes {
                if flush.remaining.remove(old) {
                    flush.remaining.insert(new);
                }
            }
        }
    }

    /// A slot's data is on the disk, or could not be brought there.
    pub(crate) fn flushed(&mut self, slot: Slot, error: Option<forebay_types::IoError>) {
        for flush in &mut self.flushes {
            if flush.remaining.remove(slot) {
                flush.error = flush.error.or(error);
            }
        }
    }
}
