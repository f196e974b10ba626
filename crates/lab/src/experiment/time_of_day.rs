//! `time-of-day`: a fortnight with daily and weekly jobs, with and without a learned history.
//!
//! The access history is the shipped one, and is used as the runtime uses it: it learns each slot
//! that has ended, and five minutes before a slot begins, the data that the slot probably needs is
//! preloaded.

use super::machine::{
    Clients, Machine, SECOND_NS, Step, end_former_forecasts, preload, take_needs,
};
use super::plot::{Plot, Scale, Series};
use super::report::{Report, Table};
use super::users::{KIB, MIB};
use crate::harness::dice::Dice;
use forebay_backend::OpenError;
use forebay_policy::{AccessHistory, Confidence};
use forebay_types::{
    ByteRange, Granule, LINE_BYTES, SLOT_SECONDS, SLOTS_PER_DAY, SLOTS_PER_WEEK, Size, TimeSlot,
};

const DISK: &str = "model:hdd?size=64GiB";
/// The fortnight begins on a Monday, 00:00.
const BEGIN: u64 = 2_800 * SLOTS_PER_WEEK;
const SLOTS: u64 = 2 * SLOTS_PER_WEEK;
const SLOT_NS: u64 = SLOT_SECONDS * SECOND_NS;
/// How long before a slot its preload begins.
const LEAD_NS: u64 = 300 * SECOND_NS;
/// The part of a slot that is measured, from its beginning.
const MEASURED_NS: u64 = 600 * SECOND_NS;
/// An answer within this time came from the pool: the disk takes milliseconds.
const HIT_NS: u64 = 500_000;
/// A forecast may take this fraction of the pool: a quarter.
const BUDGET_DIVISOR: u64 = 4;

/// A job that reads random records of some tables of its own.
#[derive(Clone, Copy, Debug)]
struct Job {
    name: &'static str,
    /// Minutes after midnight.
    minute: u64,
    /// The days on which it runs, one bit for each from Monday on.
    days: u8,
}

const WORKING_DAYS: u8 = 0b001_1111;
const JOBS: [Job; 5] = [
    Job { name: "06:00 daily", minute: 6 * 60, days: 0b111_1111 },
    Job { name: "09:00 Mon-Fri", minute: 9 * 60, days: WORKING_DAYS },
    Job { name: "12:30 daily", minute: 12 * 60 + 30, days: 0b111_1111 },
    Job { name: "15:00 Wed", minute: 15 * 60, days: 0b000_0100 },
    Job { name: "20:15 Sun", minute: 20 * 60 + 15, days: 0b100_0000 },
];

impl Job {
    const fn runs_on(&self, day: u64) -> bool {
        self.days >> (day % 7) & 1 != 0
    }

    /// Its start on a day, in nanoseconds since the beginning of the fortnight.
    const fn start_ns(&self, day: u64) -> u64 {
        (day * 24 * 60 + self.minute) * 60 * SECOND_NS
    }

    /// Whether the job runs at this time, or data may be preloaded for it.
    fn is_beside(&self, now_ns: u64) -> bool {
        let day = now_ns / (SLOT_NS * SLOTS_PER_DAY);
        let start_ns = self.start_ns(day);
        self.runs_on(day) && (start_ns - LEAD_NS..start_ns + SLOT_NS).contains(&now_ns)
    }

