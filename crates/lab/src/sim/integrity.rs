//! Damage to the pool, and the driver's part of detection and repair.
//!
//! Checksums and parity are the shipped ones, over lines whose sectors begin with their stamps.
//! Bytes are flipped directly before an inspection: by the patrol, before a destage, or before a
//! change that keeps a part of the line. Therefore the correct result of each inspection is known:
//! damage is always detected, up to six wrong bytes of a group are corrected if there is parity,
//! and nothing else is ever given up. Lost sectors fail until they are rewritten, and a request may
//! fail for them only in its own range.

use super::device::disk::sectors_of;
use super::expected::Expected;
use super::run::{self, Run};
use crate::harness::dice::{Dice, Ppm};
use crate::harness::io::Io;
use crate::harness::memory::write_stamp;
use crate::harness::shard::PooledShard;
use forebay_ecc::{Code, LINE_PARITY_BYTES, Line, LineParity, Repair, seal, seed};
use forebay_engine::{
    Inspection, MemoryStep, ParityPlace, Place, Seal, Segment, Slot, Verdict, Work,
};
use forebay_types::{ByteRange, LINE_BYTES, SECTOR_BYTES};
use std::collections::HashMap;

/// One in this many calls of a shard is checked for its effect on sealed lines.
const CALLS_PER_CHECK: u64 = 16;
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

/// Checksums and parity that the driver of a shard keeps beside its pool.
#[derive(Default)]
struct Seals {
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

/// The damage to the pool of all shards, and the seals of their lines.
pub(crate) struct Integrity {
    plan: DamagePlan,
    /// Damage has a generator of its own, so that seeds keep their machines without it.
    dice: Dice,
    code: Code,
    /// The seals of each shard's lines.
    seals: Vec<Seals>,
    /// Calls of shards; some are checked for unverified changes.
    calls: u64,
    /// Nothing is damaged now.
    is_spared: bool,
}

impl Seals {
    fn make(&mut self, code: Code, one: &PooledShard, sealed: &Seal) {
        let line = line_of(one, sealed.slot);
        let sum = seal(seed_of(sealed), &line, sealed.valid);
        self.sums.insert(sealed.slot, sum);
        if let Some(ParityPlace { slot, index }) = sealed.parity {
            let mut parity = [0; LINE_PARITY_BYTES];
            code.encode(&line, &mut parity);
            self.parity.insert((slot, index), parity);
        }
    }

    /// Verifies a sealed line, checks the verdict, and repairs the line if possible.
    fn verify(
        &self,
        code: Code,
        run: &mut Run,
        one: &mut PooledShard,
        sealed: &Seal,
        damage: Damage,
    ) -> Verdict {
        let mut line = line_of(one, sealed.slot);
        let place = sealed.parity.map(|place| (place.slot, place.index));
        let parity = place.and_then(|place| self.parity.get(&place));
        let expected = self.sums.get(&sealed.slot).copied().unwrap_or(0);
        let has_parity = parity.is_some();
        let repair = code.repair_sealed(&mut line, parity, sealed.valid, seed_of(sealed), expected);
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
            let parity = if has_parity { "with parity" } else { "without parity" };
            run.violate(
                Some(place_of(sealed)),
                format!("a line {parity} with damage {damage:?} has the verdict {verdict:?}"),
            );
        }
        if verdict == Verdict::Corrected {
            one.set_line(sealed.slot, &stamps_in(&line));
        }
        verdict
    }
}

