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
use crate::index::key::LineKey;
use crate::index::meta::{DETACHED, LineTable, SEALED};
use crate::sabotage::{Planted, PlantedBug};
use crate::{MemoryStep, Outbox, Shard, Slot};
use forebay_types::VolumeId;
use parity::{PARITIES_PER_SLOT, Parity, ParityPlace};

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

/// Seals, parity and patrol of a shard.
#[derive(Debug, Default)]
pub(crate) struct Integrity {
    parity: Parity,
    /// Whether dirty lines get parity.
    gives_parity: bool,
    /// The next slot to verify.
    hand: Slot,
    /// Where the next dirty line, or any, without a seal is looked for.
    dirty_hand: Slot,
    any_hand: Slot,
    counters: PatrolCounters,
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

impl Integrity {
    /// The seal of a slot, if it has one.
    pub(crate) fn seal_of<M: LineTable>(&self, index: &Slots<M>, slot: Slot) -> Option<Seal> {
        let line = index.get(slot);
        let parity = self.parity.of(slot);
        line.has(SEALED).then_some(Seal { slot, key: line.key, valid: line.valid, parity })
    }

    /// Before a change that keeps some valid sectors as they are: if the line is sealed, they are
    /// looked at once more, in its slot as it is, before any later step.
    pub(crate) fn verify_before<M: LineTable>(
        &self,
        index: &Slots<M>,
        slot: Slot,
        rewritten: u8,
        out: &mut Outbox,
    ) {
        let line = index.get(slot);
        let kept = line.valid & !rewritten;
        if kept != 0 && line.has(SEALED) {
            let seal = self.seal_of(index, slot);
            out.memory.extend(seal.map(|seal| MemoryStep::Verify { seal, kept }));
        }
    }

    /// The parity of a line that is dirty no more, or somewhere else, is void.
    pub(crate) fn give_back<M: LineTable>(&mut self, line: Slot, index: &mut Slots<M>) {
        self.parity.give_back(line, index);
    }

    /// The next line that changed and has no seal; see [`Shard::next_unsealed`].
    fn next_unsealed<M: LineTable>(&mut self, index: &mut Slots<M>) -> Option<Slot> {
        for dirty in [true, false] {
            for _ in 0..GLANCES {
                let hand = if dirty { &mut self.dirty_hand } else { &mut self.any_hand };
                let found = index.next_unsealed(dirty, *hand);
                *hand = found.map_or(0, |slot| slot + 1);
                let Some(slot) = found else { break };
                let line = index.get(slot);
                let resident = line.key != LineKey::NONE && !line.has(DETACHED);
                if !resident || line.valid == 0 || line.has(SEALED) {
                    index.needs_no_seal(slot);
                } else if line.pins == 0 {
                    return Some(slot);
                }
            }
        }
        None
    }

    /// The next sealed line of the walk; see [`Shard::next_sealed`].
    fn next_sealed<M: LineTable>(&mut self, index: &Slots<M>) -> Option<Slot> {
        for _ in 0..GLANCES {
            if self.hand >= index.used() {
                self.counters.walks += u64::from(self.hand > 0);
                self.hand = 0;
                return None;
            }
            let slot = self.hand;
            self.hand += 1;
            let line = index.get(slot);
            let resident = line.key != LineKey::NONE && !line.has(DETACHED);
            if resident && line.has(SEALED) && line.pins == 0 {
                return Some(slot);
            }
        }
        None
    }

    fn inspection<M: LineTable>(
        &mut self,
        index: &mut Slots<M>,
        slot: Slot,
        work: Work,
        planted: Planted,
    ) -> Inspection {
        let line = *index.get(slot);
        assert!(line.pins == 0 && line.valid != 0, "only idle lines are looked at: {line:?}");
        let there = self.parity.of(slot);
        let wants = self.gives_parity && line.destageable() != 0;
        let parity = match there {
            None if wants => self.parity.take(slot, index),
            _ => there,
        };
        let wrong = work == Work::Verify && planted.is(PlantedBug::WrongParityPlace);
        let parity = parity.map(|place| match wrong {
            true => ParityPlace { index: (place.index + 1) % PARITIES_PER_SLOT, ..place },
            false => place,
        });
        let encode = parity.is_some() && (work == Work::Seal || there.is_none());
        Inspection { seal: Seal { slot, key: line.key, valid: line.valid, parity }, work, encode }
    }

    pub(crate) const fn counters(&self) -> PatrolCounters {
        self.counters
    }

