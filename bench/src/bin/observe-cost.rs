//! The cost of being observed for write hits and read hits.
//!
//! Servers over volumes in memory and in write-back, with a pool that holds the whole volume, take
//! turns under the same load. Each has a turn in each of these ways: not observed; learning the
//! time of the day, and polled once a second for metrics, status, statistics and history; running
//! an analysis of the benefit beside that, whose held-out requests miss; recording a trace; and
//! with all of this at once. Prints medians over the rounds. A missed limit exits with 1.

use anyhow::{Context, Result, ensure};
use clap::Parser;
use forebay_bench::figures::Figures;
use forebay_bench::forebay::Forebay;
use forebay_bench::load::Op;
use forebay_bench::ways::{Off, Plan, Switch, Ways};
use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

#[derive(Parser)]
struct Arguments {
    /// Directory of the built programs.
    #[arg(long, default_value = "target/release")]
    programs: PathBuf,
    /// Rounds: a multiple of 5, the number of ways, so that each is the first equally often.
    #[arg(long, default_value_t = 10)]
    rounds: usize,
    /// Seconds of each load in a round.
    #[arg(long, default_value_t = 1.0)]
    seconds: f64,
    /// Requests in flight. With many, the worker waits for nothing, and figures vary least.
    #[arg(long, default_value_t = 256)]
    depth: u32,
}

/// The number of servers: one may be faster than another like it, by where its memory lies.
const SERVERS: usize = 3;
/// The minimum rate of hits relative to that with everything off, and how much more processor time
/// of the workers each may take, in percent. Both vary by up to 4 % from run to run.
const LIMITS: (f64, f64) = (0.95, 4.0);
/// The same during an analysis, whose held-out requests go to the disk.
const ANALYZED_LIMITS: (f64, f64) = (0.93, 6.0);
/// The same during a recording, alone and beside all the rest. One more thread of the server, and
/// the client that takes the trace, use the processors of the load.
const RECORDED_LIMITS: (f64, f64) = (0.87, 10.0);
/// The command that starts an analysis whose last phase is longer than the measurement.
const ANALYSIS: [&str; 8] =
    ["analyze", "start", "--measure", "1s", "--learn", "1s", "--accelerate", "15m"];
/// Until an analysis is in its last phase.
const ANALYSIS_START: Duration = Duration::from_millis(2_500);
/// A recording that is longer and larger than the measurement needs.
const RECORDING: &str = r#"{"volumes":["v"],"seconds":3600,"max_bytes":1099511627776}"#;
/// How long the server may refuse a recording because the former one has not ended.
const RECORDING_START_MAX: Duration = Duration::from_secs(5);
/// A trace has more than this many bytes if it has requests.
const RECORDED_BYTES_MIN: u64 = 100_000;
/// The paths that are polled each second.
const QUESTIONS: [&str; 5] =
    ["/metrics", "/v1/status", "/v1/statistics", "/v1/history", "/v1/volumes/v/statistics"];

fn main() -> Result<ExitCode> {
    let Arguments { programs, rounds, seconds, depth } = Arguments::parse();
    let mut ways = Ways::new(Plan { rounds, seconds, depth });
    for _ in 0..SERVERS {
        ways.start(&programs, "server", ",learn=no", &[])?;
    }
    let switch = |name, parts: &'static [Part], (share_min, workers_more_max)| Switch {
        name,
        share_min,
        workers_more_max,
        on: Box::new(move |server: &Forebay| {
            let offs: Result<Vec<Off<'_>>> = parts.iter().map(|on| on(server)).collect();
            let offs = offs?;
            Ok(Box::new(move || offs.into_iter().rev().try_for_each(|off| off())) as Off<'_>)
        }),
    };
    let switches = [
        switch("off", &[], LIMITS),
        switch("on", &[learn, poll], LIMITS),
        switch("analyzed", &[learn, poll, analyze], ANALYZED_LIMITS),
        switch("recorded", &[record], RECORDED_LIMITS),
        switch("everything", &[learn, poll, analyze, record], RECORDED_LIMITS),
    ];
    let mut figures = Figures::default();
    for op in [Op::Write, Op::Read] {
        ways.compare_switched(op, &switches, &mut figures)?;
    }
    println!("requests of 4 KiB that hit, medians of {rounds} rounds");
    Ok(figures.print())
}

