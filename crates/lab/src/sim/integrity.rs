//! Damage to the pool, and the driver's part of detection and repair.
//!
//! Checksums and parity are the shipped ones, over lines whose sectors begin with their stamps.
//! Bytes are flipped directly before an inspection: by the patrol, before a destage, or before a
//! change that keeps a part of the line. Therefore the correct result of each inspection is known:
//! damage is always detected, up to six wrong bytes of a group are corrected if there is parity,
//! and an undamaged line is never given up. Lost sectors fail until they are rewritten, and a read
//! may fail for them only in its own range.
//!
//! Less often, one bit of the seal is flipped instead, which loses no data if there is parity; or
//! line and parity are both replaced, by zeroes or by those of another line, and the whole line is
//! lost.

mod seals;

use super::device::disk::sectors_of;
use super::expected::Expected;
use super::run::Run;
use crate::harness::dice::{Dice, Ppm};
use crate::harness::io::Io;
use crate::harness::oracle::ZERO;
use crate::harness::shard::PooledShard;
use forebay_ecc::Code;
use forebay_engine::{Inspection, MemoryStep, PatrolWork, Place, Seal, SealVerdict, Segment, Slot};
use forebay_types::{ByteRange, SECTOR_BYTES};
use seals::{Seals, place_of};

/// One in this many calls of a shard is checked for its effect on sealed lines.
const CALLS_PER_CHECK: u64 = 16;
/// The share of damage that concerns the seal, or line and parity together, instead of a few bytes
/// of the line.
const ELSEWHERE: Ppm = 250_000;
/// Lines that the patrol of each shard seals, and verifies, at once while a pool is adopted.
const ADOPTED_LINES: u64 = 4;
/// Wrong bytes per group that parity corrects.
const LIGHT_BYTES_MAX: u64 = 6;

/// The rate of damage, and the protection against it.
#[derive(Clone, Copy, Debug)]
struct DamagePlan {
    /// The probability that a line is damaged before an inspection.
    rate: Ppm,
    /// The share of damaged lines that are damaged beyond repair.
    heavy: Ppm,
    /// Whether dirty lines get parity.
    parity: bool,
    /// Lines that the patrol of each shard seals, and verifies, per tick.
    lines: u64,
}

impl DamagePlan {
    fn draw(dice: &mut Dice) -> Self {
        Self {
            rate: dice.pick(&[0, 2_000, 50_000, 300_000]),
            heavy: dice.pick(&[0, 100_000, 500_000]),
            parity: dice.chance(700_000),
            lines: dice.pick(&[0, 1, 8, 64]),
        }
    }
}

/// The faults while a process adopts a pool.
#[derive(Clone, Copy, Debug)]
struct AdoptionPlan {
    /// The probability that a line is damaged before an inspection.
    rate: Ppm,
    /// The probability that the patrol inspects some lines before the next line is recorded.
    patrol: Ppm,
    /// The probability of a kill before or during a record.
    kill: Ppm,
}

impl AdoptionPlan {
    fn draw(dice: &mut Dice) -> Self {
        Self {
            rate: dice.pick(&[0, 5_000, 50_000, 300_000]),
            patrol: dice.pick(&[0, 50_000, 500_000]),
            kill: dice.pick(&[0, 1_000, 20_000]),
        }
    }
}

/// The damage to a line before an inspection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Damage {
    None,
    /// Parity corrects it.
    Light,
    /// It has more wrong bytes than parity corrects.
    Heavy,
    /// The parity matches the wrong content.
    Replaced,
}

/// The damage to the pool of all shards, and the seals of their lines.
pub(crate) struct Integrity {
    plan: DamagePlan,
    /// Damage has a generator of its own, so that it does not change the machine that a seed draws.
    dice: Dice,
    /// Faults of adoptions have a generator of their own, for the same reason.
    adoption: AdoptionPlan,
    adoption_dice: Dice,
    /// Whether a process adopts a pool now.
    is_adopting: bool,
    code: Code,
    /// The seals of each shard's lines.
    seals: Vec<Seals>,
    /// Calls of shards; some are checked for unverified changes.
    calls: u64,
    /// Whether no damage is injected now.
    is_spared: bool,
}