    pub(crate) const fn parity(&self) -> &Parity {
        &self.parity
    }
}

impl<M: LineTable> Shard<M> {
    /// Says whether dirty lines get parity from now on. Without it damage to them can be noticed
    /// and not undone.
    pub const fn set_parity(&mut self, parity: bool) {
        self.integrity.gives_parity = parity;
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
        let slot = inspection.seal.slot;
        match (inspection.work, verdict) {
            (Work::Seal, _) => {
                self.index.seal(slot);
                self.integrity.counters.sealed += 1;
            }
            (Work::Verify, verdict) => {
                self.integrity.counters.verified += 1;
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
        if self.is_frozen(seal.key, seal.slot) {
            if let Verdict::Lost { sectors } = verdict {
                self.lose_frozen(seal.key, seal.slot, sectors);
            }
            return;
        }
        let stays = self.index.find(seal.key) == Some(seal.slot);
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
        let counters = self.volume_mut(volume).counters_mut();
        counters.damaged_lines += 1;
        let Verdict::Lost { sectors } = verdict else {
            counters.corrected_lines += 1;
            return;
        };
        if let Some(slot) = self.index.find(seal.key) {
            self.lose(volume, slot, sectors & self.index.get(slot).valid);
        }
    }

    /// The content of some valid sectors is not known any more.
    fn lose(&mut self, volume: VolumeId, slot: Slot, sectors: u8) {
        let line = *self.index.get(slot);
        if sectors == 0 {
            return;
        }
        self.volume_mut(volume).counters_mut().refetched_lines +=
            u64::from(sectors & !line.dirty != 0);
        let idle = self.ops.busy(line.key).is_none();
        if line.dirty == 0 && idle {
            self.index.drop_line(slot);
            return;
        }
        self.index.change(slot, line.valid & !sectors);
        let lost = sectors & line.dirty;
        if lost == 0 {
            return;
        }
        let state = self.volume_mut(volume);
        state.counters_mut().lost_lines += 1;
        state.lost(u64::from(lost.count_ones()));
        if self.planted.is(PlantedBug::ForgetLostSectors) {
            self.settle_lost(slot, lost);
            if self.index.get(slot).valid == 0 && idle {
                self.index.drop_line(slot);
            }
            return;
        }
        let left = self.index.get(slot).destageable();
        // The end of a destage tells those who wait for it; that of anything else does not.
        let gives_up = left == 0 && !self.ops.is_destaging(line.key, slot);
        self.volume_mut(volume).writeback_mut().lost(line.key, slot, gives_up);
        if left == 0 {
            self.integrity.give_back(slot, &mut self.index);
            self.leave_epoch(line.key, slot);
        }
    }

    /// See [`Integrity::verify_before`].
    pub(crate) fn verify_before(&self, slot: Slot, rewritten: u8, out: &mut Outbox) {
        self.integrity.verify_before(&self.index, slot, rewritten, out);
    }

    /// Lost sectors of a line among `sectors`.
    pub(crate) fn lost_under(&self, key: LineKey, sectors: u8) -> u8 {
        let found = self.index.find(key);
        found.map_or(0, |slot| self.index.get(slot).lost() & sectors)
    }

    /// Lost sectors are written again, in the pool, or on the disk: they are lost no more.
    pub(crate) fn found_again(&mut self, slot: Slot, sectors: u8) {
        let line = self.index.get(slot);
        let (volume, again) = (line.key.volume(), line.lost() & sectors);
        if again != 0 {
            self.volume_mut(volume).regained(again.count_ones().into());
        }
    }

    /// The disk has what was lost of a line.
    pub(crate) fn settle_lost(&mut self, slot: Slot, sectors: u8) {
        self.found_again(slot, sectors);
        let lost = self.index.get(slot).lost();
        if self.index.clean(slot, sectors & lost) {
            self.cleaned(slot);
        }
    }

    /// The slot of a line that nobody uses just now. A write past the pool uses no slot, and what
    /// was lost under it is on its way to the disk in a newer form.
    pub fn idle_slot_of(&self, key: LineKey) -> Option<Slot> {
        let found = self.index.find(key).filter(|&slot| self.index.get(slot).pins == 0);
        found.filter(|_| self.ops.busy(key).is_none())
    }

    /// The driver has put what was lost of a line, or some sectors of it, back into its slot, which
    /// nobody used; from here on it counts.
    pub fn regained(&mut self, key: LineKey, sectors: u8) {
        let slot = self.index.find(key).expect("a line of which something is lost stays");
        let line = *self.index.get(slot);
        let again = line.lost() & sectors;
        assert!(again != 0 && line.pins == 0, "it is lost, and nobody uses it");
        self.found_again(slot, again);
        self.index.change(slot, line.valid | again);
        self.volume_mut(key.volume()).counters_mut().regained_lines += 1;
    }

    /// What the patrol has done.
    pub const fn patrol_counters(&self) -> PatrolCounters {
        self.integrity.counters
    }

    /// The lost sectors of a line.
    pub fn lost_of(&self, key: LineKey) -> u8 {
        self.lost_under(key, 0xff)
    }

    /// Sectors of the volume that are lost: they fail until they are written or erased.
    pub fn lost_sectors(&self, volume: VolumeId) -> u64 {
        self.volume(volume).lost_sectors()
    }

    /// Gives up what is lost of a volume: from now on it reads as the disk has it.
    pub fn forget_lost(&mut self, volume: VolumeId) {
        if self.volume(volume).lost_sectors() == 0 {
            return;
        }
        let dirty: Vec<Slot> = self.dirty_slots(volume).collect();
        for slot in dirty {
            let lost = self.index.get(slot).lost();
            if lost == 0 {
                continue;
            }
            self.settle_lost(slot, lost);
            let line = *self.index.get(slot);
            let idle = self.ops.busy(line.key).is_none();
            if line.valid == 0 && line.dirty == 0 && idle {
                self.index.drop_line(slot);
            }
        }
    }

    pub(crate) fn check_patrol(&self) {
        self.integrity.parity.self_check(&self.index);
        for (id, state) in self.volumes.iter() {
            let lost = self.dirty_slots(id).map(|slot| self.index.get(slot).lost().count_ones());
            let lost = lost.map(u64::from).sum::<u64>();
            assert_eq!(lost, state.lost_sectors(), "lost sectors of {id}");
        }
    }
}
