//! The pinned ranges of the volumes, which change at random, and reads of them. A step of a resize
//! must keep the lines of pinned ranges, unless the shard becomes too small for them.

use super::plan::Plan;
use super::pool_shares::PoolShares;
use super::run::Run;
use crate::harness::dice::{Dice, Ppm};
use crate::harness::shard::PooledShard;
use forebay_engine::{LineKey, PreloadKind, Slot};
use forebay_types::{ByteRange, GRANULE_BYTES, LINE_BYTES, PinnedRanges, VolumeId};
use forebay_volume::{Request, RequestKind, pinned_lines_by_shard};
use std::sync::Arc;

/// The pinned ranges of all volumes. They are settings, so they outlive a process.
pub(crate) struct Pins {
    /// A separate generator, so that pins do not change the machine that a seed draws.
    dice: Dice,
    /// The probability per request of a change, and of a read of a granule into the pool. Zero in
    /// half of the machines.
    change: Ppm,
    volumes: Vec<PinnedRanges>,
}

impl Pins {
    pub(crate) fn new(plan: &Plan, seed: u64) -> Self {
        let mut dice = Dice::new(seed.rotate_left(24) ^ 0x9147);
        let change = dice.pick(&[0, 0, 3_000, 30_000]);
        Self { dice, change, volumes: vec![PinnedRanges::default(); plan.volumes.len()] }
    }

    /// The pinned ranges of each volume.
    pub(crate) fn of_volumes(&self) -> &[PinnedRanges] {
        &self.volumes
    }

    /// Pins or unpins a range occasionally, like an administrator.
    pub(crate) fn change(&mut self, run: &mut Run, shards: &mut [PooledShard]) {
        if !self.dice.chance(self.change) {
            return;
        }
        let volume = self.draw_volume(&run.plan);
        let lines = run.plan.volume(volume).bytes().div_ceil(LINE_BYTES);
        let first = self.dice.below(lines);
        let range = ByteRange::new(first * LINE_BYTES, self.dice.skewed(1, 256) * LINE_BYTES);
        let pins = &mut self.volumes[usize::from(volume.0)];
        match self.dice.below(8) {
            0 => *pins = PinnedRanges::all(),
            1 => *pins = PinnedRanges::default(),
            2..=3 => pins.remove(range),
            _ => pins.add(range),
        }
        pins.clip(run.plan.volume(volume).bytes());
        run.report.pin_changes += 1;
        run.log_event(volume.0, range, || "pins change".into());
        // Often not all lines follow at once, like in a server that unlocks the shard between two
        // steps. The rest follows when it is pinned next, or never.
        let (first, count) = match self.dice.chance(500_000) {
            true => (0, Slot::MAX),
            false => (self.dice.below(64) as Slot, self.dice.below(128) as Slot),
        };
        self.apply(&run.plan, shards, volume, first, count);
    }

    /// Pins the ranges of all volumes in the shards of a new process.
    pub(crate) fn start_process(&self, plan: &Plan, shards: &mut [PooledShard]) {
        let volumes = plan.volume_ids();
        volumes.into_iter().for_each(|volume| self.apply(plan, shards, volume, 0, Slot::MAX));
    }

    fn apply(
        &self,
        plan: &Plan,
        shards: &mut [PooledShard],
        volume: VolumeId,
        first: Slot,
        count: Slot,
    ) {
        let ranges = Arc::new(self.volumes[usize::from(volume.0)].clone());
        let stripes = plan.volume(volume).stripes;
        let lines = pinned_lines_by_shard((volume, stripes), &ranges, shards.len());
        for (one, lines) in shards.iter_mut().zip(lines) {
            one.shard.pinned().set(volume, &ranges, lines);
            one.shard.pinned().follow(volume, first, count);
        }
    }

    /// Draws a read of a granule into the pool, because it is pinned or for a warm-up.
    pub(crate) fn draw_preload(&mut self, plan: &Plan) -> Option<Request> {
        if !self.dice.chance(self.change) {
            return None;
        }
        let volume = self.draw_volume(plan);
        let bytes = plan.volume(volume).bytes();
        let granule = self.dice.below(bytes.div_ceil(GRANULE_BYTES));
        let offset = granule * GRANULE_BYTES;
        let range = ByteRange::new(offset, GRANULE_BYTES.min(bytes - offset));
        let pinned = PreloadKind::Pinned;
        let kind = self.dice.pick(&[
            pinned,
            pinned,
            PreloadKind::Warm,
            PreloadKind::Hot,
            PreloadKind::Forecast,
        ]);
        let lines = match self.dice.chance(500_000) {
            true => u32::MAX,
            false => self.dice.below(1 << 32) as u32,
        };
        Some(Request { volume, kind: RequestKind::Preload { lines, kind }, range })
    }

    /// The lines of pinned ranges that the next step of a resize must keep, with their slots. None
    /// if it may give some up, because the shard becomes too small for all that it retains.
    pub(crate) fn kept_lines(
        &self,
        shares: &PoolShares,
        one: &PooledShard,
    ) -> Vec<(LineKey, Slot)> {
        let table = one.shard.slots().table();
        let slots = table.iter().enumerate();
        let retained = slots.filter_map(|(slot, line)| Some((line.retained_key()?, slot as Slot)));
        let mut lines: Vec<_> = retained.collect();
        if !shares.admit_pins(one, lines.iter().map(|(key, _)| key.volume())) {
            return Vec::new();
        }
        // Some lines were unpinned, and are retained until the shard follows.
        let volume = |key: LineKey| &self.volumes[usize::from(key.volume().0)];
        lines.retain(|(key, _)| volume(*key).contains(key.line()));
        lines
    }

    fn draw_volume(&mut self, plan: &Plan) -> VolumeId {
        VolumeId(self.dice.below(plan.volumes.len() as u64) as u16)
    }
}

/// Checks that a step of a resize has kept these lines.
pub(crate) fn check_kept(run: &mut Run, one: &PooledShard, before: &[(LineKey, Slot)]) {
    for &(key, slot) in before {
        match one.shard.slots().find_valid(key, 0) {
            None => run.violate(None, format!("a resize drops {key:?}, which is pinned")),
            Some(now) => run.report.moved_pins += u64::from(now != slot),
        }
    }
}
