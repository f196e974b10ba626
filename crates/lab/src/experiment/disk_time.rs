//! `disk-time`: terminal-server users, ten more at a time, and the utilization of their disk.
//!
//! Users are added to one running server, as in the published measurement, so the cache keeps the
//! programs that earlier users have started. Each number of users on a server with an empty cache
//! is measured as well: there, more than half of the disk time is reads of programs, most of which
//! no user has read before.

use super::plot::{Plot, Scale, Series};
use super::report::{Report, Table, figure};
use super::users::{
    Area, KIB, MIB, Measured, SERVER_DISK, Schedule, UserKind, Work, measure, measure_steps,
};
use forebay_backend::OpenError;
use forebay_types::Size;

/// The published measurement of a server with a battery-backed cache, in percent: the averages over
/// all steps, the maximum with the cache, and the largest reduction of the response time.
const PUBLISHED_WITHOUT: f64 = 20.74;
const PUBLISHED_WITH: f64 = 3.05;
const PUBLISHED_WITH_MAX: f64 = 5.0;
pub(super) const PUBLISHED_FASTER: f64 = 70.0;

/// The kinds of [`WORK`] that read programs and documents.
const PROGRAMS: usize = 3;
const DOCUMENTS: usize = 4;

/// The behaviour of a terminal-server user.
pub(super) const WORK: Work = Work {
    think_ns: 13_000_000_000,
    requests: 4,
    pace_ns: 0,
    kinds: &[
        UserKind::write(45, 4 * KIB, Area::Own { offset: 0, bytes: 2 * MIB }),
        UserKind::write(15, 16 * KIB, Area::Own { offset: 2 * MIB, bytes: 16 * MIB }),
        UserKind::write(10, 64 * KIB, Area::Own { offset: 18 * MIB, bytes: 256 * MIB }),
        UserKind::read(20, 16 * KIB, Area::Shared { offset: 0, bytes: 192 * MIB }),
        UserKind::read(10, 16 * KIB, Area::Own { offset: 18 * MIB, bytes: 256 * MIB }),
    ],
    shared_bytes: 192 * MIB,
    place_bytes: 1024 * MIB,
    changes_place: false,
};

#[derive(Clone, Copy, Debug)]
pub(super) struct DiskTimePlan {
    pub pool_bytes: u64,
    /// Users added per step, and the number of steps.
    pub users_step: u32,
    pub steps: u32,
    pub schedule: Schedule,
}

impl DiskTimePlan {
    pub(super) const FULL: Self = Self {
        pool_bytes: 256 << 20,
        users_step: 10,
        steps: 10,
        schedule: Schedule { warmup_ns: 600_000_000_000, measured_ns: 600_000_000_000 },
    };
}

/// The measurement for one number of users, without and with the cache.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct DiskTimePoint {
    pub users: u32,
    pub without: Measured,
    pub with: Measured,
    /// With a cache that was empty when all of these users arrived.
    pub with_empty: Measured,
}

impl DiskTimePoint {
    /// The reduction of the response time by the cache, in percent.
    pub(super) fn faster(&self) -> f64 {
        100.0 * (1.0 - self.with.request_seconds / self.without.request_seconds)
    }
}

/// Averages over all steps, in percent of the time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Averages {
    pub without: f64,
    pub with: f64,
    pub with_empty: f64,
    pub behind: f64,
}

impl Averages {
    pub(super) fn of(points: &[DiskTimePoint]) -> Self {
        Self {
            without: mean(points, |point| point.without.waiting),
            with: mean(points, |point| point.with.waiting),
            with_empty: mean(points, |point| point.with_empty.waiting),
            behind: mean(points, |point| point.with.busy),
        }
    }
}

/// The mean of a share over all steps, in percent.
fn mean(points: &[DiskTimePoint], of: fn(&DiskTimePoint) -> f64) -> f64 {
    100.0 * points.iter().map(of).sum::<f64>() / points.len() as f64
}

pub(super) fn run(plan: &DiskTimePlan, seed: u64) -> Result<Report, OpenError> {
    let points = points(plan, seed)?;
    let averages = Averages::of(&points);
    Ok(Report {
        title: "Disk utilization by terminal-server users".to_owned(),
        model: model(plan),
        tables: vec![table(&points, &averages), causes(&points)],
        plots: plots(&points),
        remarks: vec![remark(&points, &averages)],
    })
}

pub(super) fn points(plan: &DiskTimePlan, seed: u64) -> Result<Vec<DiskTimePoint>, OpenError> {
    let DiskTimePlan { users_step, steps, schedule, .. } = *plan;
    let grow = |pool_bytes| measure_steps(pool_bytes, &WORK, users_step, steps, schedule, seed);
    let (without, with) = (grow(0)?, grow(plan.pool_bytes)?);
    let pairs = (1..).zip(without.into_iter().zip(with));
    pairs
        .map(|(step, (without, with))| {
            let users = step * users_step;
            let with_empty = measure(plan.pool_bytes, &WORK, users, schedule, seed)?;
            Ok(DiskTimePoint { users, without, with, with_empty })
        })
        .collect()
}

