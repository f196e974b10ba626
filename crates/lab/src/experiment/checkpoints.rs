//! `checkpoints`: reads beside steady writes to a volume with a journal.

use super::journal::Checkpoints;
use super::machine::{Clients, Machine, MachineStep, SECOND_NS, attach_journal};
use super::plot::{Plot, Scale, Series};
use super::read_latency::Latency;
use super::report::{Report, Table, figure};
use super::users::MIB;
use crate::harness::dice::Dice;
use forebay_backend::OpenError;
use forebay_types::{ByteRange, Size};

const DISK: &str = "model:hdd?size=64GiB";
const BLOCK: u64 = 4 << 10;
const READER: u32 = 0;
const WRITER: u32 = 1;
/// The area of the writes at the beginning of the disk, in bytes.
const WRITTEN_BYTES: u64 = 2 << 30;
/// The length of a point of the plots, in seconds.
const POINT: u64 = 5;

#[derive(Clone, Copy, Debug)]
pub(super) struct CheckpointsPlan {
    pub pool_bytes: u64,
    /// The sizes of the journals, in bytes.
    pub journals: [u64; 2],
    pub writes_per_second: u64,
    /// The mean pause between two reads, in nanoseconds.
    pub think_ns: u64,
    /// The duration of the measurement before the writes, and beside them.
    pub idle_ns: u64,
    pub beside_ns: u64,
}

impl CheckpointsPlan {
    pub(super) const FULL: Self = Self {
        pool_bytes: 2 << 30,
        journals: [4 << 30, 512 * MIB],
        writes_per_second: 100,
        think_ns: 30_000_000,
        idle_ns: 120 * SECOND_NS,
        beside_ns: 600 * SECOND_NS,
    };
}

/// A reader, and a writer that writes at a steady rate.
struct ReaderAndWriter {
    dice: Dice,
    disk_bytes: u64,
    plan: CheckpointsPlan,
    began_ns: Option<u64>,
    /// Completed reads, with their end and latency.
    reads: Vec<(u64, u64)>,
    /// When the next write is due.
    write_ns: u64,
}

impl ReaderAndWriter {
    fn place(&mut self, from: u64, to: u64) -> ByteRange {
        ByteRange::new(from + self.dice.below((to - from) / BLOCK) * BLOCK, BLOCK)
    }

    fn read(&mut self, now_ns: u64) -> MachineStep {
        if let Some(began_ns) = self.began_ns.take() {
            self.reads.push((now_ns, now_ns - began_ns));
            return MachineStep::Think(self.dice.below(2 * self.plan.think_ns));
        }
        self.began_ns = Some(now_ns);
        MachineStep::Read(self.place(self.disk_bytes / 2, self.disk_bytes))
    }
}

impl Clients for ReaderAndWriter {
    fn next(&mut self, client: u32, now_ns: u64) -> MachineStep {
        if client == READER {
            return self.read(now_ns);
        }
        if now_ns < self.write_ns {
            return MachineStep::Think(self.write_ns - now_ns);
        }
        self.write_ns = self.write_ns.max(now_ns - SECOND_NS / 10);
        self.write_ns += SECOND_NS / self.plan.writes_per_second;
        MachineStep::Write(self.place(0, WRITTEN_BYTES))
    }
}

/// The result of one run.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct CheckpointsRun {
    /// The size of the journal in bytes; 0 for a UPS instead.
    pub journal_bytes: u64,
    pub checkpoints: Checkpoints,
    pub idle: Latency,
    pub beside: Latency,
    pub urgent: u64,
    pub background: u64,
    /// The mean length of a destage's write, in KiB.
    pub write_kib: f64,
    /// The largest share of the log in use, from 0 to 1.
    pub log_used: f64,
    /// Mebibytes of dirty data, and the longest read in milliseconds, by time in seconds.
    pub dirty: Vec<(f64, f64)>,
    pub longest: Vec<(f64, f64)>,
}

pub(super) fn run(plan: &CheckpointsPlan, seed: u64) -> Result<Report, OpenError> {
    let runs = runs(plan, seed)?;
    Ok(Report {
        title: "Reads beside the checkpoints of a journal".to_owned(),
        model: model(plan),
        tables: vec![table(&runs)],
        plots: plots(&runs),
        remarks: Vec::new(),
    })
}

/// Without a journal, and with journals of both sizes and both kinds of checkpoints.
pub(super) fn runs(plan: &CheckpointsPlan, seed: u64) -> Result<Vec<CheckpointsRun>, OpenError> {
    let mut runs = vec![run_case(plan, 0, Checkpoints::Paced, seed)?];
    for bytes in plan.journals {
        for checkpoints in [Checkpoints::AtOnce, Checkpoints::Paced] {
            runs.push(run_case(plan, bytes, checkpoints, seed)?);
        }
    }
    Ok(runs)
}

