//! `scenarios`: effects of the cache, measured in front of a disk that takes 5 ms per I/O.

use anyhow::Result;
use clap::{Parser, ValueEnum};
use forebay_bench::figures::{Figures, Limit};
use forebay_bench::forebay::Forebay;
use forebay_bench::load::{Load, Op, Outcome, Pattern};
use forebay_bench::table::median;
use forebay_bench::{client, servers};
use std::path::PathBuf;
use std::process::ExitCode;

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
/// Cold sequential reads at depth 1, as a share of what is possible: the rate of the disk with many
/// large reads in flight, or that of hits at depth 1 if it is lower.
const STREAM_SHARE_MIN: f64 = 0.9;
/// Random misses with prefetch, as a share of those without. Less than the goal of 0.99 by the
/// variation between two runs.
const RANDOM_SHARE_MIN: f64 = 0.97;

/// Measure the effects of the cache in front of a slow disk. Exits with 1 if a target was missed.
#[derive(Parser)]
struct Arguments {
    /// Scenarios; all by default.
    #[arg(value_enum)]
    scenarios: Vec<Scenario>,
    /// Seconds of one measurement.
    #[arg(long, default_value_t = 1.0)]
    seconds: f64,
    /// Rounds of scenarios that compare loads; limits apply to medians.
    #[arg(long, default_value_t = 3)]
    rounds: u32,
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
}

fn main() -> Result<ExitCode> {
    let mut arguments = Arguments::parse();
    if arguments.scenarios.is_empty() {
        arguments.scenarios = Scenario::value_variants().to_vec();
    }
    let programs = match &arguments.programs {
        Some(dir) => dir.clone(),
        None => servers::own_programs()?,
    };
    let mut figures = Figures::default();
    for scenario in &arguments.scenarios {
        let dir = servers::work_dir()?;
        let start =
            |volumes: &[String]| Forebay::start(&programs, dir.path(), volumes, 256 * MIB, &[]);
        match scenario {
            Scenario::LatencyUnderMiss => latency_under_miss(start, &arguments, &mut figures)?,
            Scenario::Sequential => sequential(start, &arguments, &mut figures)?,
            Scenario::Streams => streams(start, &arguments, &mut figures)?,
            Scenario::RandomMisses => random_misses(start, &arguments, &mut figures)?,
            Scenario::SixteenReaders => sixteen_readers(start, &mut figures)?,
            Scenario::OverwriteBurst => overwrite_burst(start, &mut figures)?,
        }
        eprintln!("scenarios: {scenario:?} done");
    }
    Ok(figures.print())
}

/// Eight megabytes are warmed and hit; the misses go to the rest of the volume. The rounds with
/// and without misses are interleaved.
fn latency_under_miss(
    start: impl Fn(&[String]) -> Result<Forebay>,
    arguments: &Arguments,
    figures: &mut Figures,
) -> Result<()> {
    let server = start(&[format!("v={SLOW}:memory:4GiB")])?;
    let mut hits = Load::new(server.socket.clone(), "v".to_owned());
    hits.span_bytes = Some(8 * MIB);
    hits.depth = 1;
    hits.seconds = arguments.seconds;
    let mut warm = hits.clone();
    warm.block_bytes = MIB as u32;
    warm.pattern = Pattern::Sequential;
    warm.count = Some(16);
    warm.run()?;
    let mut misses = Load::new(server.socket.clone(), "v".to_owned());
    misses.start_bytes = 1024 * MIB;
    misses.depth = 16;
    // The misses outlast the hits.
    misses.seconds = arguments.seconds * 1.1;

    let (mut idle, mut busy): (Vec<Outcome>, Vec<Outcome>) = (Vec::new(), Vec::new());
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
    let p99 = |outcomes: &[Outcome]| -> Vec<f64> {
        outcomes.iter().map(|outcome| outcome.latency_us_p99).collect()
    };
    let ratios: Vec<f64> = p99(&idle).iter().zip(p99(&busy)).map(|(i, b)| b / i).collect();
    figures.add("hits alone, p99 us", middle(&p99(&idle)), Limit::Information);
    let beside = "hits while another client misses, p99 us";
    figures.add(beside, middle(&p99(&busy)), Limit::AtMost(SLOW_US));
    figures.add("ratio of both p99", middle(&ratios), Limit::AtMost(HIT_P99_RATIO_MAX));
    Ok(())
}

fn middle(values: &[f64]) -> f64 {
    median(values).unwrap_or(f64::NAN)
}

