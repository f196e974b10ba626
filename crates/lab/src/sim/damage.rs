//! Damage to the pool, and the driver's part of detection and repair.
//!
//! Checksums and parity are the shipped ones, over lines whose sectors begin with their stamps.
//! Bytes are flipped directly before an inspection: by the patrol, before a destage, or before a
//! change that keeps a part of the line. Therefore the correct result of each inspection is known:
//! damage is always detected, up to six wrong bytes of a group are corrected if there is parity,
//! and nothing else is ever given up. Lost sectors fail until they are rewritten, and a request may
//! fail for them only in its own range.

use super::device::{Fault, FaultKind};
use super::disk::sectors_of;
use super::world::{VolumeState, World};
use crate::harness::dice::{Dice, Ppm};
use crate::harness::memory::write_stamp;
use forebay_ecc::{LINE_PARITY_BYTES, Line, LineParity, Repair, seal, seed};
use forebay_engine::{Inspection, LineKey, MemoryStep, ParityPlace, Seal, Slot, Verdict, Work};
use forebay_types::{ByteRange, LINE_BYTES, SECTOR_BYTES, VolumeId};
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// One in this many calls of a shard is checked for its effect on sealed lines.
const CALLS_PER_CHECK: u64 = 16;
/// Wrong bytes per group that parity corrects.
const LIGHT_BYTES_MAX: u64 = 6;

/// The rate of damage, and the protection against it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DamagePlan {
    /// The probability that a line is damaged before an inspection.
    pub rate: Ppm,
    /// The share of damaged lines that are damaged beyond repair.
    pub heavy: Ppm,
    /// Whether dirty lines get parity.
    pub parity: bool,
    /// Lines that the patrol of each shard seals, and verifies, per tick.
    pub lines: u64,
}

impl DamagePlan {
    pub(crate) fn draw(dice: &mut Dice) -> Self {
        Self {
            rate: dice.pick(&[0, 2_000, 50_000, 300_000]),
            heavy: dice.pick(&[0, 100_000, 500_000]),
            parity: dice.chance(700_000),
            lines: dice.pick(&[0, 1, 8, 64]),
        }
    }
}

/// Checksums and parity that the driver of a shard keeps beside its pool.
#[derive(Default)]
pub(crate) struct Seals {
    sums: HashMap<Slot, u32>,
    parity: HashMap<(Slot, u8), LineParity>,
}

/// The damage to a line before an inspection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Damage {
    None,
    Light,
    Heavy,
}

/// The lost sectors of a volume, with the moment of the loss.
pub(crate) type Lost = BTreeMap<u64, u32>;

impl World {
    fn line_of(&self, shard: usize, slot: Slot) -> Line {
        let mut line = [0; LINE_BYTES as usize];
        for (sector, &stamp) in self.shards[shard].line(slot).iter().enumerate() {
            write_stamp(&mut line, sector as u64 * SECTOR_BYTES, stamp);
        }
        line
    }

    fn stamps_in(line: &Line) -> Vec<u64> {
        let stamp = |bytes: &[u8; 512]| u64::from_le_bytes(std::array::from_fn(|at| bytes[at]));
        line.as_chunks().0.iter().map(stamp).collect()
    }

    fn seed_of(seal: &Seal) -> u64 {
        seed(u64::from(seal.key.volume().0), seal.key.offset() / SECTOR_BYTES)
    }

    pub(crate) fn patrol(&mut self) {
        for shard in 0..self.shards.len() {
            for _ in 0..self.damage.lines {
                let Some(found) = self.shards[shard].shard.next_unsealed() else { break };
                self.inspect(shard, &found);
            }
            for _ in 0..self.damage.lines {
                let Some(found) = self.shards[shard].shard.next_sealed() else { break };
                self.inspect(shard, &found);
            }
        }
    }

    fn inspect(&mut self, shard: usize, found: &Inspection) {
        let verdict = match found.work {
            Work::Seal => {
                self.make_seal(shard, &found.seal);
                Verdict::Intact
            }
            Work::Verify => {
                let damage = self.inject_damage(shard, found.seal.slot, found.seal.valid);
                let seal =
                    Seal { parity: found.seal.parity.filter(|_| !found.encode), ..found.seal };
                let verdict = self.verify_line(shard, &seal, damage);
                if verdict == Verdict::Intact {
                    self.make_seal(shard, &found.seal);
                }
                verdict
            }
        };
        self.shards[shard].shard.inspected(found, verdict);
        self.record_loss(shard, &found.seal, verdict);
    }