impl Integrity {
    pub(crate) fn new(seed: u64) -> Self {
        let mut dice = Dice::new(seed.rotate_left(32) ^ 0xecc);
        let mut adoption_dice = Dice::new(seed.rotate_left(8) ^ 0xad0);
        Self {
            plan: DamagePlan::draw(&mut dice),
            dice,
            adoption: AdoptionPlan::draw(&mut adoption_dice),
            adoption_dice,
            is_adopting: false,
            code: Code::detect(),
            seals: Vec::new(),
            calls: 0,
            is_spared: false,
        }
    }

    /// Whether dirty lines get parity.
    pub(crate) const fn parity(&self) -> bool {
        self.plan.parity
    }

    /// Begins with new shards, none of whose lines is sealed.
    pub(crate) fn start_shards(&mut self, shards: usize) {
        self.seals = (0..shards).map(|_| Seals::new(self.code)).collect();
    }

    /// Suspends damage while a process recovers: data that has been restored to the pool is not
    /// restored a second time.
    pub(crate) const fn begin_recovery(&mut self) {
        (self.is_spared, self.is_adopting) = (true, false);
    }

    /// Damages lines at another rate while a process adopts a pool.
    pub(crate) const fn begin_adoption(&mut self) {
        (self.is_spared, self.is_adopting) = (false, true);
    }

    pub(crate) const fn end_recovery(&mut self) {
        (self.is_spared, self.is_adopting) = (false, false);
    }

    /// Whether a process that adopts a pool is killed now.
    pub(crate) fn kills_adopter(&mut self) -> bool {
        self.adoption_dice.chance(self.adoption.kill)
    }

    /// The patrol inspects some lines of an adopted pool.
    pub(crate) fn patrol_adopted(
        &mut self,
        run: &mut Run,
        shards: &mut [PooledShard],
        expected: &mut Expected,
    ) {
        if self.adoption_dice.chance(self.adoption.patrol) {
            let lost = run.report.lost_sectors;
            self.patrol_lines(run, shards, expected, ADOPTED_LINES);
            run.report.adopted_lost_sectors += run.report.lost_sectors - lost;
        }
    }

    /// The patrol of each shard seals and verifies some lines.
    pub(crate) fn patrol(
        &mut self,
        run: &mut Run,
        shards: &mut [PooledShard],
        expected: &mut Expected,
    ) {
        self.patrol_lines(run, shards, expected, self.plan.lines);
    }

    fn patrol_lines(
        &mut self,
        run: &mut Run,
        shards: &mut [PooledShard],
        expected: &mut Expected,
        lines: u64,
    ) {
        for (shard, one) in shards.iter_mut().enumerate() {
            for _ in 0..lines {
                let Some(found) = one.shard.next_unsealed() else { break };
                self.inspect(run, expected, shard, one, &found);
            }
            for _ in 0..lines {
                let Some(found) = one.shard.next_sealed() else { break };
                self.inspect(run, expected, shard, one, &found);
            }
        }
    }

    fn inspect(
        &mut self,
        run: &mut Run,
        expected: &mut Expected,
        shard: usize,
        one: &mut PooledShard,
        found: &Inspection,
    ) {
        let verdict = match found.work {
            PatrolWork::Seal => {
                self.seals[shard].make(one, &found.seal);
                SealVerdict::Intact
            }
            PatrolWork::Verify => {
                let seal =
                    Seal { parity: found.seal.parity.filter(|_| !found.encode), ..found.seal };
                let damage = self.inject_damage(run, shard, one, &seal);
                let verdict = self.seals[shard].verify(run, one, &seal, damage);
                if verdict == SealVerdict::Intact {
                    self.seals[shard].make(one, &found.seal);
                }
                verdict
            }
        };
        one.shard.inspected(found, verdict);
        record_loss(run, expected, one, &found.seal, verdict);
    }

