//! `logon`: the duration of one more logon while others log on.

use super::plot::{Plot, Scale, Series};
use super::report::{Report, Table, figure, figure_or_empty};
use super::users::{Area, KIB, MIB, SERVER_DISK, Schedule, UserKind, Work, measure};
use forebay_backend::OpenError;
use forebay_types::Size;

/// The published measurement of a server with a battery-backed cache: the number of others who log
/// on, and the seconds of one more logon without and with the cache.
const PUBLISHED: [(u32, f64, f64); 2] = [(45, 43.0, 38.0), (75, 80.0, 60.0)];

/// The behaviour of a user who logs on.
pub(super) const WORK: Work = Work {
    think_ns: 20_000_000_000,
    requests: 430,
    pace_ns: 70_000_000,
    kinds: &[
        UserKind::read(30, 16 * KIB, Area::Shared { offset: 0, bytes: 192 * MIB }),
        UserKind::read(25, 16 * KIB, Area::Own { offset: 0, bytes: 16 * MIB }),
        UserKind::write(25, 16 * KIB, Area::Own { offset: 16 * MIB, bytes: 16 * MIB }),
        UserKind::write(20, 4 * KIB, Area::Own { offset: 32 * MIB, bytes: 2 * MIB }),
    ],
    shared_bytes: 192 * MIB,
    place_bytes: 64 * MIB,
    changes_place: true,
};

#[derive(Clone, Copy, Debug)]
pub(super) struct LogonPlan {
    pub pool_bytes: u64,
    /// The maximum number of others who log on, and the step.
    pub others_max: u32,
    pub others_step: usize,
    pub schedule: Schedule,
}

impl LogonPlan {
    pub(super) const FULL: Self = Self {
        pool_bytes: 256 << 20,
        others_max: 75,
        others_step: 15,
        schedule: Schedule { warmup_ns: 240_000_000_000, measured_ns: 480_000_000_000 },
    };
}

/// The duration of a logon beside `others`, in seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct LogonPoint {
    pub others: u32,
    pub without: f64,
    pub with: f64,
}

pub(super) fn run(plan: &LogonPlan, seed: u64) -> Result<Report, OpenError> {
    let points = points(plan, seed)?;
    Ok(Report {
        title: "Duration of one more logon while others log on".to_owned(),
        model: model(plan),
        tables: vec![table(&points)],
        plots: vec![plot(&points)],
        remarks: vec![remark(&points)],
    })
}

pub(super) fn points(plan: &LogonPlan, seed: u64) -> Result<Vec<LogonPoint>, OpenError> {
    let point = |others| {
        let seconds = |pool_bytes| {
            let measured = measure(pool_bytes, &WORK, others + 1, plan.schedule, seed)?;
            Ok::<f64, OpenError>(measured.operation_seconds)
        };
        Ok(LogonPoint { others, without: seconds(0)?, with: seconds(plan.pool_bytes)? })
    };
    (0..=plan.others_max).step_by(plan.others_step).map(point).collect()
}

fn model(plan: &LogonPlan) -> Vec<String> {
    vec![
        format!(
            "A logon is {} requests, one after the other, with {} ms of other work between two \
             requests on average, {} s in all, which does not slow down with more users. Of 100 \
             requests, 30 read 16 KiB from 192 MiB that all users share (programs), 25 read 16 KiB \
             from 16 MiB of the user (the profile), 25 write 16 KiB of its copy, and 20 write \
             4 KiB into 2 MiB (settings). After {} s on average, another user follows, none of \
             whose data is in the cache. At any time, the given number of others and one more user \
             log on; all logons are measured. Requests and pause are tuned so that a logon beside \
             75 others takes about as long without the cache as the measured one; nothing else is \
             tuned.",
            WORK.requests,
            WORK.pace_ns / 1_000_000,
            u64::from(WORK.requests) * WORK.pace_ns / 1_000_000_000,
            WORK.think_ns / 1_000_000_000
        ),
        format!(
            "The disk is {SERVER_DISK}, used directly, and through Forebay in write-back with {} \
             of lines under a UPS. Each number of others is measured for {} s.",
            Size(plan.pool_bytes),
            plan.schedule.measured_ns / 1_000_000_000
        ),
        "The published figures include the time of processors that the users shared; here they \
         share the disk only."
            .to_owned(),
    ]
}

fn published(others: u32) -> (Option<f64>, Option<f64>) {
    let found = PUBLISHED.iter().find(|&&(n, ..)| n == others);
    (found.map(|&(_, without, _)| without), found.map(|&(.., with)| with))
}

fn table(points: &[LogonPoint]) -> Table {
    Table::of(
        "Seconds of one more logon",
        points,
        &[
            ("others", &|point| point.others.to_string()),
            ("without", &|point| figure(point.without)),
            ("with", &|point| figure(point.with)),
            ("shorter by", &|point| format!("{:.0}%", 100.0 * (1.0 - point.with / point.without))),
            ("published without", &|point| figure_or_empty(published(point.others).0)),
            ("published with", &|point| figure_or_empty(published(point.others).1)),
        ],
    )
}

fn plot(points: &[LogonPoint]) -> Plot {
    let line = |name, of: fn(&LogonPoint) -> f64| {
        Series::line(name, points.iter().map(|point| (f64::from(point.others), of(point))))
    };
    let marks = |name, of: fn(&(u32, f64, f64)) -> f64| {
        Series::marks(name, PUBLISHED.iter().map(|known| (f64::from(known.0), of(known))))
    };
    Plot::new(
        "One more logon",
        ("others who log on", Scale::Linear),
        ("seconds", Scale::Linear),
        vec![
            line("without", |point| point.without),
            line("with", |point| point.with),
            marks("published without", |known| known.1),
            marks("published with", |known| known.2),
        ],
    )
}

fn remark(points: &[LogonPoint]) -> String {
    let Some(last) = points.last() else { return String::new() };
    let (_, without, with) = PUBLISHED[PUBLISHED.len() - 1];
    format!(
        "Beside {} others, a logon takes {} s with the cache instead of {} s. Published: {with} s \
         instead of {without} s beside 75 others.",
        last.others,
        figure(last.with),
        figure(last.without)
    )
}