    fn make_seal(&mut self, shard: usize, sealed: &Seal) {
        let line = self.line_of(shard, sealed.slot);
        let sum = seal(Self::seed_of(sealed), &line, sealed.valid);
        let code = self.code;
        let seals = &mut self.seals[shard];
        seals.sums.insert(sealed.slot, sum);
        if let Some(ParityPlace { slot, index }) = sealed.parity {
            let mut parity = [0; LINE_PARITY_BYTES];
            code.encode(&line, &mut parity);
            seals.parity.insert((slot, index), parity);
        }
    }

    /// Damages a valid sector of a line, with the configured probability.
    fn inject_damage(&mut self, shard: usize, slot: Slot, valid: u8) -> Damage {
        if self.is_recovering
            || self.run.healed
            || valid == 0
            || !self.damage_dice.chance(self.damage.rate)
        {
            return Damage::None;
        }
        let dice = &mut self.damage_dice;
        let nth = dice.below(u64::from(valid.count_ones())) as usize;
        let sector =
            (0..8).filter(|at| valid & 1 << at != 0).nth(nth).expect("the mask has that many bits");
        let heavy = dice.chance(self.damage.heavy);
        let bytes =
            if heavy { dice.range(LIGHT_BYTES_MAX + 1, 8) } else { dice.range(1, LIGHT_BYTES_MAX) };
        let mut change = [0u8; 8];
        while change.iter().filter(|&&byte| byte != 0).count() < bytes as usize {
            change[dice.below(8) as usize] = dice.range(1, 255) as u8;
        }
        let (one, at) = (&mut self.shards[shard], sector as u32 * SECTOR_BYTES as u32);
        one.set_stamp(slot, at, one.stamp(slot, at) ^ u64::from_le_bytes(change));
        self.run.report.damaged_lines += 1;
        if heavy { Damage::Heavy } else { Damage::Light }
    }

    /// Verifies a sealed line, checks the verdict, and repairs the line if possible.
    fn verify_line(&mut self, shard: usize, sealed: &Seal, damage: Damage) -> Verdict {
        let mut line = self.line_of(shard, sealed.slot);
        let seals = &self.seals[shard];
        let place = sealed.parity.map(|place| (place.slot, place.index));
        let parity = place.and_then(|place| seals.parity.get(&place));
        let expected = seals.sums.get(&sealed.slot).copied().unwrap_or(0);
        let seed = Self::seed_of(sealed);
        let has_parity = parity.is_some();
        let repair = self.code.repair_sealed(&mut line, parity, sealed.valid, seed, expected);
        let verdict = match repair {
            Repair::Intact => Verdict::Intact,
            Repair::Corrected => Verdict::Corrected,
            Repair::Lost { sectors } => Verdict::Lost { sectors },
        };
        let right = match (damage, verdict) {
            (Damage::None, Verdict::Intact) => true,
            (Damage::Light, Verdict::Corrected) => true,
            (Damage::Light, Verdict::Lost { .. }) => !has_parity,
            (Damage::Heavy, Verdict::Lost { .. }) => true,
            _ => false,
        };
        if !right {
            let place = Some((sealed.key.volume().0, sealed.key.offset() / SECTOR_BYTES));
            let parity = if has_parity { "with parity" } else { "without parity" };
            self.run.violate(
                place,
                format!("a line {parity} with damage {damage:?} has the verdict {verdict:?}"),
            );
        }
        if verdict == Verdict::Corrected {
            self.shards[shard].set_line(sealed.slot, &Self::stamps_in(&line));
        }
        verdict
    }

    /// The lines that are sealed before a call, for some of the calls.
    pub(crate) fn sealed_lines(&mut self, shard: usize) -> Vec<Seal> {
        self.calls += 1;
        if self.damage.lines == 0 || !self.calls.is_multiple_of(CALLS_PER_CHECK) {
            return Vec::new();
        }
        let shard = &self.shards[shard].shard;
        (0..shard.slots().used()).filter_map(|slot| shard.seal_of(slot)).collect()
    }

