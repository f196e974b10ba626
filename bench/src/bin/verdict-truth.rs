//! `verdict-truth`: whether the verdict of `forebay analyze` is what its clients measure.
//!
//! For each load and each kind of disk, users measure their response times without the cache and
//! with it, without an analysis. Then a short analysis of the same load runs, and its claim with
//! its interval is compared with what the users have measured.

use anyhow::{Context, Result, ensure};
use clap::{Parser, ValueEnum};
use forebay_bench::forebay::Forebay;
use forebay_bench::servers;
use forebay_bench::table::TextTable;
use forebay_bench::users::{self, Stages, User, UserLoad, UserTimes};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

const POOL_BYTES: u64 = 64 << 20;
/// Settles after a change of the mode.
const SETTLE: Duration = Duration::from_secs(4);
/// Readers that fill the pool at the same time.
const FILLERS: usize = 16;

/// Compare the verdicts of short analyses with what clients measure.
#[derive(Parser)]
struct TruthArguments {
    /// Loads; all by default.
    #[arg(value_enum)]
    loads: Vec<UserLoad>,
    /// Kinds of disk; all by default.
    #[arg(long = "disk", value_enum)]
    disks: Vec<TruthDisk>,
    /// Runs of each load on each disk.
    #[arg(long, default_value_t = 1)]
    runs: u64,
    /// Number of the first run: it determines the random numbers.
    #[arg(long, default_value_t = 1)]
    first: u64,
    /// Seconds in which users measure without the cache, and as many with it.
    #[arg(long, default_value_t = 20)]
    truth: u64,
    /// Seconds with the cache before that.
    #[arg(long, default_value_t = 20)]
    warm: u64,
    /// Seconds of the phase `measure`.
    #[arg(long, default_value_t = 20)]
    measure: u64,
    /// Seconds of the phase `learn`.
    #[arg(long, default_value_t = 5)]
    learn: u64,
    /// Seconds of the phase `accelerate`.
    #[arg(long, default_value_t = 40)]
    accelerate: u64,
    /// Percentage of the regions that is held out.
    #[arg(long, default_value_t = 5)]
    hold_out: u32,
    /// Directory of the built programs; by default that of this one.
    #[arg(long)]
    programs: Option<PathBuf>,
    /// Where to keep the reports.
    #[arg(long)]
    reports: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum TruthDisk {
    /// A disk that takes 4 ms for each I/O.
    Fixed,
    /// A hard disk.
    Hdd,
    /// A RAID 5 of five hard disks.
    Array,
}

impl TruthDisk {
    const fn backing(self) -> &'static str {
        match self {
            Self::Fixed => "model:fixed?latency=4ms&size=64GiB",
            Self::Hdd => "model:hdd?size=64GiB",
            Self::Array => "model:raid5?drives=5&chunk=64KiB&drive=hdd&drive-size=16GiB",
        }
    }

    fn name(self) -> String {
        self.to_possible_value().expect("no value is skipped").get_name().to_owned()
    }
}

/// The stages of a measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Bare,
    Warm,
    Cached,
    Measure,
    Learn,
    Accelerate,
    /// With the cache, after the analysis: it may have become better meanwhile.
    CachedAfter,
}

const STAGES: usize = 7;

/// A value with its standard error, both of a logarithm.
#[derive(Clone, Copy, Debug)]
struct LogValue {
    value: f64,
    error: f64,
}

struct Outcome {
    load: UserLoad,
    disk: TruthDisk,
    run: u64,
    truth: LogValue,
    report: Value,
    users: Vec<Stages>,
}

fn main() -> Result<()> {
    let mut arguments = TruthArguments::parse();
    if arguments.loads.is_empty() {
        arguments.loads = UserLoad::value_variants().to_vec();
    }
    if arguments.disks.is_empty() {
        arguments.disks = TruthDisk::value_variants().to_vec();
    }
    let programs = match &arguments.programs {
        Some(dir) => dir.clone(),
        None => servers::own_programs()?,
    };
    let mut table = TextTable::new(HEAD);
    let (mut inside, mut count) = (0, 0);
    for run in arguments.first..arguments.first + arguments.runs {
        for &disk in &arguments.disks {
            for &load in &arguments.loads {
                let outcome = measure(&arguments, &programs, (load, disk, run))?;
                let row = outcome.row();
                println!("{}", row.join(" | "));
                (inside, count) = (inside + u32::from(outcome.is_inside()), count + 1);
                outcome.keep(arguments.reports.as_deref())?;
                table.row(row);
            }
        }
    }
    println!("\n{}\n{inside} of {count} intervals hold what clients measure", table.markdown());
    Ok(())
}

const HEAD: [&str; 8] = ["load", "disk", "run", "clients measure", "claim", "from", "to", "inside"];

