//! The simulator: the shipped engine in virtual time on failing disks, determined by one seed.
//!
//! A run draws a machine of workers, shards, volumes and clients from its seed. Requests overlap;
//! disks reorder, stall, fail and lose unflushed data; the process is killed; modes and the size of
//! the pool change.
//!
//! Dispatchers and shards are the shipped ones; the simulator takes the place of the runtime,
//! behind [`forebay_volume::Host`]. An oracle knows the permitted contents of each sector
//! (`harness/oracle.rs`). In the end all faults are healed; then every request must be answered,
//! reads must be right, and after a flush the disks must hold everything.
//!
//! Limitation: a sector is represented by a stamp of eight bytes, not by its 512 bytes.

mod clients;
mod device;
mod driver;
mod expected;
mod faults;
mod freeze;
mod hold_out;
mod integrity;
mod journal;
mod kept;
mod kill;
mod losses;
mod order;
mod pins;
mod plan;
mod pool_shares;
mod power;
mod record_again;
mod recovery;
mod report;
mod requests;
mod resize;
mod run;
mod shares;
mod sizing;
mod volume;
mod world;

pub use crate::harness::Sabotage;
pub use report::{Failure, SimOptions, SimReport, Summary};

use crate::harness::parallel::{Runs, panic_text};
use driver::Simulation;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};

const FAILURE_EVENTS: usize = 50;

/// Runs one seed. A failed seed is run again to log its events.
///
/// # Errors
/// Fails if a guarantee is broken, or the engine panics.
pub fn run(options: SimOptions) -> Result<SimReport, Failure> {
    let mut simulation = Simulation::new(&options);
    if catch_unwind(AssertUnwindSafe(|| simulation.run())).is_ok() && simulation.is_ok() {
        return Ok(simulation.world.run.report);
    }
    let mut simulation = Simulation::new(&options);
    simulation.world.run.keep_log();
    let ended = catch_unwind(AssertUnwindSafe(|| simulation.run()));
    let (message, place) = match (simulation.world.run.take_violation(), ended) {
        (Some(violation), _) => (violation.message, violation.place),
        (None, Err(panic)) => (panic_text(&*panic), None),
        (None, Ok(())) => ("the failure did not repeat with the same seed".into(), None),
    };
    Err(Failure {
        seed: options.seed,
        operations: options.operations,
        message,
        machine: simulation.world.run.describe_plan(),
        events: simulation.world.run.last_events(place, FAILURE_EVENTS),
    })
}

/// Runs all seeds of a range, with the other `options` unchanged, on `threads` threads (at least
/// one). Stops early after [`Summary::FAILURES_MAX`] failures.
pub fn run_many(seeds: Range<u64>, options: SimOptions, threads: usize) -> Summary {
    let first = SimReport { seed: seeds.start, ..SimReport::default() };
    let summary = Summary { report: first, ..Summary::default() };
    let mut summary = Runs::execute(seeds.start, threads, summary, |seed, runs| {
        if seed >= seeds.end {
            return false;
        }
        let result = run(SimOptions { seed, ..options });
        runs.add(|summary: &mut Summary| {
            summary.runs += 1;
            match result {
                Ok(report) => summary.report.add(&report),
                Err(failure) => summary.failures.push(failure),
            }
            summary.failures.len() >= Summary::FAILURES_MAX
        });
        true
    });
    summary.failures.sort_by_key(|failure| failure.seed);
    summary.failures.truncate(Summary::FAILURES_MAX);
    summary
}
