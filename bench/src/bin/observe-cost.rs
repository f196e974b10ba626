//! The cost of being observed for write hits and read hits.
//!
//! Servers over volumes in memory and in write-back, with a pool that holds the whole volume, are
//! loaded in each of these ways: as they are; learning the time of the day, and polled once a
//! second for metrics, status, statistics and history; running an analysis of the benefit beside
//! that, whose held-out requests miss; recording a trace; and with all of this at once. Two servers
//! are loaded in turn, for some milliseconds each, and only one of them is in such a way. Their
//! workers have a processor of their own. Each round starts others. Prints the centre over the
//! rounds and its interval. A missed limit exits with 1.

use anyhow::{Context, Result, ensure};
use clap::Parser;
use forebay_bench::cpu::{Apart, WORKERS};
use forebay_bench::figures::FigureList;
use forebay_bench::forebay::Forebay;
use forebay_bench::load::LoadOp;
use forebay_bench::ways::{LoadPlan, Loaded, Off, Switch, compare_switched};
use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

#[derive(Parser)]
struct ObserveCostArgs {
    /// Directory of the built programs.
    #[arg(long, default_value = "target/release")]
    programs: PathBuf,
    /// Rounds.
    #[arg(long, default_value_t = 12)]
    rounds: usize,
    /// For how many seconds each way without an analysis is on for each server.
    #[arg(long, default_value_t = 3.0)]
    seconds: f64,
    /// Only this way: off, on, analyzed, recorded or everything. May be given several times.
    #[arg(long = "way")]
    ways: Vec<String>,
    /// Only this direction.
    #[arg(long)]
    op: Option<LoadOp>,
    /// Requests in flight. With many, the worker waits for nothing, and figures vary least.
    #[arg(long, default_value_t = 256)]
    depth: u32,
}

/// With fewer, the interval is not one of 95 %.
const ROUNDS_MIN: usize = 6;
/// Bytes of each volume: so many regions that an analysis holds out 1 % of them, not none or 1.6 %.
const VOLUME_BYTES: u64 = 512 << 20;
/// Options of the volume. Lines that are destaged because of their age, more in one turn than in
/// the next, would cost more than what is measured.
const OPTIONS: &str = ",learn=no,write-back-iops=1";
/// How much more processor time of the workers a request may take, in percent.
const WORKERS_MORE_MAX: f64 = 3.0;
/// The minimum rate relative to that with nothing switched on.
const SHARE_MIN: f64 = 0.97;
/// The same during a recording. One more thread of the server, and the client that takes the trace,
/// use the processors of the load.
const RECORDED_SHARE_MIN: f64 = 0.95;
/// The command that starts an analysis. Its last phase has intervals of 25 s, each with four
/// windows in which it holds out regions.
const ANALYSIS: [&str; 8] =
    ["analyze", "start", "--measure", "1s", "--learn", "1s", "--accelerate", "20m"];
/// The mean time from one of its windows to the next.
const ANALYSIS_TURN: Duration = Duration::from_millis(6_250);
/// An analysis is in its last phase then, and knows the load.
const ANALYSIS_SETTLE: Duration = Duration::from_millis(2_600);
/// The other ways have their full effect by then, and so has the end of a way.
const SETTLE: Duration = Duration::from_millis(500);
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
    let ObserveCostArgs { programs, rounds, seconds, ways: selected, op, depth } =
        ObserveCostArgs::parse();
    ensure!(rounds >= ROUNDS_MIN, "{rounds} rounds are too few: give at least {ROUNDS_MIN}");
    let turn = Duration::try_from_secs_f64(seconds).context("--seconds")?;
    ensure!(!turn.is_zero(), "--seconds 0: nothing would be measured");
    let plan = LoadPlan { volume_bytes: VOLUME_BYTES, depth, busy: true };
    let apart = Apart::of_this_thread()?;
    let start = || {
        let server = Loaded::start(plan, &programs, OPTIONS, &[])?;
        apart.keep(server.pid(), WORKERS)?;
        Ok(server)
    };
    let switch = |name, parts: &'static [SwitchOn], share_min| Switch {
        name,
        settle: SETTLE,
        turn,
        share_min,
        workers_more_max: WORKERS_MORE_MAX,
        on: Box::new(move |server: &Forebay| {
            let offs: Result<Vec<Off<'_>>> = parts.iter().map(|on| on(server)).collect();
            let offs = offs?;
            Ok(Box::new(move || offs.into_iter().rev().try_for_each(|off| off())) as Off<'_>)
        }),
    };
    let mut switches = vec![
        switch("off", &[], SHARE_MIN),
        switch("on", &[learn, poll], SHARE_MIN),
        with_analysis(switch("analyzed", &[learn, poll, analyze], SHARE_MIN)),
        switch("recorded", &[record], RECORDED_SHARE_MIN),
        with_analysis(switch("everything", &[learn, poll, analyze, record], RECORDED_SHARE_MIN)),
    ];
    for way in &selected {
        let is_known = switches.iter().any(|switch| switch.name == way);
        ensure!(is_known, "no way {way}: give off, on, analyzed, recorded or everything");
    }
    switches.retain(|switch| selected.is_empty() || selected.iter().any(|way| way == switch.name));
    let mut figures = FigureList::default();
    for op in op.map_or(vec![LoadOp::Write, LoadOp::Read], |op| vec![op]) {
        compare_switched(rounds, start, op, &switches, &mut figures)?;
    }
    println!("requests of 4 KiB that hit, centres of {rounds} rounds with their intervals of 95 %");
    Ok(figures.print())
}

/// A way with an analysis: it takes longer to begin, and is on for one of its windows.
fn with_analysis(way: Switch<'_>) -> Switch<'_> {
    Switch { settle: ANALYSIS_SETTLE, turn: ANALYSIS_TURN, ..way }
}

/// Switches a part of a way on.
type SwitchOn = fn(&Forebay) -> Result<Off<'static>>;

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

/// Runs an analysis.
fn analyze(server: &Forebay) -> Result<Off<'static>> {
    let control = server.control_socket();
    server.command(&ANALYSIS)?;
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
        ensure!(!taker.is_finished(), "a recording ended too early");
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
