//! Runs the simulator: `sim [--seeds N] [--first N] [--operations M] [--seed S] [--threads T]
//! [--sabotage NAME]`. The command `forebay lab sim` does the same.

use forebay_lab::sim::{Sabotage, SimOptions, run, run_many};
use std::process::ExitCode;
use std::time::Instant;

const USAGE: &str = "usage: sim [--seeds N] [--first N] [--operations M] [--seed S] [--threads T] \
                     [--sabotage NAME]";

struct Arguments {
    seeds: u64,
    first: u64,
    operations: u64,
    seed: Option<u64>,
    threads: usize,
    sabotage: Option<Sabotage>,
}

fn parse(mut words: impl Iterator<Item = String>) -> Option<Arguments> {
    let mut arguments = Arguments {
        seeds: 100,
        first: 0,
        operations: 1000,
        seed: None,
        threads: 1,
        sabotage: None,
    };
    while let Some(word) = words.next() {
        let value = words.next()?;
        match word.as_str() {
            "--seeds" => arguments.seeds = value.parse().ok()?,
            "--first" => arguments.first = value.parse().ok()?,
            "--operations" => arguments.operations = value.parse().ok()?,
            "--seed" => arguments.seed = Some(value.parse().ok()?),
            "--threads" => arguments.threads = value.parse().ok()?,
            "--sabotage" => arguments.sabotage = Some(Sabotage::parse(&value)?),
            _ => return None,
        }
    }
    Some(arguments)
}

fn main() -> ExitCode {
    let Some(arguments) = parse(std::env::args().skip(1)) else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    let mut options = SimOptions::new(arguments.seed.unwrap_or(0), arguments.operations);
    options.sabotage = arguments.sabotage;
    if let Some(seed) = arguments.seed {
        return match run(options) {
            Ok(report) => {
                println!("seed {seed}: all promises kept\n{report}");
                ExitCode::SUCCESS
            }
            Err(failure) => {
                println!("{failure}");
                ExitCode::FAILURE
            }
        };
    }
    let start = Instant::now();
    let seeds = arguments.first..arguments.first + arguments.seeds;
    let summary = run_many(seeds, options, arguments.threads);
    let seconds = start.elapsed().as_secs_f64();
    println!("{summary}");
    let rate = summary.report.operations as f64 / seconds;
    println!("{seconds:.1} s, {rate:.0} operations a second");
    if summary.failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
