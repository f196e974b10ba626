//! `overrun`: writers that are faster than the disk for ten minutes.

use super::disk::DISKS;
use super::machine::{Clients, Machine, MachineStep, SECOND_NS};
use super::plot::{Plot, Scale, Series};
use super::report::{Report, Table, figure};
use crate::harness::dice::Dice;
use forebay_backend::OpenError;
use forebay_types::{ByteRange, Size};

/// Patterns of writes: name, length, and whether they are sequential.
const PATTERNS: [(&str, u64, bool); 3] = [
    ("64 KiB in order", 64 << 10, true),
    ("64 KiB anywhere", 64 << 10, false),
    ("4 KiB anywhere", 4 << 10, false),
];

/// Whole stripes of the array, nine per write as in `scripts/md-peers.sh`, and the number of
/// writers.
const WHOLE_STRIPES: (&str, u64, bool) = ("1008 KiB in order", 1008 << 10, true);
const WHOLE_WRITERS: u32 = 16;

#[derive(Clone, Copy, Debug)]
pub(super) struct OverrunPlan {
    pub pool_bytes: u64,
    /// Writers, each without a pause.
    pub writers: u32,
    /// The area that is written, in bytes from the beginning of the disk.
    pub area_bytes: u64,
    pub seconds: u64,
}

impl OverrunPlan {
    pub(super) const FULL: Self =
        Self { pool_bytes: 512 << 20, writers: 4, area_bytes: 16 << 30, seconds: 600 };
}

struct Writers {
    dice: Dice,
    area_bytes: u64,
    len: u64,
    in_order: bool,
    next: u64,
    began_ns: Vec<Option<u64>>,
    /// Bytes written per second of the run, and the longest write that ended in each, in
    /// milliseconds.
    bytes: Vec<u64>,
    longest: Vec<f64>,
}

impl Clients for Writers {
    fn next(&mut self, client: u32, now_ns: u64) -> MachineStep {
        let second = (now_ns / SECOND_NS) as usize;
        if let Some(began_ns) = self.began_ns[client as usize].replace(now_ns)
            && let Some(bytes) = self.bytes.get_mut(second)
        {
            *bytes += self.len;
            let ms = (now_ns - began_ns) as f64 / 1e6;
            self.longest[second] = self.longest[second].max(ms);
        }
        let count = self.area_bytes / self.len;
        let at = if self.in_order { self.next % count } else { self.dice.below(count) };
        self.next += 1;
        MachineStep::Write(ByteRange::new(at * self.len, self.len))
    }
}

/// The result of one pattern on one machine.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct OverrunRun {
    pub disk: &'static str,
    pub pattern: &'static str,
    pub cached: bool,
    /// Megabytes per second, by second.
    pub rates: Vec<f64>,
    /// The longest write, in milliseconds.
    pub longest: f64,
}

impl OverrunRun {
    /// The mean over the second half, in which the cache has reached its dirty limit.
    pub(super) fn sustained(&self) -> f64 {
        let half = &self.rates[self.rates.len() / 2..];
        half.iter().sum::<f64>() / half.len() as f64
    }

    /// The rate of the slowest ten seconds.
    pub(super) fn least(&self) -> f64 {
        let tens = self.rates.chunks_exact(10).map(|ten| ten.iter().sum::<f64>() / 10.0);
        tens.fold(f64::INFINITY, f64::min)
    }
}

pub(super) fn run(plan: &OverrunPlan, seed: u64) -> Result<Report, OpenError> {
    let runs = runs(plan, seed)?;
    Ok(Report {
        title: "Writers that are faster than the disk".to_owned(),
        model: vec![format!(
            "{} writers write without a pause for {} s, in order or anywhere in the first {} of a \
             disk: to the bare disk, which is the rate of write-through, or through Forebay in \
             write-back with {} of lines. \"Sustained\" is the mean of the second half of the run, \
             \"least\" that of its slowest ten seconds. Disks: {}.",
            plan.writers,
            plan.seconds,
            Size(plan.area_bytes),
            Size(plan.pool_bytes),
            DISKS.map(|(name, model)| format!("the {name} is {model}")).join("; "),
        )],
        tables: vec![table(&runs)],
        plots: vec![plot(&runs)],
        remarks: vec![remark(&runs), whole_remark(&runs, &whole_stripes(plan, seed)?)],
    })
}

/// The bare array, written in whole stripes by enough writers to saturate it.
pub(super) fn whole_stripes(plan: &OverrunPlan, seed: u64) -> Result<OverrunRun, OpenError> {
    let plan = OverrunPlan { writers: WHOLE_WRITERS, seconds: plan.seconds.min(60), ..*plan };
    run_case(&plan, DISKS[1], WHOLE_STRIPES, false, seed)
}

