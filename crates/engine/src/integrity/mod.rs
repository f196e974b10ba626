//! Seals and the patrol: selects the next line to inspect, and keeps the seals.
//!
//! A line is *sealed* when the driver has a checksum of its valid sectors and, if it is dirty and
//! the pool has a free slot, their parity. Every change of a line breaks its seal, in
//! [`Slots::change`]; a write pays nothing else for sealing. The patrol seals lines soon after a
//! change, dirty ones first, and verifies the sealed ones in endless walks. The driver computes
//! checksums and parity. It also verifies sealed lines before their dirty data is destaged
//! ([`crate::IoAction::seals`]), and before a change that keeps some of their sectors
//! ([`crate::MemoryStep::Verify`]): otherwise a new seal would cover old damage.
//!
//! What happens to a damaged line:
//! - clean: it leaves the pool, and the next read fetches it again;
//! - dirty, and repaired from its parity: it stays as it is;
//! - dirty, and beyond repair: its damaged sectors are *lost*. They are dirty and not valid, are
//!   neither served nor destaged, and fail with `EIO` until they are rewritten or erased. Until
//!   then a flush of the volume fails, and so does a checkpoint, so the journal keeps its records.
//!
//! The patrol skips pinned lines: pinned data must not change, not even by a repair.

pub(crate) mod parity;

use crate::index::Slots;
use crate::line::key::LineKey;
use crate::line::meta::{DETACHED, LineTable, SEALED};
use crate::line::seal::{PARITIES_PER_SLOT, ParityPlace, Seal};
use crate::sabotage::{Planted, PlantedBug};
use crate::slabs::Slab;
use crate::{MemoryStep, Outbox, Slot};
use parity::Parity;

/// Maximum slots that one call examines.
const SLOTS_EXAMINED_MAX: u32 = 256;

/// What the driver does with a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PatrolWork {
    /// Compute its checksum and store it.
    Seal,
    /// Compute its checksum and compare it.
    Verify,
}

/// A line for the driver to inspect before it unlocks the shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Inspection {
    /// The line.
    pub seal: Seal,
    /// What to do with it.
    pub work: PatrolWork,
    /// Whether to compute its parity, because there is none or it is outdated. In a verification,
    /// the driver does so only if the line is intact, and has no parity from which to repair it.
    pub encode: bool,
}

/// The result of an inspection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SealVerdict {
    /// No damage. The requested checksum and parity have been computed.
    Intact,
    /// Damage that was repaired.
    Corrected,
    /// Damage beyond repair.
    Lost {
        /// Sectors that may be damaged; all others are intact.
        sectors: u8,
    },
}

/// Counts of a shard's patrol since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PatrolCounters {
    /// Lines sealed.
    pub sealed: u64,
    /// Sealed lines verified.
    pub verified: u64,
    /// Completed walks.
    pub walks: u64,
}

/// Seals, parity and patrol of a shard.
#[derive(Debug, Default)]
pub(crate) struct ShardIntegrity {
    parity: Parity,
    /// Whether dirty lines get parity.
    has_parity: bool,
    /// The next slot to verify.
    hand: Slot,
    /// The slots from which to search for the next unsealed line: dirty, or any.
    dirty_hand: Slot,
    any_hand: Slot,
    counters: PatrolCounters,
}

impl SealVerdict {
    /// The verdict, restricted to some sectors.
    #[must_use]
    pub const fn within(self, sectors: u8) -> Self {
        match self {
            Self::Lost { sectors: lost } => Self::Lost { sectors: lost & sectors },
            _ => self,
        }
    }
}

impl ShardIntegrity {
    /// The seal of a slot, if it has one.
    pub(crate) fn seal_of<M: LineTable>(&self, index: &Slots<M>, slot: Slot) -> Option<Seal> {
        let line = index.get(slot);
        let parity = self.parity.of(slot);
        line.has(SEALED).then_some(Seal { slot, key: line.key, valid: line.valid, parity })
    }

    /// Requests a verification of the valid sectors that a change keeps, if the line is sealed.
    /// Called before the change.
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

    /// Frees the parity of a line that is no longer dirty or has moved.
    pub(crate) fn free_parity<M: LineTable>(&mut self, line: Slot, index: &mut Slots<M>) {
        self.parity.free(line, index);
    }

    /// Stops storing parity in a slab that is being emptied.
    pub(crate) fn close_parity(&mut self, slab: Slab) {
        self.parity.close(slab);
    }

    /// Resumes storing parity in a slab that is no longer being emptied.
    pub(crate) fn open_parity<M: LineTable>(&mut self, index: &Slots<M>, slab: Slab) {
        self.parity.reopen(slab, index);
    }

    /// The next line that changed and has no seal; see [`crate::Shard::next_unsealed`].
    pub(crate) fn next_unsealed<M: LineTable>(&mut self, index: &mut Slots<M>) -> Option<Slot> {
        for dirty in [true, false] {
            for _ in 0..SLOTS_EXAMINED_MAX {
                let hand = if dirty { &mut self.dirty_hand } else { &mut self.any_hand };
                let found = index.next_unsealed(dirty, *hand);
                *hand = found.map_or(0, |slot| slot + 1);
                let Some(slot) = found else { break };
                let line = index.get(slot);
                let resident = line.key != LineKey::NONE && !line.has(DETACHED);
                if !resident || line.valid == 0 || line.has(SEALED) {
                    index.remove_unsealed(slot);
                } else if line.pins == 0 {
                    return Some(slot);
                }
            }
        }
        None
    }

    /// The next sealed line of the walk; see [`crate::Shard::next_sealed`].
    pub(crate) fn next_sealed<M: LineTable>(&mut self, index: &Slots<M>) -> Option<Slot> {
        for _ in 0..SLOTS_EXAMINED_MAX {
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
        work: PatrolWork,
        planted: Planted,
    ) -> Inspection {
        let line = *index.get(slot);
        assert!(line.pins == 0 && line.valid != 0, "a pinned or empty line is inspected: {line:?}");
        let existing = self.parity.of(slot);
        let wants_parity = self.has_parity && line.destageable() != 0;
        let parity = match existing {
            None if wants_parity => self.parity.take(slot, index),
            _ => existing,
        };
        let is_sabotaged = work == PatrolWork::Verify && planted.is(PlantedBug::WrongParityPlace);
        let parity = parity.map(|place| match is_sabotaged {
            true => ParityPlace { index: (place.index + 1) % PARITIES_PER_SLOT, ..place },
            false => place,
        });
        let encode = parity.is_some() && (work == PatrolWork::Seal || existing.is_none());
        Inspection { seal: Seal { slot, key: line.key, valid: line.valid, parity }, work, encode }
    }

    /// Marks a line as sealed.
    pub(crate) fn record_seal<M: LineTable>(&mut self, index: &mut Slots<M>, seal: &Seal) {
        let line = index.get(seal.slot);
        assert!(line.key == seal.key && line.valid == seal.valid, "{seal:?} is not of {line:?}");
        index.seal(seal.slot);
        self.counters.sealed += 1;
    }

    /// Counts a verified line.
    pub(crate) const fn count_verified(&mut self) {
        self.counters.verified += 1;
    }

    pub(crate) const fn set_parity(&mut self, has_parity: bool) {
        self.has_parity = has_parity;
    }

    pub(crate) const fn counters(&self) -> PatrolCounters {
        self.counters
    }

    pub(crate) const fn parity(&self) -> &Parity {
        &self.parity
    }
}
