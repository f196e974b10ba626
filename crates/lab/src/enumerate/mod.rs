//! Small workloads, completely: every order of what can happen, a crash at every moment, and every
//! image that it can leave.
//!
//! Where the simulator draws a large machine and a long life from a seed, this takes a small
//! machine through every short life there is, after ACE and CrashMonkey (Mohan et al., OSDI 2018).
//! A machine has one volume, whose workload lies on both sides of a region's border, two shards and
//! maybe a journal. While it serves, any I/O under way may end next, or the next operation may
//! begin: all orders are followed, up to a limit (`walk.rs`). After each step, whatever a crash can
//! leave is recovered by the shipped code and judged by the simulator's oracle (`crash.rs`), which
//! knows what the table in `docs/manual/protection.md` calls kept.
//!
//! The machine's simplifications: a sector is told by a stamp, as in the simulator; sectors are
//! written wholly or not at all; after a crash that is part of the workload, the disk has written
//! what was in its cache by the time of the next one.

mod crash;
mod every;
mod faults;
mod journal;
mod machine;
mod planted;
mod report;
mod rig;
mod rot;
mod store;
mod walk;
mod work;

pub use every::{EverySummary, every_fault, scripts};
pub use faults::FaultKind;
pub use planted::Found;
pub use report::{Failure, Limits, Summary, Tally};
pub use rot::{RotSummary, rot};
pub use work::{Kept, Operation, Workload};

use crate::harness::Sabotage;
use crate::harness::dice::Dice;
use crate::harness::parallel::Runs;
use crash::Seen;
use std::ops::Range;
use walk::Walk;

/// A bug to plant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// In the driver or a device.
    Driver(Sabotage),
    /// In the engine.
    #[cfg(feature = "sabotage")]
    Engine(forebay_engine::PlantedBug),
}

/// Which workloads are gone through.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Workloads {
    /// All of so many operations.
    Length(u32),
    /// Random ones, each from its seed.
    Seeds(Range<u64>),
}

impl Workloads {
    const fn range(&self) -> Range<u64> {
        match self {
            Self::Length(length) => 0..work::count(*length),
            Self::Seeds(seeds) => seeds.start..seeds.end,
        }
    }

    /// Those that begin alike, by their numbers: crashes of the one are crashes of the others.
    fn group(&self, group: u64) -> impl Iterator<Item = u64> {
        let range = self.range();
        let step = match self {
            Self::Length(_) => work::ALIKE,
            Self::Seeds(_) => range.end - range.start,
        };
        let end = if group < step { range.end } else { range.start };
        (range.start + group..end).step_by(step.max(1) as usize)
    }

    fn workload(&self, number: u64) -> Workload {
        match self {
            Self::Length(length) => work::workload(*length, number),
            Self::Seeds(_) => work::random(&mut Dice::new(number)),
        }
    }
}

/// Goes through workloads on `threads` threads (at least one). Stops early when
/// [`Summary::FAILURES_MAX`] of them have failed. What is counted does not depend on the threads,
/// unless some fail.
pub fn run(workloads: &Workloads, limits: &Limits, bug: Option<Bug>, threads: usize) -> Summary {
    let mut summary = Runs::make(0, threads, Summary::default(), |group, runs| {
        let mut group = workloads.group(group).peekable();
        if group.peek().is_none() {
            return false;
        }
        let mut seen = Seen::new();
        for number in group.take_while(|_| !runs.is_enough()) {
            let workload = workloads.workload(number);
            let mut walk = Walk::new(&workload, limits, bug, number, &mut seen);
            let result = walk.run();
            runs.add(|summary: &mut Summary| {
                summary.tally.add(&walk.tally);
                summary.failures.extend(result.err().map(|failure| (number, *failure)));
                summary.failures.len() >= Summary::FAILURES_MAX
            });
        }
        true
    });
    summary.failures.sort_by_key(|(number, _)| *number);
    summary
}
