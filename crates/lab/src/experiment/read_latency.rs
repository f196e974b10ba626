//! `read-latency`: the latency of reads while some gigabytes are written back.

use super::disk::DISKS;
use super::machine::{Clients, Machine, SECOND_NS, Step};
use super::plot::{Plot, Scale, Series};
use super::report::{Report, Table, figure};
use crate::harness::dice::Dice;
use forebay_backend::OpenError;
use forebay_policy::{ReadTarget, WritebackLimits};
use forebay_types::{ByteRange, Size};

const READ_BYTES: u64 = 4 << 10;
const WRITE_BYTES: u64 = 64 << 10;
const READER: u32 = 0;
const WRITER: u32 = 1;

/// Readers, and the mean pause between two reads, in nanoseconds.
const READERS: [(&str, u64); 2] = [("without a pause", 0), ("thinks 30 ms", 30_000_000)];

#[derive(Clone, Copy, Debug)]
pub(super) struct Plan {
    pub pool_bytes: u64,
    pub dirty_bytes: u64,
    /// The duration of the measurement before the writes.
    pub idle_ns: u64,
    /// The time limit for writeback.
    pub end_ns: u64,
}

impl Plan {
    pub(super) const FULL: Self = Self {
        pool_bytes: 10 << 30,
        dirty_bytes: 4 << 30,
        idle_ns: 120 * SECOND_NS,
        end_ns: 4 * 3_600 * SECOND_NS,
    };
}

/// A reader, and a writer that starts later.
struct ReaderAndWriter {
    dice: Dice,
    disk_bytes: u64,
    think_ns: u64,
    /// The start of the read in flight; and completed reads, with their end and latency.
    began_ns: Option<u64>,
    reads: Vec<(u64, u64)>,
    left_bytes: u64,
}

impl ReaderAndWriter {
    fn place(&mut self, from: u64, to: u64, len: u64) -> ByteRange {
        ByteRange::new(from + self.dice.below((to - from) / len) * len, len)
    }

    fn read(&mut self, now_ns: u64) -> Step {
        if let Some(began_ns) = self.began_ns.take() {
            self.reads.push((now_ns, now_ns - began_ns));
            if self.think_ns > 0 {
                return Step::Think(self.dice.below(2 * self.think_ns));
            }
        }
        self.began_ns = Some(now_ns);
        // The reader does not read written data, so that each read reaches the disk.
        Step::Read(self.place(self.disk_bytes / 2, self.disk_bytes, READ_BYTES))
    }
}

impl Clients for ReaderAndWriter {
    fn next(&mut self, client: u32, now_ns: u64) -> Step {
        match client {
            READER => self.read(now_ns),
            _ if self.left_bytes == 0 => Step::Leave,
            _ => {
                self.left_bytes -= WRITE_BYTES;
                Step::Write(self.place(0, self.disk_bytes / 2, WRITE_BYTES))
            }
        }
    }
}

/// Latencies in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Latency {
    pub p50: f64,
    pub p99: f64,
    pub max: f64,
}

impl Latency {
    pub(super) fn of(reads: impl Iterator<Item = u64>) -> Self {
        let mut ns: Vec<u64> = reads.collect();
        ns.sort_unstable();
        let at = |share: usize| ns.get(ns.len() * share / 100).map_or(0.0, |&ns| ns as f64 / 1e6);
        let max = ns.last().map_or(0.0, |&ns| ns as f64 / 1e6);
        Self { p50: at(50), p99: at(99), max }
    }
}

/// The result of one run.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Run {
    pub disk: &'static str,
    pub reader: &'static str,
    pub governed: bool,
    pub idle: Latency,
    pub during: Latency,
    /// Seconds until all data was on the disk, if it ever was.
    pub seconds: Option<f64>,
    /// The number of changes of the pace.
    pub changes: u64,
    /// Mebibytes written to the disk, and the pace, by time in seconds.
    pub written: Vec<(f64, f64)>,
    pub paces: Vec<(f64, f64)>,
}

pub(super) fn run(plan: &Plan, seed: u64) -> Result<Report, OpenError> {
    let runs = runs(plan, seed)?;
    Ok(Report {
        title: "Read latency during writeback".to_owned(),
        model: model(plan),
        tables: vec![table(&runs)],
        plots: plots(&runs),
        remarks: vec![remark(&runs)],
    })
}

/// All disks and readers, each without and with the governor.
pub(super) fn runs(plan: &Plan, seed: u64) -> Result<Vec<Run>, OpenError> {
    let mut runs = Vec::new();
    for disk in DISKS {
        for reader in READERS {
            for governed in [false, true] {
                runs.push(run_case(plan, disk, reader, governed, seed)?);
            }
        }
    }
    Ok(runs)
}