    /// Whether the history can forecast the run on this day: the job ran on each of the two days
    /// before, or a week before.
    const fn is_learned(&self, day: u64) -> bool {
        let ran_before = day >= 2 && self.runs_on(day - 1) && self.runs_on(day - 2);
        ran_before || day >= 7
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Plan {
    pub pool_bytes: u64,
    /// The size of each job's tables.
    pub job_bytes: u64,
    /// The mean pause between two requests of other users, all day.
    pub others_ns: u64,
    /// The area from which others read half of their records, most often near its beginning.
    /// Together with the tables of the jobs it is larger than the pool; otherwise everything would
    /// stay in the pool.
    pub hot_bytes: u64,
    /// The number of bytes that the nightly backup reads, sequentially.
    pub backup_bytes: u64,
}

impl Plan {
    /// The records of each job.
    const fn job_records(&self) -> u64 {
        self.job_bytes / RECORD_DISTANCE_BYTES
    }

    pub(super) const FULL: Self = Self {
        pool_bytes: 256 * MIB,
        job_bytes: 64 * MIB,
        others_ns: SECOND_NS / 4,
        hot_bytes: 512 * MIB,
        backup_bytes: 2_048 * MIB,
    };
}

/// One of the cases to compare.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Case {
    /// Forecasts are preloaded.
    pub preloads: bool,
    /// Jobs read the same records each day; otherwise other ones.
    pub repeats: bool,
}

/// Reads of one kind: how many, and how many came from the pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Reads {
    pub count: u64,
    pub hits: u64,
}

impl Reads {
    pub(super) fn ratio(self) -> f64 {
        self.hits as f64 / self.count.max(1) as f64
    }
}

/// The result of a fortnight.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Fortnight {
    /// Reads by job and day, in the first ten minutes of the job's slot; zero on days without it.
    pub jobs: Vec<Vec<Reads>>,
    /// Reads of the other users, all day.
    pub others: Reads,
    /// Of these, the reads while a job runs, or data may be preloaded for it.
    pub others_beside: Reads,
    /// Bytes that were preloaded, and of these used, in the first and in the second week.
    pub preloaded_bytes: [u64; 2],
    pub used_bytes: [u64; 2],
    /// Bytes that clients read.
    pub read_bytes: u64,
    /// Regions in the history at the end.
    pub regions: usize,
}

impl Fortnight {
    /// The reads of those runs of a job that the history can forecast.
    pub(super) fn learned(&self, job: usize) -> Reads {
        let mut sum = Reads::default();
        let days = self.jobs[job].iter().zip(0..);
        for (reads, _) in days.filter(|(_, day)| JOBS[job].is_learned(*day)) {
            sum.count += reads.count;
            sum.hits += reads.hits;
        }
        sum
    }
}

/// The number of jobs.
pub(super) const JOB_COUNT: usize = JOBS.len();
/// Clients: the jobs, then one for others, then the backup.
const OTHERS: u32 = JOB_COUNT as u32;
const BACKUP: u32 = OTHERS + 1;
/// The size of the area from which others read the other half of their records.
const OTHERS_BYTES: u64 = 16 << 30;
const RECORD_BYTES: u64 = 8 * KIB;
/// A record of a job: a page of a database.
const JOB_RECORD_BYTES: u64 = 16 * KIB;
/// The distance between the records of a job. Adjacent records would be read ahead.
const RECORD_DISTANCE_BYTES: u64 = 64 * KIB;
const BACKUP_READ_BYTES: u64 = 256 * KIB;
const BACKUP_MINUTE: u64 = 2 * 60;

/// Jobs, others and the backup.
struct Office<'a> {
    plan: &'a Plan,
    case: Case,
    dice: Dice,
    jobs: Vec<Vec<Reads>>,
    others: Reads,
    others_beside: Reads,
    read_bytes: u64,
    /// By client: when its read in flight was submitted.
    submitted_ns: Vec<Option<u64>>,
    /// By job: the records that are left of its run, the next one last.
    left: Vec<Vec<u64>>,
    backup_at: u64,
}

impl<'a> Office<'a> {
    fn new(plan: &'a Plan, case: Case, seed: u64) -> Self {
        let days = (2 * 7) as usize;
        let clients = JOB_COUNT + 2;
        Self {
            plan,
            case,
            dice: Dice::new(seed),
            jobs: vec![vec![Reads::default(); days]; JOB_COUNT],
            others: Reads::default(),
            others_beside: Reads::default(),
            read_bytes: 0,
            submitted_ns: vec![None; clients],
            left: vec![Vec::new(); JOB_COUNT],
            backup_at: 0,
        }
    }

