//! What a crowd that watches a server costs its clients.
//!
//! The crowd: a scraper that asks for metrics each millisecond, and a thousand browsers that have
//! the dashboard open. Two servers hold a volume in memory each. One is under a load of hits, while
//! there is no crowd, while the crowd watches the other server, and while it watches this one. With
//! both crowds the processors have as much else to do, so the difference between them is what the
//! data path itself loses. Prints medians over the rounds. A missed limit exits with 1.

use anyhow::{Context, Result, ensure};
use clap::Parser;
use forebay_bench::figures::{FigureLimit, FigureList};
use forebay_bench::forebay::Forebay;
use forebay_bench::load::{LoadOp, LoadParams, LoadResult};
use forebay_bench::table::median;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use tempfile::TempDir;

#[derive(Parser)]
struct CrowdArgs {
    /// Directory of the built programs.
    #[arg(long, default_value = "target/release")]
    programs: PathBuf,
    /// Rounds.
    #[arg(long, default_value_t = 9)]
    rounds: usize,
    /// Seconds of each load in a round.
    #[arg(long, default_value_t = 2.0)]
    seconds: f64,
    /// Requests in flight.
    #[arg(long, default_value_t = 16)]
    depth: u32,
    /// Browsers with the dashboard open. Each asks for the status once a second.
    #[arg(long, default_value_t = 1000)]
    browsers: u64,
}

const MIB: u64 = 1 << 20;
/// Threads that stand for the browsers.
const BROWSER_THREADS: u64 = 8;
/// Minimum rate of hits with the crowd at the server, relative to the crowd at the other one.
const SHARE_MIN: f64 = 0.85;
/// Maximum growth of the server's memory by a crowd, in bytes.
const GROWTH_MAX: f64 = (64 * MIB) as f64;

fn main() -> Result<ExitCode> {
    let arguments = CrowdArgs::parse();
    let servers =
        [CrowdServer::start(&arguments.programs)?, CrowdServer::start(&arguments.programs)?];
    let crowds = [None, Some(&servers[1]), Some(&servers[0])];
    let mut outcomes: [Vec<LoadResult>; 3] = Default::default();
    let answers = CrowdAnswers::default();
    let before = servers[0].forebay.resident_bytes()?;
    let mut largest = before;
    for _ in 0..arguments.rounds {
        for (crowd, outcomes) in crowds.iter().zip(&mut outcomes) {
            let load = servers[0].load(&arguments);
            outcomes.push(match crowd {
                None => load.run()?,
                Some(server) => watched(server, arguments.browsers, &answers, || load.run())?,
            });
        }
        largest = largest.max(servers[0].forebay.resident_bytes()?);
    }
    let mut figures = FigureList::default();
    let [quiet, elsewhere, here] = &outcomes;
    for (name, outcomes) in
        [("no crowd", quiet), ("crowd elsewhere", elsewhere), ("crowd here", here)]
    {
        let of = |figure: fn(&LoadResult) -> f64| {
            median(&outcomes.iter().map(figure).collect::<Vec<_>>()).unwrap_or(f64::NAN)
        };
        figures.add(format!("{name}, IOPS"), of(|one| one.iops), FigureLimit::Information);
        let p99 = of(|one| one.latency_us_p99);
        figures.add(format!("{name}, p99 in us"), p99, FigureLimit::Information);
    }
    let ratios = here.iter().zip(elsewhere).map(|(here, other)| here.iops / other.iops);
    let ratio = median(&ratios.collect::<Vec<_>>()).unwrap_or(f64::NAN);
    figures.add("IOPS, crowd here / elsewhere", ratio, FigureLimit::AtLeast(SHARE_MIN));
    let grown = largest.saturating_sub(before) as f64;
    figures.add("growth of the server, bytes", grown, FigureLimit::AtMost(GROWTH_MAX));
    for (name, counter) in [("answers", &answers.good), ("told to come later", &answers.later)] {
        let count = counter.load(Ordering::Relaxed) as f64;
        figures.add(name, count, FigureLimit::AtLeast(if name == "answers" { 1.0 } else { 0.0 }));
    }
    println!("reads of 4 KiB that hit, medians of {} rounds", arguments.rounds);
    Ok(figures.print())
}

