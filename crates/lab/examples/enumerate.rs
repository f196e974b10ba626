//! Goes through all short workloads: `enumerate [--operations N] [--threads T] [--orders N]
//! [--random-orders N] [--images N] [--sabotage NAME] [--first SEED --seeds N]`. With seeds, random
//! longer workloads instead. The command `forebay lab enumerate` does the same.

use forebay_lab::enumerate::{Bug, Limits, Workloads, run};
use forebay_lab::sim::Sabotage;
use std::process::ExitCode;
use std::time::Instant;

const USAGE: &str = "usage: enumerate [--operations N] [--threads T] [--orders N] \
                     [--random-orders N] [--images N] [--sabotage NAME] [--first N] [--seeds N]";

struct Arguments {
    operations: u32,
    threads: usize,
    limits: Limits,
    bug: Option<Bug>,
    first: u64,
    seeds: u64,
}

fn parse(mut words: impl Iterator<Item = String>) -> Option<Arguments> {
    let limits = Limits { orders: 1000, random_orders: 100, images: 64 };
    let mut arguments =
        Arguments { operations: 2, threads: 1, limits, bug: None, first: 0, seeds: 0 };
    while let Some(word) = words.next() {
        let value = words.next()?;
        match word.as_str() {
            "--operations" => arguments.operations = value.parse().ok()?,
            "--threads" => arguments.threads = value.parse().ok()?,
            "--orders" => arguments.limits.orders = value.parse().ok()?,
            "--random-orders" => arguments.limits.random_orders = value.parse().ok()?,
            "--images" => arguments.limits.images = value.parse().ok()?,
            "--sabotage" => arguments.bug = Some(Bug::Driver(Sabotage::parse(&value)?)),
            "--first" => arguments.first = value.parse().ok()?,
            "--seeds" => arguments.seeds = value.parse().ok()?,
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
    let start = Instant::now();
    let workloads = match arguments.seeds {
        0 => Workloads::Length(arguments.operations),
        seeds => Workloads::Seeds(arguments.first..arguments.first + seeds),
    };
    let summary = run(&workloads, &arguments.limits, arguments.bug, arguments.threads);
    let seconds = start.elapsed().as_secs_f64();
    println!("{summary}");
    let rate = summary.tally.crash_points as f64 / seconds / arguments.threads as f64;
    println!("{seconds:.1} s, {rate:.0} crash points a second and thread");
    if summary.failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
