//! Fails each single I/O of scripted workloads, once and permanently; then damages every place of
//! the journals that the workloads leave behind.

use forebay_lab::enumerate::{RotSummary, rot, scripts, sweep_faults};

fn main() {
    println!("{}", sweep_faults(&scripts()));
    let mut summary = RotSummary::default();
    let step = std::env::args().nth(1).and_then(|step| step.parse().ok()).unwrap_or(1);
    scripts().iter().step_by(step).for_each(|workload| summary.add(rot(workload, 1)));
    println!("{summary}");
}
