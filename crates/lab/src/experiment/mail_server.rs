//! `mail-server`: the response of a mail server by cache size, and while the cache warms.
//!
//! The published figures are those of a read cache in write-through. The cache here is measured in
//! the same mode, and in write-back.

use super::machine::{Machine, SECOND_NS};
use super::plot::{Plot, Scale, Series};
use super::report::{Report, Table, figure, figure_or_empty};
use super::users::{Area, Crowd, KIB, MIB, Operation, SERVER_DISK, UserKind, Work};
use forebay_backend::OpenError;
use forebay_types::{Mode, Size};

/// The published measurement of a read cache for volumes (Veritas VxCache, 2007): the 95th
/// percentile of the response in milliseconds, by GiB of cache.
pub(super) const PUBLISHED: [(u64, f64); 4] = [(0, 250.5), (1, 238.5), (2, 227.0), (4, 221.0)];

const GIB: u64 = 1 << 30;
const PERCENTILE: u64 = 95;

/// The behaviour of a mail user. The store has pages of 8 KiB.
pub(super) const WORK: Work = Work {
    think_ns: 100_000_000_000,
    requests: 12,
    pace_ns: 6_000_000,
    kinds: &[
        UserKind::read(25, 8 * KIB, Area::Shared { offset: 0, bytes: 512 * MIB }),
        UserKind::read(20, 8 * KIB, Area::Shared { offset: 512 * MIB, bytes: 3072 * MIB }),
        UserKind::read(20, 8 * KIB, Area::Shared { offset: 3584 * MIB, bytes: 96 * GIB }),
        UserKind::write(20, 8 * KIB, Area::Shared { offset: 0, bytes: 3584 * MIB }),
        UserKind::write(15, 4 * KIB, Area::Log { offset: 3584 * MIB + 96 * GIB, bytes: 16 * MIB }),
    ],
    shared_bytes: 3600 * MIB + 96 * GIB,
    place_bytes: 0,
    changes_place: false,
};

#[derive(Clone, Copy, Debug)]
pub(super) struct MailServerPlan {
    /// Cache sizes, in bytes of lines.
    pub pools: &'static [u64],
    pub users: u32,
    /// The length of an interval, and their number. The last third is compared by cache size.
    pub interval_ns: u64,
    pub intervals: u32,
}

impl MailServerPlan {
    pub(super) const FULL: Self = Self {
        pools: &[GIB, 2 * GIB, 4 * GIB],
        users: 1000,
        interval_ns: 600 * SECOND_NS,
        intervals: 18,
    };

    /// The first of the intervals that are compared by cache size.
    fn settled(&self) -> u32 {
        self.intervals - self.intervals / 3
    }
}

/// One cache, and the responses of the server with it.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct MailServerRun {
    /// `None` without a cache.
    pub mode: Option<Mode>,
    pub pool_bytes: u64,
    /// The 95th percentile of the last third of the time, in milliseconds.
    pub settled: f64,
    /// The same for each interval.
    pub intervals: Vec<f64>,
}

impl MailServerRun {
    /// The reduction of the response compared with `none`, in percent.
    pub(super) fn faster(&self, none: &Self) -> f64 {
        100.0 * (1.0 - self.settled / none.settled)
    }

    fn name(&self) -> String {
        match self.mode {
            None => "none".to_owned(),
            Some(mode) => format!("{mode}, {}", Size(self.pool_bytes)),
        }
    }
}

/// The published reduction with `pool_bytes`, in percent.
pub(super) fn published_faster(pool_bytes: u64) -> Option<f64> {
    let (_, without) = PUBLISHED[0];
    let known = |gib| PUBLISHED.iter().find(|known| known.0 == gib);
    let with = (pool_bytes >= GIB).then(|| known(pool_bytes / GIB))??.1;
    Some(100.0 * (1.0 - with / without))
}

pub(super) fn run(plan: &MailServerPlan, seed: u64) -> Result<Report, OpenError> {
    let runs = runs(plan, seed)?;
    Ok(Report {
        title: "The response of a mail server".to_owned(),
        model: model(plan),
        tables: vec![by_size(&runs), by_time(plan, &runs)],
        plots: plots(plan, &runs),
        remarks: vec![
            "The published figures are those of a read cache: compare them with write-through. \
             What that mail server did and how long it had run are not known. The larger the \
             cache, the longer it takes to fill."
                .to_owned(),
        ],
    })
}

/// No cache, then each size in write-through, then in write-back.
pub(super) fn runs(plan: &MailServerPlan, seed: u64) -> Result<Vec<MailServerRun>, OpenError> {
    let mut runs = vec![run_case(plan, None, 0, seed)?];
    for mode in [Mode::WriteThrough, Mode::WriteBack] {
        for &pool_bytes in plan.pools {
            runs.push(run_case(plan, Some(mode), pool_bytes, seed)?);
        }
    }
    Ok(runs)
}

fn run_case(
    plan: &MailServerPlan,
    mode: Option<Mode>,
    pool_bytes: u64,
    seed: u64,
) -> Result<MailServerRun, OpenError> {
    let mut machine = Machine::with_mode(SERVER_DISK, pool_bytes, mode.unwrap_or_default())?;
    let mut crowd = Crowd::new(&WORK, plan.users, machine.disk_bytes(), seed);
    (0..plan.users).for_each(|user| machine.add_client(user, 0));
    machine.run(u64::from(plan.intervals) * plan.interval_ns, &mut crowd);
    let between = |from: u32, to: u32| {
        let ends = [from, to].map(|interval| u64::from(interval) * plan.interval_ns);
        percentile(crowd.operations(), ends)
    };
    Ok(MailServerRun {
        mode,
        pool_bytes,
        settled: between(plan.settled(), plan.intervals),
        intervals: (0..plan.intervals).map(|interval| between(interval, interval + 1)).collect(),
    })
}