fn run_case(
    plan: &Plan,
    (disk, name): (&'static str, &str),
    (reader, think_ns): (&'static str, u64),
    governed: bool,
    seed: u64,
) -> Result<Run, OpenError> {
    let mut machine = Machine::new(name, plan.pool_bytes)?;
    let target = if governed { ReadTarget::Idle } else { ReadTarget::Off };
    machine.set_limits(WritebackLimits { target, ..WritebackLimits::default() });
    let mut pair = ReaderAndWriter {
        dice: Dice::new(seed),
        disk_bytes: machine.disk_bytes() / READ_BYTES * READ_BYTES,
        think_ns,
        began_ns: None,
        reads: Vec::new(),
        left_bytes: plan.dirty_bytes,
    };
    machine.add_client(READER, 0);
    machine.run(plan.idle_ns, &mut pair);
    let before = pair.reads.len();
    machine.add_client(WRITER, 0);
    let (mut seconds, mut written, mut paces) = (None, Vec::new(), Vec::new());
    while seconds.is_none() && machine.now_ns() < plan.end_ns {
        machine.run(machine.now_ns() + SECOND_NS, &mut pair);
        let passed = (machine.now_ns() - plan.idle_ns) as f64 / 1e9;
        let cache = machine.cache().expect("the machine has one");
        written.push((passed, machine.disk_tally().write_bytes as f64 / f64::from(1 << 20)));
        let pace = cache.governor().pace_milli;
        paces.extend(pace.map(|milli| (passed, milli as f64 / 1e3)));
        if pair.left_bytes == 0 && cache.dirty_bytes() == 0 {
            seconds = Some(passed);
        }
    }
    let status = machine.cache().expect("the machine has one").governor();
    Ok(Run {
        disk,
        reader,
        governed,
        idle: Latency::of(pair.reads[..before].iter().map(|(_, took_ns)| *took_ns)),
        during: Latency::of(pair.reads[before..].iter().map(|(_, took_ns)| *took_ns)),
        seconds,
        changes: status.raised + status.lowered,
        written,
        paces,
    })
}

fn model(plan: &Plan) -> Vec<String> {
    let disks = DISKS.map(|(name, model)| format!("the {name} is {model}")).join("; ");
    vec![format!(
        "A client reads 4 KiB anywhere in the second half of a disk, none of which is in the \
         cache. After {} s another client writes {} in pieces of 64 KiB anywhere in the first \
         half, as fast as the cache accepts them, and disconnects. From then on, reads are \
         measured until all written data is on the disk. Disks: {disks}. The cache has {} of \
         lines, so that the amount of dirty data alone does not accelerate writeback. The governor \
         is off (read-latency=off), or holds the p99 of reads near that of the idle disk \
         (read-latency=idle, the default).",
        plan.idle_ns / SECOND_NS,
        Size(plan.dirty_bytes),
        Size(plan.pool_bytes),
    )]
}

fn table(runs: &[Run]) -> Table {
    Table::of(
        "Latencies of reads",
        runs,
        &[
            ("disk", &|run| run.disk.to_owned()),
            ("reader", &|run| run.reader.to_owned()),
            ("governor", &|run| if run.governed { "idle" } else { "off" }.to_owned()),
            ("p50 idle, ms", &|run| figure(run.idle.p50)),
            ("p99 idle", &|run| figure(run.idle.p99)),
            ("p50 beside", &|run| figure(run.during.p50)),
            ("p99 beside", &|run| figure(run.during.p99)),
            ("longest", &|run| figure(run.during.max)),
            ("p99 to idle", &|run| figure(run.during.p99 / run.idle.p99)),
            ("on disk after, s", &|run| run.seconds.map_or("never".to_owned(), figure)),
            ("MiB/s", &|run| {
                run.written.last().map_or(String::new(), |(passed, mib)| figure(mib / passed))
            }),
            ("changes", &|run| run.changes.to_string()),
        ],
    )
}

fn plots(runs: &[Run]) -> Vec<Plot> {
    let named = |run: &Run| {
        let governor = if run.governed { "governed" } else { "off" };
        format!("{}, {}, {governor}", run.disk, run.reader)
    };
    let plot = |title: &str, label, series| {
        Plot::new(title, ("seconds", Scale::Linear), (label, Scale::Linear), series)
    };
    // A tenth of the points is enough for a plot.
    let line = |run: &Run, points: &[(f64, f64)]| {
        Series::line(&named(run), points.iter().copied().step_by(10))
    };
    let governed = || runs.iter().filter(|run| run.governed);
    vec![
        plot("On the disk", "MiB", governed().map(|run| line(run, &run.written)).collect()),
        plot(
            "Pace beside reads",
            "bursts/s",
            governed().map(|run| line(run, &run.paces)).collect(),
        ),
    ]
}

fn remark(runs: &[Run]) -> String {
    let most = |governed| {
        let runs = runs.iter().filter(|run| run.governed == governed);
        runs.map(|run| run.during.p99 / run.idle.p99).fold(0.0, f64::max)
    };
    format!(
        "During writeback, the p99 of reads is at most {} times that of the idle disk with the \
         governor, and {} times without it.",
        figure(most(true)),
        figure(most(false))
    )
}
