//! A pool that sizes itself while the machine's memory changes.
//!
//! In some machines the size of the pool is decided by the shipped code, [`SizeControl`], on the
//! memory of a simulated machine: other programs take and free it, and a control group limits it
//! (`sizing/machine.rs`). The figures are sometimes missing or absurd, samples are late or early,
//! and the operator changes the settings. Each decision is carried out by resizes of the shards
//! (`resize.rs`) while clients run, devices fail, and processes die. `sizing/checks.rs` says what a
//! decision may be.
//!
//! A line of the small pool stands for some megabytes of the machine. The clock of the machine is
//! not that of the run: a sample comes with a request or a tick, so that a short run has hours of
//! the machine, and gives memory back at any speed.

mod checks;
mod machine;

use super::driver::Simulation;
use super::plan::Plan;
use super::resize::Resize;
use super::run::Run;
use super::world::World;
use crate::harness::dice::{Dice, Ppm};
use crate::harness::shard::PooledShard;
use crate::harness::{Sabotage, WHOLE};
use checks::{Decided, RECOVERY_MS_MAX, Swings};
use forebay_engine::ResizeStep;
use forebay_policy::{
    MachineFigures, MemoryBounds, MemoryUse, SizeControl, SizeDecision, SizeReason, SizeSettings,
};
use machine::{Pressure, SharedMachine};

/// The memory of the machine that a line stands for.
const LINE_BYTES_OPTIONS: [u64; 3] = [4 << 20, 16 << 20, 64 << 20];
/// How the clock runs while the planted bug `grow-early` is in effect.
const EARLY: u64 = 64;

/// A pool that sizes itself.
pub(crate) struct Sizing {
    /// A separate generator, so that seeds keep their machines.
    dice: Dice,
    machine: SharedMachine,
    settings: SizeSettings,
    reserve_bytes: u64,
    control: SizeControl,
    swings: Swings,
    /// The memory that a line stands for, and that of the process beside its lines.
    line_bytes: u64,
    around_bytes: u64,
    lines_per_shard: u64,
    slab_lines: u64,
    /// The probability of a sample with a request or a tick, and of a change of the settings.
    rate: Ppm,
    change: Ppm,
    /// The probability of a sample with wrong figures, and of one without.
    wrong: Ppm,
    missing: Ppm,
    /// When the next sample is due, in milliseconds from the last one.
    next_ms: u64,
    /// When the process started, on the machine's clock. Its own clock begins at zero.
    started_ms: u64,
    /// The stalls and events since the last sample.
    pressure: Pressure,
}

/// Whether the pool of a seed sizes itself.
pub(crate) fn sizes_itself(seed: u64) -> bool {
    dice_of(seed).below(3) == 0
}

fn dice_of(seed: u64) -> Dice {
    Dice::new(seed.rotate_left(8) ^ 0x512e)
}

impl Sizing {
    /// Draws the machine of a seed; `None` if its pool does not size itself.
    pub(crate) fn draw(plan: &Plan, seed: u64) -> Option<Self> {
        let mut dice = dice_of(seed);
        if dice.below(3) > 0 {
            return None;
        }
        let line_bytes = dice.pick(&LINE_BYTES_OPTIONS);
        let data_bytes = (plan.lines_per_shard * plan.shards) as u64 * line_bytes;
        let around_bytes = data_bytes / 64 * dice.pick(&[0, 4, 32]);
        let most_bytes = data_bytes + around_bytes;
        let share = dice.pick(&[0, 4, 4, 16, 64]);
        let reserve_bytes = most_bytes / 32 * share + dice.below(1 << 20);
        let reserve_bytes = if share == 0 { 0 } else { reserve_bytes };
        let machine = SharedMachine::draw(&mut dice, most_bytes, reserve_bytes);
        let mut sizing = Self {
            machine,
            settings: SizeSettings::default(),
            reserve_bytes,
            control: SizeControl::new(most_bytes),
            swings: Swings::default(),
            line_bytes,
            around_bytes,
            lines_per_shard: plan.lines_per_shard as u64,
            slab_lines: plan.config.slab_lines as u64,
            rate: dice.pick(&[1_000_000, 300_000, 30_000]),
            change: dice.pick(&[0, 0, 2_000, 20_000]),
            wrong: dice.pick(&[0, 0, 20_000]),
            missing: dice.pick(&[0, 0, 100_000]),
            next_ms: 1_000,
            started_ms: 0,
            pressure: Pressure::default(),
            dice,
        };
        sizing.settings = sizing.draw_settings(plan.shards);
        Some(sizing)
    }