fn sequential(
    start: impl Fn(&[String]) -> Result<Forebay>,
    arguments: &Arguments,
    figures: &mut Figures,
) -> Result<()> {
    let volume = |name: &str| format!("{name}={SLOW}:memory:4GiB");
    let bare = format!("{},mode=bypass", volume("bare"));
    let server = start(&[volume("small"), volume("large"), bare])?;
    let load = |volume: &str| {
        let mut load = Load::new(server.socket.clone(), volume.to_owned());
        load.pattern = Pattern::Sequential;
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
    figures.add(name("4 KiB, depth 1, IOPS"), middle(&small), Limit::Information);
    let ratio_min = Limit::AtLeast(SEQUENTIAL_RATIO_MIN);
    figures.add(name("4 KiB, depth 1, times the disk alone"), middle(&ratios), ratio_min);
    figures.add(name("1 MiB, depth 1, MiB/s"), outcome.iops, Limit::Information);
    let amplification_max = Limit::AtMost(READ_AMPLIFICATION_MAX);
    figures.add(name("1 MiB, disk bytes per byte asked"), read / asked, amplification_max);
    figures.add(name("1 MiB, bytes of one disk read"), read / reads.max(1.0), Limit::Information);
    Ok(())
}

/// Each round reads a place of the volume that is not in the pool.
fn streams(
    start: impl Fn(&[String]) -> Result<Forebay>,
    arguments: &Arguments,
    figures: &mut Figures,
) -> Result<()> {
    let slow = format!("{SLOW}:memory:8GiB");
    for (disk, name) in [(slow.as_str(), "5 ms delay"), (HARD_DISK, "modelled hard disk")] {
        let volumes = [format!("v={disk}"), format!("bare={disk},mode=bypass")];
        let server = start(&volumes)?;
        let load = |volume: &str, block_bytes: u64, depth: u32| {
            let mut load = Load::new(server.socket.clone(), volume.to_owned());
            load.pattern = Pattern::Sequential;
            load.block_bytes = block_bytes as u32;
            load.depth = depth;
            load.seconds = arguments.seconds;
            load
        };
        let mut place = 0;
        for (block_bytes, size) in [(4 << 10, "4 KiB"), (64 << 10, "64 KiB"), (MIB, "1 MiB")] {
            let (mut rates, mut shares) = (Vec::new(), Vec::new());
            for _ in 0..arguments.rounds {
                place += 600 * MIB;
                let mut cold = load("v", block_bytes, 1);
                cold.start_bytes = place % (6 << 30);
                let mut many = load("bare", MIB, 16);
                many.start_bytes = cold.start_bytes;
                let mut hits = load("v", block_bytes, 1);
                (hits.start_bytes, hits.span_bytes) = (7 << 30, Some(8 * MIB));
                let mut warm = load("v", MIB, 1);
                (warm.start_bytes, warm.span_bytes) = (7 << 30, Some(8 * MIB));
                warm.count = Some(16);
                let cold = cold.run()?.iops * block_bytes as f64;
                let many = many.run()?.iops * MIB as f64;
                warm.run()?;
                let hits = hits.run()?.iops * block_bytes as f64;
                rates.push(cold / MIB as f64);
                shares.push(cold / many.min(hits));
            }
            let what = format!("stream of {size}, depth 1, {name}");
            figures.add(format!("{what}, MiB/s"), middle(&rates), Limit::Information);
            let limit = Limit::AtLeast(STREAM_SHARE_MIN);
            figures.add(format!("{what}, share of the possible rate"), middle(&shares), limit);
        }
    }
    Ok(())
}

/// The disk is memory, so that the processor's time for a miss shows.
fn random_misses(
    start: impl Fn(&[String]) -> Result<Forebay>,
    arguments: &Arguments,
    figures: &mut Figures,
) -> Result<()> {
    let volume = |name: &str| format!("{name}=memory:4GiB,prefetch={name}");
    let server = start(&[volume("yes"), volume("no")])?;
    let mut shares = Vec::new();
    for round in 0..arguments.rounds {
        let mut rates = [0.0; 2];
        for (volume, rate) in ["yes", "no"].into_iter().zip(&mut rates) {
            let mut load = Load::new(server.socket.clone(), volume.to_owned());
            load.depth = 16;
            load.seconds = arguments.seconds;
            load.seed = u64::from(round);
            *rate = load.run()?.iops;
        }
        shares.push(rates[0] / rates[1]);
    }
    let what = "random misses with prefetch, share of the rate without";
    figures.add(what, middle(&shares), Limit::AtLeast(RANDOM_SHARE_MIN));
    Ok(())
}

fn sixteen_readers(
    start: impl Fn(&[String]) -> Result<Forebay>,
    figures: &mut Figures,
) -> Result<()> {
    // Twenty milliseconds, so that all sixteen arrive while the first one waits.
    let server = start(&["v=delay(read=20ms):memory:1GiB,prefetch=no".to_owned()])?;
    let before = server.counters("v")?;
    let blocks = 10;
    for block in 0..blocks {
        let mut load = Load::new(server.socket.clone(), "v".to_owned());
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
    figures.add(name, reads, Limit::AtMost(1.0));
    Ok(())
}

fn overwrite_burst(
    start: impl Fn(&[String]) -> Result<Forebay>,
    figures: &mut Figures,
) -> Result<()> {
    let options = "mode=write-back,protection=none,accept-loss=yes";
    let server = start(&[format!("v={SLOW}:memory:1GiB,{options}")])?;
    let mut burst = Load::new(server.socket.clone(), "v".to_owned());
    burst.op = Op::Write;
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
    figures.add("burst of overwrites, IOPS", outcome.iops, Limit::Information);
    figures.add("MiB written to disk for 1 MiB overwritten", written, Limit::AtMost(1.0));
    figures.add("disk writes for it", writes, Limit::Information);
    Ok(())
}
