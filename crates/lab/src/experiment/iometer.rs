//! `iometer`: reads of 4 KiB, one at a time, sequential and half random, before and after the cache
//! has learned the file.

use super::machine::{Clients, Machine, MachineStep, SECOND_NS};
use super::plot::{Plot, Scale, Series};
use super::report::{Report, Table, figure};
use crate::harness::dice::Dice;
use forebay_backend::OpenError;
use forebay_types::{ByteRange, LINE_BYTES, Size};

/// The published measurement of a cache for virtual machines (Condusiv V-locity 4, 2012): reads per
/// second without the cache, and the factor after it had learned the file.
pub(super) const PUBLISHED_IOPS: f64 = 15_500.0;
pub(super) const PUBLISHED_TIMES: f64 = 2.0;

const READ_BYTES: u64 = LINE_BYTES;

/// Disks: name and model. The latency of the first is such that it reaches the published rate
/// without a cache.
const DISKS: [(&str, &str); 2] =
    [("flash", "model:ssd?size=64GiB&read-latency=42us"), ("hard disk", "model:hdd?size=64GiB")];

/// The order of the reads, as Iometer defines it: a read goes to a random place with this
/// probability, in parts per million, and otherwise follows the read before it.
const PATTERNS: [(&str, u32); 2] = [("sequential", 0), ("half random", 500_000)];

#[derive(Clone, Copy, Debug)]
pub(super) struct IometerPlan {
    pub pool_bytes: u64,
    /// Sizes of the file that is read, in bytes.
    pub files: &'static [u64],
    /// The number of reads in one measurement, and the number of measurements during which the
    /// cache learns, at least one.
    pub reads: u64,
    pub learning: u32,
}

impl IometerPlan {
    pub(super) const FULL: Self =
        Self { pool_bytes: 256 << 20, files: &[128 << 20, 1 << 30], reads: 100_000, learning: 6 };
}

/// A client with one read in flight.
struct Reader {
    dice: Dice,
    random_ppm: u32,
    /// The number of blocks in the file, and the one to read next.
    blocks: u64,
    next: u64,
    /// Reads left.
    left: u64,
}

impl Clients for Reader {
    fn next(&mut self, _client: u32, _now_ns: u64) -> MachineStep {
        let Some(left) = self.left.checked_sub(1) else { return MachineStep::Leave };
        self.left = left;
        if self.dice.chance(self.random_ppm) {
            self.next = self.dice.below(self.blocks);
        }
        let block = self.next % self.blocks;
        self.next = block + 1;
        MachineStep::Read(ByteRange::new(block * READ_BYTES, READ_BYTES))
    }
}

/// Reads per second in one case.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Rates {
    pub disk: &'static str,
    pub pattern: &'static str,
    pub file_bytes: u64,
    pub without: f64,
    /// With the cache, one rate per measurement: the first from an empty cache, the last after it
    /// has learned.
    pub with: Vec<f64>,
}

impl Rates {
    /// From an empty cache.
    pub(super) fn learning(&self) -> f64 {
        self.with[0]
    }

    /// After the cache has learned.
    pub(super) fn learned(&self) -> f64 {
        self.with[self.with.len() - 1]
    }

    /// The gain of the cache that has learned.
    pub(super) fn times(&self) -> f64 {
        self.learned() / self.without
    }
}

pub(super) fn run(plan: &IometerPlan, seed: u64) -> Result<Report, OpenError> {
    let rates = rates(plan, seed)?;
    Ok(Report {
        title: "Small reads, one at a time".to_owned(),
        model: model(plan),
        tables: vec![table(&rates)],
        plots: vec![plot(plan, &rates)],
        remarks: vec![remark(plan, &rates)],
    })
}

/// All disks, patterns and files.
pub(super) fn rates(plan: &IometerPlan, seed: u64) -> Result<Vec<Rates>, OpenError> {
    let mut rates = Vec::new();
    for disk in DISKS {
        for pattern in PATTERNS {
            for &file_bytes in plan.files {
                rates.push(measure(plan, disk, pattern, file_bytes, seed)?);
            }
        }
    }
    Ok(rates)
}

