//! The cost of a journal acknowledgement, compared with the best that its device can do.
//!
//! Writers of 4 KiB, each with one write in flight, alternate between:
//!
//! - `fdatasync`: threads that append to a file on the same file system; a group shares one
//!   `fdatasync`. This is the baseline.
//! - `direct`: the same, with the blocks of a group written by one durable call.
//! - `ack`: Forebay over a Unix socket, with a journal on the same file system and durable
//!   acknowledgements.
//! - `flush`: the same with `durability=flush`, and a FLUSH after each write.
//!
//! The disk of the volume is in memory, so that only the journal uses the device. Prints medians
//! over the rounds of ratios within a round. The rates of `ack` and `flush` relative to the
//! baseline, and the bytes written, have limits; a missed limit exits with 1. Everything else is
//! information.

use anyhow::{Context, Result};
use clap::Parser;
use forebay_bench::commit::{self, Commit, CommitFigures, GroupLog};
use forebay_bench::figures::FigureLimit;
use forebay_bench::forebay::Forebay;
use forebay_bench::load::{LoadOp, LoadParams};
use forebay_bench::table::{TextTable, median, number};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

#[derive(Parser)]
struct CommitCostArgs {
    /// Directory of the built programs.
    #[arg(long, default_value = "target/release")]
    programs: PathBuf,
    /// Folder on the device to be measured; not on tmpfs.
    #[arg(long, default_value = "target")]
    folder: PathBuf,
    /// Rounds.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Seconds of each load in a round.
    #[arg(long, default_value_t = 1.0)]
    seconds: f64,
    /// Numbers of concurrent writers.
    #[arg(long, value_delimiter = ',', default_value = "1,4,16,64")]
    writers: Vec<u32>,
    /// Use one connection per writer, instead of one for all.
    #[arg(long)]
    connections: bool,
    /// Use a sparse journal file, as made by `truncate`.
    #[arg(long)]
    sparse: bool,
}

const MIB: u64 = 1 << 20;
const JOURNAL_BYTES: u64 = 256 * MIB;
const LOG_BYTES: u64 = 64 * MIB;
/// The records of a batch share one block for the header.
const BYTES_PER_BYTE_MAX: f64 = 2.01;
const WAYS: [&str; 4] = ["fdatasync", "direct", "ack", "flush"];

/// One variant in one round.
#[derive(Clone, Copy)]
struct VariantSample {
    figures: CommitFigures,
    /// Server CPU time per write.
    cpu_us: Option<f64>,
    /// Records in a batch of the journal.
    group: Option<f64>,
    /// Bytes written to the journal per byte of payload.
    bytes_per_byte: Option<f64>,
}

