//! `forebay-lab`: the command line of the simulator, the trace replay and the experiments. This
//! file only parses arguments and prints results. Exit codes: 0 success, 1 failure, 2 wrong command
//! line.

use anyhow::{Context, bail};
use clap::{Args, CommandFactory, Parser, Subcommand};
use clap_complete::Shell;
use forebay_lab::policies::PolicyKind;
use forebay_lab::{
    enumerate::{self, Bug, Limits, Workloads},
    experiment::Experiment,
    replay::{self, Memory, ReplayPlan, Workload},
    sim::{Sabotage, SimOptions, run_many},
    site::{self, SiteBug, SiteOptions},
    trace::Trace,
};
use forebay_types::{Shown, Size};
use std::{
    error::Error,
    io::{self, Write},
    path::{Path, PathBuf},
    process::ExitCode,
    thread::available_parallelism,
};

#[cfg(test)]
mod documents_tests;

/// The exit code for a wrong command line.
const USAGE: u8 = 2;

/// Simulations of Forebay, replay of traces, and experiments in virtual time.
#[derive(Debug, Parser)]
#[command(name = "forebay-lab", version, subcommand_required = true, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: LabCommand,
}

#[derive(Debug, Subcommand)]
enum LabCommand {
    /// Replay traces and print the miss ratio of each cache size and policy
    Replay(ReplayArguments),
    /// Run the cache in the simulator, with random faults; a seed determines the run
    Sim(SimArguments),
    /// Run many hosts with shared disks in the simulator, with takeovers
    #[command(long_about = "Run many hosts with shared disks in the simulator, with takeovers.\n\
        Each seed is a schedule of a site: servers are killed, frozen and cut off, and volumes are \
        taken over, while clients read and write.")]
    Site(SiteArguments),
    /// Run a small machine through all short workloads, with a crash after every step
    Enumerate(EnumerateArguments),
    /// Measure in virtual time how much the cache helps, or list the experiments
    #[command(
        long_about = "Measure in virtual time how much the cache helps, or list the experiments.\n\
        Each experiment runs the shipped cache on modelled disks, most within a minute. It prints \
        a table, some with published figures of older caches, and writes a page with plots."
    )]
    Run(RunArguments),
    /// Print the completions of this command for a shell
    Completions {
        /// The shell
        shell: Shell,
    },
    /// Write the manual pages into a directory
    #[command(long_about = "Write the manual pages into a directory.\n\
        They go to man1 in it, as man expects.")]
    Man {
        /// The directory; it is created if it is missing
        #[arg(value_name = "DIR")]
        directory: PathBuf,
    },
}

/// Arguments of `forebay-lab replay`.
#[derive(Args, Debug)]
struct ReplayArguments {
    /// Traces, plain or compressed with zstd
    #[arg(value_name = "TRACE", required = true)]
    traces: Vec<PathBuf>,

    /// Size of the cache: a size like 64MiB, or a share like 10% of the blocks that the trace
    /// touches; may be given several times
    #[arg(long, value_name = "SIZE", value_parser = parse_memory,
        default_values = ["1%", "5%", "10%", "25%"])]
    memory: Vec<Memory>,

    /// Policy to compare; may be given several times [default: all]
    #[arg(long = "policy", value_name = "NAME")]
    policies: Vec<PolicyKind>,

    /// Omit the bound that no policy can beat, which takes longest to compute
    #[arg(long)]
    no_opt: bool,

    /// Replay through the whole cache in write-back, on a modelled SSD, and count reads only; shows
    /// the effect of prefetch and dirty data, and the traffic of the disk
    #[arg(long, conflicts_with_all = ["policies", "no_opt"])]
    engine: bool,
}

/// Arguments of `forebay-lab sim`.
#[derive(Args, Debug)]
struct SimArguments {
    /// The first seed; a seed determines everything random in a run
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,

    /// The number of seeds to run
    #[arg(long, value_name = "COUNT", default_value_t = 1)]
    seeds: u64,

    /// Requests that the clients submit in one run, at least 1
    #[arg(long, value_name = "COUNT", default_value_t = 1000,
        value_parser = clap::value_parser!(u64).range(1..))]
    operations: u64,

    #[command(flatten)]
    common: CommonArguments,
}

/// Arguments of the simulator and the enumeration.
#[derive(Args, Debug)]
struct CommonArguments {
    /// Worker threads [default: one per processor]
    #[arg(long, value_name = "COUNT")]
    threads: Option<usize>,

    /// Plant this bug in the driver, the disk or the journal, to check that it is found
    #[arg(long, value_name = "BUG")]
    sabotage: Option<Sabotage>,
}

impl CommonArguments {
    fn threads(&self) -> usize {
        threads_or_all(self.threads)
    }
}

