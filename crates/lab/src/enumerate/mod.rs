//! Exhaustive tests of small workloads: every order of events, a crash at every moment, and every
//! possible image.
//!
//! The simulator draws large machines and long runs from seeds; this module runs a small machine
//! through every short workload, like ACE and CrashMonkey (Mohan et al., OSDI 2018). A machine has
//! one volume, whose workload lies on both sides of a region border, two shards, and a journal, a
//! UPS, both or neither. While it serves, any I/O in flight may end next, or the next operation may
//! begin: all orders are followed, up to a limit (`walk.rs`). After each step, the shipped code
//! recovers every image that a crash can leave, and the simulator's oracle checks it (`crash.rs`)
//! according to the table in `docs/manual/protection.md`.
//!
//! Simplifications: a sector is represented by a stamp, as in the simulator; sectors are atomic;
//! after a crash that is part of the workload, the disk writes its cache before the next crash.
//! Crashes begin after the first step.

mod crash;
mod faults;
mod journal;
mod machine;
mod planted;
mod report;
mod rig;
mod rot;
mod store;
mod sweep;
mod ups;
mod walk;
mod work;

pub use faults::FaultKind;
pub use planted::Found;
pub use report::{Failure, Limits, Summary, Tally};
pub use rot::{RotSummary, rot};
pub use sweep::{FaultSummary, scripts, sweep_faults};
pub use work::{Operation, ProtectedBy, Workload};

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

/// A set of workloads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Workloads {
    /// All workloads with this number of operations.
    Length(u32),
    /// Random workloads, one per seed.
    Seeds(Range<u64>),
}

impl Workloads {
    const fn range(&self) -> Range<u64> {
        match self {
            Self::Length(length) => 0..work::count(*length),
            Self::Seeds(seeds) => seeds.start..seeds.end,
        }
    }

    /// The numbers of workloads with the same beginning, which have crashes in common.
    fn group(&self, group: u64) -> impl Iterator<Item = u64> {
        let range = self.range();
        let step = match self {
            Self::Length(_) => work::GROUPS,
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

/// Runs workloads on `threads` threads (at least one). Stops early after [`Summary::FAILURES_MAX`]
/// failures. Unless a workload fails, the counts do not depend on the number of threads.
pub fn run(workloads: &Workloads, limits: &Limits, bug: Option<Bug>, threads: usize) -> Summary {
    let mut summary = Runs::execute(0, threads, Summary::default(), |group, runs| {
        let mut group = workloads.group(group).peekable();
        if group.peek().is_none() {
            return false;
        }
        let mut seen = Seen::new();
        for number in group.take_while(|_| !runs.is_stopped()) {
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