    /// Damages a sealed line, alone or together with its parity, or its seal, with the configured
    /// probability. Parity alone is never damaged.
    fn inject_damage(
        &mut self,
        run: &mut Run,
        shard: usize,
        one: &mut PooledShard,
        sealed: &Seal,
    ) -> Damage {
        let is_spared = self.is_spared || run.healed || sealed.valid == 0;
        let rate = if self.is_adopting { self.adoption.rate } else { self.plan.rate };
        if is_spared || !self.dice.chance(rate) {
            return Damage::None;
        }
        let heavy = self.dice.chance(self.plan.heavy);
        let damage = match (heavy, self.dice.chance(ELSEWHERE)) {
            (true, true) => self.replace_line(shard, one, sealed),
            (false, true) => {
                self.seals[shard].flip_bit(sealed.slot, self.dice.below(32) as u32);
                Damage::Light
            }
            (_, false) => self.change_bytes(one, sealed, heavy),
        };
        run.report.damaged_lines += u64::from(damage != Damage::None);
        damage
    }

    /// Changes bytes of one valid sector.
    fn change_bytes(&mut self, one: &mut PooledShard, sealed: &Seal, heavy: bool) -> Damage {
        let Seal { slot, valid, .. } = *sealed;
        let dice = &mut self.dice;
        let nth = dice.below(u64::from(valid.count_ones())) as usize;
        let sector =
            (0..8).filter(|at| valid & 1 << at != 0).nth(nth).expect("the mask has that many bits");
        let bytes =
            if heavy { dice.range(LIGHT_BYTES_MAX + 1, 8) } else { dice.range(1, LIGHT_BYTES_MAX) };
        let mut change = [0u8; 8];
        while change.iter().filter(|&&byte| byte != 0).count() < bytes as usize {
            change[dice.below(8) as usize] = dice.range(1, 255) as u8;
        }
        let at = sector as u32 * SECTOR_BYTES as u32;
        one.set_stamp(slot, at, one.stamp(slot, at) ^ u64::from_le_bytes(change));
        if heavy { Damage::Heavy } else { Damage::Light }
    }

    /// Replaces a line and its parity by zeroes, or by the content of another slot and its parity.
    fn replace_line(&mut self, shard: usize, one: &mut PooledShard, sealed: &Seal) -> Damage {
        let other = self.dice.below(u64::from(one.shard.slots().used())) as Slot;
        let is_zeroed = self.dice.chance(500_000);
        let found = if is_zeroed { vec![ZERO; 8] } else { one.line(other).to_vec() };
        let before = one.line(sealed.slot);
        if (0..8).all(|at| sealed.valid & 1 << at == 0 || found[at] == before[at]) {
            return Damage::None;
        }
        one.set_line(sealed.slot, &found);
        self.seals[shard].encode(one, sealed);
        Damage::Replaced
    }

    /// The lines that are sealed before a call of a shard, for some of the calls.
    pub(crate) fn sealed_lines(&mut self, one: &PooledShard) -> Vec<Seal> {
        self.calls += 1;
        if self.plan.lines == 0 || !self.calls.is_multiple_of(CALLS_PER_CHECK) {
            return Vec::new();
        }
        (0..one.shard.slots().used()).filter_map(|slot| one.shard.seal_of(slot)).collect()
    }

    /// Verifies a sealed line before a change that keeps a part of it.
    pub(crate) fn verify_before_change(
        &mut self,
        run: &mut Run,
        expected: &mut Expected,
        shard: usize,
        one: &mut PooledShard,
        sealed: &Seal,
        kept: u8,
    ) {
        let before = self.seals[shard].save(one, sealed);
        let damage = self.inject_damage(run, shard, one, sealed);
        let verdict = self.seals[shard].verify(run, one, sealed, damage);
        if matches!(verdict, SealVerdict::Lost { .. }) {
            // Undo the damage: answers that still use the old slot have been checked already.
            self.seals[shard].restore(one, sealed, before);
        }
        if verdict != SealVerdict::Intact {
            one.shard.damaged_before(sealed, kept, verdict);
            record_loss(run, expected, one, sealed, verdict);
        }
    }