fn threads_or_all(threads: Option<usize>) -> usize {
    threads.unwrap_or_else(|| available_parallelism().map_or(1, usize::from))
}

/// Arguments of `forebay-lab site`.
#[derive(Args, Debug)]
struct SiteArguments {
    /// The first seed; a seed determines everything random in a schedule
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,

    /// The number of seeds to run
    #[arg(long, value_name = "COUNT", default_value_t = 1)]
    seeds: u64,

    /// The most steps of a schedule, of a site with up to four hosts and volumes; larger ones have
    /// more in proportion
    #[arg(long, value_name = "COUNT", default_value_t = 2000,
        value_parser = clap::value_parser!(u64).range(2..))]
    steps: u64,

    /// The number of hosts [default: drawn from the seed, 2 to 4]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u16).range(1..))]
    hosts: Option<u16>,

    /// The number of volumes [default: drawn from the seed, 1 to 3]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u16).range(1..))]
    volumes: Option<u16>,

    /// Worker threads [default: one per processor]
    #[arg(long, value_name = "COUNT")]
    threads: Option<usize>,

    /// Plant this bug in the stores or the driver, to check that it is found
    #[arg(long, value_name = "BUG")]
    sabotage: Option<SiteBug>,
}

/// Arguments of `forebay-lab enumerate`.
#[derive(Args, Debug)]
struct EnumerateArguments {
    /// Operations per workload; each additional one takes some twenty times as long
    #[arg(long, value_name = "COUNT", default_value_t = 2, conflicts_with = "seeds",
        value_parser = clap::value_parser!(u32).range(1..=4))]
    operations: u32,

    /// Orders of events to follow per workload; if there are more, 100 random ones are added
    #[arg(long, value_name = "COUNT", default_value_t = 1000,
        value_parser = clap::value_parser!(u64).range(1..))]
    orders: u64,

    /// Images of the devices to check after each crash; if there are more, a sample
    #[arg(long, value_name = "COUNT", default_value_t = 64,
        value_parser = clap::value_parser!(u64).range(1..))]
    images: u64,

    /// Run this many random workloads of three to ten operations instead of all short ones
    #[arg(long, value_name = "COUNT")]
    seeds: Option<u64>,

    /// The seed of the first random workload
    #[arg(long, value_name = "N", default_value_t = 0, requires = "seeds")]
    seed: u64,

    #[command(flatten)]
    common: CommonArguments,
}

/// Arguments of `forebay-lab run`.
#[derive(Args, Debug)]
struct RunArguments {
    /// The experiment; if omitted, the experiments are listed
    #[arg(value_name = "NAME")]
    experiment: Option<Experiment>,

    /// File for the page with plots; an existing file is overwritten [default: forebay-NAME.html in
    /// the current directory]
    #[arg(long, value_name = "FILE", requires = "experiment")]
    report: Option<PathBuf>,

    /// The seed of the clients' behaviour; cache-effect uses none
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
}

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return usage(&error),
    };
    let outcome = match cli.command {
        LabCommand::Replay(arguments) => replay(arguments),
        LabCommand::Sim(arguments) => simulate(&arguments),
        LabCommand::Site(arguments) => simulate_site(&arguments),
        LabCommand::Enumerate(arguments) => enumerate_workloads(&arguments),
        LabCommand::Run(arguments) => experiment(arguments),
        LabCommand::Completions { shell } => completions(shell),
        LabCommand::Man { directory } => write_pages(&directory),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            print_error(&format!("{error:#}"));
            ExitCode::FAILURE
        }
    }
}

/// Prints the reason why the command line is wrong, or the requested help or version.
fn usage(error: &clap::Error) -> ExitCode {
    if !error.use_stderr() {
        return print(&error.to_string()).map_or(ExitCode::FAILURE, |()| ExitCode::SUCCESS);
    }
    match error.source() {
        // The error of a parser of this project says more than clap's own message.
        Some(source) => print_error(&source.to_string()),
        None => eprint!("{}", Shown::lines(&error.to_string())),
    }
    ExitCode::from(USAGE)
}

/// Prints one line to standard error.
fn print_error(sentence: &str) {
    let _ = writeln!(io::stderr(), "forebay-lab: {}", Shown::line(sentence));
}

/// Writes to standard output. A reader that closes it early, such as `head`, is not an error.
fn print(text: &str) -> anyhow::Result<()> {
    match io::stdout().lock().write_all(Shown::lines(text).to_string().as_bytes()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(anyhow::Error::new(error).context("cannot write to standard output"))
        }
        _ => Ok(()),
    }
}