    fn read(&mut self, client: u32, range: ByteRange, now_ns: u64) -> Step {
        self.submitted_ns[client as usize] = Some(now_ns);
        self.read_bytes += range.len;
        Step::Read(range)
    }

    fn random(&mut self, offset: u64, bytes: u64) -> ByteRange {
        let at = self.dice.below(bytes / RECORD_BYTES) * RECORD_BYTES;
        ByteRange::new(offset + at, RECORD_BYTES)
    }

    fn count(&mut self, client: u32, now_ns: u64) {
        let Some(submitted_ns) = self.submitted_ns[client as usize].take() else { return };
        let hits = u64::from(now_ns - submitted_ns < HIT_NS);
        let day = submitted_ns / (SLOT_NS * SLOTS_PER_DAY);
        let reads = match self.jobs.get_mut(client as usize) {
            Some(job) => {
                let since_ns = submitted_ns - JOBS[client as usize].start_ns(day);
                if since_ns >= MEASURED_NS {
                    return;
                }
                &mut job[day as usize]
            }
            None if client == OTHERS => {
                if JOBS.iter().any(|job| job.is_beside(submitted_ns)) {
                    self.others_beside.count += 1;
                    self.others_beside.hits += hits;
                }
                &mut self.others
            }
            None => return,
        };
        reads.count += 1;
        reads.hits += hits;
    }

    /// The time until the next run of a job that begins at `minute` of the days that `runs_on`
    /// accepts.
    fn pause_ns(now_ns: u64, minute: u64, runs_on: impl Fn(u64) -> bool) -> Option<u64> {
        let starts = (0..2 * 7).filter(|&day| runs_on(day));
        let mut starts = starts.map(|day| (day * 24 * 60 + minute) * 60 * SECOND_NS);
        Some(starts.find(|&start_ns| start_ns > now_ns)? - now_ns)
    }

    fn next_of_job(&mut self, at: usize, now_ns: u64) -> Step {
        let job = &JOBS[at];
        let day = now_ns / (SLOT_NS * SLOTS_PER_DAY);
        let Some(record) = self.left[at].pop() else {
            let mut records: Vec<u64> = (0..self.plan.job_records()).collect();
            for end in (1..records.len()).rev() {
                records.swap(end, self.dice.below(end as u64 + 1) as usize);
            }
            self.left[at] = records;
            return match Self::pause_ns(now_ns, job.minute, |day| job.runs_on(day)) {
                Some(pause_ns) => Step::Think(pause_ns),
                None => Step::Leave,
            };
        };
        let place = if self.case.repeats { 0 } else { day };
        let number = at as u64 + place * JOB_COUNT as u64;
        let first = self.plan.hot_bytes + OTHERS_BYTES + number * self.plan.job_bytes;
        let range = ByteRange::new(first + record * RECORD_DISTANCE_BYTES, JOB_RECORD_BYTES);
        self.read(at as u32, range, now_ns)
    }

    fn next_of_backup(&mut self, now_ns: u64) -> Step {
        if self.backup_at == 0 {
            let pause_ns = Self::pause_ns(now_ns, BACKUP_MINUTE, |_| true);
            self.backup_at = self.plan.backup_bytes;
            return pause_ns.map_or(Step::Leave, Step::Think);
        }
        let range = ByteRange::new(self.plan.backup_bytes - self.backup_at, BACKUP_READ_BYTES);
        self.backup_at -= BACKUP_READ_BYTES;
        self.read(BACKUP, range, now_ns)
    }
}

