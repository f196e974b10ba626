//! Fails the n-th I/O, for every n: once, and together with all that follow.
//!
//! A workload runs without faults first, to count its I/Os of each kind, and then once per I/O. The
//! test acts as the operator: it repeats a refused start when the device works again, and lets a
//! failed journal's data reach the disk before it kills the machine, because the kill would be a
//! second fault. Until the failure of a journal is recorded, its records count, so there the
//! machine also crashes after every step. At the end the fault is healed; then all data must be
//! right, on the disk as well, and again after a kill. SQLite tests I/O errors in this way.

use super::crash::{self, Seen};
use super::faults::{Fault, FaultKind};
use super::rig::Rig;
use super::work::{Operation, ProtectedBy, Workload};
use super::{Limits, Tally};
use crate::harness::dice::Dice;
use crate::harness::parallel::panic_text;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// The number of ticks within which a healed machine must have destaged everything.
const TICKS_MAX: usize = 20;
/// Images of the devices that are checked after a crash.
const LIMITS: Limits = Limits { orders: 1, random_orders: 0, images: 16 };

/// The results of a fault test.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FaultSummary {
    /// Workloads, each run in two orders.
    pub workloads: u64,
    /// Runs with a fault, by kind, in the order of [`FaultKind::ALL`].
    pub runs: [u64; FaultKind::ALL.len()],
    /// Requests that failed because of a fault.
    pub errors: u64,
    /// Starts that were refused because of a fault.
    pub refused_starts: u64,
    /// Crashes before the failure of a journal was recorded, on different machines.
    pub crashes: u64,
    /// Broken guarantees.
    pub failures: Vec<String>,
}

impl fmt::Display for FaultSummary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for failure in &self.failures {
            writeln!(f, "{failure}\n")?;
        }
        write!(f, "{} workloads in two orders; faults:", self.workloads)?;
        for (kind, runs) in FaultKind::ALL.iter().zip(self.runs) {
            write!(f, " {runs} {kind},")?;
        }
        write!(
            f,
            " each once and permanently; {} requests failed, {} starts were refused, {} \
             crashes; {} violations",
            self.errors,
            self.refused_starts,
            self.crashes,
            self.failures.len()
        )
    }
}

/// When the next operation starts.
#[derive(Clone, Copy, Debug)]
enum Pace {
    /// When nothing is in flight.
    Patient,
    /// As soon as possible.
    Eager,
}

/// Fails each I/O of each workload in turn.
pub fn sweep_faults(workloads: &[Workload]) -> FaultSummary {
    let mut summary = FaultSummary::default();
    for workload in workloads {
        summary.workloads += 1;
        for pace in [Pace::Patient, Pace::Eager] {
            let (healthy, result) = run(workload, pace, None, &mut 0);
            if let Err(message) = result {
                summary.failures.push(format!("{workload}, without faults: {message}"));
                continue;
            }
            for (at, kind) in FaultKind::ALL.into_iter().enumerate() {
                let count = healthy.machine.faults.count(kind);
                for (number, lasts) in (0..count).flat_map(|n| [(n, false), (n, true)]) {
                    let fault = Fault { kind, number, lasts };
                    summary.runs[at] += 1;
                    try_fault(workload, pace, fault, &mut summary);
                }
            }
        }
    }
    summary
}

fn try_fault(workload: &Workload, pace: Pace, fault: Fault, summary: &mut FaultSummary) {
    let crashes = &mut summary.crashes;
    let tried = catch_unwind(AssertUnwindSafe(|| run(workload, pace, Some(fault), crashes)));
    let message = match tried {
        Ok((rig, result)) => {
            summary.errors += rig.machine.errors;
            summary.refused_starts += rig.refused_starts;
            match result {
                Ok(()) => return,
                Err(message) => message,
            }
        }
        Err(panic) => panic_text(&*panic),
    };
    let often = if fault.lasts { "and all following fail" } else { "fails" };
    let Fault { kind, number, .. } = fault;
    let text = format!("{workload}; {pace:?}; {kind} {number} {often}: {message}");
    summary.failures.push(text);
}