    /// Verifies a line that nothing uses, if it is sealed, before lost sectors of it are restored:
    /// the next seal covers the rest, too.
    pub(crate) fn verify_idle(
        &mut self,
        run: &mut Run,
        expected: &mut Expected,
        shard: usize,
        one: &mut PooledShard,
        slot: Slot,
    ) {
        let Some(sealed) = one.shard.seal_of(slot) else { return };
        let damage = self.inject_damage(run, shard, one, &sealed);
        let verdict = self.seals[shard].verify(run, one, &sealed, damage);
        if verdict != SealVerdict::Intact {
            one.shard.damaged(&sealed, verdict);
            record_loss(run, expected, one, &sealed, verdict);
        }
    }

    /// Verifies the lines of a destage; returns whether it may start.
    pub(crate) fn verify_destage(
        &mut self,
        run: &mut Run,
        expected: &mut Expected,
        one: &mut PooledShard,
        io: &Io,
    ) -> bool {
        let mut good = true;
        let sealed = slots_of(io).into_iter().filter_map(|slot| one.shard.seal_of(slot));
        let sealed: Vec<Seal> = sealed.collect();
        for truth in sealed {
            let found = io.action.seals.iter().find(|seal| seal.slot == truth.slot);
            let damaged = found.unwrap_or(&truth);
            let before = self.seals[io.shard].save(one, damaged);
            let damage = self.inject_damage(run, io.shard, one, damaged);
            let Some(seal) = found else { continue };
            let verdict = self.seals[io.shard].verify(run, one, seal, damage);
            if verdict != SealVerdict::Intact {
                one.shard.damaged(seal, verdict);
                record_loss(run, expected, one, seal, verdict);
            }
            if matches!(verdict, SealVerdict::Lost { .. }) {
                good = false;
                self.seals[io.shard].restore(one, seal, before);
            }
        }
        good
    }

    /// Verifies all seals while nothing has been damaged.
    pub(crate) fn check_seals(&mut self, run: &mut Run, shards: &mut [PooledShard]) {
        for (seals, one) in self.seals.iter_mut().zip(shards) {
            for slot in 0..run.plan.lines_per_shard as Slot {
                if let Some(sealed) = one.shard.seal_of(slot) {
                    let sealed = Seal { parity: None, ..sealed };
                    seals.verify(run, one, &sealed, Damage::None);
                }
            }
        }
    }
}

/// Checks that a call of a shard verified each sealed line of which it keeps a part.
pub(crate) fn check_verified(
    run: &mut Run,
    one: &PooledShard,
    sealed: &[Seal],
    steps: &[MemoryStep],
) {
    for seal in sealed {
        // Another line may have taken the slot.
        let slots = one.shard.slots();
        let here = slots.find_valid(seal.key, 0);
        let seal_now = here.and_then(|slot| one.shard.seal_of(slot));
        let is_valid = |at: &u32| slots.find_valid(seal.key, 1 << *at).is_some();
        let valid = match &seal_now {
            Some(found) => found.valid,
            None => (0..8).filter(is_valid).fold(0, |mask, at| mask | 1 << at),
        };
        if unverified(seal, here, seal_now.is_some(), valid, steps) != 0 {
            let message = "a sealed line is changed in part without verification";
            run.violate(Some(place_of(seal)), message.into());
        }
    }
}

/// The sectors of a line that a call has kept without verification, although it has broken the
/// line's seal. After the call, the line is in the slot `here`, with the sectors in `valid`.
fn unverified(
    seal: &Seal,
    here: Option<Slot>,
    is_sealed: bool,
    valid: u8,
    steps: &[MemoryStep],
) -> u8 {
    let (mut verified, mut filled, mut copied) = (0, 0, 0);
    for step in steps {
        match *step {
            // A later verification finds the new data, which the seal does not match.
            MemoryStep::Verify { seal: found, kept } if found.slot == seal.slot && filled == 0 => {
                verified |= kept;
            }
            MemoryStep::Fill { slot, offset, len, .. } if slot == seal.slot => {
                filled |= mask_of(offset, len);
            }
            MemoryStep::Copy { from, to, offset, len } if from == seal.slot && here == Some(to) => {
                copied |= mask_of(offset, len) & !verified;
            }
            _ => {}
        }
    }
    let kept = seal.valid & valid;
    match here == Some(seal.slot) {
        true if is_sealed && filled == 0 => 0,
        true => kept & !filled & !verified,
        false => kept & copied,
    }
}

