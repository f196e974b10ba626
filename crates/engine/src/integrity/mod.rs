//! The patrol: which line is looked at next, and what follows from what was found.
//!
//! A line is *sealed* when the driver has a checksum of its valid sectors and, if it is dirty and
//! the pool has room, their parity. Any change of the line breaks the seal ([`Slots::change`] is
//! the one place), which is all that a write pays. The patrol seals lines soon after they changed,
//! dirty ones first, and walks over the sealed ones for ever. The driver computes; it also looks
//! at sealed lines whose dirty data goes to the disk ([`crate::IoAction::seals`]), and at those of
//! which a change keeps a part ([`crate::MemoryStep::Verify`]): a new seal over old damage would
//! vouch for it.
//!
//! What a damaged line becomes:
//! - clean: it leaves the pool, and the next read fetches it again;
//! - dirty, and corrected from its parity: nothing;
//! - dirty, and not to be corrected: its damaged sectors are *lost*. They are dirty and not valid,
//!   are neither served nor destaged, and fail with `EIO` until they are written or erased. A flush
//!   of the volume fails for as long, so a checkpoint does too, and the journal keeps its records.
//!
//! Lines under a pin are passed over: data under a pin does not change, not even for the better.

pub(crate) mod parity;

use crate::index::Slots;
use crate::index::meta::{DETACHED, LineTable, SEALED, in_order};
use crate::integrity::parity::{PARITIES_PER_SLOT, ParityPlace};
use crate::sabotage::PlantedBug;
use crate::{LineKey, MemoryStep, Outbox, Shard, Slot};
use forebay_types::{IoError, VolumeId};

/// Slots looked at for one that is worth it, per call.
const GLANCES: u32 = 256;

/// A line whose checksum the driver has, as it was when that was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seal {
    /// Where it is, and where its checksum is.
    pub slot: Slot,
    /// Which line it is: its checksum is bound to that.
    pub key: LineKey,
    /// The sectors that the checksum is of.
    pub valid: u8,
    /// Where its parity is, if it has any.
    pub parity: Option<ParityPlace>,
}

/// What the driver is to do with a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// Compute its checksum and keep it.
    Seal,
    /// Compute it and compare.
    Verify,
}

/// A line for the driver to look at before it lets go of the shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Inspection {
    /// The line.
    pub seal: Seal,
    /// What to do with it.
    pub work: Work,
    /// Whether its parity is to be computed as well, which is not there yet. A line that is to be
    /// verified gets it only if it is intact, and can't be corrected from it.
    pub encode: bool,
}

/// What the driver has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Nothing wrong; what was to be computed has been.
    Intact,
    /// Damage, which is put right.
    Corrected,
    /// Damage to some of these sectors, and no telling what was there.
    Lost {
        /// The sectors; those of the line that are not among them are right.
        sectors: u8,
    },
}

/// What the patrol of a shard has done since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PatrolCounters {
    /// Lines sealed.
    pub sealed: u64,
    /// Sealed lines looked at again.
    pub verified: u64,
    /// Walks over all lines that have ended.
    pub walks: u64,
}

/// Where the patrol of a shard is.
#[derive(Debug, Default)]
pub(crate) struct Patrol {
    /// Whether dirty lines get parity.
    pub parity: bool,
    /// The next slot to verify.
    hand: Slot,
    /// Where the next dirty line, or any, without a seal is looked for.
    dirty_hand: Slot,
    any_hand: Slot,
    pub counters: PatrolCounters,
}

impl Verdict {
    /// The verdict on some of the sectors only.
    #[must_use]
    pub const fn within(self, sectors: u8) -> Self {
        match self {
            Self::Lost { sectors: lost } => Self::Lost { sectors: lost & sectors },
            _ => self,
        }
    }
}

impl<M: LineTable> Shard<M> {
    /// Says whether dirty lines get parity from now on. Without it damage to them can be noticed
    /// and not undone.
    pub const fn set_parity(&mut self, parity: bool) {
        self.patrol.parity = parity;
    }

    /// A line that changed and has no checksum yet; dirty ones come first. The driver computes it,
    /// and hands the line back to [`Shard::inspected`] before it lets go of the shard. `None` when
    /// there is no such line, or only some that are in use.
    pub fn next_unsealed(&mut self) -> Option<Inspection> {
        for dirty in [true, false] {
            for _ in 0..GLANCES {
                let Some(slot) = self.unsealed_slot(dirty) else { break };
                let line = *self.slots.get(slot);
                let resident = line.key != LineKey::NONE && !line.has(DETACHED);
                if !resident || line.valid == 0 || line.has(SEALED) {
                    self.slots.unsealed.remove(slot);
                } else if line.pins == 0 {
                    return Some(self.inspection(slot, Work::Seal));
                }
            }
        }
        None
    }

