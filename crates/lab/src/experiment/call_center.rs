//! `call-center-users`: the users of a database that one server supports, by cache size.

use super::plot::{Plot, Scale, Series};
use super::report::{Report, Table};
use super::users::{Area, KIB, MIB, Measured, SERVER_DISK, Schedule, UserKind, Work, measure};
use forebay_backend::OpenError;
use forebay_types::Size;

/// The published measurement of a server with a battery-backed cache: users by MiB of write cache.
const PUBLISHED: [(u64, f64); 3] = [(0, 39.0), (64, 51.0), (256, 96.0)];

/// The behaviour of a database user. The last 16 MiB of the shared area are the log.
pub(super) const WORK: Work = Work {
    think_ns: 12_000_000_000,
    requests: 175,
    pace_ns: 0,
    kinds: &[
        UserKind::read(25, 8 * KIB, Area::Shared { offset: 0, bytes: 96 * MIB }),
        UserKind::read(35, 8 * KIB, Area::Shared { offset: 96 * MIB, bytes: 4096 * MIB }),
        UserKind::write(15, 8 * KIB, Area::Shared { offset: 0, bytes: 96 * MIB }),
        UserKind::write(15, 8 * KIB, Area::Shared { offset: 96 * MIB, bytes: 4096 * MIB }),
        UserKind::write(10, 4 * KIB, Area::Log { offset: 4192 * MIB, bytes: 16 * MIB }),
    ],
    shared_bytes: 4208 * MIB,
    place_bytes: 0,
    changes_place: false,
};

#[derive(Clone, Copy, Debug)]
pub(super) struct CallCenterPlan {
    /// Cache sizes to compare, in bytes of lines; zero for no cache.
    pub pools: &'static [u64],
    /// The limit of the mean duration of a call, in seconds.
    pub limit_seconds: f64,
    pub users_max: u32,
    pub schedule: Schedule,
}

impl CallCenterPlan {
    pub(super) const FULL: Self = Self {
        pools: &[0, 64 << 20, 256 << 20],
        limit_seconds: 5.0,
        users_max: 400,
        schedule: Schedule { warmup_ns: 150_000_000_000, measured_ns: 120_000_000_000 },
    };
}

/// One cache size and the users that it supports.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct UserLimit {
    pub pool_bytes: u64,
    /// The largest number of users within the limit.
    pub users: u32,
    /// The measurement for each number of users tried, in ascending order.
    pub tried: Vec<(u32, Measured)>,
}

pub(super) fn run(plan: &CallCenterPlan, seed: u64) -> Result<Report, OpenError> {
    let found = plan.pools.iter().map(|&pool_bytes| find_user_limit(plan, pool_bytes, seed));
    let found = found.collect::<Result<Vec<_>, _>>()?;
    Ok(Report {
        title: "Call-center users that one server supports, by size of its cache".to_owned(),
        model: model(plan),
        tables: vec![table(&found)],
        plots: vec![plot(&found, plan)],
        remarks: vec![
            "The measured cache was in the disk controller, which used a part of it for writes. \
             Here the whole cache serves reads and writes, and at most two thirds may be dirty."
                .to_owned(),
        ],
    })
}

/// Finds the largest number of users within the limit: by doubling, then by bisection.
pub(super) fn find_user_limit(
    plan: &CallCenterPlan,
    pool_bytes: u64,
    seed: u64,
) -> Result<UserLimit, OpenError> {
    let mut tried = Vec::new();
    let (mut good, mut bad, mut users) = (0, plan.users_max + 1, 8.min(plan.users_max));
    while good + 1 < bad {
        let measured = measure(pool_bytes, &WORK, users, plan.schedule, seed)?;
        tried.push((users, measured));
        if measured.operation_seconds <= plan.limit_seconds {
            good = users;
        } else {
            bad = users;
        }
        let halves = (good + bad) / 2;
        users = if bad > plan.users_max { (good * 2).min(plan.users_max) } else { halves };
    }
    tried.sort_by_key(|&(users, _)| users);
    Ok(UserLimit { pool_bytes, users: good, tried })
}

fn model(plan: &CallCenterPlan) -> Vec<String> {
    vec![
        format!(
            "A user takes a call every {} s on average. A call is {} requests to one database, one \
             after the other. Of 100 requests, 25 read and 15 write 8 KiB in 96 MiB (indices and \
             hot tables), 35 read and 15 write 8 KiB anywhere in 4 GiB (the rest), and 10 append \
             4 KiB to a log. A server supports a number of users if a call waits no longer than \
             {} s for its requests, on average. The length of a call and this limit are tuned so \
             that the server supports about as many users without a cache as the measured one; \
             nothing else is tuned.",
            WORK.think_ns / 1_000_000_000,
            WORK.requests,
            plan.limit_seconds
        ),
        format!(
            "The disk is {SERVER_DISK}, used directly, and through Forebay in write-back under a \
             UPS with this much memory for lines. Each number of users works for {} s, and is then \
             measured for {} s.",
            plan.schedule.warmup_ns / 1_000_000_000,
            plan.schedule.measured_ns / 1_000_000_000
        ),
    ]
}

fn name_of(pool_bytes: u64) -> String {
    if pool_bytes == 0 { "none".to_owned() } else { Size(pool_bytes).to_string() }
}

fn table(found: &[UserLimit]) -> Table {
    let none = found.first().map_or(1, |limit| limit.users.max(1));
    let published = |limit: &UserLimit| {
        let known = PUBLISHED.iter().find(|known| known.0 == limit.pool_bytes / MIB);
        known.map(|known| known.1)
    };
    let times = |users: f64, of: f64| format!("{:.1}x", users / of);
    Table::of(
        "Users within the limit",
        found,
        &[
            ("cache", &|it| name_of(it.pool_bytes)),
            ("users", &|it| it.users.to_string()),
            ("gain", &|it| times(it.users.into(), none.into())),
            ("published users", &|it| published(it).map_or(String::new(), |n| n.to_string())),
            ("published gain", &|it| {
                published(it).map_or(String::new(), |n| times(n, PUBLISHED[0].1))
            }),
        ],
    )
}

fn plot(found: &[UserLimit], plan: &CallCenterPlan) -> Plot {
    let most = found.iter().flat_map(|limit| &limit.tried).map(|&(users, _)| users).max();
    let limit_line = [1, most.unwrap_or(1)].map(|users| (f64::from(users), plan.limit_seconds));
    let lines = found.iter().map(|limit| {
        let points = limit
            .tried
            .iter()
            .map(|&(users, measured)| (f64::from(users), measured.operation_seconds));
        Series::line(&format!("cache: {}", name_of(limit.pool_bytes)), points)
    });
    Plot::new(
        "Time that a call waits for its requests",
        ("users", Scale::Linear),
        ("seconds", Scale::Decades),
        lines.chain([Series::line("limit", limit_line)]).collect(),
    )
}