    /// Checks that a call verified each sealed line of which it keeps a part.
    pub(crate) fn check_verified(&mut self, shard: usize, sealed: &[Seal], steps: &[MemoryStep]) {
        for seal in sealed {
            let verifies = |step: &MemoryStep| match step {
                MemoryStep::Verify { seal: verified, .. } => verified.slot == seal.slot,
                _ => false,
            };
            // Another line may have taken the slot.
            let here = self.shards[shard].shard.slots().find_valid(seal.key, 0);
            let (mut filled, mut is_copied) = (0, false);
            for step in steps.iter().take_while(|step| !verifies(step)) {
                match *step {
                    MemoryStep::Fill { slot, offset, len, .. } if slot == seal.slot => {
                        let sectors = ByteRange::new(u64::from(offset), u64::from(len));
                        filled |= sectors_of(sectors).fold(0_u8, |mask, at| mask | 1 << at);
                    }
                    MemoryStep::Copy { from, to, .. } if from == seal.slot => {
                        is_copied |= here == Some(to);
                    }
                    _ => {}
                }
            }
            let is_changed = filled != 0 && seal.valid & !filled != 0 && here == Some(seal.slot);
            if is_changed || is_copied {
                let place = Some((seal.key.volume().0, seal.key.offset() / SECTOR_BYTES));
                let message = "a sealed line is changed in part without verification";
                self.run.violate(place, message.into());
            }
        }
    }

    /// Verifies a sealed line before a change that keeps a part of it.
    pub(crate) fn verify_before_change(&mut self, shard: usize, sealed: &Seal, kept: u8) {
        let before = self.shards[shard].line(sealed.slot).to_vec();
        let damage = self.inject_damage(shard, sealed.slot, sealed.valid);
        let verdict = self.verify_line(shard, sealed, damage);
        if matches!(verdict, Verdict::Lost { .. }) {
            // Answers that still use the old slot have been checked already.
            self.shards[shard].set_line(sealed.slot, &before);
        }
        if verdict != Verdict::Intact {
            self.shards[shard].shard.damaged_before(sealed, kept, verdict);
            self.record_loss(shard, sealed, verdict);
        }
    }

    /// Verifies the lines of a destage; returns whether it may start.
    pub(crate) fn verify_destage(&mut self, shard: usize, slots: &[Slot], seals: &[Seal]) -> bool {
        let mut good = true;
        let sealed = slots.iter().filter_map(|&slot| self.shards[shard].shard.seal_of(slot));
        let sealed: Vec<Seal> = sealed.collect();
        for truth in sealed {
            let before = self.shards[shard].line(truth.slot).to_vec();
            let damage = self.inject_damage(shard, truth.slot, truth.valid);
            let Some(seal) = seals.iter().find(|seal| seal.slot == truth.slot) else { continue };
            let verdict = self.verify_line(shard, seal, damage);
            if verdict != Verdict::Intact {
                self.shards[shard].shard.damaged(seal, verdict);
                self.record_loss(shard, seal, verdict);
            }
            if matches!(verdict, Verdict::Lost { .. }) {
                good = false;
                self.shards[shard].set_line(truth.slot, &before);
            }
        }
        good
    }

    fn record_loss(&mut self, shard: usize, sealed: &Seal, verdict: Verdict) {
        let Verdict::Lost { sectors } = verdict else { return };
        let volume = sealed.key.volume();
        let lost = self.shards[shard].shard.slots().line(sealed.key).lost();
        let first = sealed.key.offset() / SECTOR_BYTES;
        if let Some((_, history)) = &mut self.volumes[usize::from(volume.0)].order {
            let sectors = (0..8).filter(|at| (lost | sectors) >> at & 1 != 0);
            sectors.for_each(|at| history.damage(first + at));
        }
        // Later than all submissions so far.
        self.run.next_moment();
        let moment = self.run.moment();
        let range = ByteRange::new(sealed.key.offset(), LINE_BYTES);
        self.run.log_event(volume.0, range, || format!("{moment}: sectors {lost:#010b} are lost"));
        for sector in (0..8).filter(|at| lost & 1 << at != 0) {
            self.volumes[usize::from(volume.0)].lost.insert(first + sector, moment);
        }
        self.run.report.lost_sectors += u64::from(lost.count_ones());
    }