fn model(plan: &DiskTimePlan) -> Vec<String> {
    vec![
        format!(
            "A user performs an operation every {} s on average: {} requests, one after the other. \
             Of 100 requests, 45 write 4 KiB into 2 MiB of the user (settings, pages), 15 write \
             16 KiB into 16 MiB of the user (temporary files), 10 write 64 KiB and 10 read 16 KiB \
             anywhere in 256 MiB of the user (documents), and 20 read 16 KiB from 192 MiB that all \
             users share (programs). The users' areas are 1 GiB apart. Requests that the users' \
             operating system serves from its own cache are not modelled. The pause is tuned so \
             that the disk without the cache is as busy as the measured one; nothing else is \
             tuned.",
            WORK.think_ns / 1_000_000_000,
            WORK.requests
        ),
        format!(
            "The disk is {SERVER_DISK}, used directly, and through Forebay in write-back with {} \
             of lines under a UPS. Every {} s, {} users join those who are there; the last {} s of \
             each step are measured. The cache is empty before the first step only; in the column \
             \"empty before\" it is empty before each step, and all users of the step arrive at \
             once. Disk time is the share of time in which any request waits for its answer, as a \
             server reports it that cannot see the disk behind the cache. The column \"disk busy\" \
             is the share of time in which that disk has an I/O in flight. A response is the mean \
             over all requests.",
            Size(plan.pool_bytes),
            (plan.schedule.warmup_ns + plan.schedule.measured_ns) / 1_000_000_000,
            plan.users_step,
            plan.schedule.measured_ns / 1_000_000_000
        ),
    ]
}

fn table(points: &[DiskTimePoint], averages: &Averages) -> Table {
    let mut table = Table::of(
        "By number of users",
        points,
        &[
            ("users", &|point| point.users.to_string()),
            ("disk time without, %", &|point| figure(100.0 * point.without.waiting)),
            ("with, %", &|point| figure(100.0 * point.with.waiting)),
            ("empty before, %", &|point| figure(100.0 * point.with_empty.waiting)),
            ("disk busy, %", &|point| figure(100.0 * point.with.busy)),
            ("response without, ms", &|point| figure(1000.0 * point.without.request_seconds)),
            ("with, ms", &|point| figure(1000.0 * point.with.request_seconds)),
            ("faster", &|point| format!("{:.0}%", point.faster())),
        ],
    );
    let Averages { without, with, with_empty, behind } = *averages;
    let mut row = |cells: [String; 5], faster: String| {
        let mut row = cells.to_vec();
        row.extend([String::new(), String::new(), faster]);
        table.push(row);
    };
    let [name, none] = ["average".to_owned(), String::new()];
    row([name, figure(without), figure(with), figure(with_empty), figure(behind)], none.clone());
    let name = "published average".to_owned();
    let [without, with] = [PUBLISHED_WITHOUT, PUBLISHED_WITH].map(figure);
    row([name, without, with, none.clone(), none], format!("{PUBLISHED_FASTER:.0}%"));
    table
}

/// What requests waited for, with the cache.
fn causes(points: &[DiskTimePoint]) -> Table {
    type Cause = (&'static str, fn(&Measured) -> f64);
    let causes: [Cause; 3] = [
        ("reads of programs", |measured| measured.kinds[PROGRAMS]),
        ("reads of documents", |measured| measured.kinds[DOCUMENTS]),
        ("writes", |measured| measured.kinds[..PROGRAMS].iter().sum()),
    ];
    let share = |of: fn(&DiskTimePoint) -> Measured, cause: &Cause| {
        let sum: f64 = points.iter().map(|point| cause.1(&of(point))).sum();
        figure(100.0 * sum / points.len() as f64)
    };
    Table::of(
        "Durations of requests with the cache, % of the time, average over all steps",
        &causes,
        &[
            ("requests", &|cause| cause.0.to_owned()),
            ("with", &|cause| share(|point| point.with, cause)),
            ("empty before", &|cause| share(|point| point.with_empty, cause)),
        ],
    )
}

fn plots(points: &[DiskTimePoint]) -> Vec<Plot> {
    let line = |name, of: fn(&DiskTimePoint) -> f64| {
        Series::line(name, points.iter().map(|point| (f64::from(point.users), of(point))))
    };
    let plot = |title: &str, label, series| {
        Plot::new(title, ("users", Scale::Linear), (label, Scale::Linear), series)
    };
    let all = |value| points.iter().map(move |point| (f64::from(point.users), value));
    vec![
        plot(
            "Disk time",
            "%",
            vec![
                line("without", |point| 100.0 * point.without.waiting),
                line("with", |point| 100.0 * point.with.waiting),
                line("with, empty before", |point| 100.0 * point.with_empty.waiting),
                line("with, disk busy", |point| 100.0 * point.with.busy),
                Series::line("published average without", all(PUBLISHED_WITHOUT)),
                Series::line("published average with", all(PUBLISHED_WITH)),
            ],
        ),
        plot(
            "Response",
            "ms",
            vec![
                line("without", |point| 1000.0 * point.without.request_seconds),
                line("with", |point| 1000.0 * point.with.request_seconds),
            ],
        ),
    ]
}

fn remark(points: &[DiskTimePoint], averages: &Averages) -> String {
    let most = points.iter().map(|point| 100.0 * point.with.waiting).fold(0.0, f64::max);
    let faster = points.iter().map(DiskTimePoint::faster).fold(0.0, f64::max);
    format!(
        "With the cache, disk time is {} % on average instead of {} %, {} % at most, and responses \
         are up to {faster:.0} % faster. With a cache that is empty before each step, disk time is \
         {} % on average. The disk behind the cache is busy for {} % of the time. Published: \
         {PUBLISHED_WITH} % instead of {PUBLISHED_WITHOUT} %, always below {PUBLISHED_WITH_MAX} %, \
         and responses {PUBLISHED_FASTER} % faster at the best number of users.",
        figure(averages.with),
        figure(averages.without),
        figure(most),
        figure(averages.with_empty),
        figure(averages.behind)
    )
}