    /// The next slot that is not sealed; the hand moves on behind it.
    fn unsealed_slot(&mut self, dirty: bool) -> Option<Slot> {
        let unsealed = &self.slots.unsealed;
        if !dirty {
            let found = unsealed.next_common(unsealed, self.patrol.any_hand);
            self.patrol.any_hand = found.map_or(0, |slot| slot + 1);
            return found;
        }
        if self.dirty_lines == 0 {
            return None;
        }
        let volumes = self.volumes.iter().flatten().filter(|volume| !volume.dirty.is_empty());
        let from = self.patrol.dirty_hand;
        let found = volumes.filter_map(|volume| volume.dirty.next_common(unsealed, from)).min();
        self.patrol.dirty_hand = found.map_or(0, |slot| slot + 1);
        found
    }

    /// The next sealed line of the walk over all of them, to be handled as by
    /// [`Shard::next_unsealed`]. `None` at the end of a walk, and where the next lines are in use.
    pub fn next_sealed(&mut self) -> Option<Inspection> {
        for _ in 0..GLANCES {
            if self.patrol.hand >= self.slots.used() {
                self.patrol.counters.walks += u64::from(self.patrol.hand > 0);
                self.patrol.hand = 0;
                return None;
            }
            let slot = self.patrol.hand;
            self.patrol.hand += 1;
            let line = *self.slots.get(slot);
            let resident = line.key != LineKey::NONE && !line.has(DETACHED);
            if resident && line.has(SEALED) && line.pins == 0 {
                return Some(self.inspection(slot, Work::Verify));
            }
        }
        None
    }

    fn inspection(&mut self, slot: Slot, work: Work) -> Inspection {
        let line = *self.slots.get(slot);
        let there = self.parity.of(slot);
        let wants = self.patrol.parity && line.destageable() != 0;
        let parity = match there {
            None if wants => self.parity.take(slot, &mut self.slots),
            _ => there,
        };
        let wrong = work == Work::Verify && self.is_planted(PlantedBug::WrongParityPlace);
        let parity = parity.map(|place| match wrong {
            true => ParityPlace { index: (place.index + 1) % PARITIES_PER_SLOT, ..place },
            false => place,
        });
        let encode = parity.is_some() && (work == Work::Seal || there.is_none());
        Inspection { seal: Seal { slot, key: line.key, valid: line.valid, parity }, work, encode }
    }

    /// The driver has looked at a line.
    pub fn inspected(&mut self, inspection: &Inspection, verdict: Verdict) {
        let slot = inspection.seal.slot;
        match (inspection.work, verdict) {
            (Work::Seal, _) => {
                // The driver's checksum is there before the word that it holds.
                in_order();
                self.slots.get_mut(slot).flags |= SEALED;
                self.slots.unsealed.remove(slot);
                self.patrol.counters.sealed += 1;
            }
            (Work::Verify, verdict) => {
                self.patrol.counters.verified += 1;
                self.take_verdict(&inspection.seal, verdict);
            }
        }
    }

    /// The seal of a slot, if it has one.
    pub fn seal_of(&self, slot: Slot) -> Option<Seal> {
        let line = self.slots.get(slot);
        let parity = self.parity.of(slot);
        line.has(SEALED).then_some(Seal { slot, key: line.key, valid: line.valid, parity })
    }

    /// A seal of [`crate::IoAction::seals`] was looked at, and this is what came of it. If the line
    /// has moved meanwhile, it holds nothing of what was not looked at then.
    pub fn damaged(&mut self, seal: &Seal, verdict: Verdict) {
        if self.is_frozen(seal.key, seal.slot) {
            if let Verdict::Lost { sectors } = verdict {
                self.lose_frozen(seal.key, seal.slot, sectors);
            }
            return;
        }
        let stays = self.slots.find(seal.key) == Some(seal.slot);
        self.take_verdict(seal, verdict.within(if stays { 0xff } else { 0 }));
    }

    /// The same for a seal of [`MemoryStep::Verify`]. What is known of the old data holds for what
    /// was taken over from it.
    pub fn damaged_before(&mut self, seal: &Seal, kept: u8, verdict: Verdict) {
        self.take_verdict(seal, verdict.within(kept));
    }

    fn take_verdict(&mut self, seal: &Seal, verdict: Verdict) {
        let volume = seal.key.volume();
        if verdict == Verdict::Intact || !self.has_volume(volume) {
            return;
        }
        let counters = &mut self.volume_mut(volume).counters;
        counters.damaged_lines += 1;
        let Verdict::Lost { sectors } = verdict else {
            counters.corrected_lines += 1;
            return;
        };
        if let Some(slot) = self.slots.find(seal.key) {
            self.lose(volume, slot, sectors & self.slots.get(slot).valid);
        }
    }

