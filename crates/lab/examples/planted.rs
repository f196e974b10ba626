//! Plants each bug in turn and prints what finds it, and after how long; with the feature
//! `sabotage`, bugs of the engine as well. Arguments select bugs whose names contain one of them.

use forebay_lab::enumerate::Bug;
use std::process::ExitCode;
use std::time::Duration;

/// The time limit of the simulator for one bug.
const LIMIT: Duration = Duration::from_secs(600);

fn main() -> ExitCode {
    std::panic::set_hook(Box::new(|_| {}));
    let words: Vec<String> = std::env::args().skip(1).collect();
    let is_selected =
        |bug: &Bug| words.is_empty() || words.iter().any(|word| bug.to_string().contains(word));
    let bugs: Vec<Bug> = Bug::all().into_iter().filter(is_selected).collect();
    let mut missed = 0;
    println!("| bug | simulator: seed, seconds | enumeration: workload, seconds |");
    println!("| --- | --- | --- |");
    for bug in &bugs {
        let found = bug.find(LIMIT);
        let simulated = found.simulated.as_ref();
        let simulated = simulated.map(|(seed, time)| format!("{seed}, {:.2}", time.as_secs_f64()));
        let enumerated = found.enumerated.as_ref();
        let enumerated =
            enumerated.map(|(workload, time)| format!("{workload}, {:.2}", time.as_secs_f64()));
        let or_not = |found: Option<String>| found.unwrap_or_else(|| "not found".into());
        println!("| {bug} | {} | {} |", or_not(simulated), or_not(enumerated));
        missed += u64::from(found.simulated.is_none() && found.enumerated.is_none());
    }
    println!("{} bugs, {missed} not found", bugs.len());
    if missed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