impl Clients for Office<'_> {
    fn next(&mut self, client: u32, now_ns: u64) -> Step {
        let has_read = self.submitted_ns[client as usize].is_some();
        self.count(client, now_ns);
        if client == BACKUP {
            return self.next_of_backup(now_ns);
        }
        if client == OTHERS {
            if has_read {
                // Up to twice the mean, like the pauses of the other experiments.
                return Step::Think(self.dice.below(self.plan.others_ns / 500 + 1) * 1_000);
            }
            let is_hot = self.dice.chance(500_000);
            let range = match is_hot {
                true => {
                    let part = self.dice.below(self.plan.hot_bytes / RECORD_BYTES) + 1;
                    self.random(0, part * RECORD_BYTES)
                }
                false => self.random(self.plan.hot_bytes, OTHERS_BYTES),
            };
            return self.read(OTHERS, range, now_ns);
        }
        let at = client as usize;
        if has_read && !self.left[at].is_empty() {
            return Step::Think(MEASURED_NS / self.plan.job_records());
        }
        self.next_of_job(at, now_ns)
    }
}

/// Runs a fortnight.
pub(super) fn fortnight(plan: &Plan, case: Case, seed: u64) -> Result<Fortnight, OpenError> {
    let mut machine = Machine::new(DISK, plan.pool_bytes)?;
    let mut office = Office::new(plan, case, seed);
    for client in 0..=BACKUP {
        machine.add_client(client, 0);
    }
    let mut history = AccessHistory::new((plan.pool_bytes / LINE_BYTES / 8) as usize);
    let mut confidence = Confidence::default();
    let (mut preloaded_bytes, mut used_bytes) = ([0; 2], [0; 2]);
    // `before` has the counters of preloaded and used lines when the last preload began; `compared`
    // has the granules that would have been preloaded if preloads were not paused.
    let counters = |machine: &Machine| {
        let counters = machine.cache().expect("there is a cache").counters();
        (counters.preloaded_lines, counters.preload_used_lines)
    };
    let (mut before, mut compared) = ((0, 0), Vec::new());
    for number in 0..SLOTS {
        let (slot, end_ns) = (TimeSlot(BEGIN + number), (number + 1) * SLOT_NS);
        machine.run(end_ns - LEAD_NS, &mut office);
        let mut next: Vec<Granule> = Vec::new();
        let now = counters(&machine);
        if case.preloads {
            let budget = plan.pool_bytes / BUDGET_DIVISOR;
            let likely = history.forecast(slot.next(), confidence.demand(), budget);
            if confidence.is_paused() {
                next = likely.granules;
            } else {
                preload(&mut machine, likely.granules);
            }
        }
        let week = (number / SLOTS_PER_WEEK) as usize;
        machine.run(end_ns, &mut office);
        end_former_forecasts(&mut machine);
        let needs = take_needs(&mut machine);
        if confidence.is_paused() {
            let lines = compared.iter().map(|granule: &Granule| u64::from(granule.line_count()));
            let used = compared.iter().map(|granule| needs.lines_of(granule)).sum();
            confidence.record(lines.sum(), used);
        } else {
            confidence.record(now.0 - before.0, now.1 - before.1);
        }
        preloaded_bytes[week] += (now.0 - before.0) * LINE_BYTES;
        used_bytes[week] += (now.1 - before.1) * LINE_BYTES;
        (before, compared) = (now, next);
        history.observe(slot, &needs);
        history.self_check();
    }
    let Office { jobs, others, others_beside, read_bytes, .. } = office;
    let regions = history.region_count();
    Ok(Fortnight { jobs, others, others_beside, preloaded_bytes, used_bytes, read_bytes, regions })
}

pub(super) fn run(plan: &Plan, seed: u64) -> Result<Report, OpenError> {
    let run = |preloads, repeats| fortnight(plan, Case { preloads, repeats }, seed);
    let (without, with) = (run(false, true)?, run(true, true)?);
    let (new_without, new_with) = (run(false, false)?, run(true, false)?);
    let runs = [
        ("without", &without),
        ("with", &with),
        ("new records, without", &new_without),
        ("new records, with", &new_with),
    ];
    Ok(Report {
        title: "A fortnight of daily and weekly jobs, with and without a history".to_owned(),
        model: model(plan),
        tables: vec![job_table(&without, &with), cost_table(&runs)],
        plots: vec![plot(&without, &with)],
        remarks: vec![
            "In the last two rows of the second table, the jobs read other records each day. What \
             is preloaded for them is read in vain."
                .to_owned(),
        ],
    })
}