fn run_case(
    plan: &CheckpointsPlan,
    journal_bytes: u64,
    checkpoints: Checkpoints,
    seed: u64,
) -> Result<CheckpointsRun, OpenError> {
    let mut machine = Machine::new(DISK, plan.pool_bytes)?;
    if journal_bytes > 0 {
        attach_journal(&mut machine, journal_bytes, checkpoints);
    }
    let mut pair = ReaderAndWriter {
        dice: Dice::new(seed),
        disk_bytes: machine.disk_bytes() / BLOCK * BLOCK,
        plan: *plan,
        began_ns: None,
        reads: Vec::new(),
        write_ns: plan.idle_ns,
    };
    machine.add_client(READER, 0);
    machine.run(plan.idle_ns, &mut pair);
    let before = pair.reads.len();
    machine.add_client(WRITER, 0);
    let (mut dirty, mut longest, mut log_used) = (Vec::new(), Vec::new(), 0.0f64);
    while machine.now_ns() < plan.idle_ns + plan.beside_ns {
        let from = pair.reads.len();
        machine.run(machine.now_ns() + POINT * SECOND_NS, &mut pair);
        let passed = (machine.now_ns() - plan.idle_ns) as f64 / 1e9;
        let cache = machine.cache().expect("the machine has one");
        dirty.push((passed, cache.dirty_bytes() as f64 / MIB as f64));
        longest.push((passed, Latency::of(pair.reads[from..].iter().map(|read| read.1)).max));
        log_used = log_used.max(cache.log_used());
    }
    let counters = machine.cache().expect("the machine has one").counters();
    let writes = counters.destage_writes.max(1) as f64;
    Ok(CheckpointsRun {
        journal_bytes,
        checkpoints,
        idle: Latency::of(pair.reads[..before].iter().map(|read| read.1)),
        beside: Latency::of(pair.reads[before..].iter().map(|read| read.1)),
        urgent: counters.destages_urgent,
        background: counters.destages_background,
        write_kib: counters.destaged_bytes as f64 / 1024.0 / writes,
        log_used,
        dirty,
        longest,
    })
}

fn model(plan: &CheckpointsPlan) -> Vec<String> {
    vec![format!(
        "A client reads 4 KiB anywhere in the second half of a hard disk ({DISK}), none of which \
         is in the cache, with pauses of {} ms on average. After {} s another client writes \
         4 KiB {} times per second, anywhere in the first {}; reads are measured for {} s from \
         then on. The cache has {} of lines. A checkpoint of the journal begins every 30 s, or \
         when half of the log is in use. It destages at the pace of background writeback, as the \
         shipped cache does, or at once.",
        plan.think_ns / 1_000_000,
        plan.idle_ns / SECOND_NS,
        plan.writes_per_second,
        Size(WRITTEN_BYTES),
        plan.beside_ns / SECOND_NS,
        Size(plan.pool_bytes),
    )]
}

impl CheckpointsRun {
    fn name(&self) -> String {
        match (self.journal_bytes, self.checkpoints) {
            (0, _) => "UPS".to_owned(),
            (bytes, Checkpoints::Paced) => format!("journal of {}, paced", Size(bytes)),
            (bytes, Checkpoints::AtOnce) => format!("journal of {}, at once", Size(bytes)),
        }
    }
}

fn table(runs: &[CheckpointsRun]) -> Table {
    Table::of(
        "Latencies of reads beside writes, in ms, and destages",
        runs,
        &[
            ("protection, checkpoints", &CheckpointsRun::name),
            ("p50 idle", &|run| figure(run.idle.p50)),
            ("p99 idle", &|run| figure(run.idle.p99)),
            ("p50 beside", &|run| figure(run.beside.p50)),
            ("p99 beside", &|run| figure(run.beside.p99)),
            ("longest", &|run| figure(run.beside.max)),
            ("p99 to idle", &|run| figure(run.beside.p99 / run.idle.p99)),
            ("urgent", &|run| run.urgent.to_string()),
            ("background", &|run| run.background.to_string()),
            ("KiB per write", &|run| figure(run.write_kib)),
            ("most of the log, %", &|run| figure(100.0 * run.log_used)),
        ],
    )
}

fn plots(runs: &[CheckpointsRun]) -> Vec<Plot> {
    let plot = |title: &str, label, points: fn(&CheckpointsRun) -> &[(f64, f64)]| {
        let line = |run: &CheckpointsRun| Series::line(&run.name(), points(run).iter().copied());
        let series = runs.iter().map(line).collect();
        Plot::new(title, ("seconds", Scale::Linear), (label, Scale::Linear), series)
    };
    vec![
        plot("Dirty data", "MiB", |run| &run.dirty),
        plot("The longest read in five seconds", "ms", |run| &run.longest),
    ]
}