fn main() -> Result<ExitCode> {
    let arguments = CommitCostArgs::parse();
    let dir = tempfile::tempdir_in(&arguments.folder)
        .with_context(|| format!("--folder {}", arguments.folder.display()))?;
    let log = |name, commit| GroupLog::create(&dir.path().join(name), LOG_BYTES, commit);
    let logs = [log("fdatasync", Commit::Fdatasync)?, log("direct", Commit::Direct)?];
    let servers =
        [server(&arguments, dir.path(), "ack")?, server(&arguments, dir.path(), "flush")?];
    let mut table = TextTable::new([
        "writers",
        "way",
        "IOPS",
        "p50 us",
        "p99 us",
        "CPU us",
        "group",
        "bytes/byte",
        "IOPS/fdatasync",
        "p50/fdatasync",
        "p99/fdatasync",
        "limits",
    ]);
    let mut missed = 0;
    for &writers in &arguments.writers {
        let mut rounds = Vec::new();
        for _ in 0..arguments.rounds {
            let duration = Duration::from_secs_f64(arguments.seconds);
            let bare =
                |log: &GroupLog| anyhow::Ok(VariantSample::bare(log.run(writers, duration)?));
            rounds.push([
                bare(&logs[0])?,
                bare(&logs[1])?,
                measure(&arguments, &servers[0], LoadOp::Write, writers)?,
                measure(&arguments, &servers[1], LoadOp::Durable, writers)?,
            ]);
        }
        for (at, way) in WAYS.iter().enumerate() {
            let (row, row_missed) = row(writers, way, at, &rounds);
            table.row(row);
            missed += row_missed;
        }
    }
    println!("{}\n{missed} limits missed.", table.markdown());
    Ok(if missed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Minimum rate of the journal relative to the baseline. Few writers pay for the wake-ups of three
/// threads, which share two processors on a small machine; many share batches, larger than those of
/// an `fdatasync`.
const fn rate_min(writers: u32) -> f64 {
    match writers {
        0..4 => 0.4,
        4..64 => 0.65,
        _ => 1.1,
    }
}

/// Maximum 99th percentile of the latency, relative to the baseline. With many writers, lines are
/// written back all the time, which may not delay the replies.
const fn p99_max(writers: u32) -> f64 {
    if writers < 64 { 3.0 } else { 1.25 }
}

/// A server with a journal in `dir`.
fn server(arguments: &CommitCostArgs, dir: &Path, durability: &str) -> Result<Forebay> {
    let home = dir.join(format!("server-{durability}"));
    std::fs::create_dir(&home)?;
    let journal = home.join("journal");
    if arguments.sparse {
        std::fs::File::create(&journal)?.set_len(JOURNAL_BYTES)?;
    } else {
        commit::fill(&journal, JOURNAL_BYTES)?;
    }
    let volume = format!(
        "v=memory:{},mode=write-back,protection=journal,durability={durability},journal={}",
        64 * MIB,
        journal.display()
    );
    Forebay::start(&arguments.programs, &home, &[volume], 256 * MIB, &[])
}

fn measure(
    arguments: &CommitCostArgs,
    server: &Forebay,
    op: LoadOp,
    writers: u32,
) -> Result<VariantSample> {
    let mut load = LoadParams::new(server.socket.clone(), "v".into());
    load.op = op;
    (load.connections, load.depth) =
        if arguments.connections { (writers, 1) } else { (1, writers) };
    load.seconds = arguments.seconds;
    load.server_pid = Some(server.pid);
    let before = server.journal()?;
    let outcome = load.run()?;
    let after = server.journal()?;
    let since = |name| anyhow::Ok(after.since(&before, name)? as f64);
    Ok(VariantSample {
        figures: CommitFigures {
            iops: outcome.iops,
            latency_us_p50: outcome.latency_us_p50,
            latency_us_p99: outcome.latency_us_p99,
        },
        cpu_us: outcome.server_cpu_us_per_request,
        group: Some(since("records")? / since("batches")?),
        bytes_per_byte: Some(since("written_bytes")? / since("payload_bytes")?),
    })
}

impl VariantSample {
    const fn bare(figures: CommitFigures) -> Self {
        Self { figures, cpu_us: None, group: None, bytes_per_byte: None }
    }
}

/// A row of the table, and the number of missed limits.
fn row(writers: u32, way: &str, at: usize, rounds: &[[VariantSample; 4]]) -> ([String; 12], u32) {
    let value_of = |figure: &dyn Fn(&[VariantSample; 4]) -> Option<f64>| {
        let values: Option<Vec<f64>> = rounds.iter().map(figure).collect();
        values.and_then(|values| median(&values))
    };
    let median_of = |figure: &dyn Fn(&[VariantSample; 4]) -> Option<f64>| number(value_of(figure));
    let figure = |of: fn(&CommitFigures) -> f64| median_of(&|round| Some(of(&round[at].figures)));
    let ratio = |of: fn(&CommitFigures) -> f64| {
        median_of(&|round| Some(of(&round[at].figures) / of(&round[0].figures)))
    };
    let (mut verdicts, mut missed) = (Vec::new(), 0);
    if at >= 2 {
        let of_baseline = |round: &[VariantSample; 4], of: fn(&CommitFigures) -> f64| {
            Some(of(&round[at].figures) / of(&round[0].figures))
        };
        let rate = |round: &[VariantSample; 4]| of_baseline(round, |it| it.iops);
        let p99 = |round: &[VariantSample; 4]| of_baseline(round, |it| it.latency_us_p99);
        for (name, value, limit) in [
            ("p99", value_of(&p99), FigureLimit::AtMost(p99_max(writers))),
            ("IOPS", value_of(&rate), FigureLimit::AtLeast(rate_min(writers))),
            (
                "bytes",
                value_of(&|round| round[at].bytes_per_byte),
                FigureLimit::AtMost(BYTES_PER_BYTE_MAX),
            ),
        ] {
            let value = value.unwrap_or(f64::NAN);
            verdicts.push(format!("{name} {}", limit.verdict(value)));
            missed += u32::from(!limit.is_met(value));
        }
    }
    let row = [
        writers.to_string(),
        way.to_owned(),
        figure(|it| it.iops),
        figure(|it| it.latency_us_p50),
        figure(|it| it.latency_us_p99),
        median_of(&|round| round[at].cpu_us),
        median_of(&|round| round[at].group),
        median_of(&|round| round[at].bytes_per_byte),
        ratio(|it| it.iops),
        ratio(|it| it.latency_us_p50),
        ratio(|it| it.latency_us_p99),
        if at < 2 { "information".to_owned() } else { verdicts.join(", ") },
    ];
    (row, missed)
}