/// A server with a filled volume, a dashboard and a port for metrics.
struct CrowdServer {
    forebay: Forebay,
    dashboard: SocketAddr,
    metrics: SocketAddr,
    _directory: TempDir,
}

impl CrowdServer {
    fn start(programs: &Path) -> Result<Self> {
        let directory = tempfile::tempdir()?;
        let volume = format!("v=memory:{},mode=write-through", 64 * MIB);
        let (dashboard, metrics) = (free_address()?, free_address()?);
        let (page, scraped) = (dashboard.to_string(), metrics.to_string());
        let more = ["--workers", "1", "--dashboard", &page, "--metrics", &scraped];
        let forebay = Forebay::start(programs, directory.path(), &[volume], 512 * MIB, &more)?;
        LoadParams::new(forebay.socket.clone(), "v".into()).prefill().run()?;
        Ok(Self { forebay, dashboard, metrics, _directory: directory })
    }

    fn load(&self, arguments: &CrowdArgs) -> LoadParams {
        let mut load = LoadParams::new(self.forebay.socket.clone(), "v".into());
        load.op = LoadOp::Read;
        load.depth = arguments.depth;
        load.seconds = arguments.seconds;
        load
    }
}

/// An address of this machine with a free port.
fn free_address() -> Result<SocketAddr> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?)
}

/// What the crowd was answered.
#[derive(Default)]
struct CrowdAnswers {
    good: AtomicU64,
    /// The server had too many requests or connections.
    later: AtomicU64,
}

impl CrowdAnswers {
    /// Sends a request and reads the answer.
    fn ask(&self, mut stream: impl Read + Write, host: &str, path: &str) -> Result<()> {
        let request = format!("GET {path} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n");
        let mut answer = Vec::new();
        let sent = stream.write_all(request.as_bytes());
        // A connection that was refused is closed after its answer, maybe before the request.
        let received = sent.and_then(|()| stream.read_to_end(&mut answer));
        if answer.starts_with(b"HTTP/1.1 200 ") {
            self.good.fetch_add(1, Ordering::Relaxed);
        } else {
            let is_later = [&b"HTTP/1.1 429 "[..], b"HTTP/1.1 503 "]
                .iter()
                .any(|start| answer.starts_with(start));
            let shown = String::from_utf8_lossy(&answer[..answer.len().min(200)]);
            ensure!(is_later || received.is_err(), "{path} was answered with {shown:?}");
            self.later.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }
}

/// Does `work` while a crowd watches `server`.
fn watched<T>(
    server: &CrowdServer,
    browsers: u64,
    answers: &CrowdAnswers,
    work: impl FnOnce() -> Result<T>,
) -> Result<T> {
    let ended = AtomicBool::new(false);
    thread::scope(|scope| {
        let scrape = || {
            answers.ask(
                TcpStream::connect(server.metrics)?,
                &server.metrics.to_string(),
                "/metrics",
            )
        };
        let browse = || {
            let host = server.dashboard.to_string();
            answers.ask(TcpStream::connect(server.dashboard)?, &host, "/v1/status")
        };
        let ended = &ended;
        let millisecond = Duration::from_millis(1);
        let mut crowd = vec![scope.spawn(move || repeat(millisecond, ended, scrape))];
        let each = Duration::from_secs(1) * BROWSER_THREADS as u32 / browsers.max(1) as u32;
        for _ in 0..BROWSER_THREADS {
            crowd.push(scope.spawn(move || repeat(each, ended, browse)));
        }
        let result = work();
        ended.store(true, Ordering::Relaxed);
        for one in crowd {
            one.join().map_err(|_| anyhow::anyhow!("a watcher panicked"))??;
        }
        result
    })
}

/// Calls `once` in intervals until `ended`.
fn repeat(interval: Duration, ended: &AtomicBool, once: impl Fn() -> Result<()>) -> Result<()> {
    let mut next = Instant::now();
    while !ended.load(Ordering::Relaxed) {
        once().context("watching the server")?;
        // Those that are late do not catch up.
        next = (next + interval).max(Instant::now());
        thread::sleep(next.saturating_duration_since(Instant::now()));
    }
    Ok(())
}
