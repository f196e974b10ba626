//! `scenarios`: effects of the cache, measured in front of a disk that takes 5 ms per I/O.

use anyhow::{Result, ensure};
use clap::{Parser, ValueEnum};
use forebay_bench::figures::{FigureLimit, FigureList};
use forebay_bench::forebay::Forebay;
use forebay_bench::load::{LoadOp, LoadParams, LoadResult, OffsetPattern};
use forebay_bench::page_cache::ExportMount;
use forebay_bench::table::median;
use forebay_bench::{client, servers};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// A disk that takes five milliseconds per I/O.
const SLOW: &str = "delay(read=5ms,write=5ms)";
const MIB: u64 = 1 << 20;
/// Latency of [`SLOW`], in microseconds: the latency of a hit that waits for the disk.
const SLOW_US: f64 = 5_000.0;
/// The p99 of hits beside misses, in multiples of the p99 of hits alone.
const HIT_P99_RATIO_MAX: f64 = 10.0;
/// Cold sequential reads of 4 KiB at depth 1 behind [`SLOW`], as a multiple of the rate of the disk
/// alone in the same round. Synchronous read-ahead reaches 14.
const SEQUENTIAL_RATIO_MIN: f64 = 100.0;
/// Bytes read from the disk per byte requested sequentially.
const READ_AMPLIFICATION_MAX: f64 = 1.1;
/// A modelled hard disk.
const HARD_DISK: &str = "model:hdd?size=8GiB";
/// Cold sequential reads at depth 1, as a share of what is possible: the streaming rate of the bare
/// disk, or the rate of hits at depth 1 if that is lower.
const STREAM_SHARE_MIN: f64 = 0.9;
/// Requests of 1 MiB in flight that make the bare disk stream; the better depth counts.
const STREAM_DEPTHS: [u32; 2] = [8, 32];
/// The size of the volume of hits that limit a stream: more than most processors cache. Each round
/// starts elsewhere in it, because a stream finds none of its data in the processor's cache.
const HITS_BYTES: u64 = 1024 * MIB;
/// Cold sequential reads at depth 1, in multiples of the rate of the page cache. Below 1 because
/// both reach the rate of a hard disk.
const PAGE_CACHE_RATIO_MIN: f64 = 0.95;
/// Random misses with prefetch, as a share of those without. The goal is 0.99; the rest is the
/// error of the median over the pairs.
const RANDOM_SHARE_MIN: f64 = 0.98;

/// The pool, and the size that is set then: at least a gibibyte less.
const GIVE_BACK_FROM_MIB: u64 = 2816;
const GIVE_BACK_TO_MIB: u64 = 1664;
/// Time in which the process returns the first gibibyte of clean lines to the system, in
/// milliseconds.
const GIVE_BACK_MS_MAX: f64 = 200.0;
/// The same for all that it can return, down to the minimum: twice as much.
const GIVE_BACK_ALL_MS_MAX: f64 = 400.0;
/// The memory for lines that stays, at most.
const LEAST_MIB: u64 = 64;
const GIVE_BACK_PATIENCE: Duration = Duration::from_secs(30);

