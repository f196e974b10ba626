//! `disk-trouble`: a disk that slows down, stops for a minute, or loses a drive.

use super::disk::Disturbance;
use super::machine::{Clients, Machine, MachineStep, SECOND_NS};
use super::plot::{Plot, Scale, Series};
use super::report::{Report, Table, figure};
use crate::harness::dice::Dice;
use forebay_backend::OpenError;
use forebay_types::{ByteRange, Size};

/// Writers, readers, and the pause of each after an answer.
const WRITERS: u32 = 4;
const READERS: u32 = 4;
const THINK_NS: u64 = 40_000_000;
const WRITE_BYTES: u64 = 4 << 10;
const READ_BYTES: u64 = 8 << 10;
/// The area that is read repeatedly; it follows the written area.
const HOT_BYTES: u64 = 4 << 20;

const HARD_DISK: &str = "model:hdd?size=64GiB";
const ARRAY: &str = "model:raid5?drives=5&chunk=64KiB&drive=hdd&drive-size=16GiB";
const DEGRADED: &str = "model:raid5?drives=5&chunk=64KiB&drive=hdd&drive-size=16GiB&degraded=1";

/// The kind of disturbance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TroubleKind {
    Slow,
    Stops,
    LosesDrive,
}

/// Disturbance, disk, and name.
const CASES: [(TroubleKind, &str, &str); 4] = [
    (TroubleKind::Slow, HARD_DISK, "a hard disk takes 100 times as long"),
    (TroubleKind::Stops, HARD_DISK, "a hard disk stops"),
    (TroubleKind::Slow, ARRAY, "an array takes 100 times as long"),
    (TroubleKind::LosesDrive, ARRAY, "an array loses a drive"),
];

#[derive(Clone, Copy, Debug)]
pub(super) struct TroublePlan {
    pub pool_bytes: u64,
    /// The area that is written, in bytes from the beginning of the disk.
    pub area_bytes: u64,
    /// The duration of each phase: before, during and after the disturbance, in seconds.
    pub seconds: u64,
}

impl TroublePlan {
    pub(super) const FULL: Self = Self { pool_bytes: 256 << 20, area_bytes: 1 << 30, seconds: 60 };
}

struct Users {
    dice: Dice,
    area_bytes: u64,
    submitted_ns: Vec<Option<u64>>,
    /// Writes and reads that ended, by second.
    writes: Vec<SecondTally>,
    reads: Vec<SecondTally>,
}

/// Requests that ended in one second.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct SecondTally {
    count: u64,
    longest_ms: f64,
}

impl Clients for Users {
    fn next(&mut self, client: u32, now_ns: u64) -> MachineStep {
        let is_writer = client < WRITERS;
        if let Some(began_ns) = self.submitted_ns[client as usize].take() {
            let list = if is_writer { &mut self.writes } else { &mut self.reads };
            if let Some(ended) = list.get_mut((now_ns / SECOND_NS) as usize) {
                ended.count += 1;
                ended.longest_ms = ended.longest_ms.max((now_ns - began_ns) as f64 / 1e6);
            }
            return MachineStep::Think(THINK_NS);
        }
        self.submitted_ns[client as usize] = Some(now_ns);
        let mut range = |from: u64, all: u64, len: u64| {
            ByteRange::new(from + self.dice.below(all / len) * len, len)
        };
        match is_writer {
            true => MachineStep::Write(range(0, self.area_bytes, WRITE_BYTES)),
            false => MachineStep::Read(range(self.area_bytes, HOT_BYTES, READ_BYTES)),
        }
    }
}

/// The result of one phase.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Phase {
    /// Writes and reads per second.
    pub writes: f64,
    pub reads: f64,
    /// The longest write and read, in milliseconds.
    pub longest_write: f64,
    pub longest_read: f64,
}

/// The result of one case.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct TroubleRun {
    pub case: &'static str,
    pub cached: bool,
    pub before: Phase,
    pub during: Phase,
    pub after: Phase,
    /// Writes by second.
    writes: Vec<f64>,
}