/// Switches a part of a way on.
type Part = fn(&Forebay) -> Result<Off<'static>>;

/// Learns the time of the day.
fn learn(server: &Forebay) -> Result<Off<'static>> {
    let control = server.control_socket();
    set_learning(&control, true)?;
    Ok(Box::new(move || set_learning(&control, false)))
}

fn set_learning(control: &Path, on: bool) -> Result<()> {
    let body = if on { r#"{"learn":true}"# } else { r#"{"learn":false}"# };
    ask(control, "PATCH", "/v1/volumes/v", body).map(drop)
}

/// Asks for everything that is shown, at once and then each second.
fn poll(server: &Forebay) -> Result<Off<'static>> {
    let control = server.control_socket();
    let (end, ended) = mpsc::channel::<()>();
    let poller = thread::spawn(move || -> Result<()> {
        loop {
            for question in QUESTIONS {
                ask(&control, "GET", question, "")?;
            }
            if ended.recv_timeout(Duration::from_secs(1)) != Err(RecvTimeoutError::Timeout) {
                return Ok(());
            }
        }
    });
    Ok(Box::new(move || {
        drop(end);
        poller.join().map_err(|_| anyhow::anyhow!("the poller panicked"))?
    }))
}

/// Runs an analysis, from its last phase on.
fn analyze(server: &Forebay) -> Result<Off<'static>> {
    let control = server.control_socket();
    server.command(&ANALYSIS)?;
    thread::sleep(ANALYSIS_START);
    Ok(Box::new(move || {
        let analysis = ask(&control, "GET", "/v1/analysis", "")?;
        ensure!(analysis.contains(r#""state":"running""#), "an analysis ended too early");
        ask(&control, "DELETE", "/v1/analysis", "").map(drop)
    }))
}

/// Records a trace, and takes what comes of it.
fn record(server: &Forebay) -> Result<Off<'static>> {
    let control = server.control_socket();
    let begun = Instant::now();
    // A server notices only after a moment that the client of the former recording is gone.
    let mut stream = loop {
        if let Some(stream) = start_recording(&control)? {
            break stream;
        }
        ensure!(begun.elapsed() < RECORDING_START_MAX, "the recording was refused");
        thread::sleep(Duration::from_millis(50));
    };
    let end = stream.try_clone()?;
    let taker = thread::spawn(move || std::io::copy(&mut stream, &mut std::io::sink()));
    Ok(Box::new(move || {
        end.shutdown(Shutdown::Both)?;
        let bytes = taker.join().map_err(|_| anyhow::anyhow!("a recording panicked"))??;
        ensure!(bytes > RECORDED_BYTES_MIN, "a trace has only {bytes} bytes");
        Ok(())
    }))
}

/// The connection to which a recording is sent; `None` if it was refused.
fn start_recording(control: &Path) -> Result<Option<UnixStream>> {
    let mut stream = UnixStream::connect(control).context("connecting to the control socket")?;
    write!(
        stream,
        "POST /v1/trace HTTP/1.1\r\nhost: forebay\r\nconnection: close\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n{RECORDING}",
        RECORDING.len()
    )?;
    let mut start = [0; 12];
    stream.read_exact(&mut start).context("reading the answer to a recording")?;
    Ok((start == *b"HTTP/1.1 200").then_some(stream))
}

/// The answer to a request.
fn ask(control: &Path, method: &str, path: &str, body: &str) -> Result<String> {
    let mut stream = UnixStream::connect(control).context("connecting to the control socket")?;
    write!(
        stream,
        "{method} {path} HTTP/1.1\r\nhost: forebay\r\nconnection: close\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    ensure!(answer.starts_with("HTTP/1.1 2"), "{method} {path} was refused: {answer}");
    Ok(answer)
}