    /// Sectors have been rewritten: their losses end, except those after `submitted`.
    pub(crate) fn end_loss(&mut self, volume: VolumeId, range: ByteRange, submitted: u32) {
        let moment = self.run.moment();
        let state = &mut self.volumes[usize::from(volume.0)];
        if state.lost.is_empty() {
            return;
        }
        let sectors = range.offset / SECTOR_BYTES..range.end() / SECTOR_BYTES;
        let found = state.lost.range(sectors).filter(|(_, lost)| **lost <= submitted);
        let found: Vec<u64> = found.map(|(&sector, _)| sector).collect();
        for sector in found {
            state.lost.remove(&sector);
            state.unrecoverable.remove(&sector);
            let range = ByteRange::new(sector * SECTOR_BYTES, SECTOR_BYTES);
            let kind = FaultKind::Lost;
            self.device.faults.push(Fault { moment, volume: volume.0, kind, range });
        }
    }

    /// Whether sectors of the range are lost; of the whole volume if there is no range.
    pub(crate) fn is_lost(&self, volume: VolumeId, range: Option<ByteRange>) -> bool {
        let lost = &self.volumes[usize::from(volume.0)].lost;
        let sectors = range
            .map_or(0..u64::MAX, |range| range.offset / SECTOR_BYTES..range.end() / SECTOR_BYTES);
        lost.range(sectors).next().is_some()
    }

    pub(crate) fn any_is_lost(&self) -> bool {
        self.volumes.iter().any(|volume| !volume.lost.is_empty())
    }

    /// Verifies all seals while nothing has been damaged.
    pub(crate) fn check_seals(&mut self) {
        for shard in 0..self.shards.len() {
            for slot in 0..self.run.plan.lines_per_shard as Slot {
                if let Some(sealed) = self.shards[shard].shard.seal_of(slot) {
                    let sealed = Seal { parity: None, ..sealed };
                    self.verify_line(shard, &sealed, Damage::None);
                }
            }
        }
    }

    /// Accepts the disk's content of sectors that were lost before the crash and reported as such,
    /// if only memory protected them or no journal has them any more.
    pub(crate) fn accept_loss(&mut self, contents: &[Vec<u64>]) {
        for (at, content) in contents.iter().enumerate() {
            let has_ups = self.run.plan.volume(VolumeId(at as u16)).ups;
            let VolumeState { lost, unrecoverable, oracle, .. } = &mut self.volumes[at];
            let accepted = lost.keys().filter(|sector| has_ups || unrecoverable.contains(sector));
            accepted.for_each(|&sector| oracle.restart(sector, content[sector as usize]));
            unrecoverable.clear();
        }
    }

    /// Reads the lost sectors from the table of an adopted pool. There may be no others than
    /// `before`. A missing one has been rewritten by a request that was not answered.
    pub(crate) fn reload_lost(&mut self, before: Vec<Lost>) {
        self.run.next_moment();
        for (at, before) in before.into_iter().enumerate() {
            let mut lost = Lost::new();
            for line in 0..self.volumes[at].sectors.div_ceil(8) {
                let key = LineKey::new(VolumeId(at as u16), line);
                let lines = self.shards.iter().map(|one| one.shard.slots().line(key));
                let mask = lines.fold(0, |all, line| all | line.lost());
                for sector in (0..8).filter(|sector| mask >> sector & 1 != 0) {
                    lost.insert(line * 8 + sector, self.run.moment());
                }
            }
            if let Some(sector) = lost.keys().find(|sector| !before.contains_key(sector)) {
                let place = Some((at as u16, *sector));
                self.run.violate(place, "a sector is lost that was not lost before".into());
            }
            self.volumes[at].lost = lost;
        }
    }

    pub(crate) fn lost_lines(&self, volume: VolumeId) -> Vec<ByteRange> {
        let state = &self.volumes[usize::from(volume.0)];
        let size = state.sectors * SECTOR_BYTES;
        let lines = state.lost.keys().map(|sector| sector * SECTOR_BYTES / LINE_BYTES);
        let lines: BTreeSet<u64> = lines.collect();
        let line =
            |line| ByteRange::new(line * LINE_BYTES, LINE_BYTES.min(size - line * LINE_BYTES));
        lines.into_iter().map(line).collect()
    }

    pub(crate) fn check_none_lost(&mut self) {
        for volume in 0..self.volumes.len() {
            let id = VolumeId(volume as u16);
            let volumes = self.shards.iter().map(|shard| shard.shard.volume(id));
            let left: u64 = volumes.map(|volume| volume.lost_sectors()).sum();
            if left > 0 || self.is_lost(id, None) {
                let first = self.volumes[volume].lost.keys().next().copied().unwrap_or(0);
                let place = Some((volume as u16, first));
                self.run.violate(place, format!("{left} sectors are lost although rewritten"));
            }
        }
    }
}
