//! `model-client`: compares the built server, byte by byte, with a model of a volume, through
//! stops, kills and power cuts.

use anyhow::{Context, Result, ensure};
use clap::{Parser, ValueEnum};
use forebay_bench::content::LoadRandom;
use forebay_bench::forebay::Forebay;
use forebay_bench::model::disk::{self, DiskProcess};
use forebay_bench::model::oracle::VolumeOracle;
use forebay_bench::model::plan::RequestPlan;
use forebay_bench::model::session::ModelSession;
use forebay_bench::wire::export_flag;
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

/// Write to a volume over several connections, and compare all reads with a model.
///
/// First fills the backing store. Then runs the server once for each stop, kill and power cut; the
/// last run ends with a stop, after which the backing store itself is compared. DESTROYS the
/// content of the backing store.
#[derive(Parser)]
struct ModelClientArgs {
    /// Directory of the built programs.
    #[arg(long, default_value = "target/release")]
    programs: PathBuf,
    /// An empty folder for the files of the server.
    #[arg(long)]
    folder: PathBuf,
    /// The backing store, as a volume names it.
    #[arg(long)]
    backing: String,
    /// File or device with the bytes of the backing store, if `--backing` is not one.
    #[arg(long)]
    outside: Option<PathBuf>,
    /// Shell command that copies the file `--outside` to the backing store, before the first run.
    #[arg(long, requires = "outside")]
    store: Option<String>,
    /// Shell command that copies the backing store to the file `--outside`, before a comparison.
    #[arg(long, requires = "store")]
    fetch: Option<String>,
    /// Mode and protection of the volume.
    #[arg(long)]
    mode: ModelMode,
    /// The journal, as a volume names it.
    #[arg(long, default_value = "")]
    journal: String,
    /// I/O engine of the server.
    #[arg(long, default_value = "auto")]
    io: String,
    /// Memory of the server, in MiB.
    #[arg(long, default_value_t = 32)]
    memory_mib: u64,
    /// Shell command that serves the disk; killed with the server in a power cut.
    #[arg(long, requires = "disk_socket")]
    disk: Option<String>,
    /// Socket of the disk of `--disk`.
    #[arg(long)]
    disk_socket: Option<PathBuf>,
    /// Accept any content in trimmed ranges; by default zeroes or the old content.
    #[arg(long)]
    trim_leaves_anything: bool,
    /// Total number of requests.
    #[arg(long, default_value_t = 20_000)]
    operations: u64,
    /// Orderly stops; at least one.
    #[arg(long, default_value_t = 1)]
    stops: u64,
    /// Kills of the server; its disk survives.
    #[arg(long, default_value_t = 0)]
    kills: u64,
    /// Power cuts: the server is killed together with its disk.
    #[arg(long, default_value_t = 0)]
    cuts: u64,
    /// Connections.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=16))]
    connections: u32,
    /// Requests in flight on each connection.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=64))]
    depth: u32,
    /// Kinds of requests to leave out, to narrow down a failure.
    #[arg(long, value_delimiter = ',')]
    without: Vec<OptionalRequest>,
    /// The same seed sends the same requests in the same order.
    #[arg(long, default_value_t = 1)]
    seed: u32,
}

/// Requests that can be left out.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum OptionalRequest {
    Trim,
    Zero,
    Cache,
    Fua,
}

impl OptionalRequest {
    const fn flags(self) -> u16 {
        match self {
            Self::Trim => export_flag::TRIM,
            Self::Zero => export_flag::WRITE_ZEROES,
            Self::Cache => export_flag::CACHE,
            Self::Fua => export_flag::FUA,
        }
    }
}

/// Mode and protection.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum ModelMode {
    /// Write-back without protection.
    WriteBack,
    /// Write-back with a journal that acknowledges what is durable.
    Journal,
    /// The same, with `ordered=yes`.
    Ordered,
    /// Write-back with a journal that only a flush waits for.
    JournalFlush,
    WriteThrough,
    Bypass,
}

/// How a run of the server ends.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ServerEnd {
    Stop,
    Kill,
    Cut,
}

impl ModelMode {
    fn settings(self, journal: &str) -> String {
        match self {
            Self::WriteBack => "mode=write-back,protection=none,accept-loss=yes".to_owned(),
            Self::Journal => format!("mode=write-back,protection=journal,journal={journal}"),
            Self::Ordered => {
                format!("mode=write-back,protection=journal,ordered=yes,journal={journal}")
            }
            Self::JournalFlush => {
                format!("mode=write-back,protection=journal,durability=flush,journal={journal}")
            }
            Self::WriteThrough => "mode=write-through".to_owned(),
            Self::Bypass => "mode=bypass".to_owned(),
        }
    }

    /// Whether all answered writes must survive. Flushed and FUA writes always must.
    fn keeps_answered_writes(self, end: ServerEnd) -> bool {
        match (end, self) {
            (ServerEnd::Stop, _) | (_, Self::Journal | Self::Ordered) => true,
            (_, Self::WriteBack | Self::JournalFlush) => false,
            // The disk has every answered write, and survives a kill.
            (end, Self::WriteThrough | Self::Bypass) => end == ServerEnd::Kill,
        }
    }
}

/// The state of the test.
struct ModelRun {
    arguments: ModelClientArgs,
    oracle: VolumeOracle,
    disk: Option<DiskProcess>,
    random: LoadRandom,
    /// How the previous run ended.
    before: ServerEnd,
    answered: u64,
    runs: u64,
}

