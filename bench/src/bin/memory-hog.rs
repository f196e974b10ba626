//! The memory of the cache beside a program that takes what it can get.
//!
//! A server whose pool is full runs in a control group with a memory limit. Other programs of the
//! group take memory at a given rate, more than is free, while a client reads. The server must give
//! back what is missing before the system kills or swaps; when the programs have ended, it must
//! grow back to its size. Once for each rate, each with a server of its own. A missed limit exits
//! with 1. Needs root.

use anyhow::{Context, Result, ensure};
use clap::Parser;
use clap::value_parser;
use forebay_bench::figures::FigureLimit::{AtLeast, AtMost, Information};
use forebay_bench::figures::FigureList;
use forebay_bench::forebay::Forebay;
use forebay_bench::group::ControlGroup;
use forebay_bench::load::{LoadParams, OffsetPattern};
use forebay_bench::servers;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

const MIB: u64 = 1 << 20;
/// The time that each program of the hog has for its part.
const PIECE_TIME: Duration = Duration::from_millis(50);
/// How long the group is watched after the last program has its memory: a kill or a swap may come
/// late.
const WATCH_TIME: Duration = Duration::from_secs(2);
/// The time until the pool has its size again, in seconds: a wait of 30, and steps of 5 in which at
/// most half of what is free is taken.
const REGROWTH_SECONDS_MAX: f64 = 90.0;
/// The used memory of the pool after a second fill, as a share of that after the first.
const REFILLED_SHARE_MIN: f64 = 0.95;
const PATIENCE: Duration = Duration::from_secs(300);
/// Up to this rate, in MiB per second, nothing is swapped out. A faster program can take the
/// reserve before the cache has looked and given memory back.
const NO_SWAP_RATE_MAX_MIB: u64 = 4_000;

/// Measure how the cache makes room for programs in its control group. Exits with 1 if a target was
/// missed.
#[derive(Parser)]
struct MemoryHogArgs {
    /// The limit of the control group, in MiB.
    #[arg(long = "group", default_value_t = 2048, value_parser = value_parser!(u64).range(1..))]
    group_mib: u64,
    /// The memory of the server, in MiB.
    #[arg(long = "memory", default_value_t = 1280, value_parser = value_parser!(u64).range(1..))]
    memory_mib: u64,
    /// What the hog takes, in MiB.
    #[arg(long = "hog", default_value_t = 1200, value_parser = value_parser!(u64).range(1..))]
    hog_mib: u64,
    /// Rates at which the hog takes it, in MiB per second.
    #[arg(
        long,
        value_delimiter = ',',
        default_values_t = [250, 1000, 4000],
        value_parser = value_parser!(u64).range(1..)
    )]
    rates: Vec<u64>,
    /// Directory of the built programs; by default that of this one.
    #[arg(long)]
    programs: Option<PathBuf>,
}

fn main() -> Result<ExitCode> {
    let arguments = MemoryHogArgs::parse();
    let programs = match &arguments.programs {
        Some(dir) => dir.clone(),
        None => servers::own_programs()?,
    };
    let mut figures = FigureList::default();
    let swap_mib = swap_total_bytes()? / MIB;
    figures.add("swap space of the machine, MiB", swap_mib as f64, Information);
    for &rate in &arguments.rates {
        run(&programs, &arguments, rate, &mut figures)?;
        eprintln!("memory-hog: {rate} MiB/s done");
    }
    Ok(figures.print())
}

fn run(
    programs: &Path,
    arguments: &MemoryHogArgs,
    mib_per_second: u64,
    figures: &mut FigureList,
) -> Result<()> {
    let group = ControlGroup::new(arguments.group_mib * MIB)?;
    let dir = servers::work_dir()?;
    // Sparse: reads of holes take no memory, even if the file is in memory.
    let disk = dir.path().join("disk");
    File::create(&disk)?.set_len(arguments.memory_mib * MIB)?;
    let volumes = [format!("v={}", disk.display())];
    let server = group.inside(|| {
        Forebay::start(programs, dir.path(), &volumes, arguments.memory_mib * MIB, &[])
    })?;
    let mut fill = LoadParams::new(server.socket.clone(), "v".to_owned());
    fill.block_bytes = MIB as u32;
    fill.pattern = OffsetPattern::Sequential;
    fill.count = Some(arguments.memory_mib);
    fill.run()?;
    let (size, filled) = (server.memory("limit_bytes")?, server.memory("used_bytes")?);
    let full = group.usage_bytes()?;
    let free_mib = (arguments.group_mib * MIB).saturating_sub(full) / MIB;
    ensure!(
        free_mib < arguments.hog_mib,
        "{free_mib} MiB of the group are free: let the hog take more than that"
    );

    let mut reads = LoadParams::new(server.socket.clone(), "v".to_owned());
    reads.depth = 4;
    let hog_time = Duration::from_secs_f64(arguments.hog_mib as f64 / mib_per_second as f64);
    reads.seconds = hog_time.as_secs_f64();
    let (mut hog, outcome) = std::thread::scope(|scope| {
        let reader = scope.spawn(|| reads.run());
        let hog = Hog::take(&group, arguments.hog_mib, mib_per_second);
        let outcome = reader.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        Ok::<_, anyhow::Error>((hog?, outcome))
    })?;
    hog.watch(&group)?;
    let killed = hog.killed()?;
    let late_ms = hog.took.saturating_sub(hog_time).as_secs_f64() * 1_000.0;
    let swapped_mib = hog.swapped_bytes_max as f64 / MIB as f64;
    let given = size.saturating_sub(server.memory("limit_bytes")?) / MIB;
    let figure = |what: &str| format!("{mib_per_second} MiB/s: {what}");
    figures.add(figure("free in the group before, MiB"), free_mib as f64, Information);
    let missing = AtLeast((arguments.hog_mib - free_mib) as f64);
    figures.add(figure("given back, MiB"), given as f64, missing);
    figures.add(figure("programs killed"), killed as f64, AtMost(0.0));
    if swap_total_bytes()? > 0 {
        let limit = match mib_per_second <= NO_SWAP_RATE_MAX_MIB {
            true => AtMost(0.0),
            false => Information,
        };
        figures.add(figure("swapped out at most, MiB"), swapped_mib, limit);
    }
    figures.add(figure("hog behind schedule, ms"), late_ms, Information);
    figures.add(figure("reads beside, p99 us"), outcome.latency_us_p99, Information);
    figures.add(figure("reads beside, maximum us"), outcome.latency_us_max, Information);

    drop(hog);
    let seconds = seconds_until_grown(&server, size)?;
    figures.add(figure("grown back after, s"), seconds, AtMost(REGROWTH_SECONDS_MAX));
    fill.run()?;
    let refilled = server.memory("used_bytes")? as f64 / filled as f64;
    figures.add(figure("filled again"), refilled, AtLeast(REFILLED_SHARE_MIN));
    server.stop()
}