fn measure(
    plan: &IometerPlan,
    (disk, model): (&'static str, &str),
    (pattern, random_ppm): (&'static str, u32),
    file_bytes: u64,
    seed: u64,
) -> Result<Rates, OpenError> {
    let begin = |pool_bytes| {
        let blocks = file_bytes / READ_BYTES;
        let reader = Reader { dice: Dice::new(seed), random_ppm, blocks, next: 0, left: 0 };
        Ok::<_, OpenError>((Machine::new(model, pool_bytes)?, reader))
    };
    let (mut bare, mut reader) = begin(0)?;
    let without = rate(&mut bare, &mut reader, plan.reads);
    let (mut cached, mut reader) = begin(plan.pool_bytes)?;
    let pieces = 0..=plan.learning;
    let with = pieces.map(|_| rate(&mut cached, &mut reader, plan.reads)).collect();
    Ok(Rates { disk, pattern, file_bytes, without, with })
}

/// Lets a client do this many reads; returns reads per second.
fn rate(machine: &mut Machine, reader: &mut Reader, reads: u64) -> f64 {
    reader.left = reads;
    let begun_ns = machine.now_ns();
    machine.add_client(0, 0);
    machine.run(u64::MAX, reader);
    reads as f64 * SECOND_NS as f64 / (machine.now_ns() - begun_ns) as f64
}

fn model(plan: &IometerPlan) -> Vec<String> {
    let disks = DISKS.map(|(name, model)| format!("{name} is {model}")).join("; ");
    let files: Vec<String> = plan.files.iter().map(|&file| Size(file).to_string()).collect();
    vec![format!(
        "A client reads 4 KiB at a time from a file, the next read when the last one is answered. \
         Sequential reads start again at the end of the file. Of half-random reads, one half goes \
         to a random place, and the other follows the read before. The file has {}, the cache {} \
         of lines. Here {disks}. {} reads are measured: on the disk without the cache, from an \
         empty cache, and after {} reads, when the cache has learned. The latency of the flash is \
         such that its rate without the cache is the published one; nothing else is tuned.",
        files.join(" or "),
        Size(plan.pool_bytes),
        plan.reads,
        plan.reads * u64::from(plan.learning)
    )]
}

fn table(rates: &[Rates]) -> Table {
    let mut table = Table::of(
        "Reads per second",
        rates,
        &[
            ("disk", &|it| it.disk.to_owned()),
            ("reads", &|it| it.pattern.to_owned()),
            ("file", &|it| Size(it.file_bytes).to_string()),
            ("without", &|it| figure(it.without)),
            ("learning", &|it| figure(it.learning())),
            ("learned", &|it| figure(it.learned())),
            ("times", &|it| format!("{:.1}x", it.times())),
        ],
    );
    for (pattern, _) in PATTERNS {
        let learned = PUBLISHED_IOPS * PUBLISHED_TIMES;
        table.push(vec![
            "published".to_owned(),
            pattern.to_owned(),
            String::new(),
            figure(PUBLISHED_IOPS),
            String::new(),
            figure(learned),
            format!("{PUBLISHED_TIMES:.1}x"),
        ]);
    }
    table
}

fn plot(plan: &IometerPlan, rates: &[Rates]) -> Plot {
    let lines = rates.iter().map(|it| {
        let name = format!("{}, {}, {}", it.disk, it.pattern, Size(it.file_bytes));
        let points = (1..).zip(&it.with).map(|(piece, &rate)| ((piece * plan.reads) as f64, rate));
        Series::line(&name, points)
    });
    let ends = [1, u64::from(plan.learning) + 1].map(|pieces| (pieces * plan.reads) as f64);
    let published = ends.map(|reads| (reads, PUBLISHED_IOPS * PUBLISHED_TIMES));
    Plot::new(
        "Reads per second while the cache learns",
        ("reads", Scale::Linear),
        ("reads/s", Scale::Decades),
        lines.chain([Series::line("published, once it had learned", published)]).collect(),
    )
}

fn remark(plan: &IometerPlan, rates: &[Rates]) -> String {
    let fits = |it: &&Rates| it.disk == DISKS[0].0 && it.file_bytes <= plan.pool_bytes;
    let least = rates.iter().filter(fits).map(Rates::times).fold(f64::INFINITY, f64::min);
    format!(
        "On flash, a file that fits the cache is read at least {least:.1} times as fast once it \
         is there. Published: {PUBLISHED_TIMES} times, from {PUBLISHED_IOPS} reads per second. \
         The size of its file is not known."
    )
}
