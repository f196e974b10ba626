//! Seals, parity and patrol, as the driver sees them: it computes checksums, and the shard says of
//! what and what follows.

use super::Shard;
use crate::index::key::LineKey;
use crate::index::meta::{FROZEN, LineTable};
use crate::{Inspection, PatrolCounters, Seal, Slot, Verdict, Work};
use forebay_types::VolumeId;

impl<M: LineTable> Shard<M> {
    /// Says whether dirty lines get parity from now on. Without it damage to them can be noticed
    /// and not undone.
    pub const fn set_parity(&mut self, parity: bool) {
        self.integrity.set_parity(parity);
    }

    /// A line that changed and has no checksum yet; dirty ones come first. The driver computes it,
    /// and hands the line back to [`Shard::inspected`] before it lets go of the shard. `None` when
    /// there is no such line, or only some that are in use.
    pub fn next_unsealed(&mut self) -> Option<Inspection> {
        let slot = self.integrity.next_unsealed(&mut self.index)?;
        Some(self.integrity.inspection(&mut self.index, slot, Work::Seal, self.planted))
    }

    /// The next sealed line of the walk over all of them, to be handled as by
    /// [`Shard::next_unsealed`]. `None` at the end of a walk, and where the next lines are in use.
    pub fn next_sealed(&mut self) -> Option<Inspection> {
        let slot = self.integrity.next_sealed(&self.index)?;
        Some(self.integrity.inspection(&mut self.index, slot, Work::Verify, self.planted))
    }

    /// The driver has looked at a line.
    pub fn inspected(&mut self, inspection: &Inspection, verdict: Verdict) {
        match inspection.work {
            Work::Seal => self.integrity.sealed(&mut self.index, &inspection.seal),
            Work::Verify => {
                self.integrity.verified();
                self.take_verdict(&inspection.seal, verdict);
            }
        }
    }

    /// The seal of a slot, if it has one.
    pub fn seal_of(&self, slot: Slot) -> Option<Seal> {
        self.integrity.seal_of(&self.index, slot)
    }

    /// A seal of [`crate::IoAction::seals`] was looked at, and this is what came of it. If the line
    /// has moved meanwhile, it holds nothing of what was not looked at then.
    pub fn damaged(&mut self, seal: &Seal, verdict: Verdict) {
        let line = self.index.get(seal.slot);
        if line.key == seal.key && line.has(FROZEN) {
            if let Verdict::Lost { sectors } = verdict {
                self.on(seal.key.volume()).lose_frozen(seal.key, seal.slot, sectors);
            }
            return;
        }
        let stays = self.index.find(seal.key) == Some(seal.slot);
        self.take_verdict(seal, verdict.within(if stays { 0xff } else { 0 }));
    }

    /// The same for a seal of [`crate::MemoryStep::Verify`]. What is known of the old data holds
    /// for what was taken over from it.
    pub fn damaged_before(&mut self, seal: &Seal, kept: u8, verdict: Verdict) {
        self.take_verdict(seal, verdict.within(kept));
    }

    fn take_verdict(&mut self, seal: &Seal, verdict: Verdict) {
        let volume = seal.key.volume();
        if verdict != Verdict::Intact && self.has_volume(volume) {
            self.on(volume).take_verdict(seal.key, verdict);
        }
    }

    /// The slot of a line that nothing uses just now. A write past the pool uses no slot, and what
    /// was lost under it is on its way to the disk in a newer form.
    pub fn idle_slot_of(&self, key: LineKey) -> Option<Slot> {
        let found = self.index.find(key).filter(|&slot| self.index.get(slot).pins == 0);
        found.filter(|_| self.ops.busy(key).is_none())
    }

    /// The driver has put what was lost of a line, or some sectors of it, back into its slot, which
    /// nothing used; from here on it counts.
    pub fn regained(&mut self, key: LineKey, sectors: u8) {
        self.on(key.volume()).regained(key, sectors);
    }

    /// What the patrol has done.
    pub const fn patrol_counters(&self) -> PatrolCounters {
        self.integrity.counters()
    }

    /// The lost sectors of a line.
    pub fn lost_of(&self, key: LineKey) -> u8 {
        self.index.find(key).map_or(0, |slot| self.index.get(slot).lost())
    }

    /// Sectors of the volume that are lost: they fail until they are written or erased.
    pub fn lost_sectors(&self, volume: VolumeId) -> u64 {
        self.volumes.get(volume).lost_sectors()
    }

    /// Gives up what is lost of a volume: from now on it reads as the disk has it.
    pub fn forget_lost(&mut self, volume: VolumeId) {
        if self.lost_sectors(volume) > 0 {
            self.on(volume).forget_lost();
        }
    }

    pub(super) fn check_integrity(&self) {
        self.integrity.parity().self_check(&self.index);
        for (id, state) in self.volumes.iter() {
            let lost = self.dirty_slots(id).map(|slot| self.index.get(slot).lost().count_ones());
            let lost = lost.map(u64::from).sum::<u64>();
            assert_eq!(lost, state.lost_sectors(), "lost sectors of {id}");
        }
    }
}
