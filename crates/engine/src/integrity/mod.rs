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
use crate::{MemoryStep, Outbox, Slot};
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

    /// The next line that changed and has no seal; see [`crate::Shard::next_unsealed`].
    pub(crate) fn next_unsealed<M: LineTable>(&mut self, index: &mut Slots<M>) -> Option<Slot> {
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

    /// The next sealed line of the walk; see [`crate::Shard::next_sealed`].
    pub(crate) fn next_sealed<M: LineTable>(&mut self, index: &Slots<M>) -> Option<Slot> {
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

    pub(crate) fn inspection<M: LineTable>(
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

    /// A line was sealed as it is.
    pub(crate) fn sealed<M: LineTable>(&mut self, index: &mut Slots<M>, seal: &Seal) {
        let line = index.get(seal.slot);
        assert!(line.key == seal.key && line.valid == seal.valid, "{seal:?} is not of {line:?}");
        index.seal(seal.slot);
        self.counters.sealed += 1;
    }

    /// A sealed line was looked at again.
    pub(crate) const fn verified(&mut self) {
        self.counters.verified += 1;
    }

    pub(crate) const fn set_parity(&mut self, gives_parity: bool) {
        self.gives_parity = gives_parity;
    }

    pub(crate) const fn counters(&self) -> PatrolCounters {
        self.counters
    }

    pub(crate) const fn parity(&self) -> &Parity {
        &self.parity
    }
}
