//! Resizes of the pool while it is in use.
//!
//! Some machines change the size of their shards now and then, to any size, others as the shipped
//! code decides (`sizing.rs`). They carry the change
//! out in steps between other events. The memory of an empty slab is given back at once or later,
//! and then has no content. A process that adopts the pool must find the same slabs given back, and
//! continues with the size that was set; a process with a new pool begins with it. In the end each
//! shard must reach that size, then the smallest and the largest one.

use super::driver::Simulation;
use super::pins::check_kept;
use super::run::Run;
use super::world::World;
use crate::harness::dice::{Dice, Ppm};
use crate::harness::shard::PooledShard;
use crate::harness::{Sabotage, WHOLE};
use forebay_engine::{LineMeta, Outbox, ResizeStep, Slab};
use forebay_volume::Host;

/// Steps that a resize may take at the end, when nothing is in use any more. The smallest slab has
/// one line, and a shard up to 512 lines.
const STEPS_MAX: u32 = 20_000;

/// The resizes of a machine.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ResizePlan {
    /// The probability per request of a change of the size.
    rate: Ppm,
    /// Steps per tick of each shard.
    steps: u32,
    /// The probability that an empty slab is given back only later.
    late: Ppm,
}

impl ResizePlan {
    /// No resizes.
    pub(crate) const NONE: Self = Self { rate: 0, steps: 0, late: 0 };

    /// The same steps, without changes at random.
    pub(crate) const fn without_changes(self) -> Self {
        Self { rate: 0, ..self }
    }

    /// Draws the resizes of a machine, and the size of its slabs.
    pub(crate) fn draw(dice: &mut Dice) -> (Self, usize) {
        let rate = dice.pick(&[0, 0, 5_000, 50_000]);
        let slab_lines = dice.pick(&[1, 2, 4, 8, 32]);
        let plan = Self { rate, steps: dice.pick(&[1, 4, 64]), late: dice.pick(&[0, 500_000]) };
        (plan, slab_lines)
    }
}

/// The size of the pool, and the slabs on their way out of it.
pub(crate) struct Resize {
    plan: ResizePlan,
    /// Resizes have a generator of their own, so that they do not change the machine that a seed
    /// draws.
    dice: Dice,
    /// The lines that each shard should hold. It outlives the process.
    lines: usize,
    /// Empty slabs whose memory has not been given back yet, with their shards.
    empty: Vec<(usize, Slab)>,
}

impl Resize {
    pub(crate) fn new(plan: ResizePlan, seed: u64) -> Self {
        let dice = Dice::new(seed.rotate_left(24) ^ 0x51ab);
        Self { plan, dice, lines: usize::MAX, empty: Vec::new() }
    }

    /// Gives the shards of a new process their size.
    pub(crate) fn start_shards(&mut self, shards: &mut [PooledShard]) {
        self.empty.clear();
        shards.iter_mut().for_each(|one| one.shard.resize(self.lines));
    }

    /// Changes the size occasionally.
    fn change(&mut self, run: &mut Run, shards: &mut [PooledShard]) {
        if !self.dice.chance(self.plan.rate) {
            return;
        }
        let lines = run.plan.lines_per_shard;
        let lines = match self.dice.below(4) {
            0 => usize::MAX,
            1 => 0,
            _ => self.dice.below(lines as u64 + 1) as usize,
        };
        self.set_lines(run, shards, lines);
    }

    /// Changes the size of each shard.
    pub(crate) fn set_lines(&mut self, run: &mut Run, shards: &mut [PooledShard], lines: usize) {
        self.lines = lines;
        shards.iter_mut().for_each(|one| one.shard.resize(lines));
        run.report.resizes += 1;
        let lines = lines.min(run.plan.lines_per_shard);
        run.log_event(0, WHOLE, || format!("each shard gets {lines} lines"));
    }

    /// Gives the memory of an empty slab back, now or later.
    fn take_empty(&mut self, run: &mut Run, at: usize, one: &mut PooledShard, slab: Slab) {
        run.report.given_back_slabs += 1;
        if run.strikes_always(Sabotage::GiveBackLate) {
            // The shard may use the slab again from now on.
            one.shard.gave_back(slab);
            self.empty.push((at, slab));
        } else if self.dice.chance(self.plan.late) {
            self.empty.push((at, slab));
        } else {
            give_back(one, slab);
        }
    }

    /// Gives the memory of all empty slabs back.
    fn give_all_back(&mut self, run: &Run, shards: &mut [PooledShard]) {
        for (at, slab) in self.empty.drain(..) {
            let one = &mut shards[at];
            if run.strikes_always(Sabotage::GiveBackLate) {
                one.forget(slab);
            } else {
                give_back(one, slab);
            }
        }
    }
}