/// Waits until the cache may have `size` bytes again.
fn seconds_until_grown(server: &Forebay, size: u64) -> Result<f64> {
    let begin = Instant::now();
    while server.memory("limit_bytes")? < size {
        ensure!(begin.elapsed() < PATIENCE, "the cache does not grow back within {PATIENCE:?}");
        std::thread::sleep(Duration::from_millis(100));
    }
    Ok(begin.elapsed().as_secs_f64())
}

/// Programs that have taken memory and hold it until dropped.
struct Hog {
    programs: Vec<Child>,
    /// The time until all of them had their memory.
    took: Duration,
    /// The most memory of the group that was swapped out.
    swapped_bytes_max: u64,
}

impl Hog {
    /// Starts programs in the group that take this much memory together, at this rate.
    fn take(group: &ControlGroup, mib: u64, mib_per_second: u64) -> Result<Self> {
        let piece_mib = (mib_per_second * PIECE_TIME.as_millis() as u64 / 1_000).clamp(1, mib);
        let begin = Instant::now();
        let mut hog = Self { programs: Vec::new(), took: Duration::ZERO, swapped_bytes_max: 0 };
        let mut taken_mib = 0;
        while taken_mib < mib {
            let piece_mib = piece_mib.min(mib - taken_mib);
            let due = Duration::from_secs_f64(taken_mib as f64 / mib_per_second as f64);
            std::thread::sleep(due.saturating_sub(begin.elapsed()));
            // It fills its buffer, and then waits for a reader of its output.
            let child = group.inside(|| {
                let mut command = Command::new("dd");
                command.args(["if=/dev/zero", &format!("bs={piece_mib}M"), "count=1"]);
                command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
                command.spawn().context("starting dd")
            })?;
            hog.programs.push(child);
            taken_mib += piece_mib;
            hog.note_swapped(group)?;
        }
        // Killed programs never have it.
        while hog.held_bytes() < mib * MIB && hog.killed()? == 0 && begin.elapsed() < PATIENCE {
            std::thread::sleep(Duration::from_millis(1));
            hog.note_swapped(group)?;
        }
        hog.took = begin.elapsed();
        Ok(hog)
    }

    /// Notes what is swapped out late.
    fn watch(&mut self, group: &ControlGroup) -> Result<()> {
        let begin = Instant::now();
        while begin.elapsed() < WATCH_TIME {
            self.note_swapped(group)?;
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    fn note_swapped(&mut self, group: &ControlGroup) -> Result<()> {
        if swap_total_bytes()? > 0 {
            self.swapped_bytes_max = self.swapped_bytes_max.max(group.swapped_bytes()?);
        }
        Ok(())
    }

    fn killed(&mut self) -> Result<usize> {
        let mut killed = 0;
        for program in &mut self.programs {
            killed += usize::from(program.try_wait()?.is_some());
        }
        Ok(killed)
    }

    /// Its memory, swapped out or not, without that of the programs' files.
    fn held_bytes(&self) -> u64 {
        let ids = self.programs.iter().map(Child::id);
        ids.map(|pid| status_bytes(pid, "RssAnon") + status_bytes(pid, "VmSwap")).sum()
    }
}

impl Drop for Hog {
    fn drop(&mut self) {
        for program in &mut self.programs {
            // It may have been killed.
            let _ = program.kill();
            let _ = program.wait();
        }
    }
}

/// A figure of a process; zero if it has ended.
fn status_bytes(pid: u32, name: &str) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    kib_of(&status, name).unwrap_or(0) * 1024
}

/// The size of all swap spaces.
fn swap_total_bytes() -> Result<u64> {
    let meminfo = fs::read_to_string("/proc/meminfo")?;
    Ok(kib_of(&meminfo, "SwapTotal").context("the system does not say its swap space")? * 1024)
}

/// The number in a line `NAME: NUMBER kB`.
fn kib_of(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    line.split_whitespace().next()?.parse().ok()
}