fn model(plan: &Plan) -> Vec<String> {
    vec![
        format!(
            "Each job reads its {} records of {} once, one in each {} of tables of its own of {}, \
             in random order and in ten minutes, and begins with its slot. Other users read a \
             record of {} every {} ms on average, all day: half of them from {}, most often from \
             its beginning, the others from {}. At 02:00, a backup reads {} in order.",
            plan.job_records(),
            Size(JOB_RECORD_BYTES),
            Size(RECORD_DISTANCE_BYTES),
            Size(plan.job_bytes),
            Size(RECORD_BYTES),
            plan.others_ns / 1_000_000,
            Size(plan.hot_bytes),
            Size(OTHERS_BYTES),
            Size(plan.backup_bytes)
        ),
        format!(
            "The disk is {DISK}, behind Forebay with {} of lines. The history is empty at the \
             beginning, a Monday, and sees only what is not in the pool. Five minutes before a \
             slot, what it probably needs is preloaded, at most a quarter of the pool: while no \
             client waits, and one read per second beside clients, as if each slowed them down. \
             It displaces only lines that are worth less to the eviction policy.",
            Size(plan.pool_bytes)
        ),
        "A run counts as learned if its job also ran on the two days before, or a week before."
            .to_owned(),
    ]
}

fn percent(ratio: f64) -> String {
    format!("{:.1}%", 100.0 * ratio)
}

fn job_table(without: &Fortnight, with: &Fortnight) -> Table {
    let caption = "Reads answered from the pool in the first ten minutes of learned slots";
    let mut table = Table::new(caption, &["job", "runs", "without", "with"]);
    for (at, job) in JOBS.iter().enumerate() {
        let runs = (0..14).filter(|&day| job.runs_on(day) && job.is_learned(day)).count();
        let ratio = |of: &Fortnight| percent(of.learned(at).ratio());
        table.push(vec![job.name.to_owned(), runs.to_string(), ratio(without), ratio(with)]);
    }
    table
}

fn cost_table(runs: &[(&str, &Fortnight)]) -> Table {
    Table::of(
        "What the preloads cost",
        runs,
        &[
            ("history", &|(name, _)| (*name).to_owned()),
            ("others' hits", &|(_, it)| percent(it.others.ratio())),
            ("beside jobs", &|(_, it)| percent(it.others_beside.ratio())),
            ("preloaded, 1st week", &|(_, it)| Size(it.preloaded_bytes[0]).to_string()),
            ("2nd week", &|(_, it)| Size(it.preloaded_bytes[1]).to_string()),
            ("used", &|(_, it)| {
                let preloaded: u64 = it.preloaded_bytes.iter().sum();
                let used: u64 = it.used_bytes.iter().sum();
                if preloaded == 0 { String::new() } else { percent(used as f64 / preloaded as f64) }
            }),
            ("of all reads", &|(_, it)| {
                let preloaded: u64 = it.preloaded_bytes.iter().sum();
                percent(preloaded as f64 / it.read_bytes as f64)
            }),
            ("regions", &|(_, it)| it.regions.to_string()),
        ],
    )
}

fn plot(without: &Fortnight, with: &Fortnight) -> Plot {
    let line = |name: &str, of: &Fortnight, job: usize| {
        let runs = of.jobs[job].iter().zip(1u32..).filter(|(reads, _)| reads.count > 0);
        let points: Vec<(f64, f64)> =
            runs.map(|(reads, day)| (f64::from(day), 100.0 * reads.ratio())).collect();
        Series::line(&format!("{}, {name}", JOBS[job].name), points)
    };
    Plot::new(
        "Reads answered from the pool in the first ten minutes",
        ("day", Scale::Linear),
        ("percent", Scale::Linear),
        [0, 1]
            .iter()
            .flat_map(|&job| [line("without", without, job), line("with", with, job)])
            .collect(),
    )
}