    /// Begins a new process, whose pool has the size that was set.
    pub(crate) fn start_process(&mut self, shards: &[PooledShard]) {
        self.control = SizeControl::new(self.bounds(shards).now_bytes);
        (self.swings, self.next_ms) = (Swings::default(), 1_000);
        self.pressure = Pressure::default();
        self.started_ms = self.machine.now_ms;
        self.machine.sampled_ms = self.machine.now_ms;
    }

    fn step_bytes(&self, shards: usize) -> u64 {
        shards as u64 * self.slab_lines * self.line_bytes
    }

    fn data_bytes(&self, shards: usize) -> u64 {
        shards as u64 * self.lines_per_shard * self.line_bytes
    }

    /// The sizes that the pool can have.
    fn bounds(&self, shards: &[PooledShard]) -> MemoryBounds {
        let count = shards.len();
        let data_bytes = self.data_bytes(count);
        let target = |one: &PooledShard| u64::from(one.shard.slots().slabs().target());
        let lines: u64 = shards.iter().map(target).sum();
        let missing_bytes = data_bytes - lines * self.line_bytes;
        let most_bytes = data_bytes + self.around_bytes;
        MemoryBounds::new(most_bytes, data_bytes, missing_bytes, self.step_bytes(count))
    }

    /// The bounds, and what the pool has taken within them.
    fn memory_use(&self, shards: &[PooledShard]) -> MemoryUse {
        let lines: u64 = shards.iter().map(PooledShard::taken_lines).sum();
        let data_bytes = self.data_bytes(shards.len());
        self.bounds(shards).memory_use(data_bytes, lines * self.line_bytes)
    }

    /// The memory that the process has taken.
    const fn taken_bytes(found: &MemoryUse) -> u64 {
        found.bounds.now_bytes + found.pending_bytes - found.unused_bytes
    }

    /// Settings that do not contradict one another.
    fn draw_settings(&mut self, shards: usize) -> SizeSettings {
        let most_bytes = self.data_bytes(shards) + self.around_bytes;
        let mut size = |chance| {
            let part = self.dice.below(65);
            self.dice.chance(chance).then(|| most_bytes / 64 * part)
        };
        let settings =
            SizeSettings { memory: size(500_000), min: size(300_000), max: size(200_000) };
        let least_bytes = settings.min.unwrap_or(0);
        let is_right = |bytes: Option<u64>| bytes.is_none_or(|bytes| bytes >= least_bytes);
        match is_right(settings.memory) && is_right(settings.max) {
            true => settings,
            false => SizeSettings { min: None, ..settings },
        }
    }

    /// Changes the settings occasionally, like an operator.
    fn change_settings(&mut self, run: &mut Run, resize: &mut Resize, shards: &mut [PooledShard]) {
        if !self.dice.chance(self.change) {
            return;
        }
        let settings = self.draw_settings(shards.len());
        let is_size_set = settings.memory != self.settings.memory || self.dice.chance(300_000);
        let found = self.memory_use(shards);
        let bounds = found.bounds;
        let (bytes, control) = self.control.changed(&settings, &bounds, is_size_set);
        // The operator is refused a size that the machine has no memory for.
        let room_bytes = self.machine.room_bytes().saturating_sub(self.reserve_bytes);
        if bytes > bounds.now_bytes && bytes > room_bytes {
            return;
        }
        (self.settings, self.control) = (settings, control);
        run.report.size_settings += 1;
        run.log_event(0, WHOLE, || format!("settings of the size become {settings:?}"));
        self.set_size(run, resize, shards, bytes);
    }

    /// Carries a size out: whole slabs of each shard, rounded down.
    fn set_size(
        &self,
        run: &mut Run,
        resize: &mut Resize,
        shards: &mut [PooledShard],
        memory_bytes: u64,
    ) {
        let bounds = self.bounds(shards);
        let count = shards.len();
        let bytes = self.data_bytes(count) - (bounds.most_bytes - memory_bytes);
        let slabs = bytes / self.step_bytes(count);
        resize.set_lines(run, shards, (slabs * self.slab_lines) as usize);
    }

