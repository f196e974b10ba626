//! The cost of being observed for write hits and read hits.
//!
//! Servers over volumes in memory and in write-back, with a pool that holds the whole volume, take
//! turns under the same load. Half of them learn the time of the day, and are polled once a second
//! for metrics, status, statistics and history; the others are idle otherwise. Prints medians over
//! the rounds. A missed limit exits with 1.

use anyhow::{Context, Result, ensure};
use clap::Parser;
use forebay_bench::figures::Figures;
use forebay_bench::load::Op;
use forebay_bench::ways::{Plan, Ways};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

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

/// Servers of each kind.
const SERVERS: usize = 4;
/// Minimum rate of hits with everything on, relative to everything off.
const SHARE_MIN: f64 = 0.97;
/// The paths that are polled each second.
const QUESTIONS: [&str; 5] =
    ["/metrics", "/v1/status", "/v1/statistics", "/v1/history", "/v1/volumes/v/statistics"];

fn main() -> Result<ExitCode> {
    let Arguments { programs, rounds, seconds, depth } = Arguments::parse();
    let mut ways = Ways::new(Plan { rounds, seconds, depth });
    let mut observed = Vec::new();
    for _ in 0..SERVERS {
        ways.start(&programs, "off", OFF, &[])?;
        observed.push(ways.start(&programs, "on", ON, &[])?.control_socket());
    }
    let ended = AtomicBool::new(false);
    let figures = thread::scope(|scope| -> Result<Figures> {
        let observer = scope.spawn(|| observe(&observed, &ended));
        let compared = compare(&ways);
        ended.store(true, Ordering::Relaxed);
        let observations =
            observer.join().map_err(|_| anyhow::anyhow!("the observer panicked"))??;
        ensure!(observations > 0, "no server was polled");
        compared
    })?;
    println!("requests of 4 KiB that hit, medians of {rounds} rounds");
    Ok(figures.print())
}

/// Options of the volumes.
const OFF: &str = ",learn=no";
const ON: &str = ",learn=yes";

fn compare(ways: &Ways) -> Result<Figures> {
    let mut figures = Figures::default();
    for op in [Op::Write, Op::Read] {
        ways.compare(op, SHARE_MIN, &mut figures)?;
    }
    Ok(figures)
}

/// Asks each server each second until `ended`. Returns the number of answers.
fn observe(servers: &[PathBuf], ended: &AtomicBool) -> Result<u64> {
    let mut answers = 0;
    while !ended.load(Ordering::Relaxed) {
        for (control, question) in
            servers.iter().flat_map(|control| QUESTIONS.map(|question| (control, question)))
        {
            let mut stream =
                UnixStream::connect(control).context("connecting to the control socket")?;
            write!(
                stream,
                "GET {question} HTTP/1.1\r\nhost: forebay\r\nconnection: close\r\n\r\n"
            )?;
            let mut answer = Vec::new();
            stream.read_to_end(&mut answer)?;
            ensure!(answer.starts_with(b"HTTP/1.1 200 "), "{question} was not answered");
            answers += 1;
        }
        thread::sleep(Duration::from_secs(1));
    }
    Ok(answers)
}
