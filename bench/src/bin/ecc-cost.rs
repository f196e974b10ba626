//! The cost of memory protection for write hits and read hits.
//!
//! A server runs for each of `off`, `checksum` and `parity`, all over volumes in memory and in
//! write-back, with a pool that holds the whole volume. They take turns under the same load, so
//! that other load on the machine affects all of them. Prints medians over the rounds: requests per
//! second, CPU time of the whole server per request, and both relative to `off` in the same round.
//! A missed limit exits with 1.

use anyhow::Result;
use clap::Parser;
use forebay_bench::figures::{Figures, Limit};
use forebay_bench::forebay::Forebay;
use forebay_bench::load::{Load, Op, Outcome};
use forebay_bench::table::median;
use std::path::PathBuf;
use std::process::ExitCode;

#[derive(Parser)]
struct Arguments {
    /// Directory of the built programs.
    #[arg(long, default_value = "target/release")]
    programs: PathBuf,
    /// Rounds.
    #[arg(long, default_value_t = 9)]
    rounds: usize,
    /// Seconds of each load in a round.
    #[arg(long, default_value_t = 1.0)]
    seconds: f64,
    /// Requests in flight.
    #[arg(long, default_value_t = 64)]
    depth: u32,
}

const MIB: u64 = 1 << 20;
/// Bytes of the volume; the pool is large enough to avoid evictions and the dirty limit.
const VOLUME_BYTES: u64 = 64 * MIB;
/// Minimum rate of hits under `checksum` and `parity`, relative to `off`.
const WRITE_SHARE_MIN: f64 = 0.75;
const READ_SHARE_MIN: f64 = 0.9;
const WAYS: [&str; 3] = ["off", "checksum", "parity"];

fn main() -> Result<ExitCode> {
    let arguments = Arguments::parse();
    let mut servers = Vec::new();
    for way in WAYS {
        let dir = tempfile::tempdir()?;
        let volumes =
            [format!("v=memory:{VOLUME_BYTES},mode=write-back,protection=none,accept-loss=yes")];
        let more = ["--ecc", way, "--workers", "1"];
        let server = Forebay::start(&arguments.programs, dir.path(), &volumes, 512 * MIB, &more)?;
        servers.push((server, dir));
    }
    let load = |at: usize, op| {
        let server: &Forebay = &servers[at].0;
        let mut load = Load::new(server.socket.clone(), "v".into());
        load.op = op;
        load.depth = arguments.depth;
        load.seconds = arguments.seconds;
        load.server_pid = Some(server.pid);
        load
    };
    for at in 0..WAYS.len() {
        load(at, Op::Write).prefill().run()?;
    }
    let mut figures = Figures::default();
    for (op, share_min) in [(Op::Write, WRITE_SHARE_MIN), (Op::Read, READ_SHARE_MIN)] {
        let mut results: Vec<Vec<Outcome>> = vec![Vec::new(); WAYS.len()];
        for _ in 0..arguments.rounds {
            for (at, results) in results.iter_mut().enumerate() {
                results.push(load(at, op).run()?);
            }
        }
        judge(op, share_min, &results, &mut figures);
    }
    println!("requests of 4 KiB that hit, medians of {} rounds", arguments.rounds);
    Ok(figures.print())
}

fn judge(op: Op, share_min: f64, results: &[Vec<Outcome>], figures: &mut Figures) {
    let cpu = |outcome: &Outcome| outcome.server_cpu_us_per_request.unwrap_or(f64::NAN);
    for (way, rounds) in WAYS.iter().zip(results) {
        let median_of = |figure: &dyn Fn(&Outcome, &Outcome) -> f64| {
            let pairs = rounds.iter().zip(&results[0]);
            let values: Vec<f64> = pairs.map(|(outcome, off)| figure(outcome, off)).collect();
            median(&values).unwrap_or(f64::NAN)
        };
        let name = |what: &str| format!("{op:?}, {way}, {what}");
        let share = median_of(&|outcome, off| outcome.iops / off.iops);
        let cpu_share = median_of(&|outcome, off| cpu(outcome) / cpu(off));
        figures.add(name("IOPS"), median_of(&|outcome, _| outcome.iops), Limit::Information);
        figures.add(name("IOPS / off"), share, Limit::AtLeast(share_min));
        figures.add(name("CPU us each"), median_of(&|outcome, _| cpu(outcome)), Limit::Information);
        figures.add(name("CPU / off"), cpu_share, Limit::Information);
    }
}
