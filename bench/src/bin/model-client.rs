//! `model-client`: compares a server as built, byte by byte, with a model of a volume, through
//! stops, kills and power cuts.

use anyhow::{Context, Result, ensure};
use clap::{Parser, ValueEnum};
use forebay_bench::content::Random;
use forebay_bench::forebay::Forebay;
use forebay_bench::model::disk::{self, DiskProcess};
use forebay_bench::model::oracle::Oracle;
use forebay_bench::model::plan::Plan;
use forebay_bench::model::session::Session;
use forebay_bench::wire::export_flag;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Write to a volume over several connections, and compare all that comes back with a model.
///
/// The backing store is filled first. Then the server lives as often as it is stopped, killed and
/// cut off; the last life ends with a stop, after which the backing store is compared from outside.
/// DESTROYS the data on the backing store.
#[derive(Parser)]
struct Arguments {
    /// Where the programs are.
    #[arg(long, default_value = "target/release")]
    programs: PathBuf,
    /// An empty folder for the files of the server.
    #[arg(long)]
    folder: PathBuf,
    /// The backing store, as a volume names it.
    #[arg(long)]
    backing: String,
    /// The file or device that has the bytes of the backing store, where `--backing` is not one.
    #[arg(long)]
    outside: Option<PathBuf>,
    /// Mode and protection of the volume.
    #[arg(long)]
    mode: Mode,
    /// The journal, as a volume names it.
    #[arg(long, default_value = "")]
    journal: String,
    /// I/O engine of the server.
    #[arg(long, default_value = "auto")]
    io: String,
    /// Memory of the server, in MiB.
    #[arg(long, default_value_t = 32)]
    memory_mib: u64,
    /// A command for the shell that is the disk: killed with the server in a power cut.
    #[arg(long, requires = "disk_socket")]
    disk: Option<String>,
    /// Where the disk of `--disk` answers.
    #[arg(long)]
    disk_socket: Option<PathBuf>,
    /// Trims may leave any content; without this, zeroes or the old content.
    #[arg(long)]
    trim_leaves_anything: bool,
    /// Requests of all lives together.
    #[arg(long, default_value_t = 20_000)]
    operations: u64,
    /// Orderly stops; one at least.
    #[arg(long, default_value_t = 1)]
    stops: u64,
    /// Kills of the server; its disk lives on.
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
    /// Kinds of requests to leave out, to find out which of them makes a run fail.
    #[arg(long, value_delimiter = ',')]
    without: Vec<Kind>,
    /// The same seed sends the same requests in the same order.
    #[arg(long, default_value_t = 1)]
    seed: u32,
}

/// Requests that can be left out.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Kind {
    Trim,
    Zero,
    Cache,
    Fua,
}

impl Kind {
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
enum Mode {
    /// Write-back without protection.
    WriteBack,
    /// Write-back with a journal that acknowledges durable writes.
    Journal,
    /// The same, with `ordered=yes`.
    Ordered,
    /// Write-back with a journal that only a flush waits for.
    JournalFlush,
    WriteThrough,
    Bypass,
}

/// How a life of the server ends.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    Stop,
    Kill,
    Cut,
}

impl Mode {
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

    /// Whether everything that was answered is promised to be there afterwards. What was flushed,
    /// or written with FUA, always is.
    fn keeps_what_was_answered(self, end: End) -> bool {
        match (end, self) {
            (End::Stop, _) | (_, Self::Journal | Self::Ordered) => true,
            (_, Self::WriteBack | Self::JournalFlush) => false,
            // The disk has it, and lives on after a kill.
            (end, Self::WriteThrough | Self::Bypass) => end == End::Kill,
        }
    }
}

/// The test as far as it has come.
struct Run {
    arguments: Arguments,
    oracle: Oracle,
    disk: Option<DiskProcess>,
    random: Random,
    /// How the life before ended.
    before: End,
    answered: u64,
    lives: u64,
}

