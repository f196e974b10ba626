//! The guaranteed and the largest shares of volumes, and their changes.
//!
//! A third of the machines give each volume shares at random, and change some now and then. Like
//! any setting, they outlive the process. The rules, for each shard:
//!
//! - A volume has at most its largest share of the lines. If it had more when that became lower,
//!   also because the shard shrank, the number only falls until it has not. In the end it has not.
//! - It has at most that share of dirty lines, unless more were dirty before.
//! - No call takes lines from a volume that has its guaranteed lines or fewer while another volume
//!   gets some; nor does a resize.
//!
//! The checks know nothing of how the engine keeps the rules: they count resident lines.

use super::driver::Simulation;
use super::run::Run;
use super::world::World;
use crate::harness::WHOLE;
use crate::harness::dice::{Dice, Ppm};
use crate::harness::shard::PooledShard;
use forebay_engine::{Outbox, retained_lines_max, set_pool_share};
use forebay_types::{PoolShare, SHARE_MIN_SUM_MAX, VolumeId};
use forebay_volume::Host;

/// Ticks in which a volume must come down to its largest share at the end.
const TICKS_MAX: u32 = 1_000;

/// The shares, and their changes.
pub(crate) struct PoolShares {
    /// A separate generator, so that shares do not change the machine that a seed draws.
    dice: Dice,
    /// The probability per request of a change.
    rate: Ppm,
    shares: Vec<PoolShare>,
    /// For each shard and volume, the lines that the volume may have because it had so many.
    former: Vec<Vec<u64>>,
}

/// The lines of each volume in a shard, and how many of them are dirty.
pub(crate) struct HeldLines {
    lines: Vec<u64>,
    dirty: Vec<usize>,
}

impl PoolShares {
    pub(crate) fn new(volumes: usize, seed: u64) -> Self {
        let mut dice = Dice::new(seed.rotate_left(48) ^ 0x5a7e);
        let (has_shares, rate) = dice.pick(&[
            (false, 0),
            (false, 0),
            (false, 0),
            (false, 0),
            (true, 3_000),
            (true, 30_000),
        ]);
        let shares = vec![PoolShare::NONE; volumes];
        let mut new = Self { dice, rate, shares, former: Vec::new() };
        if has_shares {
            (0..volumes).for_each(|at| new.shares[at] = new.draw(at));
        }
        new
    }

    fn are_set(&self) -> bool {
        self.rate > 0
    }

    /// Draws the shares of a volume.
    fn draw(&mut self, at: usize) -> PoolShare {
        let others = self.shares.iter().enumerate().filter(|&(other, _)| other != at);
        let taken: u8 = others.map(|(_, share)| share.min_percent()).sum();
        let left = u64::from(SHARE_MIN_SUM_MAX - taken);
        let min = if self.dice.chance(400_000) { 0 } else { self.dice.below(left + 1) };
        let max = match self.dice.below(3) {
            0 => 100,
            _ => self.dice.range(min.max(1), 100),
        };
        PoolShare::of_percent(min as u8, max as u8).expect("the shares leave room")
    }

    /// Gives the shards of a new process the shares. They may have lines already.
    pub(crate) fn start_shards(&mut self, shards: &mut [PooledShard]) {
        for (at, &share) in self.shares.iter().enumerate() {
            let volume = VolumeId(at as u16);
            shards.iter_mut().for_each(|one| set_pool_share(&mut one.shard, volume, share));
        }
        self.former = shards.iter().map(|one| self.held(one).lines).collect();
    }

    /// Changes the shares of some volume occasionally, like an administrator.
    pub(crate) fn change(&mut self, run: &mut Run, shards: &mut [PooledShard]) {
        if !self.dice.chance(self.rate) {
            return;
        }
        let at = self.dice.below(self.shares.len() as u64) as usize;
        self.shares[at] = if self.dice.chance(200_000) { PoolShare::NONE } else { self.draw(at) };
        let (volume, share) = (VolumeId(at as u16), self.shares[at]);
        for (one, former) in shards.iter_mut().zip(&mut self.former) {
            set_pool_share(&mut one.shard, volume, share);
            former[at] = one.shard.slots().resident_lines(volume);
            let max = share.lines_max(lines_of(one));
            run.report.lowered_pool_shares +=
                u64::from(max.is_some_and(|max| former[at] > max as u64));
        }
        run.report.pool_share_changes += 1;
        run.log_event(volume.0, WHOLE, || format!("the shares of the pool become {share:?}"));
    }

