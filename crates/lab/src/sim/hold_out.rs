//! Changes of the hold-out.
//!
//! A third of the machines serve some regions as if there were no cache, and others from time to
//! time. The hold-out does not outlive the process, as in the runtime.

use super::plan::Plan;
use super::run::Run;
use super::world::World;
use crate::harness::WHOLE;
use crate::harness::dice::{Dice, Ppm};
use crate::harness::shard::PooledShard;
use forebay_types::HoldOut;

/// The changes of the hold-out.
pub(crate) struct HoldOuts {
    /// A separate generator, so that hold-outs do not change the machine that a seed draws.
    dice: Dice,
    /// The probability per request of a change.
    rate: Ppm,
}

impl HoldOuts {
    pub(crate) fn new(seed: u64) -> Self {
        let mut dice = Dice::new(seed.rotate_left(16) ^ 0x401d);
        let rate = dice.pick(&[0, 0, 0, 0, 3_000, 30_000]);
        Self { dice, rate }
    }

    /// Holds out other regions of some volume occasionally.
    fn change(&mut self, run: &mut Run, shards: &mut [PooledShard]) {
        if !self.dice.chance(self.rate) {
            return;
        }
        let volume = self.dice.pick(&Plan::volume_ids(&run.plan));
        // Most volumes have few regions, so a realistic share would often hold out none.
        let ppm = self.dice.pick(&[0, 10_000, 300_000, 500_000, 1_000_000]);
        let hold_out = HoldOut::new(ppm, self.dice.below(1 << 32) as u32);
        for one in shards.iter_mut().filter(|one| one.shard.has_volume(volume)) {
            one.shard.volume_mut(volume).set_hold_out(hold_out);
        }
        run.report.hold_out_changes += 1;
        run.log_event(volume.0, WHOLE, || format!("{ppm} ppm of the regions are held out"));
    }
}

impl World {
    /// Changes the hold-out of a volume occasionally, like an analysis.
    pub(crate) fn change_hold_out_sometimes(&mut self) {
        self.hold_outs.change(&mut self.run, &mut self.shards);
    }
}