fn measure(
    arguments: &TruthArguments,
    programs: &Path,
    (load, disk, run): (UserLoad, TruthDisk, u64),
) -> Result<Outcome> {
    let dir = servers::work_dir()?;
    let volume = format!("v={},mode=bypass,warm=no,learn=no", disk.backing());
    let server = Forebay::start(programs, dir.path(), &[volume], POOL_BYTES, &[])?;
    let stage = AtomicUsize::new(STAGES);
    let seconds = Duration::from_secs;
    let (users, report) = std::thread::scope(|scope| {
        let users: Vec<_> = (0..load.users())
            .map(|number| {
                let (mut stream, size) = users::open(&server.socket, "v")?;
                let (user, stage) = (User::new(load, number, size, run), &stage);
                Ok(scope.spawn(move || users::run(&mut stream, user, stage, STAGES + 1)))
            })
            .collect::<Result<_>>()?;
        // Users stop, whatever fails.
        let report = (|| {
            std::thread::sleep(SETTLE);
            enter(&stage, Stage::Bare, seconds(arguments.truth));
            stage.store(STAGES, Ordering::Relaxed);
            let mode = if load.is_deferred() { "write-back" } else { "write-through" };
            let settings: &[&str] = match load.is_deferred() {
                true => &["protection=none", "accept-loss=yes"],
                false => &[],
            };
            let mode = format!("mode={mode}");
            server.command(&[&["volume", "set", "v", &mode], settings].concat())?;
            fill(&server, load)?;
            // The policy needs some rounds to learn which part of a repeated scan to keep.
            let rounds = if load == UserLoad::ScanAgain { 3 } else { 1 };
            enter(&stage, Stage::Warm, seconds(rounds * arguments.warm));
            enter(&stage, Stage::Cached, seconds(arguments.truth));
            // Before deferred writes can be compared, older ones have to be destaged.
            let measure = arguments.measure * if load.is_deferred() { 2 } else { 1 };
            analyze(&server, arguments, measure, &stage)?;
            enter(&stage, Stage::CachedAfter, seconds(arguments.truth));
            let file = dir.path().join("report.json");
            let name = file.to_str().context("a path that is no text")?;
            server.command(&["analyze", "report", "--json", name])?;
            Ok(std::fs::read_to_string(file)?)
        })();
        stage.store(usize::MAX, Ordering::Relaxed);
        let users = users
            .into_iter()
            .map(|user| user.join().map_err(|_| anyhow::anyhow!("a user has panicked"))?);
        let users = users.collect::<Result<Vec<_>>>()?;
        let report: Result<String> = report;
        anyhow::Ok((users, report?))
    })?;
    server.stop()?;
    let truth = truth(&users).context("too few requests")?;
    Ok(Outcome { load, disk, run, truth, report: serde_json::from_str(&report)?, users })
}

fn enter(stage: &AtomicUsize, next: Stage, length: Duration) {
    stage.store(next as usize, Ordering::Relaxed);
    std::thread::sleep(length);
}

/// Reads what is read most often into the pool, beside the users.
fn fill(server: &Forebay, load: UserLoad) -> Result<()> {
    let (_, size) = users::open(&server.socket, "v")?;
    let mut places = load.favourites(size);
    places.sort_by_key(|place| place.offset);
    std::thread::scope(|scope| {
        let readers: Vec<_> = (0..FILLERS)
            .map(|reader| {
                let places: Vec<_> = places.iter().skip(reader).step_by(FILLERS).collect();
                scope.spawn(move || {
                    let (mut stream, _) = users::open(&server.socket, "v")?;
                    let mut buffer = Vec::new();
                    places
                        .into_iter()
                        .try_for_each(|&place| users::send(&mut stream, place, &mut buffer))
                })
            })
            .collect();
        readers.into_iter().try_for_each(|reader| {
            reader.join().map_err(|_| anyhow::anyhow!("a reader has panicked"))?
        })
    })
}

fn analyze(
    server: &Forebay,
    arguments: &TruthArguments,
    measure: u64,
    stage: &AtomicUsize,
) -> Result<()> {
    let lengths = [measure, arguments.learn, arguments.accelerate];
    let [measure, learn, accelerate] = lengths.map(|seconds| format!("{seconds}s"));
    let hold_out = arguments.hold_out.to_string();
    server.command(&[
        "analyze",
        "start",
        "--yes",
        "--measure",
        &measure,
        "--learn",
        &learn,
        "--accelerate",
        &accelerate,
        "--hold-out",
        &hold_out,
    ])?;
    let limit = Duration::from_secs(2 * lengths.iter().sum::<u64>() + 30);
    let begun = Instant::now();
    loop {
        let status = server.command(&["analyze", "status", "--json"])?;
        let status: Value = serde_json::from_str(&status)?;
        let now = match status["phase"].as_str() {
            Some("measure") => Stage::Measure as usize,
            Some("learn") => Stage::Learn as usize,
            Some("accelerate") => Stage::Accelerate as usize,
            _ => STAGES,
        };
        stage.store(now, Ordering::Relaxed);
        if status["state"] == "complete" {
            return Ok(());
        }
        ensure!(begun.elapsed() < limit, "the analysis does not end: {status}");
        std::thread::sleep(Duration::from_millis(200));
    }
}