    /// Takes a sample, decides, and carries the decision out.
    fn sample(&mut self, run: &mut Run, resize: &mut Resize, shards: &mut [PooledShard]) {
        let found = self.memory_use(shards);
        let is_resizing = shards.iter().any(|one| one.shard.slots().slabs().is_resizing());
        if found.pending_bytes > 0 && !is_resizing {
            let message = format!("{} bytes are not given back", found.pending_bytes);
            return run.violate(None, message);
        }
        // The kernel reports waiting programs at once, and a busy machine runs threads late.
        let elapsed_ms = match self.dice.below(16) {
            0 => self.dice.below(self.next_ms) + 1,
            1 => self.next_ms * self.dice.range(1, 10),
            2 if self.wrong > 0 && self.dice.chance(10_000) => 3_600_000,
            _ => self.next_ms,
        };
        let pressure = self.machine.step(&mut self.dice, elapsed_ms, Self::taken_bytes(&found));
        self.pressure.add(pressure);
        if self.dice.chance(self.missing) && !run.healed {
            self.next_ms = 1_000;
            run.report.missing_figures += 1;
            return;
        }
        let pressure = std::mem::take(&mut self.pressure);
        let figures = MachineFigures {
            now_ms: self.machine.now_ms - self.started_ms,
            available_bytes: self.machine.available_bytes(Self::taken_bytes(&found)),
            excess_bytes: self.machine.excess_bytes(Self::taken_bytes(&found)),
            reserve_bytes: self.reserve_bytes,
            stalled_us: pressure.stalled_us,
            limit_events: pressure.limit_events,
        };
        let is_wrong = self.dice.chance(self.wrong) && !run.healed;
        let seen = if is_wrong { self.spoil(figures) } else { figures };
        run.report.wrong_figures += u64::from(is_wrong);
        if self.control.is_growth_due(&self.settings, seen.now_ms) {
            // Curves only influence the size that is wanted: any gain must work.
            let gain = self.dice.pick(&[None, Some(0.0), Some(0.5), Some(0.5)]);
            let (bounds, unused_bytes) = (&found.bounds, found.unused_bytes);
            self.control.decide_growth(&self.settings, bounds, seen.now_ms, unused_bytes, gain);
        }
        let is_pressed = pressure.limit_events > 0
            || pressure.stalled_us > 0 && pressure.stalled_us >= self.since_last_ms() * 100;
        self.decide(run, resize, shards, &found, &seen, (!is_wrong).then_some(is_pressed));
    }

    /// Decides on figures. `truth` says whether programs wait for memory; `None` if the figures are
    /// wrong.
    fn decide(
        &mut self,
        run: &mut Run,
        resize: &mut Resize,
        shards: &mut [PooledShard],
        found: &MemoryUse,
        seen: &MachineFigures,
        truth: Option<bool>,
    ) -> SizeDecision {
        let seen = sabotaged(run, *seen);
        let (sample, decision) = self.control.decide(&self.settings, found, &seen);
        self.next_ms = decision.next_ms;
        self.machine.sampled_ms = self.machine.now_ms;
        let is_shrink = decision.bytes < sample.size_bytes;
        let keeps = is_shrink && run.strikes_always(Sabotage::KeepSize);
        if decision.bytes != sample.size_bytes && !keeps {
            run.log_event(0, WHOLE, || format!("{seen:?} of {found:?}: {decision:?}"));
            self.set_size(run, resize, shards, decision.bytes);
        }
        let after_bytes = self.bounds(shards).now_bytes;
        let report = &mut run.report;
        report.size_samples += 1;
        report.size_shrinks += u64::from(decision.reason.is_short() && is_shrink);
        report.size_growths += u64::from(decision.reason == SizeReason::Growing);
        report.size_minimums += u64::from(decision.reason == SizeReason::Minimum);
        let regrowths = self.swings.regrowths();
        let decided = Decided {
            settings: &self.settings,
            bounds: found.bounds,
            sample: &sample,
            decision: &decision,
            after_bytes,
            reserve_bytes: self.reserve_bytes,
            room_bytes: truth.map(|_| self.machine.room_bytes()),
            is_pressed: truth == Some(true),
            now_ms: self.machine.now_ms,
        };
        if let Some(wrong) = decided.check(&mut self.swings) {
            let message = format!("{wrong}: {decision:?} on {sample:?} with {:?}", self.settings);
            run.violate(None, message);
        }
        run.report.size_regrowths += self.swings.regrowths() - regrowths;
        decision
    }

    const fn since_last_ms(&self) -> u64 {
        self.machine.now_ms - self.machine.sampled_ms
    }

    /// Figures as a broken kernel, or a program that overwrites its files, may report them.
    fn spoil(&mut self, figures: MachineFigures) -> MachineFigures {
        let dice = &mut self.dice;
        let absurd = [0, 1, u64::MAX, u64::MAX / 1_024 * 1_024, u64::MAX / 2];
        let mut spoiled = figures;
        for _ in 0..dice.range(1, 3) {
            let value = dice.pick(&absurd);
            match dice.below(5) {
                0 => spoiled.available_bytes = value,
                1 => spoiled.reserve_bytes = value,
                2 => spoiled.stalled_us = value,
                3 => spoiled.excess_bytes = value,
                _ => spoiled.limit_events = value,
            }
        }
        spoiled
    }
}