pub(super) fn run(plan: &TroublePlan, seed: u64) -> Result<Report, OpenError> {
    let runs = runs(plan, seed)?;
    Ok(Report {
        title: "A disk that slows down, stops or loses a drive".to_owned(),
        model: vec![format!(
            "{WRITERS} users write 4 KiB anywhere in {}, and {READERS} read 8 KiB anywhere in {}, \
             each {} ms after its previous answer, on the bare disk or through Forebay in \
             write-back with {} of lines. After a warm-up of {} s, the disk works normally for \
             {} s, is disturbed for {} s, and works normally again; but the array that has lost a \
             drive stays degraded. The hard disk is {HARD_DISK}; the array is {ARRAY}.",
            Size(plan.area_bytes),
            Size(HOT_BYTES),
            THINK_NS / 1_000_000,
            Size(plan.pool_bytes),
            plan.seconds,
            plan.seconds,
            plan.seconds,
        )],
        tables: vec![table(&runs)],
        plots: vec![plot(&runs)],
        remarks: vec![
            "Reads of data that is not in the cache wait until a stopped disk resumes. So do \
             writes once the dirty limit is reached."
                .to_owned(),
        ],
    })
}

/// All cases, each without and with the cache.
pub(super) fn runs(plan: &TroublePlan, seed: u64) -> Result<Vec<TroubleRun>, OpenError> {
    let mut runs = Vec::new();
    for case in CASES {
        for cached in [false, true] {
            runs.push(run_case(plan, case, cached, seed)?);
        }
    }
    Ok(runs)
}

fn run_case(
    plan: &TroublePlan,
    (kind, disk, case): (TroubleKind, &str, &'static str),
    cached: bool,
    seed: u64,
) -> Result<TroubleRun, OpenError> {
    let pool_bytes = if cached { plan.pool_bytes } else { 0 };
    let mut machine = Machine::new(disk, pool_bytes)?;
    let (from_ns, until_ns) = (2 * plan.seconds * SECOND_NS, 3 * plan.seconds * SECOND_NS);
    machine.disturb(match kind {
        TroubleKind::Slow => Disturbance::slow(from_ns, until_ns, 100),
        TroubleKind::Stops => Disturbance::stopped(from_ns, until_ns),
        TroubleKind::LosesDrive => Disturbance::replaced(from_ns, DEGRADED)?,
    });
    let seconds = 4 * plan.seconds;
    let mut users = Users {
        dice: Dice::new(seed),
        area_bytes: plan.area_bytes,
        submitted_ns: vec![None; (WRITERS + READERS) as usize],
        writes: vec![SecondTally::default(); seconds as usize],
        reads: vec![SecondTally::default(); seconds as usize],
    };
    let clients = u64::from(WRITERS + READERS);
    (0..clients).for_each(|user| machine.add_client(user as u32, user * THINK_NS / clients));
    machine.run(seconds * SECOND_NS, &mut users);
    let phase = |number: u64| {
        let seconds = (number * plan.seconds) as usize..((number + 1) * plan.seconds) as usize;
        let (writes, reads) = (&users.writes[seconds.clone()], &users.reads[seconds]);
        let rate = |list: &[SecondTally]| {
            list.iter().map(|ended| ended.count).sum::<u64>() as f64 / plan.seconds as f64
        };
        let longest =
            |list: &[SecondTally]| list.iter().map(|ended| ended.longest_ms).fold(0.0, f64::max);
        Phase {
            writes: rate(writes),
            reads: rate(reads),
            longest_write: longest(writes),
            longest_read: longest(reads),
        }
    };
    Ok(TroubleRun {
        case,
        cached,
        before: phase(1),
        during: phase(2),
        after: phase(3),
        writes: users.writes.iter().map(|ended| ended.count as f64).collect(),
    })
}

const fn label(run: &TroubleRun) -> &'static str {
    if run.cached { "cached" } else { "bare" }
}

fn table(runs: &[TroubleRun]) -> Table {
    Table::of(
        "Writes and reads before, during and after",
        runs,
        &[
            ("disturbance", &|run| run.case.to_owned()),
            ("access", &|run| label(run).to_owned()),
            ("writes/s before", &|run| figure(run.before.writes)),
            ("during", &|run| figure(run.during.writes)),
            ("after", &|run| figure(run.after.writes)),
            ("longest before, ms", &|run| figure(run.before.longest_write)),
            ("during", &|run| figure(run.during.longest_write)),
            ("after", &|run| figure(run.after.longest_write)),
            ("reads/s during", &|run| figure(run.during.reads)),
            ("longest during, ms", &|run| figure(run.during.longest_read)),
        ],
    )
}

fn plot(runs: &[TroubleRun]) -> Plot {
    let line = |run: &TroubleRun| {
        let name = format!("{}, {}", run.case, label(run));
        Series::means(&name, &run.writes, 5)
    };
    Plot::new(
        "Writes",
        ("seconds", Scale::Linear),
        ("writes/s", Scale::Linear),
        runs.iter().map(line).collect(),
    )
}