/// The cached array, written sequentially.
#[cfg(test)]
pub(super) fn in_order(plan: &OverrunPlan, seed: u64) -> Result<OverrunRun, OpenError> {
    run_case(plan, DISKS[1], PATTERNS[0], true, seed)
}

/// All disks and patterns, each without and with the cache.
pub(super) fn runs(plan: &OverrunPlan, seed: u64) -> Result<Vec<OverrunRun>, OpenError> {
    let mut runs = Vec::new();
    for disk in DISKS {
        for pattern in PATTERNS {
            for cached in [false, true] {
                runs.push(run_case(plan, disk, pattern, cached, seed)?);
            }
        }
    }
    Ok(runs)
}

fn run_case(
    plan: &OverrunPlan,
    (disk, name): (&'static str, &str),
    (pattern, len, in_order): (&'static str, u64, bool),
    cached: bool,
    seed: u64,
) -> Result<OverrunRun, OpenError> {
    let pool_bytes = if cached { plan.pool_bytes } else { 0 };
    let mut machine = Machine::new(name, pool_bytes)?;
    let mut writers = Writers {
        dice: Dice::new(seed),
        area_bytes: plan.area_bytes,
        len,
        in_order,
        next: 0,
        began_ns: vec![None; plan.writers as usize],
        bytes: vec![0; plan.seconds as usize],
        longest: vec![0.0; plan.seconds as usize],
    };
    (0..plan.writers).for_each(|writer| machine.add_client(writer, 0));
    machine.run(plan.seconds * SECOND_NS, &mut writers);
    Ok(OverrunRun {
        disk,
        pattern,
        cached,
        rates: writers.bytes.iter().map(|&bytes| bytes as f64 / 1e6).collect(),
        longest: writers.longest.iter().copied().fold(0.0, f64::max),
    })
}

/// Each run without the cache, with its counterpart.
fn pairs(runs: &[OverrunRun]) -> impl Iterator<Item = (&OverrunRun, &OverrunRun)> {
    runs.chunks_exact(2).map(|pair| (&pair[0], &pair[1]))
}

fn table(runs: &[OverrunRun]) -> Table {
    Table::of(
        "Rates and the longest write",
        &pairs(runs).collect::<Vec<_>>(),
        &[
            ("disk", &|(bare, _)| bare.disk.to_owned()),
            ("writes", &|(bare, _)| bare.pattern.to_owned()),
            ("bare, MB/s", &|(bare, _)| figure(bare.sustained())),
            ("sustained", &|(_, cached)| figure(cached.sustained())),
            ("ratio", &|(bare, cached)| figure(cached.sustained() / bare.sustained())),
            ("least", &|(_, cached)| figure(cached.least())),
            ("bare least", &|(bare, _)| figure(bare.least())),
            ("longest, ms", &|(_, cached)| figure(cached.longest)),
            ("bare longest", &|(bare, _)| figure(bare.longest)),
        ],
    )
}

fn plot(runs: &[OverrunRun]) -> Plot {
    let line = |run: &OverrunRun| {
        let way = if run.cached { "cached" } else { "bare" };
        let name = format!("{}, {}, {way}", run.disk, run.pattern);
        Series::means(&name, &run.rates, 10)
    };
    Plot::new(
        "Rates",
        ("seconds", Scale::Linear),
        ("MB/s", Scale::Decades),
        runs.iter().filter(|run| run.cached).map(line).collect(),
    )
}

fn remark(runs: &[OverrunRun]) -> String {
    let least = pairs(runs)
        .map(|(bare, cached)| cached.sustained() / bare.sustained())
        .fold(f64::INFINITY, f64::min);
    let longest = pairs(runs).map(|(_, cached)| cached.longest).fold(0.0, f64::max);
    format!(
        "At the dirty limit, writers reach at least {} times their rate on the bare disk, and no \
         write takes longer than {} ms.",
        figure(least),
        figure(longest)
    )
}

fn whole_remark(runs: &[OverrunRun], whole: &OverrunRun) -> String {
    let in_order =
        |run: &&OverrunRun| run.cached && run.disk == whole.disk && run.pattern == PATTERNS[0].0;
    let cached = runs.iter().find(in_order).map_or(0.0, OverrunRun::sustained);
    format!(
        "With writes of whole stripes ({}, {WHOLE_WRITERS} in flight), the bare array reaches {} \
         MB/s. Writers of {} reach {} times that rate through the cache.",
        whole.pattern,
        figure(whole.sustained()),
        PATTERNS[0].0,
        figure(cached / whole.sustained())
    )
}