    /// The content of some valid sectors is not known any more.
    fn lose(&mut self, volume: VolumeId, slot: Slot, sectors: u8) {
        let line = *self.slots.get(slot);
        if sectors == 0 {
            return;
        }
        self.volume_mut(volume).counters.refetched_lines += u64::from(sectors & !line.dirty != 0);
        let idle = self.flight.busy(line.key).is_none();
        if line.dirty == 0 && idle {
            self.slots.drop_line(slot);
            return;
        }
        self.slots.change(slot, line.valid & !sectors);
        let lost = sectors & line.dirty;
        if lost == 0 {
            return;
        }
        let state = self.volume_mut(volume);
        state.counters.lost_lines += 1;
        state.lost_sectors += u64::from(lost.count_ones());
        if self.is_planted(PlantedBug::ForgetLostSectors) {
            self.settle_lost(slot, lost);
            if self.slots.get(slot).valid == 0 && idle {
                self.slots.drop_line(slot);
            }
            return;
        }
        let left = self.slots.get(slot).destageable();
        // The end of a destage tells those who wait for it; that of anything else does not.
        let destaging = self.flight.is_destaging(line.key, slot);
        let state = self.volume_mut(volume);
        for flush in &mut state.flushes {
            if flush.remaining.contains(slot) {
                flush.error = flush.error.or(Some(IoError::Io));
                if left == 0 && !destaging {
                    flush.remaining.remove(slot);
                }
            }
        }
        if left == 0 {
            self.parity.give_back(slot, &mut self.slots);
            self.leave_epoch(line.key, slot);
        }
    }

    /// Before a change that keeps some valid sectors as they are: if the line is sealed, they are
    /// looked at once more, in its slot as it is, before any later step.
    pub(crate) fn verify_before(&self, slot: Slot, rewritten: u8, out: &mut Outbox) {
        let line = self.slots.get(slot);
        let kept = line.valid & !rewritten;
        if kept != 0 && line.has(SEALED) {
            let seal = self.seal_of(slot);
            out.memory.extend(seal.map(|seal| MemoryStep::Verify { seal, kept }));
        }
    }

    /// Lost sectors of a line among `sectors`.
    pub(crate) fn lost_under(&self, key: LineKey, sectors: u8) -> u8 {
        let found = self.slots.find(key);
        found.map_or(0, |slot| self.slots.get(slot).lost() & sectors)
    }

    /// Lost sectors are written again, in the pool, or on the disk: they are lost no more.
    pub(crate) fn found_again(&mut self, slot: Slot, sectors: u8) {
        let line = self.slots.get(slot);
        let (volume, again) = (line.key.volume(), line.lost() & sectors);
        if again != 0 {
            self.volume_mut(volume).lost_sectors -= u64::from(again.count_ones());
        }
    }

    /// The disk has what was lost of a line.
    pub(crate) fn settle_lost(&mut self, slot: Slot, sectors: u8) {
        self.found_again(slot, sectors);
        let line = self.slots.get_mut(slot);
        let (key, was_dirty) = (line.key, line.dirty != 0);
        line.dirty &= !(sectors & line.lost());
        if was_dirty && line.dirty == 0 {
            self.cleaned(slot);
            self.volume_mut(key.volume()).flushed(slot, None);
        }
    }

    /// The slot of a line that nobody uses just now. A write past the pool uses no slot, and what
    /// was lost under it is on its way to the disk in a newer form.
    pub fn idle_slot_of(&self, key: LineKey) -> Option<Slot> {
        let found = self.slots.find(key).filter(|&slot| self.slots.get(slot).pins == 0);
        found.filter(|_| self.flight.busy(key).is_none())
    }

    /// The driver has put what was lost of a line, or some sectors of it, back into its slot, which
    /// nobody used; from here on it counts.
    pub fn regained(&mut self, key: LineKey, sectors: u8) {
        let slot = self.slots.find(key).expect("a line of which something is lost stays");
        let line = *self.slots.get(slot);
        let again = line.lost() & sectors;
        assert!(again != 0 && line.pins == 0, "it is lost, and nobody uses it");
        self.found_again(slot, again);
        self.slots.change(slot, line.valid | again);
        self.volume_mut(key.volume()).counters.regained_lines += 1;
    }

    /// What the patrol has done.
    pub const fn patrol_counters(&self) -> PatrolCounters {
        self.patrol.counters
    }

    /// The lost sectors of a line.
    pub fn lost_of(&self, key: LineKey) -> u8 {
        self.lost_under(key, 0xff)
    }

    /// Sectors of the volume that are lost: they fail until they are written or erased.
    pub fn lost_sectors(&self, volume: VolumeId) -> u64 {
        self.volume(volume).lost_sectors
    }

    /// Gives up what is lost of a volume: from now on it reads as the disk has it.
    pub fn forget_lost(&mut self, volume: VolumeId) {
        if self.volume(volume).lost_sectors == 0 {
            return;
        }
        let dirty: Vec<Slot> = self.volume(volume).dirty.iter().collect();
        for slot in dirty {
            let lost = self.slots.get(slot).lost();
            if lost == 0 {
                continue;
            }
            self.settle_lost(slot, lost);
            let line = *self.slots.get(slot);
            let idle = self.flight.busy(line.key).is_none();
            if line.valid == 0 && line.dirty == 0 && idle {
                self.slots.drop_line(slot);
            }
        }
    }

    pub(crate) fn check_patrol(&self) {
        self.parity.self_check(&self.slots);
        for (at, state) in self.volumes.iter().enumerate() {
            let Some(state) = state else { continue };
            let lost = |slots: &Slots<M>| -> u64 {
                state.dirty.iter().map(|slot| u64::from(slots.get(slot).lost().count_ones())).sum()
            };
            assert_eq!(lost(&self.slots), state.lost_sectors, "lost sectors of volume {at}");
        }
    }
}
