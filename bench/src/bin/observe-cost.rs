//! The cost of being observed for write hits and read hits.
//!
//! Servers over volumes in memory and in write-back, with a pool that holds the whole volume, take
//! turns under the same load: some are not observed; others learn the time of the day, and are
//! polled once a second for metrics, status, statistics and history; others run an analysis of the
//! benefit beside that, whose held-out requests miss; others record a trace; and others do all of
//! this at once. Prints medians over the rounds. A missed limit exits with 1.

use anyhow::{Context, Result, ensure};
use clap::Parser;
use forebay_bench::figures::Figures;
use forebay_bench::load::Op;
use forebay_bench::ways::{Plan, Ways};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
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
/// Minimum rate of hits with everything on that stays on, relative to everything off.
const SHARE_MIN: f64 = 0.97;
/// Minimum relative rate during a recording, alone and beside all the rest. One more thread of the
/// server, and the client that takes the trace, use the same processors.
const RECORDED_SHARE_MIN: f64 = 0.85;
/// The command that starts an analysis whose last phase is longer than the measurement.
const ANALYSIS: [&str; 8] =
    ["analyze", "start", "--measure", "1s", "--learn", "1s", "--accelerate", "15m"];
/// A recording that is longer and larger than the measurement needs.
const RECORDING: &str = r#"{"volumes":["v"],"seconds":3600,"max_bytes":1099511627776}"#;
/// The paths that are polled each second.
const QUESTIONS: [&str; 5] =
    ["/metrics", "/v1/status", "/v1/statistics", "/v1/history", "/v1/volumes/v/statistics"];

/// Options of the volumes.
const OFF: &str = ",learn=no";
const ON: &str = ",learn=yes";
/// A trace has more than this many bytes if it has requests.
const RECORDED_BYTES_MIN: u64 = 100_000;

fn main() -> Result<ExitCode> {
    let Arguments { programs, rounds, seconds, depth } = Arguments::parse();
    let mut ways = Ways::new(Plan { rounds, seconds, depth });
    let mut observed = Vec::new();
    let mut analyzed = Vec::new();
    let mut recorded = Vec::new();
    for _ in 0..SERVERS {
        ways.start(&programs, "off", OFF, &[])?;
        observed.push(ways.start(&programs, "on", ON, &[])?.control_socket());
        let server = ways.start(&programs, "analyzed", ON, &[])?;
        server.command(&ANALYSIS)?;
        observed.push(server.control_socket());
        analyzed.push(server.control_socket());
        recorded.push(record(&ways.start(&programs, "recorded", OFF, &[])?.control_socket())?);
        let server = ways.start(&programs, "everything", ON, &[])?;
        server.command(&ANALYSIS)?;
        observed.push(server.control_socket());
        analyzed.push(server.control_socket());
        recorded.push(record(&server.control_socket())?);
    }
    // Until the analyses are in their last phase.
    thread::sleep(Duration::from_secs(3));
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
    for control in &analyzed {
        let analysis = get(control, "/v1/analysis")?;
        ensure!(analysis.contains(r#""state":"running""#), "an analysis ended too early");
    }
    drop(ways);
    for recording in recorded {
        let bytes = recording.join().map_err(|_| anyhow::anyhow!("a recording panicked"))??;
        ensure!(bytes > RECORDED_BYTES_MIN, "a trace has only {bytes} bytes");
    }
    println!("requests of 4 KiB that hit, medians of {rounds} rounds");
    Ok(figures.print())
}

fn compare(ways: &Ways) -> Result<Figures> {
    let mut figures = Figures::default();
    let is_recorded = |way: &str| matches!(way, "recorded" | "everything");
    let share_min = |way: &str| if is_recorded(way) { RECORDED_SHARE_MIN } else { SHARE_MIN };
    for op in [Op::Write, Op::Read] {
        ways.compare(op, share_min, &mut figures)?;
    }
    Ok(figures)
}

/// Starts a recording, and takes what comes of it until the server stops. The thread returns how
/// many bytes came.
fn record(control: &Path) -> Result<JoinHandle<Result<u64>>> {
    let mut stream = UnixStream::connect(control).context("connecting to the control socket")?;
    write!(
        stream,
        "POST /v1/trace HTTP/1.1\r\nhost: forebay\r\nconnection: close\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n{RECORDING}",
        RECORDING.len()
    )?;
    let mut start = [0; 12];
    stream.read_exact(&mut start).context("reading the answer to a recording")?;
    ensure!(start == *b"HTTP/1.1 200", "the recording was refused");
    Ok(thread::spawn(move || Ok(std::io::copy(&mut stream, &mut std::io::sink())?)))
}

/// Asks each server each second until `ended`. Returns the number of answers.
fn observe(servers: &[PathBuf], ended: &AtomicBool) -> Result<u64> {
    let mut answers = 0;
    while !ended.load(Ordering::Relaxed) {
        for (control, question) in
            servers.iter().flat_map(|control| QUESTIONS.map(|question| (control, question)))
        {
            get(control, question)?;
            answers += 1;
        }
        thread::sleep(Duration::from_secs(1));
    }
    Ok(answers)
}

/// The answer to a request.
fn get(control: &Path, path: &str) -> Result<String> {
    let mut stream = UnixStream::connect(control).context("connecting to the control socket")?;
    write!(stream, "GET {path} HTTP/1.1\r\nhost: forebay\r\nconnection: close\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    ensure!(answer.starts_with("HTTP/1.1 200 "), "{path} was not answered");
    Ok(answer)
}