fn experiment(arguments: RunArguments) -> anyhow::Result<()> {
    let Some(experiment) = arguments.experiment else {
        let line = |it: &Experiment| format!("{it:18} {}\n", it.summary());
        return print(&Experiment::ALL.iter().map(line).collect::<String>());
    };
    let report = experiment.run(arguments.seed)?;
    print(&report.to_string())?;
    let path = arguments.report.unwrap_or_else(|| format!("forebay-{experiment}.html").into());
    std::fs::write(&path, report.html()).with_context(|| {
        let path = path.display();
        format!("cannot write the report to {path}: give another file with --report FILE")
    })?;
    print(&format!("The same with plots is in {}.\n", path.display()))
}

fn replay(arguments: ReplayArguments) -> anyhow::Result<()> {
    let traces = arguments.traces.iter().map(|path| Trace::open(path));
    let traces = traces.collect::<Result<Vec<_>, _>>()?;
    if arguments.engine {
        return print(&replay::engine::run(&traces, &arguments.memory)?.to_string());
    }
    let workloads: Vec<Workload> = traces.iter().map(Workload::new).collect();
    let policies = match arguments.policies {
        none if none.is_empty() => PolicyKind::ALL.to_vec(),
        some => some,
    };
    let with_opt = !arguments.no_opt;
    let plan = ReplayPlan { policies, with_opt, memories: arguments.memory, lines_min: 1 };
    print(&replay::run(&workloads, &plan)?.to_string())
}

fn simulate(arguments: &SimArguments) -> anyhow::Result<()> {
    let seeds = arguments.seed..arguments.seed.saturating_add(arguments.seeds);
    let mut options = SimOptions::new(arguments.seed, arguments.operations);
    options.sabotage = arguments.common.sabotage;
    let summary = run_many(seeds, options, arguments.common.threads());
    print(&format!("{summary}\n"))?;
    match summary.failures.len() {
        0 => Ok(()),
        count => bail!("{count} of {} simulations broke a guarantee: see above", summary.runs),
    }
}

fn simulate_site(arguments: &SiteArguments) -> anyhow::Result<()> {
    let SiteArguments { seed, seeds, steps, hosts, volumes, threads, sabotage } = *arguments;
    let hosts = hosts.map(usize::from);
    let options = SiteOptions { seed, steps, hosts, volumes, planted: sabotage };
    let summary =
        site::run_many(seed..seed.saturating_add(seeds), options, threads_or_all(threads));
    print(&format!("{summary}\n"))?;
    match summary.failures.len() {
        0 => Ok(()),
        count => bail!("{count} of {} schedules broke a guarantee: see above", summary.schedules),
    }
}

fn enumerate_workloads(arguments: &EnumerateArguments) -> anyhow::Result<()> {
    let EnumerateArguments { operations, orders, images, seed, .. } = *arguments;
    let workloads = match arguments.seeds {
        Some(seeds) => Workloads::Seeds(seed..seed.saturating_add(seeds)),
        None => Workloads::Length(operations),
    };
    let limits = Limits { orders, random_orders: 100, images };
    let bug = arguments.common.sabotage.map(Bug::Driver);
    let summary = enumerate::run(&workloads, &limits, bug, arguments.common.threads());
    print(&format!("{summary}\n"))?;
    match summary.failures.len() {
        0 => Ok(()),
        count => bail!("{count} workloads broke a guarantee: see above"),
    }
}

/// Prints the completions of the command for a shell.
fn completions(shell: Shell) -> anyhow::Result<()> {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "forebay-lab", &mut text);
    print(&String::from_utf8(text).context("completions are text")?)
}

/// Writes the manual pages into a directory.
fn write_pages(directory: &Path) -> anyhow::Result<()> {
    let folder = directory.join("man1");
    std::fs::create_dir_all(&folder)
        .and_then(|()| clap_mangen::generate_to(Cli::command(), &folder))
        .with_context(|| format!("cannot write the pages to {}", folder.display()))
}

/// Reads `64MiB` or `10%`.
fn parse_memory(text: &str) -> Result<Memory, String> {
    let Some(percent) = text.strip_suffix('%') else {
        let size: Size =
            text.parse().map_err(|error| format!("{error}, or as a share like 10%"))?;
        return Ok(Memory::Bytes(size));
    };
    match percent.parse::<f64>() {
        Ok(percent) if percent > 0.0 && percent <= 100.0 => Ok(Memory::Share(percent / 100.0)),
        _ => Err(format!("'{text}' is not a share: write it like 10%, above 0 and at most 100")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_a_size_or_a_share() {
        assert_eq!(parse_memory("64MiB"), Ok(Memory::Bytes(Size(64 << 20))));
        assert_eq!(parse_memory("2.5%"), Ok(Memory::Share(0.025)));
        for text in ["", "%", "0%", "101%", "NaN%", "inf%", "1MB"] {
            assert!(parse_memory(text).is_err(), "{text}");
        }
    }
}
