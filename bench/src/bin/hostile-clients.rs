//! Checks that a server stops in time with hostile clients.
//!
//! Each round starts the built program, connects hostile clients and one well-behaved client, and
//! then stops the server in one of three ways: after all hostile clients have left, during their
//! activity, or after the volume was removed during their activity. The stop must end in time, no
//! connection of a departed peer may remain, the well-behaved client must be served throughout, and
//! finally the disk must have all its data. Rounds differ in mode, disk, I/O engine and way to
//! stop; a seed determines the bytes sent, not their timing.

use anyhow::{Context, Result, bail, ensure};
use clap::{Parser, ValueEnum};
use forebay_bench::content::LoadRandom;
use forebay_bench::forebay::Forebay;
use forebay_bench::hostile::crowd::{CrowdTarget, HostileCrowd, attack};
use forebay_bench::hostile::script::TargetVolume;
use forebay_bench::hostile::witness::Witness;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

#[derive(Clone, Debug, Parser)]
struct HostileClientsArgs {
    /// Directory of the built programs.
    #[arg(long, default_value = "target/release")]
    programs: PathBuf,
    /// Folder for the disk and the server state.
    #[arg(long, default_value = "target")]
    folder: PathBuf,
    /// Total number of hostile connections.
    #[arg(long, default_value_t = 100_000)]
    connections: u64,
    /// Hostile connections before each stop.
    #[arg(long, default_value_t = 20_000)]
    round: u64,
    /// Seed of the first round; incremented for each round.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Threads of hostile clients, each with up to 48 concurrent connections.
    #[arg(long, default_value_t = 4)]
    threads: u64,
    /// Memory of the server, in MiB.
    #[arg(long, default_value_t = 64)]
    memory: u64,
    /// I/O engine of the server.
    #[arg(long, value_enum, default_value_t = ReactorChoice::Both)]
    io: ReactorChoice,
    /// Time limit of a stop or a removal, in seconds.
    #[arg(long, default_value_t = 10)]
    stop_seconds: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum ReactorChoice {
    /// io_uring in three of four rounds.
    Both,
    /// io_uring.
    IoUring,
    /// epoll.
    Epoll,
}

/// How a round ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RoundEnd {
    /// All hostile clients leave first.
    Quiet,
    /// A signal arrives during their activity.
    Signal,
    /// The volume is removed during their activity, then a signal arrives.
    Removal,
}

const MIB: u64 = 1 << 20;
const VOLUME_BYTES: u64 = 192 * MIB;
/// The part of the volume owned by the witness, at its end.
const WITNESS_BYTES: u64 = 4 * MIB;
/// Time limit for connections of departed peers to disappear; leaked ones stay forever.
const GONE_WITHIN: Duration = Duration::from_secs(60);
/// Polling interval.
const POLL: Duration = Duration::from_millis(5);

/// The parameters of a round.
struct RoundPlan {
    seed: u64,
    connections: u64,
    write_back: bool,
    delayed: bool,
    io: &'static str,
    end: RoundEnd,
}

impl RoundPlan {
    fn new(arguments: &HostileClientsArgs, at: u64, connections: u64) -> Self {
        let seed = arguments.seed + at;
        let ring = arguments.io == ReactorChoice::IoUring
            || (arguments.io == ReactorChoice::Both && seed % 8 < 6);
        Self {
            seed,
            connections,
            write_back: seed.is_multiple_of(2),
            delayed: seed / 2 % 2 == 1,
            io: if ring { "io_uring" } else { "epoll" },
            end: [RoundEnd::Quiet, RoundEnd::Signal, RoundEnd::Removal][(seed % 3) as usize],
        }
    }

    fn volume(&self, disk: &Path) -> String {
        let layer = if self.delayed { "delay(read=1ms,write=1ms):" } else { "" };
        let mode = match self.write_back {
            true => "mode=write-back,protection=none,accept-loss=yes",
            false => "mode=write-through",
        };
        format!("disk={layer}{},{mode}", disk.display())
    }
}

/// The result of a round.
struct RoundOutcome {
    opened: u64,
    seconds: f64,
    witness_requests: u64,
    removal: Option<Duration>,
    stop: Duration,
}

fn main() -> Result<()> {
    let arguments = HostileClientsArgs::parse();
    let (mut opened, mut at, mut slowest) = (0, 0, Duration::ZERO);
    while opened < arguments.connections {
        let quota = arguments.round.min(arguments.connections - opened);
        let plan = RoundPlan::new(&arguments, at, quota);
        let outcome = round(&arguments, &plan)
            .with_context(|| format!("the round with --seed {} failed", plan.seed))?;
        at += 1;
        opened += outcome.opened;
        slowest = slowest.max(outcome.stop);
        println!(
            "seed {}: {} hostile connections in {:.1} s ({:.0}/s), {} requests beside them; \
             {}{}, {}, {:?}{}: stopped in {:.2} s",
            plan.seed,
            outcome.opened,
            outcome.seconds,
            outcome.opened as f64 / outcome.seconds,
            outcome.witness_requests,
            if plan.write_back { "write-back" } else { "write-through" },
            if plan.delayed { ", slow disk" } else { "" },
            plan.io,
            plan.end,
            outcome
                .removal
                .map_or(String::new(), |took| format!(" in {:.2} s", took.as_secs_f64())),
            outcome.stop.as_secs_f64(),
        );
    }
    println!(
        "{opened} hostile connections in {at} rounds; the slowest stop took {:.2} s of {} s",
        slowest.as_secs_f64(),
        arguments.stop_seconds,
    );
    Ok(())
}

