//! The simulator: the shipped engine in virtual time, against disks that fail, on one seed.
//!
//! A run makes a machine of some workers, shards, volumes and clients, all drawn from its seed,
//! and lets them work: requests overlap, disks reorder, stall, fail and lose what was not flushed,
//! the process is killed, modes change. The dispatchers and shards are the shipped ones; the
//! simulator stands where the runtime does, behind [`forebay_volume::Host`]. An oracle knows for
//! each sector what it may hold (`oracle.rs`). In the end all faults are healed, and everything
//! must be answered, read right, and be on the disks after a flush.
//!
//! The price of speed: a sector is told by a stamp of eight bytes, not by its 512.

mod answers;
mod clients;
mod damage;
mod device;
pub(crate) mod dice;
mod disk;
mod driver;
mod journal;
mod kept;
pub(crate) mod memory;
pub(crate) mod oracle;
mod order;
mod plan;
mod power;
mod queue;
mod report;
mod sabotage;
pub(crate) mod slab;
mod stuck;
mod transfer;
mod world;

pub use report::{Failure, SimOptions, SimReport, Summary};
pub use sabotage::Sabotage;

use driver::Simulation;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Events told of a failure.
const STORY_EVENTS: usize = 50;

/// Runs one seed.
///
/// # Errors
/// When a promise is broken. A panic of the engine counts as one. The story is told by running the
/// seed a second time and listening.
pub fn run(options: SimOptions) -> Result<SimReport, Failure> {
    let mut simulation = Simulation::new(&options);
    if catch_unwind(AssertUnwindSafe(|| simulation.run())).is_ok()
        && simulation.world.violation.is_none()
    {
        return Ok(simulation.world.report);
    }
    let mut simulation = Simulation::new(&options);
    simulation.world.notes = Some(Vec::new());
    let ended = catch_unwind(AssertUnwindSafe(|| simulation.run()));
    let (message, place) = match (simulation.world.violation.take(), ended) {
        (Some(violation), _) => (violation.message, violation.place),
        (None, Err(panic)) => (format!("panic: {}", panic_text(&*panic)), None),
        (None, Ok(())) => ("the same seed went well the second time".into(), None),
    };
    Err(Failure {
        seed: options.seed,
        operations: options.operations,
        message,
        machine: simulation.describe_plan(),
        events: simulation.story(place, STORY_EVENTS),
    })
}

pub(crate) fn panic_text(panic: &(dyn std::any::Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("without a message")
}

/// Runs all seeds of a range, and otherwise as `options` say, on `threads` threads (at least one).
/// Stops early when [`Summary::FAILURES_MAX`] of them have failed.
pub fn run_many(seeds: Range<u64>, options: SimOptions, threads: usize) -> Summary {
    let next = AtomicU64::new(seeds.start);
    let enough = AtomicBool::new(false);
    let first = SimReport { seed: seeds.start, ..SimReport::default() };
    let summary = Mutex::new(Summary { report: first, ..Summary::default() });
    let work = || {
        while !enough.load(Ordering::Relaxed) {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= seeds.end {
                break;
            }
            let result = run(SimOptions { seed, ..options });
            let mut summary = summary.lock().expect("no thread panics with the summary");
            summary.runs += 1;
            match result {
                Ok(report) => summary.report.add(&report),
                Err(failure) => summary.failures.push(failure),
            }
            if summary.failures.len() >= Summary::FAILURES_MAX {
                enough.store(true, Ordering::Relaxed);
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..threads {
            scope.spawn(work);
        }
        work();
    });
    let mut summary = summary.into_inner().expect("no thread panics with the summary");
    summary.failures.sort_by_key(|failure| failure.seed);
    summary.failures.truncate(Summary::FAILURES_MAX);
    summary
}
