//! The cost of a start with a full journal, compared with a plain read of the same bytes.
//!
//! Each round fills a journal with writes of 4 KiB at random places of a volume, kills the server,
//! reads the same number of bytes of the journal's file, in long pieces past the page cache (the
//! baseline), and then restarts the server. The start ends when the volume answers a read. Finally
//! all content is read back and checked. The disk of the volume is slow, so that the data is still
//! dirty when the server is killed.
//!
//! Prints medians over the rounds of ratios within a round. A missed limit exits with 1.

use anyhow::{Context, Result, ensure};
use clap::Parser;
use forebay_bench::area::SharedArea;
use forebay_bench::commit;
use forebay_bench::figures::{FigureLimit, FigureList};
use forebay_bench::forebay::Forebay;
use forebay_bench::load::{LoadOp, LoadParams, OffsetPattern};
use forebay_bench::table::median;
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

#[derive(Parser)]
struct RecoveryArgs {
    /// Directory of the built programs.
    #[arg(long, default_value = "target/release")]
    programs: PathBuf,
    /// Folder on the device to be measured; not on tmpfs.
    #[arg(long, default_value = "target")]
    folder: PathBuf,
    /// MiB of writes in the journal.
    #[arg(long, default_value_t = 1024)]
    mib: u64,
    /// MiB of the volume; by default so many that few places are written twice.
    #[arg(long)]
    span: Option<u64>,
    /// Memory of the server, in MiB.
    #[arg(long, default_value_t = 4096)]
    memory: u64,
    /// Bytes of one write.
    #[arg(long, default_value_t = 4096)]
    block: u32,
    /// Rounds.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
}

const MIB: u64 = 1 << 20;
/// Bytes per read of the baseline.
const READ_BYTES: usize = 4 << 20;
/// Size of the volume relative to the data written: few places are written twice.
const VOLUME_PARTS: u64 = 8;
/// A start reads the log twice, and processes each record: on two busy processors and a device of
/// 1.5 GB/s it took 18 times as long as the read. A start that waited for the disk of the volume,
/// or processed records in quadratic time, would take hundreds of times as long.
const START_RATIO_MAX: f64 = 30.0;
/// Memory of a start beside the pool, in MiB, and in bytes per record: 48, twice that while the
/// list grows, and 72 while the volume is restored.
const PRIVATE_MIB_BASE: f64 = 100.0;
const RECORD_BYTES_MAX: f64 = 168.0;
/// Write latency of the disk.
const SLOW_MS: u64 = 200;

/// The result of a round.
struct Round {
    read_s: f64,
    start_s: f64,
    restored_mib: f64,
    /// Peak private memory of the process, in MiB; the pool is shared.
    private_mib: f64,
}

fn main() -> Result<ExitCode> {
    let arguments = RecoveryArgs::parse();
    let mut rounds = Vec::new();
    for at in 0..arguments.rounds {
        rounds.push(round(&arguments, at as u64 + 1)?);
        eprintln!("recovery: round {} done", at + 1);
    }
    let median_of = |figure: &dyn Fn(&Round) -> f64| {
        median(&rounds.iter().map(figure).collect::<Vec<_>>()).unwrap_or(f64::NAN)
    };
    let records = (arguments.mib * MIB / u64::from(arguments.block)) as f64;
    let private_max = PRIVATE_MIB_BASE + records * RECORD_BYTES_MAX / MIB as f64;
    let mut figures = FigureList::default();
    println!("{} MiB of {} B, medians of {} rounds", arguments.mib, arguments.block, rounds.len());
    figures.add("read the log, s", median_of(&|round| round.read_s), FigureLimit::Information);
    figures.add("start, s", median_of(&|round| round.start_s), FigureLimit::Information);
    let ratio = median_of(&|round| round.start_s / round.read_s);
    figures.add("start / read", ratio, FigureLimit::AtMost(START_RATIO_MAX));
    figures.add("restored, MiB", median_of(&|round| round.restored_mib), FigureLimit::Information);
    let private = median_of(&|round| round.private_mib);
    figures.add("private memory, MiB", private, FigureLimit::AtMost(private_max));
    Ok(figures.print())
}

fn round(arguments: &RecoveryArgs, seed: u64) -> Result<Round> {
    let dir = tempfile::tempdir_in(&arguments.folder)
        .with_context(|| format!("--folder {}", arguments.folder.display()))?;
    let (disk, journal) = (dir.path().join("disk"), dir.path().join("journal"));
    let bytes = arguments.mib * MIB;
    // A checkpoint starts when less than half of the journal is free.
    commit::fill(&journal, 3 * bytes)?;
    let span = arguments.span.unwrap_or(VOLUME_PARTS * arguments.mib);
    File::create(&disk)?.set_len(span * MIB)?;
    let volume = format!(
        "v=delay(write={SLOW_MS}ms):{},mode=write-back,protection=journal,journal={}",
        disk.display(),
        journal.display()
    );
    let volumes = [volume];
    let memory = arguments.memory * MIB;
    let server = Forebay::start(&arguments.programs, dir.path(), &volumes, memory, &[])?;
    let mut load = LoadParams::new(server.socket.clone(), "v".into());
    (load.connections, load.depth, load.block_bytes) = (2, 32, arguments.block);
    (load.op, load.pattern, load.verify) = (LoadOp::Write, OffsetPattern::Random, true);
    (load.count, load.seed) = (Some(bytes / u64::from(arguments.block)), seed);
    load.run()?;
    let written = server.journal()?.get("written_bytes")?;
    server.kill()?;
    let read_s = read(&journal, written)?;
    let mut private_kib = 0;
    let mut watch = |pid| private_kib = private_kib.max(private_kib_of(pid));
    let begun = Instant::now();
    let server =
        Forebay::start_watched(&arguments.programs, dir.path(), &volumes, memory, &[], &mut watch)?;
    let mut first = load.clone();
    (first.op, first.connections, first.depth, first.count) = (LoadOp::Read, 1, 1, Some(1));
    first.verify = false;
    first.run()?;
    let start_s = begun.elapsed().as_secs_f64();
    let log = std::fs::read_to_string(dir.path().join("log"))?;
    let restored = restored_bytes(&log).context("the log does not report the restored bytes")?;
    // The same seed selects the same places.
    load.op = LoadOp::Read;
    load.run()?;
    server.kill()?;
    let restored_mib = restored as f64 / MIB as f64;
    Ok(Round { read_s, start_s, restored_mib, private_mib: private_kib as f64 / 1024.0 })
}

/// The restored bytes: a field of an event in the server's log.
fn restored_bytes(log: &str) -> Option<u64> {
    let line = log.lines().find(|line| line.contains("restored from the journal"))?;
    line.split_whitespace().find_map(|word| word.strip_prefix("bytes="))?.parse().ok()
}

/// Seconds to read the first `bytes` of a file past the page cache.
fn read(path: &Path, bytes: u64) -> Result<f64> {
    let file = File::open(path)?;
    fcntl_setfl(&file, fcntl_getfl(&file)? | OFlags::DIRECT)?;
    let mut area = SharedArea::new(READ_BYTES)?;
    // Touched once, to keep page faults out of the measurement.
    area.bytes_mut().fill(1);
    let begun = Instant::now();
    for position in (0..bytes).step_by(READ_BYTES) {
        ensure!(file.read_at(area.bytes_mut(), position)? > 0, "the file ends early");
    }
    Ok(begun.elapsed().as_secs_f64())
}

/// Private memory of a process, in KiB; 0 once it is gone.
fn private_kib_of(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
    line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}