fn round(arguments: &HostileClientsArgs, plan: &RoundPlan) -> Result<RoundOutcome> {
    std::fs::create_dir_all(&arguments.folder)?;
    let dir = tempfile::tempdir_in(&arguments.folder)?;
    let disk = dir.path().join("disk");
    File::create(&disk)?.set_len(VOLUME_BYTES)?;
    let more = ["--workers", "2", "--io", plan.io, "--log", "warn", "--nbd", "tcp:127.0.0.1:0"];
    let (volume, memory) = (plan.volume(&disk), arguments.memory * MIB);
    let mut server = Forebay::start(&arguments.programs, dir.path(), &[volume], memory, &more)?;
    let outcome = run_attack(arguments, plan, &mut server);
    let log = std::fs::read_to_string(dir.path().join("log")).unwrap_or_default();
    if outcome.is_err() && server.end_within(Duration::ZERO)?.is_none() {
        server.kill()?;
    }
    let (outcome, content) =
        outcome.with_context(|| format!("its log ends with\n{}", tail(&log)))?;
    let mut bytes = vec![0; WITNESS_BYTES as usize];
    File::open(&disk)?.read_exact_at(&mut bytes, VOLUME_BYTES - WITNESS_BYTES)?;
    let wrong = bytes.iter().zip(&content).position(|(disk, written)| disk != written);
    ensure!(wrong.is_none(), "the disk has lost byte {wrong:?} of the well-behaved client");
    Ok(outcome)
}

fn tail(log: &str) -> String {
    let lines: Vec<&str> = log.lines().collect();
    lines[lines.len().saturating_sub(20)..].join("\n")
}

fn run_attack(
    arguments: &HostileClientsArgs,
    plan: &RoundPlan,
    server: &mut Forebay,
) -> Result<(RoundOutcome, Vec<u8>)> {
    let hostile_bytes = VOLUME_BYTES - WITNESS_BYTES;
    let volume = TargetVolume { export: "disk".into(), size_bytes: VOLUME_BYTES, hostile_bytes };
    let target = CrowdTarget { socket: server.socket.clone(), port: port(server)? };
    let mut random = LoadRandom::new(plan.seed);
    let part = (hostile_bytes, WITNESS_BYTES);
    let mut witness =
        Witness::enter(&target.socket, "disk", part, LoadRandom::new(random.next_u64()))?;
    let (crowd, is_watched) = (HostileCrowd::default(), AtomicBool::new(false));
    let begin = Instant::now();
    std::thread::scope(|scope| {
        let mut attackers = Vec::new();
        for _ in 0..arguments.threads {
            let random = LoadRandom::new(random.next_u64());
            let (crowd, target, volume) = (&crowd, &target, &volume);
            attackers
                .push(scope.spawn(move || attack(crowd, plan.connections, random, target, volume)));
        }
        let working = scope.spawn(|| witness.work(&is_watched).map(|()| witness));
        let under_way = || crowd.opened.load(Ordering::Relaxed) < plan.connections;
        while under_way() && !working.is_finished() && !attackers.iter().any(|a| a.is_finished()) {
            std::thread::sleep(POLL);
        }
        let seconds = begin.elapsed().as_secs_f64();
        is_watched.store(true, Ordering::Relaxed);
        let mut join = || -> Result<()> {
            crowd.is_over.store(true, Ordering::Relaxed);
            attackers.drain(..).try_for_each(|attacker| attacker.join().expect("it does not panic"))
        };
        if plan.end == RoundEnd::Quiet {
            join()?;
        }
        let witness = working.join().expect("it does not panic");
        let ended = witness.and_then(|witness| {
            let (removal, stop) = end(arguments, plan, server)?;
            Ok((removal, stop, witness))
        });
        join()?;
        let (removal, stop, witness) = ended?;
        let (opened, witness_requests) = (crowd.opened.load(Ordering::Relaxed), witness.requests());
        let outcome = RoundOutcome { opened, seconds, witness_requests, removal, stop };
        Ok((outcome, witness.content().to_vec()))
    })
}

/// Ends the server as planned. Returns the duration of the removal, if any, and of the stop.
fn end(
    arguments: &HostileClientsArgs,
    plan: &RoundPlan,
    server: &mut Forebay,
) -> Result<(Option<Duration>, Duration)> {
    let limit = Duration::from_secs(arguments.stop_seconds);
    if plan.end == RoundEnd::Quiet {
        // The well-behaved client is still connected.
        let until = Instant::now() + GONE_WITHIN;
        while server.status()?["connections"] != 1 {
            let left = &server.status()?["connections"];
            ensure!(
                Instant::now() < until,
                "{left} connections remain, only one client is connected"
            );
            std::thread::sleep(POLL);
        }
    }
    let mut removal = None;
    if plan.end == RoundEnd::Removal {
        let begin = Instant::now();
        server.command(&["volume", "remove", "disk", "--force"])?;
        removal = Some(begin.elapsed());
        ensure!(begin.elapsed() < limit, "the removal took {:?}", begin.elapsed());
    }
    let begin = Instant::now();
    if plan.end == RoundEnd::Quiet {
        server.command(&["stop", "--force"])?;
    } else {
        server.terminate()?;
    }
    match server.end_within(limit)? {
        Some(status) if status.success() => Ok((removal, begin.elapsed())),
        Some(status) => bail!("the server ended with {status}"),
        None => bail!("the server has not stopped within {limit:?}"),
    }
}

/// The TCP port that the server has chosen.
fn port(server: &Forebay) -> Result<u16> {
    let status = server.status()?;
    let listeners = status["listeners"].as_array().context("the status has no listeners")?;
    let mut ports = listeners.iter().filter_map(|listener| listener.as_str()).filter_map(|text| {
        text.strip_prefix("tcp:").and_then(|rest| rest.rsplit_once(':')?.1.parse().ok())
    });
    ports.next().context("the server does not listen on TCP")
}