fn main() -> ExitCode {
    match run(ModelClientArgs::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("model-client: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: ModelClientArgs) -> Result<()> {
    ensure!(arguments.stops > 0, "--stops: at least 1, because the last run ends with a stop");
    std::fs::create_dir_all(&arguments.folder)
        .with_context(|| format!("--folder {}", arguments.folder.display()))?;
    let outside = arguments.outside.clone().unwrap_or_else(|| arguments.backing.clone().into());
    let mut oracle = disk::make(&outside, arguments.seed)?;
    run_shell(arguments.store.as_deref())?;
    // In the other modes, the cache orders the requests to a sector.
    oracle.reads_may_mix = arguments.mode == ModelMode::Bypass;
    let disk = match (&arguments.disk, &arguments.disk_socket) {
        (Some(command), Some(socket)) => Some(DiskProcess::new(command.clone(), socket.clone())),
        _ => None,
    };
    let random = LoadRandom::new(u64::from(arguments.seed));
    let mut run =
        ModelRun { arguments, oracle, disk, random, before: ServerEnd::Stop, answered: 0, runs: 0 };
    let begin = Instant::now();
    for end in run.ends() {
        run.run_server(end).with_context(|| format!("run {} of the server", run.runs))?;
        if end == ServerEnd::Stop {
            // Cut off its disk as well: a stop has flushed it.
            run.disk.as_mut().map_or(Ok(()), DiskProcess::kill)?;
            run_shell(run.arguments.fetch.as_deref())?;
            disk::compare(&outside, &mut run.oracle)?;
        }
    }
    let seconds = begin.elapsed().as_secs_f64();
    println!(
        "operations={} per_second={:.0} compared_mib={} runs={} seconds={seconds:.1}",
        run.answered,
        run.answered as f64 / seconds,
        run.oracle.compared / 2048,
        run.runs,
    );
    Ok(())
}

/// Runs a command of the shell, if there is one.
fn run_shell(command: Option<&str>) -> Result<()> {
    let Some(command) = command else { return Ok(()) };
    let status = Command::new("sh").arg("-c").arg(command).status().context("starting sh")?;
    ensure!(status.success(), "{command}: {status}");
    Ok(())
}

impl ModelRun {
    /// The ends of all runs, shuffled; the last one is a stop.
    fn ends(&mut self) -> Vec<ServerEnd> {
        let ModelClientArgs { stops, kills, cuts, .. } = self.arguments;
        let kinds =
            [(ServerEnd::Stop, stops - 1), (ServerEnd::Kill, kills), (ServerEnd::Cut, cuts)];
        let mut ends: Vec<ServerEnd> =
            kinds.iter().flat_map(|&(end, count)| (0..count).map(move |_| end)).collect();
        for place in (1..ends.len()).rev() {
            ends.swap(place, self.random.below(place as u64 + 1) as usize);
        }
        ends.push(ServerEnd::Stop);
        ends
    }

    fn run_server(&mut self, end: ServerEnd) -> Result<()> {
        self.runs += 1;
        let server = self.start_disk_and_server()?;
        let shape = (self.arguments.connections, self.arguments.depth);
        let mut session = ModelSession::open(&server.socket, "v", shape, &mut self.oracle)?;
        session.trim_leaves_anything = self.arguments.trim_leaves_anything;
        match self.before {
            ServerEnd::Stop => {}
            ServerEnd::Kill => {
                // Flush what the disk of a killed server had not flushed, so that a later power cut
                // cannot lose the state that is now settled.
                session.flush()?;
                session.scan(Some("after a kill"))?;
            }
            ServerEnd::Cut => session.scan(Some("after a power cut"))?,
        }
        let runs = self.arguments.stops + self.arguments.kills + self.arguments.cuts;
        let share = self.arguments.operations / runs;
        let count = share / 2 + self.random.below(share.max(1)) + 1;
        let seed = self.random.next_u64();
        let mut export = session.export();
        self.arguments.without.iter().for_each(|kind| export.flags &= !kind.flags());
        let mut plan = RequestPlan::new(seed, &export, self.arguments.connections);
        session.run(&mut plan, count)?;
        self.before = end;
        if end == ServerEnd::Stop {
            session.scan(None)?;
            self.answered += session.answered;
            drop(session);
            server.stop()?;
            self.oracle.stop();
            return Ok(());
        }
        // Half of the kills come after some time for writeback.
        if self.random.below(2) == 0 {
            std::thread::sleep(Duration::from_micros(self.random.below(20_000)));
        }
        server.kill()?;
        if let (ServerEnd::Cut, Some(disk)) = (end, &mut self.disk) {
            disk.kill()?;
        }
        self.answered += session.take_last_answers()?;
        self.oracle.crash(self.arguments.mode.keeps_answered_writes(end));
        Ok(())
    }

    fn start_disk_and_server(&mut self) -> Result<Forebay> {
        self.disk.as_mut().map_or(Ok(()), DiskProcess::start)?;
        let server = self.start_server();
        let has_disk_ended = self.disk.as_mut().is_some_and(|disk| !disk.is_running());
        if server.is_err() && has_disk_ended {
            // The disk ended after the check, which is not the server's fault.
            self.disk.as_mut().map_or(Ok(()), DiskProcess::start)?;
            return self.start_server();
        }
        server
    }

    fn start_server(&self) -> Result<Forebay> {
        let ModelClientArgs { backing, mode, journal, programs, folder, io, .. } = &self.arguments;
        // For a moment after a kill, the kernel still answers on the old socket.
        let _ = std::fs::remove_file(folder.join("socket"));
        let volume = format!("v={backing},{}", mode.settings(journal));
        let memory_bytes = self.arguments.memory_mib << 20;
        Forebay::start(programs, folder, &[volume], memory_bytes, &["--io", io])
    }
}