/// Measure the effects of the cache in front of a slow disk. Exits with 1 if a target was missed.
#[derive(Parser)]
struct ScenariosArgs {
    /// Scenarios; all by default.
    #[arg(value_enum)]
    scenarios: Vec<Scenario>,
    /// Seconds of one measurement.
    #[arg(long, default_value_t = 1.0)]
    seconds: f64,
    /// Rounds of scenarios that compare loads; limits apply to medians.
    #[arg(long, default_value_t = 3)]
    rounds: u32,
    /// Pairs of runs of random-misses, each twice as long as a measurement; an even number, so that
    /// each of the two is the first equally often.
    #[arg(long, default_value_t = 14)]
    pairs: u32,
    /// Directory of the built programs; by default that of this one.
    #[arg(long)]
    programs: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Scenario {
    /// Hits at depth 1 while another client misses at depth 16.
    LatencyUnderMiss,
    /// Cold sequential reads, small and large.
    Sequential,
    /// Cold sequential reads of several sizes, compared with the disk's own rate.
    Streams,
    /// Random misses, with prefetch and without.
    RandomMisses,
    /// Sixteen clients that read the same cold block at the same time.
    SixteenReaders,
    /// A burst of overwrites of the same mebibyte in a write-back volume.
    OverwriteBurst,
    /// A gibibyte of clean lines is given back to the system, beside readers and without.
    GiveBack,
}

fn main() -> Result<ExitCode> {
    let mut arguments = ScenariosArgs::parse();
    if arguments.scenarios.is_empty() {
        arguments.scenarios = Scenario::value_variants().to_vec();
    }
    let programs = match &arguments.programs {
        Some(dir) => dir.clone(),
        None => servers::own_programs()?,
    };
    let mut figures = FigureList::default();
    for scenario in &arguments.scenarios {
        let dir = servers::work_dir()?;
        let start =
            |volumes: &[String]| Forebay::start(&programs, dir.path(), volumes, 256 * MIB, &[]);
        match scenario {
            Scenario::LatencyUnderMiss => latency_under_miss(start, &arguments, &mut figures)?,
            Scenario::Sequential => sequential(start, &arguments, &mut figures)?,
            Scenario::Streams => streams(&programs, &arguments, &mut figures)?,
            Scenario::RandomMisses => random_misses(start, &arguments, &mut figures)?,
            Scenario::SixteenReaders => sixteen_readers(start, &mut figures)?,
            Scenario::OverwriteBurst => overwrite_burst(start, &mut figures)?,
            Scenario::GiveBack => give_back(&programs, &arguments, &mut figures)?,
        }
        eprintln!("scenarios: {scenario:?} done");
    }
    Ok(figures.print())
}

/// Eight megabytes are warmed and hit; the misses go to the rest of the volume. The rounds with
/// and without misses are interleaved.
fn latency_under_miss(
    start: impl Fn(&[String]) -> Result<Forebay>,
    arguments: &ScenariosArgs,
    figures: &mut FigureList,
) -> Result<()> {
    let server = start(&[format!("v={SLOW}:memory:4GiB")])?;
    let mut hits = LoadParams::new(server.socket.clone(), "v".to_owned());
    hits.span_bytes = Some(8 * MIB);
    hits.depth = 1;
    hits.seconds = arguments.seconds;
    let mut warm = hits.clone();
    warm.block_bytes = MIB as u32;
    warm.pattern = OffsetPattern::Sequential;
    warm.count = Some(16);
    warm.run()?;
    let mut misses = LoadParams::new(server.socket.clone(), "v".to_owned());
    misses.start_bytes = 1024 * MIB;
    misses.depth = 16;
    // The misses outlast the hits.
    misses.seconds = arguments.seconds * 1.1;

    let (mut idle, mut busy): (Vec<LoadResult>, Vec<LoadResult>) = (Vec::new(), Vec::new());
    for round in 0..arguments.rounds {
        idle.push(hits.run()?);
        misses.seed = 1000 + u64::from(round);
        let outcome = std::thread::scope(|scope| {
            let misser = scope.spawn(|| misses.run());
            let outcome = hits.run();
            misser.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
            outcome
        })?;
        busy.push(outcome);
    }
    let p99 = |outcomes: &[LoadResult]| -> Vec<f64> {
        outcomes.iter().map(|outcome| outcome.latency_us_p99).collect()
    };
    let ratios: Vec<f64> = p99(&idle).iter().zip(p99(&busy)).map(|(i, b)| b / i).collect();
    figures.add("hits alone, p99 us", middle(&p99(&idle)), FigureLimit::Information);
    let beside = "hits while another client misses, p99 us";
    figures.add(beside, middle(&p99(&busy)), FigureLimit::AtMost(SLOW_US));
    figures.add("ratio of both p99", middle(&ratios), FigureLimit::AtMost(HIT_P99_RATIO_MAX));
    Ok(())
}

/// Each round has a server of its own, whose memory is given back for the first time.
fn give_back(programs: &Path, arguments: &ScenariosArgs, figures: &mut FigureList) -> Result<()> {
    for is_all in [false, true] {
        for is_read in [false, true] {
            let mut times_ms = Vec::new();
            for _ in 0..arguments.rounds {
                times_ms.push(time_to_give_back(programs, is_all, is_read)?);
            }
            let (what, limit_ms) = match is_all {
                false => ("1 GiB of clean lines", GIVE_BACK_MS_MAX),
                true => ("all but the minimum", GIVE_BACK_ALL_MS_MAX),
            };
            let beside = if is_read { "beside reads" } else { "without load" };
            let what = format!("{what} given back {beside}, ms");
            figures.add(&what, middle(&times_ms), FigureLimit::AtMost(limit_ms));
        }
    }
    Ok(())
}

/// The time from the command until the process of a full server has a gibibyte less, or all that it
/// can return, in milliseconds.
fn time_to_give_back(programs: &Path, is_all: bool, is_read: bool) -> Result<f64> {
    let volumes = ["v=memory:2560MiB".to_owned()];
    let dir = servers::work_dir()?;
    let memory = GIVE_BACK_FROM_MIB * MIB;
    let server = Forebay::start(programs, dir.path(), &volumes, memory, &[])?;
    let mut load = LoadParams::new(server.socket.clone(), "v".to_owned());
    load.block_bytes = MIB as u32;
    load.pattern = OffsetPattern::Sequential;
    load.count = Some(2560);
    load.run()?;
    load.block_bytes = 4096;
    load.pattern = OffsetPattern::Random;
    (load.count, load.seconds) = (None, 2.0);
    let (to_bytes, less_bytes) = match is_all {
        false => (GIVE_BACK_TO_MIB * MIB, 1024 * MIB),
        true => {
            let used = server.memory("used_bytes")?;
            (server.memory("limit_bytes_min")?, used - LEAST_MIB * MIB)
        }
    };
    std::thread::scope(|scope| {
        let reader = is_read.then(|| scope.spawn(|| load.run()));
        std::thread::sleep(Duration::from_millis(500));
        let before = server.resident_bytes()?;
        let begin = Instant::now();
        server.command(&["set", &format!("memory={to_bytes}")])?;
        while server.resident_bytes()? + less_bytes > before {
            let given = before.saturating_sub(server.resident_bytes()?) / MIB;
            ensure!(begin.elapsed() < GIVE_BACK_PATIENCE, "only {given} MiB were given back");
            std::thread::sleep(Duration::from_millis(1));
        }
        let took = begin.elapsed();
        if let Some(reader) = reader {
            reader.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        }
        Ok(took.as_secs_f64() * 1_000.0)
    })
}

fn middle(values: &[f64]) -> f64 {
    median(values).unwrap_or(f64::NAN)
}

fn sequential(
    start: impl Fn(&[String]) -> Result<Forebay>,
    arguments: &ScenariosArgs,
    figures: &mut FigureList,
) -> Result<()> {
    let volume = |name: &str| format!("{name}={SLOW}:memory:4GiB");
    let bare = format!("{},mode=bypass", volume("bare"));
    let server = start(&[volume("small"), volume("large"), bare])?;
    let load = |volume: &str| {
        let mut load = LoadParams::new(server.socket.clone(), volume.to_owned());
        load.pattern = OffsetPattern::Sequential;
        load.depth = 1;
        load.seconds = arguments.seconds;
        load
    };
    let (mut small, mut ratios) = (Vec::new(), Vec::new());
    for round in 0..u64::from(arguments.rounds) {
        let mut rates = [0.0; 2];
        for (volume, rate) in ["small", "bare"].into_iter().zip(&mut rates) {
            let mut load = load(volume);
            // A place not yet read or read ahead.
            load.start_bytes = round * 512 * MIB % (4096 * MIB);
            *rate = load.run()?.iops;
        }
        small.push(rates[0]);
        ratios.push(rates[0] / rates[1]);
    }
    let mut large = load("large");
    large.block_bytes = MIB as u32;
    large.count = Some(256);
    let before = server.counters("large")?;
    let outcome = large.run()?;
    let after = server.counters("large")?;
    let asked = (outcome.requests * MIB) as f64;
    let read = after.since(&before, "backend_read_bytes")? as f64;
    let reads = after.since(&before, "backend_reads")? as f64;
    let name = |what: &str| format!("cold sequential {what}");
    figures.add(name("4 KiB, depth 1, IOPS"), middle(&small), FigureLimit::Information);
    let ratio_min = FigureLimit::AtLeast(SEQUENTIAL_RATIO_MIN);
    figures.add(name("4 KiB, depth 1, times the disk alone"), middle(&ratios), ratio_min);
    figures.add(name("1 MiB, depth 1, MiB/s"), outcome.iops, FigureLimit::Information);
    let amplification_max = FigureLimit::AtMost(READ_AMPLIFICATION_MAX);
    figures.add(name("1 MiB, disk bytes per byte asked"), read / asked, amplification_max);
    figures.add(
        name("1 MiB, bytes of one disk read"),
        read / reads.max(1.0),
        FigureLimit::Information,
    );
    Ok(())
}

/// A load that streams at depth 1.
fn stream_of(server: &Forebay, volume: &str, start_bytes: u64, block_bytes: u64) -> LoadParams {
    let mut load = LoadParams::new(server.socket.clone(), volume.to_owned());
    load.pattern = OffsetPattern::Sequential;
    load.block_bytes = block_bytes as u32;
    load.start_bytes = start_bytes;
    load.depth = 1;
    load
}

/// Bytes per second of one load.
fn rate_of(load: &LoadParams) -> Result<f64> {
    Ok(load.run()?.iops * f64::from(load.block_bytes))
}

/// The rates of one round, in bytes per second.
struct StreamRound {
    cold: f64,
    bare: f64,
    hits: f64,
    page_cache: Option<f64>,
}

fn streams(programs: &Path, arguments: &ScenariosArgs, figures: &mut FigureList) -> Result<()> {
    let dir = servers::work_dir()?;
    let volume = [format!("hits=memory:{HITS_BYTES}")];
    let hits = Forebay::start(programs, dir.path(), &volume, HITS_BYTES / 2 * 3, &[])?;
    let mut fill = stream_of(&hits, "hits", 0, MIB);
    fill.count = Some(HITS_BYTES / MIB);
    fill.run()?;
    let obstacle = ExportMount::obstacle();
    if let Some(obstacle) = &obstacle {
        eprintln!("scenarios: streams are not compared with the page cache: {obstacle}");
    }
    let slow = format!("{SLOW}:memory:8GiB");
    for (disk, name) in [(slow.as_str(), "5 ms delay"), (HARD_DISK, "modelled hard disk")] {
        let dir = servers::work_dir()?;
        let volumes = [format!("v={disk}"), format!("bare={disk},mode=bypass")];
        let server = Forebay::start(programs, dir.path(), &volumes, 256 * MIB, &[])?;
        let mount =
            if obstacle.is_none() { Some(ExportMount::new(&server.socket, "bare")?) } else { None };
        let mut place = 0;
        for (block_bytes, size) in [(4 << 10, "4 KiB"), (64 << 10, "64 KiB"), (MIB, "1 MiB")] {
            let mut rounds = Vec::new();
            for _ in 0..arguments.rounds {
                place += 600 * MIB;
                let at = place % (6 << 30);
                rounds.push(stream_round(
                    (&server, &hits, mount.as_ref()),
                    (at, block_bytes),
                    arguments.seconds,
                )?);
            }
            add_streams(&format!("stream of {size}, depth 1, {name}"), &rounds, figures);
        }
    }
    Ok(())
}

/// Measures reads of `block_bytes` from `at` on, a place that is in no cache.
fn stream_round(
    (server, hits, mount): (&Forebay, &Forebay, Option<&ExportMount>),
    (at, block_bytes): (u64, u64),
    seconds: f64,
) -> Result<StreamRound> {
    let mut cold = stream_of(server, "v", at, block_bytes);
    cold.seconds = seconds;
    let cold = rate_of(&cold)?;
    let mut bare = 0.0;
    for depth in STREAM_DEPTHS {
        let mut load = stream_of(server, "bare", at, MIB);
        (load.depth, load.seconds) = (depth, seconds);
        bare = rate_of(&load)?.max(bare);
    }
    let half = HITS_BYTES / 2;
    let mut hot = stream_of(hits, "hits", at % half, block_bytes);
    (hot.span_bytes, hot.seconds) = (Some(half), seconds);
    let hits = rate_of(&hot)?;
    let page_cache = mount.map(|mount| mount.stream(at, block_bytes, seconds)).transpose()?;
    Ok(StreamRound { cold, bare, hits, page_cache })
}

fn add_streams(what: &str, rounds: &[StreamRound], figures: &mut FigureList) {
    let median =
        |of: &dyn Fn(&StreamRound) -> f64| middle(&rounds.iter().map(of).collect::<Vec<f64>>());
    let mib = |rate: f64| rate / MIB as f64;
    let (bare, hits) = (median(&|round| round.bare), median(&|round| round.hits));
    figures.add(
        format!("{what}, MiB/s"),
        median(&|round| mib(round.cold)),
        FigureLimit::Information,
    );
    let bare_name = format!("{what}: bare disk, 1 MiB at depth 8 or 32, MiB/s");
    figures.add(bare_name, mib(bare), FigureLimit::Information);
    figures.add(format!("{what}: hits at depth 1, MiB/s"), mib(hits), FigureLimit::Information);
    let bound = if bare < hits { "the bare disk's rate" } else { "the rate of hits" };
    let share = median(&|round| round.cold / round.bare.min(round.hits));
    let limit = FigureLimit::AtLeast(STREAM_SHARE_MIN);
    figures.add(format!("{what}, share of {bound}"), share, limit);
    if rounds.iter().all(|round| round.page_cache.is_some()) {
        let ratio = median(&|round| round.cold / round.page_cache.unwrap_or(f64::NAN));
        let limit = FigureLimit::AtLeast(PAGE_CACHE_RATIO_MIN);
        figures.add(format!("{what}, times the page cache over nbdfuse"), ratio, limit);
    }
}

/// The disk is memory, so that the processor's time for a miss shows. The volumes alternate, and so
/// does their order.
fn random_misses(
    start: impl Fn(&[String]) -> Result<Forebay>,
    arguments: &ScenariosArgs,
    figures: &mut FigureList,
) -> Result<()> {
    let volume = |name: &str| format!("{name}=memory:1GiB,prefetch={name}");
    let server = start(&[volume("yes"), volume("no")])?;
    // Both volumes share a pool of a quarter of one of them, so clients use some of what is read
    // ahead by mistake.
    for block_kib in [4, 64] {
        let rate = |volume: &str, seed: u32| -> Result<f64> {
            let mut load = LoadParams::new(server.socket.clone(), volume.to_owned());
            load.block_bytes = block_kib << 10;
            load.depth = 16;
            load.seconds = 2.0 * arguments.seconds;
            load.seed = u64::from(seed);
            Ok(load.run()?.iops)
        };
        let mut shares = Vec::new();
        for pair in 0..arguments.pairs {
            let share = if pair % 2 == 0 {
                let with = rate("yes", pair)?;
                with / rate("no", pair)?
            } else {
                let without = rate("no", pair)?;
                rate("yes", pair)? / without
            };
            shares.push(share);
        }
        let what = format!("random misses of {block_kib} KiB, share of the rate without prefetch");
        figures.add(&what, middle(&shares), FigureLimit::AtLeast(RANDOM_SHARE_MIN));
        let [least, most] = [f64::min as fn(f64, f64) -> f64, f64::max]
            .map(|pick| shares.iter().copied().reduce(pick).unwrap_or(f64::NAN));
        figures.add("the same, least of the pairs", least, FigureLimit::Information);
        figures.add("the same, most of the pairs", most, FigureLimit::Information);
    }
    Ok(())
}

fn sixteen_readers(
    start: impl Fn(&[String]) -> Result<Forebay>,
    figures: &mut FigureList,
) -> Result<()> {
    // Twenty milliseconds, so that all sixteen arrive while the first one waits.
    let server = start(&["v=delay(read=20ms):memory:1GiB,prefetch=no".to_owned()])?;
    let before = server.counters("v")?;
    let blocks = 10;
    for block in 0..blocks {
        let mut load = LoadParams::new(server.socket.clone(), "v".to_owned());
        // A prime number of lines apart: neither adjacent nor in one region.
        load.start_bytes = block * 1009 * 4096;
        load.span_bytes = Some(4096);
        load.depth = 1;
        load.connections = 16;
        load.count = Some(16);
        load.run()?;
    }
    let after = server.counters("v")?;
    let reads = after.since(&before, "backend_reads")? as f64 / blocks as f64;
    let name = "disk reads for 16 readers of one cold block";
    figures.add(name, reads, FigureLimit::AtMost(1.0));
    Ok(())
}

fn overwrite_burst(
    start: impl Fn(&[String]) -> Result<Forebay>,
    figures: &mut FigureList,
) -> Result<()> {
    let options = "mode=write-back,protection=none,accept-loss=yes";
    let server = start(&[format!("v={SLOW}:memory:1GiB,{options}")])?;
    let mut burst = LoadParams::new(server.socket.clone(), "v".to_owned());
    burst.op = LoadOp::Write;
    burst.span_bytes = Some(MIB);
    burst.depth = 16;
    // Each of the 256 lines about sixty times, which takes a fraction of a second.
    burst.count = Some(256 * 60);
    let before = server.counters("v")?;
    let outcome = burst.run()?;
    client::flush(&server.socket, "v")?;
    let after = server.counters("v")?;
    let written = after.since(&before, "backend_write_bytes")? as f64 / MIB as f64;
    let writes = after.since(&before, "backend_writes")? as f64;
    figures.add("burst of overwrites, IOPS", outcome.iops, FigureLimit::Information);
    figures.add("MiB written to disk for 1 MiB overwritten", written, FigureLimit::AtMost(1.0));
    figures.add("disk writes for it", writes, FigureLimit::Information);
    Ok(())
}
