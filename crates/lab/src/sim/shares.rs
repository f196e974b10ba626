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

/// The dirty lines of each volume in a shard.
pub(crate) fn dirty_lines(run: &Run, one: &PooledShard) -> Vec<usize> {
    let volumes = (0..run.plan.volumes.len()).map(|at| VolumeId(at as u16));
    let served = volumes.map(|volume| one.shard.has_volume(volume).then_some(volume));
    served.map(|volume| volume.map_or(0, |id| one.shard.volume(id).dirty_lines())).collect()
}

/// Checks that a call has made no lines dirty beyond the limit. `before` has the lines of each
/// volume that were dirty before it.
pub(crate) fn check_limit(run: &mut Run, one: &mut PooledShard, before: &[usize]) {
    let after = dirty_lines(run, one);
    let guaranteed = (0..after.len()).map(|at| {
        let volume = VolumeId(at as u16);
        if one.shard.has_volume(volume) { one.shard.quota().limits_of(volume).0 } else { 0 }
    });
    let guaranteed: Vec<usize> = guaranteed.collect();
    let max = one.shard.quota().config().dirty_lines_max;
    if let Some(message) = excess([before, &after], &guaranteed, max) {
        run.violate(None, message);
    }
}

/// What is wrong if so many lines of each volume were dirty before a call and are after it. The
/// lines that a volume may have dirty beside the others, because of its guaranteed share, do not
/// count. A resize changes that number: both counts are by the present one, or the dirty lines of a
/// shard that has become smaller would seem to be more.
fn excess([before, after]: [&[usize]; 2], guaranteed: &[usize], max: usize) -> Option<String> {
    let (before, after) = (beyond(before, guaranteed), beyond(after, guaranteed));
    let max = max - guaranteed.iter().sum::<usize>();
    (after > before.max(max))
        .then(|| format!("{after} lines are dirty after {before}, and the limit is {max}"))
}

fn beyond(lines: &[usize], guaranteed: &[usize]) -> usize {
    lines.iter().zip(guaranteed).map(|(lines, own)| lines.saturating_sub(*own)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As found by seed 1000370550: the shrink of a shard to 27 lines lowered the guaranteed dirty
    /// lines of the third volume from 6 to 5.
    #[test]
    fn a_shrink_that_lowers_guaranteed_shares_makes_no_line_dirty() {
        let (dirty, guaranteed, max) = ([8, 2, 7], [1, 1, 5], 16);
        assert_eq!(excess([&dirty, &dirty], &guaranteed, max), None);
        let found = excess([&dirty, &[8, 3, 7]], &guaranteed, max);
        assert_eq!(found.as_deref(), Some("11 lines are dirty after 10, and the limit is 9"));
    }

    #[test]
    fn lines_may_become_dirty_up_to_the_limit() {
        assert_eq!(excess([&[0, 0], &[7, 3]], &[0, 3], 10), None);
        assert!(excess([&[0, 0], &[8, 3]], &[0, 3], 10).is_some());
        assert!(excess([&[0, 0], &[7, 4]], &[0, 3], 10).is_some());
    }
}
