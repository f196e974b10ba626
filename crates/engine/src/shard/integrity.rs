//! The shard's calls for seals, parity and the patrol. The driver computes checksums and parity;
//! the shard selects the lines and applies the verdicts.

use super::Shard;
use crate::line::key::LineKey;
use crate::line::meta::{FROZEN, LineTable};
use crate::{Inspection, PatrolCounters, PatrolWork, Seal, SealVerdict, Slot};
use forebay_types::VolumeId;

impl<M: LineTable> Shard<M> {
    /// Sets whether dirty lines get parity from now on. Without parity, damage to a dirty line can
    /// be detected but not repaired.
    pub const fn set_parity(&mut self, parity: bool) {
        self.integrity.set_parity(parity);
    }

    /// The next line that changed since it was sealed, dirty lines first. The driver computes its
    /// checksum and passes the line to [`Shard::inspected`] before it unlocks the shard. `None` if
    /// there is no such line, or the next ones are pinned.
    pub fn next_unsealed(&mut self) -> Option<Inspection> {
        let slot = self.integrity.next_unsealed(&mut self.index)?;
        Some(self.integrity.inspection(&mut self.index, slot, PatrolWork::Seal, self.planted))
    }

    /// The next sealed line of the current walk, to be handled as by [`Shard::next_unsealed`].
    /// `None` at the end of a walk, or if none of the next slots holds a sealed line without pins.
    pub fn next_sealed(&mut self) -> Option<Inspection> {
        let slot = self.integrity.next_sealed(&self.index)?;
        Some(self.integrity.inspection(&mut self.index, slot, PatrolWork::Verify, self.planted))
    }

    /// Records the result of an inspection.
    pub fn inspected(&mut self, inspection: &Inspection, verdict: SealVerdict) {
        match inspection.work {
            PatrolWork::Seal => self.integrity.record_seal(&mut self.index, &inspection.seal),
            PatrolWork::Verify => {
                self.integrity.count_verified();
                self.apply_verdict(&inspection.seal, verdict);
            }
        }
    }

    /// The seal of a slot, if it has one.
    pub fn seal_of(&self, slot: Slot) -> Option<Seal> {
        self.integrity.seal_of(&self.index, slot)
    }

    /// Records the verdict on a seal in [`crate::IoAction::seals`]. If the line has moved since,
    /// the verdict does not apply to its new slot: the data there was verified during the move.
    pub fn damaged(&mut self, seal: &Seal, verdict: SealVerdict) {
        let line = self.index.get(seal.slot);
        if line.key == seal.key && line.has(FROZEN) {
            if let SealVerdict::Lost { sectors } = verdict {
                self.on(seal.key.volume()).invalidate_frozen(seal.key, seal.slot, sectors);
            }
            return;
        }
        let stays = self.index.find(seal.key) == Some(seal.slot);
        self.apply_verdict(seal, verdict.within(if stays { 0xff } else { 0 }));
    }

    /// Records the verdict on a seal in [`crate::MemoryStep::Verify`], for the sectors that the
    /// change kept.
    pub fn damaged_before(&mut self, seal: &Seal, kept: u8, verdict: SealVerdict) {
        let verdict = verdict.within(kept);
        if let (SealVerdict::Lost { sectors }, false) =
            (verdict, self.has_volume(seal.key.volume()))
        {
            return self.invalidate_unserved(seal.key, sectors);
        }
        self.apply_verdict(seal, verdict);
    }

    /// Invalidates damaged sectors of a dirty line whose volume is not served: the volume counts
    /// its lost sectors when it is added.
    fn invalidate_unserved(&mut self, key: LineKey, sectors: u8) {
        let Some(slot) = self.index.find(key) else { return };
        self.index.change(slot, self.index.get(slot).valid & !sectors);
        if self.index.get(slot).destageable() == 0 {
            self.integrity.free_parity(slot, &mut self.index);
        }
    }

    /// Applies a verdict if the volume is served. Otherwise the line keeps its seal, and the damage
    /// is found again later.
    fn apply_verdict(&mut self, seal: &Seal, verdict: SealVerdict) {
        let volume = seal.key.volume();
        if verdict != SealVerdict::Intact && self.has_volume(volume) {
            self.on(volume).apply_verdict(seal.key, verdict);
        }
    }

    /// The slot of a line, if it is neither pinned nor busy. A staged write past the pool pins no
    /// slot of its lines, but keeps them busy until the disk has newer data for lost sectors.
    pub fn idle_slot_of(&self, key: LineKey) -> Option<Slot> {
        let found = self.index.find(key).filter(|&slot| self.index.get(slot).pins == 0);
        found.filter(|_| self.ops.busy(key).is_none())
    }

    /// Marks lost sectors valid again. The driver has verified the line, if it is sealed, and has
    /// restored the sectors into the line's slot, which it found with [`Shard::idle_slot_of`].
    pub fn regained(&mut self, key: LineKey, sectors: u8) {
        self.on(key.volume()).restore_lost(key, sectors);
    }

    /// The counters of the patrol.
    pub const fn patrol_counters(&self) -> PatrolCounters {
        self.integrity.counters()
    }

    /// Abandons the lost sectors of a volume: reads return the content of the disk.
    pub fn abandon_lost(&mut self, volume: VolumeId) {
        if self.volume(volume).lost_sectors() > 0 {
            self.on(volume).abandon_lost();
        }
    }
}