fn main() -> ExitCode {
    match run(Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("model-client: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: Arguments) -> Result<()> {
    ensure!(arguments.stops > 0, "--stops: the last life ends with a stop, so there is one");
    std::fs::create_dir_all(&arguments.folder)
        .with_context(|| format!("--folder {}", arguments.folder.display()))?;
    let outside = arguments.outside.clone().unwrap_or_else(|| arguments.backing.clone().into());
    let oracle = disk::make(&outside, arguments.seed)?;
    let disk = match (&arguments.disk, &arguments.disk_socket) {
        (Some(command), Some(socket)) => Some(DiskProcess::new(command.clone(), socket.clone())),
        _ => None,
    };
    let random = Random::new(u64::from(arguments.seed));
    let mut run = Run { arguments, oracle, disk, random, before: End::Stop, answered: 0, lives: 0 };
    let begin = Instant::now();
    for end in run.ends() {
        run.live(end).with_context(|| format!("life {} of the server", run.lives))?;
        if end == End::Stop {
            // With its disk cut off as well: a stop has flushed it.
            run.disk.as_mut().map_or(Ok(()), DiskProcess::kill)?;
            disk::compare(&outside, &mut run.oracle)?;
        }
    }
    let seconds = begin.elapsed().as_secs_f64();
    println!(
        "operations={} per_second={:.0} compared_mib={} lives={} seconds={seconds:.1}",
        run.answered,
        run.answered as f64 / seconds,
        run.oracle.compared / 2048,
        run.lives,
    );
    Ok(())
}

impl Run {
    /// The ends of all lives, mixed; the last one is a stop.
    fn ends(&mut self) -> Vec<End> {
        let Arguments { stops, kills, cuts, .. } = self.arguments;
        let kinds = [(End::Stop, stops - 1), (End::Kill, kills), (End::Cut, cuts)];
        let mut ends: Vec<End> =
            kinds.iter().flat_map(|&(end, count)| (0..count).map(move |_| end)).collect();
        for place in (1..ends.len()).rev() {
            ends.swap(place, self.random.below(place as u64 + 1) as usize);
        }
        ends.push(End::Stop);
        ends
    }

    fn live(&mut self, end: End) -> Result<()> {
        self.lives += 1;
        let server = self.start_disk_and_server()?;
        let shape = (self.arguments.connections, self.arguments.depth);
        let mut session = Session::open(&server.socket, "v", shape, &mut self.oracle)?;
        session.trim_leaves_anything = self.arguments.trim_leaves_anything;
        match self.before {
            End::Stop => {}
            End::Kill => {
                // A later power cut must not take what the disk of a killed server had not
                // flushed, as it is what there is from now on.
                session.flush()?;
                session.scan(Some("after a kill"))?;
            }
            End::Cut => session.scan(Some("after a power cut"))?,
        }
        let lives = self.arguments.stops + self.arguments.kills + self.arguments.cuts;
        let share = self.arguments.operations / lives;
        let count = share / 2 + self.random.below(share.max(1)) + 1;
        let seed = self.random.next_u64();
        let mut export = session.export();
        self.arguments.without.iter().for_each(|kind| export.flags &= !kind.flags());
        let mut plan = Plan::new(seed, &export, self.arguments.connections);
        session.run(&mut plan, count)?;
        self.before = end;
        if end == End::Stop {
            session.scan(None)?;
            self.answered += session.answered;
            drop(session);
            server.stop()?;
            self.oracle.stop();
            return Ok(());
        }
        // Half of the kills meet a server that has had some time to write back.
        if self.random.below(2) == 0 {
            std::thread::sleep(Duration::from_micros(self.random.below(20_000)));
        }
        server.kill()?;
        if let (End::Cut, Some(disk)) = (end, &mut self.disk) {
            disk.kill()?;
        }
        self.answered += session.take_last_answers()?;
        self.oracle.crash(self.arguments.mode.keeps_what_was_answered(end));
        Ok(())
    }

    fn start_disk_and_server(&mut self) -> Result<Forebay> {
        self.disk.as_mut().map_or(Ok(()), DiskProcess::start)?;
        let server = self.start_server();
        let has_disk_ended = self.disk.as_mut().is_some_and(|disk| !disk.is_running());
        if server.is_err() && has_disk_ended {
            // It ended after it was looked at, which is not the server's fault.
            self.disk.as_mut().map_or(Ok(()), DiskProcess::start)?;
            return self.start_server();
        }
        server
    }

    fn start_server(&self) -> Result<Forebay> {
        let Arguments { backing, mode, journal, programs, folder, io, .. } = &self.arguments;
        // The kernel answers at the old socket for a moment after a kill.
        let _ = std::fs::remove_file(folder.join("socket"));
        let volume = format!("v={backing},{}", mode.settings(journal));
        let memory_bytes = self.arguments.memory_mib << 20;
        Forebay::start_with(programs, folder, &[volume], memory_bytes, &["--io", io])
    }
}