fn give_back(one: &mut PooledShard, slab: Slab) {
    one.forget(slab);
    one.shard.gave_back(slab);
}

impl World {
    /// Changes the size occasionally, like a monitor of the machine's memory.
    pub(crate) fn resize_sometimes(&mut self) {
        self.resize.change(&mut self.run, &mut self.shards);
        // Some steps fall between two requests.
        let is_resized = self.resize.plan.rate > 0 || self.sizing.is_some();
        if is_resized && self.resize.dice.chance(300_000) {
            let shard = self.resize.dice.below(self.shards.len() as u64) as usize;
            self.step_resize(shard);
        }
    }

    /// Carries on the resizes of all shards.
    pub(crate) fn step_resizes(&mut self) {
        if self.resize.dice.chance(500_000) {
            self.resize.give_all_back(&self.run, &mut self.shards);
        }
        for shard in 0..self.shards.len() {
            for _ in 0..self.resize.plan.steps {
                if self.kill.is_dead() {
                    return;
                }
                let is_resizing = self.shards[shard].shard.slots().slabs().is_resizing();
                if !is_resizing || self.step_resize(shard) == ResizeStep::Waiting {
                    break;
                }
            }
        }
    }

    /// A step of a resize with nothing in use, after which all memory is given back.
    pub(super) fn step_to_target(&mut self, shard: usize) -> ResizeStep {
        self.resize.give_all_back(&self.run, &mut self.shards);
        let step = self.step_resize(shard);
        self.resize.give_all_back(&self.run, &mut self.shards);
        step
    }

    fn step_resize(&mut self, shard: usize) -> ResizeStep {
        let mut out = Outbox::default();
        let pinned = self.pins.kept_lines(&self.pool_shares, &self.shards[shard]);
        let damaged = self.damaged_lines(shard);
        let held = self.pool_shares.held(&self.shards[shard]);
        let step = self.call(shard, &[], &mut out, |shard, out| shard.step_resize(out));
        // A line that moves is verified, and dropped if it is damaged.
        if !self.kill.is_dead() && self.damaged_lines(shard) == damaged {
            check_kept(&mut self.run, &self.shards[shard], &pinned);
            let one = &mut self.shards[shard];
            self.pool_shares.check_call(&mut self.run, (shard, one), &held, true);
        }
        if !out.is_empty() {
            self.run.violate(None, "a resize requests more than memory steps".into());
        }
        if let ResizeStep::Empty(slab) = step {
            self.resize.take_empty(&mut self.run, shard, &mut self.shards[shard], slab);
        }
        step
    }

    /// Damaged lines that a shard has found.
    fn damaged_lines(&self, shard: usize) -> u64 {
        let shard = &self.shards[shard].shard;
        let volumes = self.run.plan.volume_ids().into_iter();
        volumes.map(|volume| shard.volume(volume).counters().damaged_lines).sum()
    }
}

/// Slots of a table whose memory is given back.
pub(crate) fn given_back_in(table: &[LineMeta]) -> u64 {
    table.iter().filter(|line| line.is_away()).count() as u64
}

/// Checks that an adopted shard has found the slabs that its predecessor had given back, and gives
/// their memory back again.
pub(crate) fn check_given_back(run: &mut Run, one: &mut PooledShard, before: u64) {
    let found = one.shard.usage().given_back_lines;
    if found != before {
        let message = format!("{before} lines were given back, and {found} are after a kill");
        run.violate(None, message);
    }
    run.report.kept_smaller += u64::from(found > 0);
    let slabs: Vec<Slab> = one.shard.slots().slabs().given_back().collect();
    slabs.into_iter().for_each(|slab| one.forget(slab));
}

impl Simulation {
    /// With nothing in use any more, each shard must reach its size, and then the smallest and the
    /// largest one.
    pub(crate) fn finish_resizes(&mut self) {
        for lines in [self.world.resize.lines, 0, usize::MAX] {
            for shard in 0..self.world.shards.len() {
                self.world.shards[shard].shard.resize(lines);
                self.finish_resize(shard);
            }
        }
        self.world.self_check();
    }

    fn finish_resize(&mut self, shard: usize) {
        let world = &mut self.world;
        for _ in 0..STEPS_MAX {
            world.resize.give_all_back(&world.run, &mut world.shards);
            if !world.run.is_ok() {
                return;
            }
            if world.step_resize(shard) == ResizeStep::Done {
                let slabs = world.shards[shard].shard.slots().slabs();
                if slabs.usable() != slabs.target() {
                    let message = format!("shard {shard} has another size than it reports");
                    world.run.violate(None, message);
                }
                return;
            }
        }
        world.run.violate(None, format!("the resize of shard {shard} does not end"));
    }
}
