//! The checksums and the parity of one shard's lines, as its driver keeps them.

use super::super::run::{self, Run};
use super::Damage;
use crate::harness::Sabotage;
use crate::harness::memory::write_stamp;
use crate::harness::shard::PooledShard;
use forebay_ecc::{Code, LINE_PARITY_BYTES, Line, LineParity, Repair, seal, seed};
use forebay_engine::{ParityPlace, Seal, SealVerdict, Slot};
use forebay_types::{LINE_BYTES, SECTOR_BYTES};
use std::collections::HashMap;

/// Checksums and parity that the driver of a shard keeps beside its pool.
pub(super) struct Seals {
    code: Code,
    sums: HashMap<Slot, u32>,
    parity: HashMap<(Slot, u8), LineParity>,
}

/// A copy of a line, its seal and its parity.
pub(super) struct Saved {
    stamps: Vec<u64>,
    sum: Option<u32>,
    parity: Option<LineParity>,
}

impl Seals {
    pub(super) fn new(code: Code) -> Self {
        Self { code, sums: HashMap::new(), parity: HashMap::new() }
    }

    pub(super) fn make(&mut self, one: &PooledShard, sealed: &Seal) {
        let line = line_of(one, sealed.slot);
        self.sums.insert(sealed.slot, seal(seed_of(sealed), &line, sealed.valid));
        self.encode(one, sealed);
    }

    /// Computes the parity of a line, if it has any.
    pub(super) fn encode(&mut self, one: &PooledShard, sealed: &Seal) {
        let Some(place) = parity_key(sealed) else { return };
        let mut parity = [0; LINE_PARITY_BYTES];
        self.code.encode(&line_of(one, sealed.slot), &mut parity);
        self.parity.insert(place, parity);
    }

    pub(super) fn flip_bit(&mut self, slot: Slot, bit: u32) {
        *self.sums.entry(slot).or_default() ^= 1 << bit;
    }

    /// Copies a line, its seal and its parity, to undo damage.
    pub(super) fn save(&self, one: &PooledShard, sealed: &Seal) -> Saved {
        Saved {
            stamps: one.line(sealed.slot).to_vec(),
            sum: self.sums.get(&sealed.slot).copied(),
            parity: parity_key(sealed).and_then(|place| self.parity.get(&place)).copied(),
        }
    }

    pub(super) fn restore(&mut self, one: &mut PooledShard, sealed: &Seal, saved: Saved) {
        one.set_line(sealed.slot, &saved.stamps);
        self.sums.extend(saved.sum.map(|sum| (sealed.slot, sum)));
        self.parity.extend(parity_key(sealed).zip(saved.parity));
    }

    /// Verifies a sealed line, checks the verdict, and repairs the line if possible.
    pub(super) fn verify(
        &mut self,
        run: &mut Run,
        one: &mut PooledShard,
        sealed: &Seal,
        damage: Damage,
    ) -> SealVerdict {
        let mut line = line_of(one, sealed.slot);
        let parity = parity_key(sealed).and_then(|place| self.parity.get(&place));
        let expected = self.sums.get(&sealed.slot).copied().unwrap_or(0);
        let (has_parity, seed) = (parity.is_some(), seed_of(sealed));
        let is_trusted = run.strikes_always(Sabotage::TrustParity)
            && parity.is_some_and(|parity| self.code.damaged(&line, parity) == 0);
        let repair = self.code.repair_sealed(&mut line, parity, sealed.valid, seed, expected);
        let verdict = match repair {
            Repair::Intact => SealVerdict::Intact,
            Repair::Lost { .. } if is_trusted => SealVerdict::Corrected,
            Repair::Corrected => SealVerdict::Corrected,
            Repair::Lost { sectors } => SealVerdict::Lost { sectors },
        };
        let right = match (damage, verdict) {
            (Damage::None, SealVerdict::Intact) => true,
            (Damage::Light, SealVerdict::Corrected) => true,
            (Damage::Light, SealVerdict::Lost { .. }) => !has_parity,
            (Damage::Heavy, SealVerdict::Lost { .. }) => true,
            (Damage::Replaced, SealVerdict::Lost { sectors }) => sectors == sealed.valid,
            _ => false,
        };
        if !right {
            let parity = if has_parity { "with parity" } else { "without parity" };
            run.violate(
                Some(place_of(sealed)),
                format!("a line {parity} with damage {damage:?} has the verdict {verdict:?}"),
            );
        }
        if verdict == SealVerdict::Corrected {
            one.set_line(sealed.slot, &stamps_in(&line));
            self.sums.insert(sealed.slot, seal(seed, &line, sealed.valid));
        }
        verdict
    }
}

/// The volume and the first sector of a sealed line.
pub(super) fn place_of(sealed: &Seal) -> run::Place {
    (sealed.key.volume().0, sealed.key.offset() / SECTOR_BYTES)
}

/// The key of a line's parity in [`Seals::parity`].
fn parity_key(sealed: &Seal) -> Option<(Slot, u8)> {
    sealed.parity.map(|ParityPlace { slot, index }| (slot, index))
}

fn line_of(one: &PooledShard, slot: Slot) -> Line {
    let mut line = [0; LINE_BYTES as usize];
    for (sector, &stamp) in one.line(slot).iter().enumerate() {
        write_stamp(&mut line, sector as u64 * SECTOR_BYTES, stamp);
    }
    line
}

fn stamps_in(line: &Line) -> Vec<u64> {
    let stamp = |bytes: &[u8; 512]| u64::from_le_bytes(std::array::from_fn(|at| bytes[at]));
    line.as_chunks().0.iter().map(stamp).collect()
}

fn seed_of(sealed: &Seal) -> u64 {
    let (volume, sector) = place_of(sealed);
    seed(u64::from(volume), sector)
}