/// The mask of the sectors of a line in a range of bytes.
fn mask_of(offset: u32, len: u32) -> u8 {
    let sectors = sectors_of(ByteRange::new(u64::from(offset), u64::from(len)));
    sectors.fold(0, |mask, at| mask | 1 << at)
}

/// Records the sectors of a line that the shard now counts as lost.
fn record_loss(
    run: &mut Run,
    expected: &mut Expected,
    one: &PooledShard,
    sealed: &Seal,
    verdict: SealVerdict,
) {
    if let SealVerdict::Lost { sectors } = verdict {
        let lost = one.shard.slots().line(sealed.key).lost();
        expected.lose(run, sealed.key, lost, sectors);
    }
}

fn slots_of(io: &Io) -> Vec<Slot> {
    let slot = |segment: &Segment| match segment.place {
        Place::Slot { slot, .. } => Some(slot),
        _ => None,
    };
    let mut slots: Vec<Slot> = io.action.segments.iter().filter_map(slot).collect();
    slots.dedup();
    slots
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_engine::LineKey;
    use forebay_types::VolumeId;

    const SECTOR: u32 = SECTOR_BYTES as u32;

    /// A line of six valid sectors in slot 3.
    fn sealed() -> Seal {
        Seal { slot: 3, key: LineKey::new(VolumeId(0), 7), valid: 0x3f, parity: None }
    }

    fn verify(kept: u8) -> MemoryStep {
        MemoryStep::Verify { seal: sealed(), kept }
    }

    /// Writes the first two sectors.
    const fn fill() -> MemoryStep {
        MemoryStep::Fill { slot: 3, offset: 0, payload_offset: 0, len: 2 * SECTOR }
    }

    #[test]
    fn a_seal_that_an_invalidation_breaks_must_be_verified() {
        let invalidated = |steps: &[MemoryStep]| unverified(&sealed(), Some(3), false, 0x0f, steps);
        assert_eq!(invalidated(&[]), 0x0f);
        assert_eq!(invalidated(&[verify(0x0f)]), 0);
        assert_eq!(invalidated(&[verify(0x03)]), 0x0c, "only a part of the rest is verified");
        assert_eq!(unverified(&sealed(), Some(3), false, 0, &[]), 0, "nothing is kept");
        assert_eq!(unverified(&sealed(), Some(3), true, 0x3f, &[]), 0, "the seal is intact");
        assert_eq!(unverified(&sealed(), None, false, 0, &[]), 0, "the line has left the pool");
    }

    #[test]
    fn a_partial_write_must_be_verified_before_it() {
        let written = |steps: &[MemoryStep]| unverified(&sealed(), Some(3), false, 0x3f, steps);
        assert_eq!(written(&[fill()]), 0x3c);
        assert_eq!(written(&[verify(0x3c), fill()]), 0);
        assert_eq!(written(&[fill(), verify(0x3c)]), 0x3c);
        assert_eq!(unverified(&sealed(), Some(3), true, 0x3f, &[fill()]), 0x3c, "it kept its seal");
    }

    #[test]
    fn a_line_must_be_verified_before_it_is_relocated() {
        let copy = MemoryStep::Copy { from: 3, to: 5, offset: 2 * SECTOR, len: 4 * SECTOR };
        let moved = |steps: &[MemoryStep]| unverified(&sealed(), Some(5), false, 0x3f, steps);
        assert_eq!(moved(&[copy]), 0x3c);
        assert_eq!(moved(&[verify(0x3c), copy]), 0);
        assert_eq!(moved(&[copy, verify(0x3c)]), 0x3c);
        assert_eq!(moved(&[]), 0, "another copy of the line, or all of it rewritten");
    }
}