/// What clients measure: how many times longer a request takes without the cache, with users and
/// kinds in the same proportion as with it.
fn truth(users: &[Stages]) -> Option<LogValue> {
    let value = log_ratio(users, None)?;
    let mut variance = 0.0;
    for parts in [BARE, CACHED] {
        let slices = parts.iter().flat_map(|stage| {
            let stage = *stage as usize;
            let longest = users.iter().map(|stages| stages[stage].len()).max().unwrap_or(0);
            (0..longest).map(move |at| (stage, at))
        });
        let logs: Vec<f64> = slices.filter_map(|skip| log_ratio(users, Some(skip))).collect();
        let count = logs.len() as f64;
        let mean = logs.iter().sum::<f64>() / count;
        variance += (count - 1.0) / count * logs.iter().map(|l| (l - mean).powi(2)).sum::<f64>();
    }
    Some(LogValue { value, error: variance.sqrt() })
}

/// The stages without the cache, and those with it.
const BARE: &[Stage] = &[Stage::Bare];
const CACHED: &[Stage] = &[Stage::Cached, Stage::CachedAfter];

/// The logarithm of the ratio, without a slice of a stage.
fn log_ratio(users: &[Stages], skip: Option<(usize, usize)>) -> Option<f64> {
    let (mut without, mut with) = (0.0, 0.0);
    for stages in users {
        let (bare, cached) = (sum(stages, BARE, skip), sum(stages, CACHED, skip));
        for kind in (0..2).filter(|&kind| cached.requests[kind] > 0) {
            without += cached.requests[kind] as f64 * bare.mean(kind);
            with += cached.seconds[kind];
        }
    }
    Some((without / with).ln()).filter(|log| log.is_finite())
}

fn sum(stages: &Stages, parts: &[Stage], skip: Option<(usize, usize)>) -> UserTimes {
    let mut sum = UserTimes::default();
    for stage in parts.iter().map(|stage| *stage as usize) {
        let slices = stages[stage].iter().enumerate();
        let kept = slices.filter(|(at, _)| Some((stage, *at)) != skip);
        kept.for_each(|(_, slice)| sum.add(slice));
    }
    sum
}

impl Outcome {
    fn volume(&self) -> &Value {
        &self.report["volumes"][0]
    }

    /// The claim, and the ends of its interval.
    fn claim(&self) -> Option<[f64; 3]> {
        let claim = &self.volume()["times_as_fast"];
        let [value, low, high] = ["value", "low_95", "high_95"].map(|name| claim[name].as_f64());
        Some([value?, low?, high?])
    }

    /// Whether the interval holds what clients measure.
    fn is_inside(&self) -> bool {
        let truth = self.truth.value.exp();
        self.claim().is_some_and(|[_, low, high]| (low..=high).contains(&truth))
    }

    fn row(&self) -> [String; HEAD.len()] {
        let [claim, low, high] = match self.claim() {
            Some(claim) => claim.map(|value| format!("{value:.3}")),
            None => [const { String::new() }; 3],
        };
        let truth = self.truth.value.exp();
        [
            self.load.name(),
            self.disk.name(),
            self.run.to_string(),
            format!("{truth:.3} ±{:.1} %", 196.0 * self.truth.error),
            claim,
            low,
            high,
            if self.is_inside() { "yes" } else { "no" }.to_owned(),
        ]
    }

    /// Keeps the report and what users have measured in each stage.
    fn keep(&self, folder: Option<&Path>) -> Result<()> {
        let Some(folder) = folder else { return Ok(()) };
        std::fs::create_dir_all(folder)?;
        let of_stage = (0..STAGES).map(|stage| {
            let mut sum = UserTimes::default();
            self.users.iter().flat_map(|user| &user[stage]).for_each(|slice| sum.add(slice));
            serde_json::json!({"requests": sum.requests, "seconds": sum.seconds})
        });
        let stages: Vec<Value> = of_stage.collect();
        let document = serde_json::json!({
            "truth": self.truth.value.exp(),
            "truth_log_error": self.truth.error,
            "stages": stages,
            "report": self.report,
        });
        let name = format!("{}-{}-{}.json", self.load.name(), self.disk.name(), self.run);
        Ok(std::fs::write(folder.join(name), format!("{document:#}\n"))?)
    }
}