/// The figures as a planted bug passes them on.
fn sabotaged(run: &Run, mut figures: MachineFigures) -> MachineFigures {
    if run.strikes_always(Sabotage::IgnoreReserve) {
        figures.reserve_bytes = 0;
    }
    if run.strikes_always(Sabotage::IgnorePressure) {
        (figures.stalled_us, figures.limit_events) = (0, 0);
    }
    if run.strikes_always(Sabotage::GrowEarly) {
        figures.now_ms *= EARLY;
    }
    figures
}

impl World {
    /// Sizes the pool, with a request or a tick.
    pub(crate) fn size_sometimes(&mut self) {
        let Some(sizing) = &mut self.sizing else { return };
        if self.kill.is_dead() || !sizing.dice.chance(sizing.rate) {
            return;
        }
        sizing.change_settings(&mut self.run, &mut self.resize, &mut self.shards);
        sizing.sample(&mut self.run, &mut self.resize, &mut self.shards);
    }

    /// One sample of a machine that does not change by itself any more. Returns the decision and
    /// the machine's clock; `None` if the pool does not size itself.
    fn sample_at_rest(&mut self) -> Option<(SizeDecision, u64)> {
        let sizing = self.sizing.as_mut()?;
        let found = sizing.memory_use(&self.shards);
        let taken_bytes = Sizing::taken_bytes(&found);
        let pressure = sizing.machine.step(&mut sizing.dice, sizing.next_ms, taken_bytes);
        let figures = MachineFigures {
            now_ms: sizing.machine.now_ms - sizing.started_ms,
            available_bytes: sizing.machine.available_bytes(taken_bytes),
            excess_bytes: sizing.machine.excess_bytes(taken_bytes),
            reserve_bytes: sizing.reserve_bytes,
            stalled_us: pressure.stalled_us,
            limit_events: pressure.limit_events,
        };
        let (run, resize) = (&mut self.run, &mut self.resize);
        let truth = Some(false);
        let decision = sizing.decide(run, resize, &mut self.shards, &found, &figures, truth);
        Some((decision, sizing.machine.now_ms))
    }
}

impl Simulation {
    /// With nothing in use any more and memory free, the pool must reach the size that is wanted
    /// within a bounded time. If then a program takes everything, it must reach its minimum within
    /// a bounded number of samples and steps.
    pub(crate) fn finish_sizing(&mut self) {
        let World { sizing, shards, .. } = &mut self.world;
        let Some(sizing) = sizing else { return };
        sizing.machine.calm(sizing.bounds(shards).most_bytes, sizing.reserve_bytes);
        // The last sample may come late.
        let end_ms = sizing.machine.now_ms + RECOVERY_MS_MAX + 2_000;
        while self.is_ok() {
            let Some((decision, now_ms)) = self.world.sample_at_rest() else { return };
            if decision.reason == SizeReason::Wanted {
                break;
            }
            self.finish_resizes_to_target();
            if now_ms > end_ms {
                let message = format!("memory is free, and the cache does not grow: {decision:?}");
                self.world.run.violate(None, message);
            }
        }
        self.finish_hog();
    }

    fn finish_hog(&mut self) {
        let World { sizing, shards, .. } = &mut self.world;
        let Some(sizing) = sizing.as_mut().filter(|sizing| sizing.reserve_bytes > 0) else {
            return;
        };
        sizing.machine.hog();
        // Each sample gives back what is missing from the reserve, which is all of it.
        let now_bytes = sizing.bounds(shards).now_bytes;
        let samples_max = 2 + now_bytes.div_ceil(sizing.reserve_bytes);
        for _ in 0..samples_max {
            self.finish_resizes_to_target();
            let Some((decision, _)) = self.world.sample_at_rest() else { return };
            if decision.reason == SizeReason::Minimum || !self.is_ok() {
                return self.finish_resizes_to_target();
            }
        }
        let message = format!(
            "a program takes everything, and the cache keeps more than its \
                               minimum after {samples_max} samples"
        );
        self.world.run.violate(None, message);
    }

    /// Carries the resizes of all shards out. Nothing is in use, so the steps are bounded.
    fn finish_resizes_to_target(&mut self) {
        let world = &mut self.world;
        for shard in 0..world.shards.len() {
            let plan = &world.run.plan;
            let (lines, slab_lines) = (plan.lines_per_shard as u64, plan.config.slab_lines);
            let slabs = lines.div_ceil(slab_lines as u64);
            let steps_max = 8 + slabs * (3 + slab_lines as u64 / 64) + lines / 16;
            let mut steps = 0;
            while world.run.is_ok() && world.step_to_target(shard) != ResizeStep::Done {
                steps += 1;
                if steps > steps_max {
                    let message = format!("shard {shard} is not resized after {steps_max} steps");
                    world.run.violate(None, message);
                }
            }
        }
    }
}