/// The 95th percentile of the operations that ended between two times, in milliseconds; zero if
/// there were none. `operations` are in the order of their ends.
fn percentile(operations: &[Operation], [from_ns, to_ns]: [u64; 2]) -> f64 {
    let before = |end_ns| operations.partition_point(|operation| operation.ended_ns < end_ns);
    let ended = &operations[before(from_ns)..before(to_ns)];
    let mut took_ns: Vec<u64> = ended.iter().map(|operation| operation.took_ns).collect();
    took_ns.sort_unstable();
    let rank = (took_ns.len() as u64 * PERCENTILE).div_ceil(100).saturating_sub(1);
    took_ns.get(rank as usize).map_or(0.0, |&ns| ns as f64 / 1e6)
}

fn model(plan: &MailServerPlan) -> Vec<String> {
    vec![
        format!(
            "{} users do something every {} s on average: {} requests, one after the other, with \
             {} ms of other work between them on average. Of 100 requests, 25 read 8 KiB in 512 \
             MiB (indices and folders), 20 in 3 GiB (recent mail) and 20 in 96 GiB (older mail), \
             20 write 8 KiB in indices or recent mail, and 15 append 4 KiB to a log. A response is \
             the time of all {} requests with the work between them. The number of users and the \
             other work are such that the 95th percentile without a cache is close to the \
             published one; nothing else is tuned.",
            plan.users,
            WORK.think_ns / SECOND_NS,
            WORK.requests,
            WORK.pace_ns / 1_000_000,
            WORK.requests
        ),
        format!(
            "The disk is {SERVER_DISK}, used directly, and through Forebay in write-through, and \
             in write-back under a UPS, with this much memory for lines. The cache is empty at \
             first. The run takes {} s; its last third is compared by cache size.",
            u64::from(plan.intervals) * plan.interval_ns / SECOND_NS
        ),
    ]
}

fn by_size(runs: &[MailServerRun]) -> Table {
    let none = &runs[0];
    let percent = |value: f64| format!("{value:.1}%");
    let published = |run: &MailServerRun| {
        let gib = run.pool_bytes / GIB;
        let known = PUBLISHED.iter().find(|known| known.0 == gib);
        known.map(|known| known.1)
    };
    let faster = |run: &MailServerRun| match run.mode {
        None => String::new(),
        Some(_) => percent(run.faster(none)),
    };
    Table::of(
        "95th percentile of the response by cache size, ms",
        runs,
        &[
            ("cache", &MailServerRun::name),
            ("response", &|run| figure(run.settled)),
            ("faster", &faster),
            ("published response", &|run| figure_or_empty(published(run))),
            ("faster", &|run| published_faster(run.pool_bytes).map_or(String::new(), percent)),
        ],
    )
}

fn by_time(plan: &MailServerPlan, runs: &[MailServerRun]) -> Table {
    let names: Vec<String> = runs.iter().map(MailServerRun::name).collect();
    let mut head = vec!["minutes"];
    head.extend(names.iter().map(String::as_str));
    let mut table = Table::new("95th percentile of the response by time, ms", &head);
    for interval in 0..plan.intervals {
        let mut row = vec![format!("{:.0}", minutes(plan, interval + 1))];
        row.extend(runs.iter().map(|run| figure(run.intervals[interval as usize])));
        table.push(row);
    }
    table
}

/// The minutes that this many intervals take.
fn minutes(plan: &MailServerPlan, intervals: u32) -> f64 {
    f64::from(intervals) * plan.interval_ns as f64 / 60e9
}

fn plots(plan: &MailServerPlan, runs: &[MailServerRun]) -> Vec<Plot> {
    let plot = |title: &str, x: &str, series| {
        Plot::new(title, (x, Scale::Linear), ("ms", Scale::Linear), series)
    };
    let gib = |bytes: u64| bytes as f64 / GIB as f64;
    let of_mode = |mode: Mode| {
        let runs = runs.iter().filter(|run| run.mode.is_none_or(|its| its == mode));
        Series::line(&mode.to_string(), runs.map(|run| (gib(run.pool_bytes), run.settled)))
    };
    let published = PUBLISHED.map(|(gib, ms)| (gib as f64, ms));
    let by_size = vec![
        of_mode(Mode::WriteThrough),
        of_mode(Mode::WriteBack),
        Series::marks("published", published),
    ];
    let by_time = runs.iter().map(|run| {
        let points = (1..).zip(&run.intervals).map(|(end, &ms)| (minutes(plan, end), ms));
        Series::line(&run.name(), points)
    });
    vec![
        plot("95th percentile by cache size", "GiB", by_size),
        plot("95th percentile while the cache warms", "minutes", by_time.collect()),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_percentile_is_that_of_the_operations_in_the_interval() {
        let operation = |at: u64| Operation { ended_ns: at, took_ns: at * 1_000_000 };
        let operations: Vec<Operation> = (1..=200).map(operation).collect();
        assert_eq!(percentile(&operations, [1, 101]), 95.0);
        assert_eq!(percentile(&operations, [101, 201]), 195.0);
        assert_eq!(percentile(&operations, [7, 8]), 7.0);
        assert_eq!(percentile(&operations, [500, 600]), 0.0);
    }

    #[test]
    fn the_published_reductions_follow_from_the_published_responses() {
        let faster = [0, GIB, 2 * GIB, 3 * GIB, 4 * GIB].map(published_faster);
        let rounded = faster.map(|faster| faster.map(|percent| (10.0 * percent).round() / 10.0));
        assert_eq!(rounded, [None, Some(4.8), Some(9.4), None, Some(11.8)]);
    }
}