impl Integrity {
    pub(crate) fn new(seed: u64) -> Self {
        let mut dice = Dice::new(seed.rotate_left(32) ^ 0xecc);
        Self {
            plan: DamagePlan::draw(&mut dice),
            dice,
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
        self.seals = (0..shards).map(|_| Seals::default()).collect();
    }

    /// While a process recovers, nothing is damaged, because restored data is not restored again.
    pub(crate) const fn begin_recovery(&mut self) {
        self.is_spared = true;
    }

    pub(crate) const fn end_recovery(&mut self) {
        self.is_spared = false;
    }

    /// The patrol of each shard seals and verifies some lines.
    pub(crate) fn patrol(
        &mut self,
        run: &mut Run,
        shards: &mut [PooledShard],
        expected: &mut Expected,
    ) {
        for (shard, one) in shards.iter_mut().enumerate() {
            for _ in 0..self.plan.lines {
                let Some(found) = one.shard.next_unsealed() else { break };
                self.inspect(run, expected, shard, one, &found);
            }
            for _ in 0..self.plan.lines {
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
        let code = self.code;
        let verdict = match found.work {
            Work::Seal => {
                self.seals[shard].make(code, one, &found.seal);
                Verdict::Intact
            }
            Work::Verify => {
                let damage = self.inject_damage(run, one, &found.seal);
                let seal =
                    Seal { parity: found.seal.parity.filter(|_| !found.encode), ..found.seal };
                let verdict = self.seals[shard].verify(code, run, one, &seal, damage);
                if verdict == Verdict::Intact {
                    self.seals[shard].make(code, one, &found.seal);
                }
                verdict
            }
        };
        one.shard.inspected(found, verdict);
        record_loss(run, expected, one, &found.seal, verdict);
    }

    /// Damages a valid sector of a line, with the configured probability.
    fn inject_damage(&mut self, run: &mut Run, one: &mut PooledShard, sealed: &Seal) -> Damage {
        let Seal { slot, valid, .. } = *sealed;
        if self.is_spared || run.healed || valid == 0 || !self.dice.chance(self.plan.rate) {
            return Damage::None;
        }
        let dice = &mut self.dice;
        let nth = dice.below(u64::from(valid.count_ones())) as usize;
        let sector =
            (0..8).filter(|at| valid & 1 << at != 0).nth(nth).expect("the mask has that many bits");
        let heavy = dice.chance(self.plan.heavy);
        let bytes =
            if heavy { dice.range(LIGHT_BYTES_MAX + 1, 8) } else { dice.range(1, LIGHT_BYTES_MAX) };
        let mut change = [0u8; 8];
        while change.iter().filter(|&&byte| byte != 0).count() < bytes as usize {
            change[dice.below(8) as usize] = dice.range(1, 255) as u8;
        }
        let at = sector as u32 * SECTOR_BYTES as u32;
        one.set_stamp(slot, at, one.stamp(slot, at) ^ u64::from_le_bytes(change));
        run.report.damaged_lines += 1;
        if heavy { Damage::Heavy } else { Damage::Light }
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
        let before = one.line(sealed.slot).to_vec();
        let damage = self.inject_damage(run, one, sealed);
        let verdict = self.seals[shard].verify(self.code, run, one, sealed, damage);
        if matches!(verdict, Verdict::Lost { .. }) {
            // Answers that still use the old slot have been checked already.
            one.set_line(sealed.slot, &before);
        }
        if verdict != Verdict::Intact {
            one.shard.damaged_before(sealed, kept, verdict);
            record_loss(run, expected, one, sealed, verdict);
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
            let before = one.line(truth.slot).to_vec();
            let damage = self.inject_damage(run, one, &truth);
            let seals = &io.action.seals;
            let Some(seal) = seals.iter().find(|seal| seal.slot == truth.slot) else { continue };
            let verdict = self.seals[io.shard].verify(self.code, run, one, seal, damage);
            if verdict != Verdict::Intact {
                one.shard.damaged(seal, verdict);
                record_loss(run, expected, one, seal, verdict);
            }
            if matches!(verdict, Verdict::Lost { .. }) {
                good = false;
                one.set_line(truth.slot, &before);
            }
        }
        good
    }

    /// Verifies all seals while nothing has been damaged.
    pub(crate) fn check_seals(&self, run: &mut Run, shards: &mut [PooledShard]) {
        for (seals, one) in self.seals.iter().zip(shards) {
            for slot in 0..run.plan.lines_per_shard as Slot {
                if let Some(sealed) = one.shard.seal_of(slot) {
                    let sealed = Seal { parity: None, ..sealed };
                    seals.verify(self.code, run, one, &sealed, Damage::None);
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
        let verifies = |step: &MemoryStep| match step {
            MemoryStep::Verify { seal: verified, .. } => verified.slot == seal.slot,
            _ => false,
        };
        // Another line may have taken the slot.
        let here = one.shard.slots().find_valid(seal.key, 0);
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
            let message = "a sealed line is changed in part without verification";
            run.violate(Some(place_of(seal)), message.into());
        }
    }
}

/// Tells the clients' side which sectors of a line a shard has given up.
fn record_loss(
    run: &mut Run,
    expected: &mut Expected,
    one: &PooledShard,
    sealed: &Seal,
    verdict: Verdict,
) {
    if let Verdict::Lost { sectors } = verdict {
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

fn place_of(sealed: &Seal) -> run::Place {
    (sealed.key.volume().0, sealed.key.offset() / SECTOR_BYTES)
}

fn seed_of(sealed: &Seal) -> u64 {
    let (volume, sector) = place_of(sealed);
    seed(u64::from(volume), sector)
}
