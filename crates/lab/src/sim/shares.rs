//! Changes of the share of the pool for writes.
//!
//! Some machines change the share now and then, to any value, also while more lines are dirty than
//! it allows. The share outlives the process. No call may let a shard have more dirty lines than
//! its limit, unless more were dirty before it. Older versions of lines in ordered volumes do not
//! count here: a write to the disk may have to keep one.

use super::run::Run;
use super::world::World;
use crate::harness::WHOLE;
use crate::harness::dice::{Dice, Ppm};
use crate::harness::shard::PooledShard;
use forebay_types::limits::WRITE_PERCENT_MAX;
use forebay_types::{VolumeId, WriteShare};

/// The share for writes, and its changes.
pub(crate) struct Shares {
    /// A separate generator, so that shares do not change the machine that a seed draws.
    dice: Dice,
    /// The probability per request of a change.
    rate: Ppm,
    share: Option<WriteShare>,
}

impl Shares {
    pub(crate) fn new(seed: u64) -> Self {
        let mut dice = Dice::new(seed.rotate_left(32) ^ 0x5a4e);
        let rate = dice.pick(&[0, 0, 3_000, 30_000]);
        Self { dice, rate, share: None }
    }

    /// Gives the shards of a new process their share.
    pub(crate) fn start_shards(&self, shards: &mut [PooledShard]) {
        shards.iter_mut().for_each(|one| one.shard.quota().set_share(self.share));
    }

    /// Changes the share occasionally.
    fn change(&mut self, run: &mut Run, shards: &mut [PooledShard]) {
        if !self.dice.chance(self.rate) {
            return;
        }
        let percent = match self.dice.below(4) {
            0 => None,
            1 => Some(0),
            _ => Some(self.dice.below(u64::from(WRITE_PERCENT_MAX) + 1) as u8),
        };
        self.share = percent.and_then(WriteShare::of_percent);
        let exceeded = |one: &mut PooledShard| {
            let quota = one.shard.quota();
            quota.set_share(self.share);
            u64::from(quota.dirty_lines() > quota.config().dirty_lines_max)
        };
        run.report.lowered_shares += shards.iter_mut().map(exceeded).sum::<u64>();
        run.report.share_changes += 1;
        run.log_event(0, WHOLE, || format!("the share for writes becomes {percent:?} percent"));
    }
}

impl World {
    /// Changes the share for writes occasionally, like an operator.
    pub(crate) fn change_share_sometimes(&mut self) {
        self.shares.change(&mut self.run, &mut self.shards);
    }
}

/// The dirty lines of a shard, without those that are dirty beside the others because of their
/// volumes' guaranteed shares; and the number of the latter.
pub(crate) fn dirty_lines(run: &Run, one: &mut PooledShard) -> (usize, usize) {
    let (mut dirty, mut guaranteed) = (0, 0);
    for volume in (0..run.plan.volumes.len()).map(|at| VolumeId(at as u16)) {
        if one.shard.has_volume(volume) {
            let (own, _) = one.shard.quota().limits_of(volume);
            dirty += one.shard.volume(volume).dirty_lines().saturating_sub(own);
            guaranteed += own;
        }
    }
    (dirty, guaranteed)
}

/// Checks that a call has made no lines dirty beyond the limit. `before` were dirty before it.
pub(crate) fn check_limit(run: &mut Run, one: &mut PooledShard, before: usize) {
    let (dirty, guaranteed) = dirty_lines(run, one);
    let max = one.shard.quota().config().dirty_lines_max - guaranteed;
    if dirty > before.max(max) {
        let message = format!("{dirty} lines are dirty after {before}, and the limit is {max}");
        run.violate(None, message);
    }
}
