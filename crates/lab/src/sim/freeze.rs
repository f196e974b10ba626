//! Freezes and thaws of volumes, and the rule that a frozen volume brings nothing into the pool.
//!
//! A third of the machines freeze volumes from time to time, for tens to hundreds of requests. Like
//! any setting, it outlives the process.
//!
//! The rule: each clean line of a frozen volume in the pool was there when the volume was frozen or
//! the process started, and has been there since; or its range has been pinned in the meantime. So
//! apart from pins and dirty data, the lines of a frozen volume only become fewer. The check knows
//! nothing of the mark by which the engine tells dirty data from the lines that stay.

use super::pins::Pins;
use super::plan::Plan;
use super::run::Run;
use crate::harness::WHOLE;
use crate::harness::dice::{Dice, Ppm};
use crate::harness::shard::PooledShard;
use forebay_engine::LineKey;
use forebay_types::{LINE_BYTES, PinnedRanges, VolumeId};
use std::collections::HashSet;

/// The frozen volumes.
pub(crate) struct Freezes {
    /// A separate generator, so that freezes do not change the machine that a seed draws.
    dice: Dice,
    /// The probability per request of a change.
    rate: Ppm,
    /// `None` for a volume that is not frozen.
    volumes: Vec<Option<Allowed>>,
}

/// The lines of a frozen volume that may be clean in the pool.
#[derive(Default)]
struct Allowed {
    lines: HashSet<u64>,
    /// Ranges that are or were pinned while it was frozen.
    pinned: PinnedRanges,
}

impl Freezes {
    pub(crate) fn new(plan: &Plan, seed: u64) -> Self {
        let mut dice = Dice::new(seed.rotate_left(32) ^ 0xf4ee);
        let rate = dice.pick(&[0, 0, 0, 0, 5_000, 40_000]);
        Self { dice, rate, volumes: plan.volumes.iter().map(|_| None).collect() }
    }

    /// Freezes or thaws some volume occasionally, like an administrator.
    pub(crate) fn change(&mut self, run: &mut Run, shards: &mut [PooledShard], pins: &Pins) {
        if !self.dice.chance(self.rate) {
            return;
        }
        let volume = self.dice.pick(&Plan::volume_ids(&run.plan));
        let at = usize::from(volume.0);
        let is_frozen = self.volumes[at].is_none();
        self.volumes[at] = is_frozen.then(|| allowed(&run.plan, shards, volume, pins));
        set_frozen(shards, volume, is_frozen);
        run.report.freeze_changes += 1;
        run.log_event(volume.0, WHOLE, || format!("frozen: {is_frozen}"));
    }

    /// Freezes the same volumes in the shards of a new process, which may have lines already.
    pub(crate) fn start_process(&mut self, plan: &Plan, shards: &mut [PooledShard], pins: &Pins) {
        for (volume, now) in plan.volume_ids().into_iter().zip(&mut self.volumes) {
            if now.is_some() {
                *now = Some(allowed(plan, shards, volume, pins));
                set_frozen(shards, volume, true);
            }
        }
    }

    /// Records the pinned ranges after a change.
    pub(crate) fn record_pins(&mut self, pins: &Pins) {
        for (ranges, allowed) in pins.of_volumes().iter().zip(&mut self.volumes) {
            if let Some(allowed) = allowed {
                allowed.pinned = allowed.pinned.with(ranges);
            }
        }
    }

    /// Checks the rule for all frozen volumes.
    pub(crate) fn check(&mut self, run: &mut Run, shards: &[PooledShard]) {
        for (volume, allowed) in run.plan.volume_ids().into_iter().zip(&mut self.volumes) {
            let Some(Allowed { lines, pinned }) = allowed else { continue };
            // A line that has left may not come back.
            lines.retain(|&line| is_resident(shards, LineKey::new(volume, line)));
            let clean = shards.iter().flat_map(|one| one.shard.slots().clean_lines(volume, MAX));
            let added = clean
                .map(|(key, ..)| key.line())
                .find(|&line| !lines.contains(&line) && !pinned.contains(line));
            if let Some(line) = added {
                let place = Some((volume.0, line * SECTORS_PER_LINE));
                run.violate(place, format!("frozen volume {} has a new line {line}", volume.0));
                return;
            }
        }
    }
}

/// All clean lines.
const MAX: usize = usize::MAX;
const SECTORS_PER_LINE: u64 = forebay_types::SECTORS_PER_LINE as u64;

fn is_resident(shards: &[PooledShard], key: LineKey) -> bool {
    shards.iter().any(|one| one.shard.slots().find_valid(key, 0).is_some())
}

fn set_frozen(shards: &mut [PooledShard], volume: VolumeId, is_frozen: bool) {
    for one in shards.iter_mut().filter(|one| one.shard.has_volume(volume)) {
        one.shard.volume_mut(volume).set_frozen(is_frozen);
    }
}

/// The lines that a volume has in the pool, and its pinned ranges.
fn allowed(plan: &Plan, shards: &[PooledShard], volume: VolumeId, pins: &Pins) -> Allowed {
    let lines = 0..plan.volume(volume).bytes().div_ceil(LINE_BYTES);
    let is_resident = |&line: &u64| is_resident(shards, LineKey::new(volume, line));
    let pinned = pins.of_volumes()[usize::from(volume.0)].clone();
    Allowed { lines: lines.filter(is_resident).collect(), pinned }
}