fn run(
    workload: &Workload,
    pace: Pace,
    fault: Option<Fault>,
    crashes: &mut u64,
) -> (Rig, Result<(), String>) {
    let mut rig = Rig::new(workload, None);
    rig.machine.faults.fault = fault;
    let result = run_to_end(&mut rig, pace, crashes);
    (rig, result)
}

fn run_to_end(rig: &mut Rig, pace: Pace, crashes: &mut u64) -> Result<(), String> {
    let mut seen = Seen::new();
    loop {
        if rig.is_down() {
            rig.machine.faults.heal();
            rig.start_again();
        }
        if rig.ends_next() && rig.is_draining() {
            drain(rig);
        }
        let choices = rig.choices();
        if choices == 0 && !rig.is_down() {
            break;
        }
        // I/Os in flight come first among the choices, the next operation last.
        rig.step(match pace {
            Pace::Patient => 0,
            Pace::Eager => choices.saturating_sub(1),
        });
        rig.machine.violation.take().map_or(Ok(()), Err)?;
        // Once the failure is recorded, a UPS replaces the journal.
        if rig.has_unrecorded_failure() || rig.machine.has_ups_for_journal() {
            let mut tally = Tally::default();
            crash::check(rig, &LIMITS, &mut Dice::new(0), &mut seen, &mut tally)?;
            *crashes += tally.crash_points - tally.repeated;
        }
    }
    rig.machine.faults.heal();
    drain(rig);
    rig.verify();
    rig.machine.violation.take().map_or(Ok(()), Err)?;
    rig.start_again();
    rig.run_to_completion();
    rig.verify();
    rig.machine.violation.take().map_or(Ok(()), Err)
}

/// Waits until the disk has everything that only a failed journal held.
fn drain(rig: &mut Rig) {
    for _ in 0..TICKS_MAX {
        rig.tick();
        rig.run_pending();
        if !rig.is_draining() {
            return;
        }
        // The fault may concern the disk, too: beside the failed journal that is a second one, so
        // it is healed.
        rig.machine.faults.heal();
    }
    rig.machine.violate("a healthy disk does not receive everything".into());
}

/// The scripted workloads: each operation, alone and with others, in one process and across
/// restarts.
pub fn scripts() -> Vec<Workload> {
    let [sector, line, border, partial, fua, flush, trim, zero, read, tick, checkpoint] =
        [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10].map(|at| Operation::ALL[at]);
    let (kill, power, restart) = (Operation::Kill, Operation::Power, Operation::Restart);
    let scripts: [&[Operation]; 20] = [
        &[sector, flush],
        &[border, tick, read],
        &[line, partial, fua, flush],
        &[fua, sector, flush, read],
        &[border, trim, read, flush],
        &[border, zero, read, tick],
        &[read, line, read, flush],
        &[line, kill, read],
        &[border, flush, power, read, flush],
        &[sector, kill, sector, kill, read],
        &[line, checkpoint, sector, kill, read],
        &[border, tick, checkpoint, line, checkpoint, read],
        &[zero, kill, read, flush, power],
        &[trim, border, flush, kill, partial, restart],
        &[line, restart, line, kill, read],
        &[sector, restart, fua, power, read],
        &[border, partial, line, tick, zero, flush, checkpoint, read],
        &[fua, checkpoint, fua, checkpoint, fua, kill, read],
        &[border, kill, border, kill, border, checkpoint, power, read],
        &[partial, zero, fua, trim, border, flush, tick, restart, read],
    ];
    let machines = ProtectedBy::ALL
        .into_iter()
        .flat_map(|protected_by| [(protected_by, false), (protected_by, true)]);
    let with = |(protected_by, tight)| {
        scripts.map(|operations| Workload { protected_by, tight, operations: operations.to_vec() })
    };
    machines.flat_map(with).collect()
}