    /// Whether a shard may retain lines of these volumes: no more than its size and the shares
    /// allow.
    pub(crate) fn admit_pins(
        &self,
        one: &PooledShard,
        retained: impl Iterator<Item = VolumeId>,
    ) -> bool {
        let lines = lines_of(one);
        let mut counts = vec![0; self.shares.len()];
        retained.for_each(|volume| counts[usize::from(volume.0)] += 1);
        let (mut beyond, mut common) = (0, lines);
        for (&count, share) in counts.iter().zip(&self.shares) {
            let max = share.lines_max(lines).map_or(usize::MAX, retained_lines_max);
            if count > max {
                return false;
            }
            beyond += count.saturating_sub(retained_lines_max(share.lines_min(lines)));
            common -= share.lines_min(lines);
        }
        beyond <= retained_lines_max(common)
    }

    /// The lines of each volume in a shard.
    pub(crate) fn held(&self, one: &PooledShard) -> HeldLines {
        let shard = &one.shard;
        let mut held = HeldLines { lines: Vec::new(), dirty: Vec::new() };
        for volume in (0..self.shares.len()).map(|at| VolumeId(at as u16)) {
            let is_served = shard.has_volume(volume);
            held.lines.push(shard.slots().resident_lines(volume));
            held.dirty.push(if is_served { shard.volume(volume).dirty_lines() } else { 0 });
        }
        held
    }

    /// Checks the rules after a call, before which the volumes had the lines `before`. In a step of
    /// a resize, no volume may lose guaranteed lines at all.
    pub(crate) fn check_call(
        &mut self,
        run: &mut Run,
        (shard, one): (usize, &mut PooledShard),
        before: &HeldLines,
        is_resize: bool,
    ) {
        if !self.are_set() {
            return;
        }
        self.check_largest(run, shard, one);
        let after = self.held(one);
        let lines = lines_of(one);
        for (at, share) in self.shares.iter().enumerate() {
            let (had, has) = (before.lines[at], after.lines[at]);
            let others = before.lines.iter().zip(&after.lines);
            let has_other_gained = others.into_iter().any(|(before, after)| after > before);
            let min = share.lines_min(lines) as u64;
            if has < had && has < min && (has_other_gained || is_resize) {
                let message = format!("volume {at} had {had} lines of {min} guaranteed, now {has}");
                run.violate(None, message);
            }
            let (had, dirty) = (before.dirty[at], after.dirty[at]);
            let (_, max) = one.shard.quota().limits_of(VolumeId(at as u16));
            if max.is_some_and(|max| dirty > max.max(had)) {
                let message = format!("volume {at} had {had} dirty lines of {max:?}, now {dirty}");
                run.violate(None, message);
            }
        }
    }

    /// Checks the rule for the largest shares.
    fn check_largest(&mut self, run: &mut Run, shard: usize, one: &PooledShard) {
        let lines = lines_of(one);
        for (share, (at, former)) in
            self.shares.iter().zip(self.former[shard].iter_mut().enumerate())
        {
            let has = one.shard.slots().resident_lines(VolumeId(at as u16));
            let max = share.lines_max(lines).map_or(u64::MAX, |max| max as u64);
            let most = max.max(*former);
            *former = has;
            if has > most {
                let message = format!("volume {at} has {has} lines in a shard, of {most}");
                return run.violate(None, message);
            }
        }
    }
}

/// The lines that a shard may hold, also after a shrink that has begun.
fn lines_of(one: &PooledShard) -> usize {
    let slabs = one.shard.slots().slabs();
    slabs.usable().min(slabs.target()) as usize
}

impl Simulation {
    /// With nothing in use any more, each volume must come down to its largest share.
    pub(crate) fn finish_pool_shares(&mut self) {
        for shard in 0..self.world.shards.len() {
            let mut out = Outbox::default();
            for _ in 0..TICKS_MAX {
                let now_ms = self.world.now_ms();
                self.world.call(shard, &[], &mut out, |shard, out| shard.tick(now_ms, out));
            }
        }
        let World { run, shards, pool_shares, .. } = &mut self.world;
        for one in shards.iter() {
            for (at, share) in pool_shares.shares.iter().enumerate() {
                let has = one.shard.slots().resident_lines(VolumeId(at as u16));
                let max = share.lines_max(lines_of(one));
                if max.is_some_and(|max| has > max as u64) {
                    let message = format!("volume {at} keeps {has} lines in a shard, of {max:?}");
                    return run.violate(None, message);
                }
            }
        }
    }
}
