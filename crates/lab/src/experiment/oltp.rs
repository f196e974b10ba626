//! `oltp`: users of a database beside one whose response is timed, fifty more at a time.
//!
//! The server has a processor, because the published measurement shows what the processor does
//! while requests wait: it is idle, or waits for I/O.

use super::call_center;
use super::machine::{Clients, Machine, MachineStep, SECOND_NS};
use super::plot::{Plot, Scale, Series};
use super::report::{Report, Table, figure, figure_or_empty};
use super::users::{Crowd, MIB, Schedule, Work};
use forebay_backend::OpenError;
use forebay_types::Size;

/// A disk of that time. In the measured system, I/Os peaked at 85 per second without a cache.
pub(super) const DISK: &str =
    "model:hdd?size=9GiB&rpm=7200&seek=9ms&transfer=12MiB/s&scheduler=fifo";

/// The published limit of the response, in seconds, and the users within it without and with the
/// cache (Imperial Technology MegaCache, about 1998).
pub(super) const PUBLISHED_LIMIT_SECONDS: f64 = 40.0;
pub(super) const PUBLISHED_USERS: [u32; 2] = [100, 900];
/// The published response with the cache, in seconds, by users.
const PUBLISHED_RESPONSE: [(u32, f64); 2] = [(350, 20.0), (900, 40.0)];
/// The users for which these shares of the time are published without and with the cache, in
/// percent: disk busy, processor waiting for I/O, processor idle.
pub(super) const PUBLISHED_AT: u32 = 350;
pub(super) const PUBLISHED_BUSY: [f64; 2] = [82.5, 21.3];
pub(super) const PUBLISHED_WAITING: [f64; 2] = [64.8, 8.6];
pub(super) const PUBLISHED_IDLE: [f64; 2] = [11.8, 58.4];

/// The processor's time for a request, in nanoseconds.
const PROCESSOR_NS: u64 = 1_650_000;

/// The behaviour of a user: the requests are those of the call center.
pub(super) const WORK: Work =
    Work { think_ns: 45 * SECOND_NS, requests: 20, pace_ns: 0, ..call_center::WORK };

/// The behaviour of the user whose response is timed: a long report, over and over.
pub(super) const TIMED: Work =
    Work { think_ns: SECOND_NS, requests: 1_000, pace_ns: 15_000_000, ..WORK };

#[derive(Clone, Copy, Debug)]
pub(super) struct OltpPlan {
    /// The size of the cache, in bytes of lines.
    pub pool_bytes: u64,
    /// The size of a smaller one, of which only the users within the limit are shown.
    pub small_pool_bytes: u64,
    /// Users who join at each step, and the number of steps.
    pub users_step: u32,
    pub steps: u32,
    /// The time in which the timed user alone fills the cache, in nanoseconds.
    pub warmup_ns: u64,
    /// The length of a step.
    pub schedule: Schedule,
}

impl OltpPlan {
    pub(super) const FULL: Self = Self {
        pool_bytes: 4096 * MIB,
        small_pool_bytes: 1024 * MIB,
        warmup_ns: 6 * 3600 * SECOND_NS,
        users_step: 50,
        steps: 28,
        schedule: Schedule { warmup_ns: 120 * SECOND_NS, measured_ns: 120 * SECOND_NS },
    };
}

/// What a step measures.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Measured {
    /// The time of all requests of the timed user's report at their mean speed, in seconds.
    pub response: f64,
    /// I/Os of the disk per second.
    pub ios: f64,
    /// Sectors of 512 bytes that the disk transferred per second.
    pub blocks: f64,
    /// The mean number of I/Os in the disk and before it.
    pub queue: f64,
    /// The mean time of an I/O there, in milliseconds.
    pub wait: f64,
    /// Shares of the time in percent: the disk has an I/O; the processor works; it is idle while a
    /// request waits; it is idle and none waits.
    pub busy: f64,
    pub working: f64,
    pub waiting: f64,
    pub idle: f64,
}

/// A number of users, without and with the cache.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct OltpPoint {
    pub users: u32,
    pub without: Measured,
    pub with: Measured,
}

/// The largest number of users up to which every response is within the limit.
pub(super) fn users_within(plan: &OltpPlan, steps: impl IntoIterator<Item = Measured>) -> u32 {
    let within = |step: &Measured| step.response <= PUBLISHED_LIMIT_SECONDS;
    plan.users_step * steps.into_iter().take_while(within).count() as u32
}

pub(super) fn points(plan: &OltpPlan, seed: u64) -> Result<Vec<OltpPoint>, OpenError> {
    let without = measure(0, plan, seed)?;
    let with = measure(plan.pool_bytes, plan, seed)?;
    let users = (1..).map(|step| step * plan.users_step);
    let both = users.zip(without.into_iter().zip(with));
    Ok(both.map(|(users, (without, with))| OltpPoint { users, without, with }).collect())
}

/// Measures users who join a running server in steps.
fn measure(pool_bytes: u64, plan: &OltpPlan, seed: u64) -> Result<Vec<Measured>, OpenError> {
    let mut machine = Machine::new(DISK, pool_bytes)?;
    let users = plan.users_step * plan.steps;
    let mut server = Server::new(users, machine.disk_bytes(), seed);
    machine.add_client(users, 0);
    machine.run(plan.warmup_ns, &mut server);
    let step = |step| {
        let joining = step * plan.users_step..(step + 1) * plan.users_step;
        joining.for_each(|user| machine.add_client(user, 0));
        measure_step(&mut machine, &mut server, plan.schedule)
    };
    Ok((0..plan.steps).map(step).collect())
}

fn measure_step(machine: &mut Machine, server: &mut Server, schedule: Schedule) -> Measured {
    let begun_ns = machine.now_ns();
    machine.run(begun_ns + schedule.warmup_ns, server);
    server.begin(machine.now_ns());
    let before = machine.disk_tally();
    machine.run(begun_ns + schedule.warmup_ns + schedule.measured_ns, server);
    let disk = machine.disk_tally();
    let (working_ns, waiting_ns) = server.end(machine.now_ns());
    let of_time = |ns: u64| ns as f64 / schedule.measured_ns as f64;
    let per_second = |count: u64| 1e9 * of_time(count);
    let ios = disk.reads + disk.writes - before.reads - before.writes;
    let bytes = disk.read_bytes + disk.write_bytes - before.read_bytes - before.write_bytes;
    let in_flight_ns = disk.in_flight_ns - before.in_flight_ns;
    // Without an answer in this time, the response is unknown, and not short.
    let request = server.timed.request_seconds();
    let request = if request > 0.0 { request } else { f64::INFINITY };
    let response = f64::from(TIMED.requests) * (request + TIMED.pace_ns as f64 / 1e9);
    let (working, waiting) = (100.0 * of_time(working_ns), 100.0 * of_time(waiting_ns));
    Measured {
        response,
        ios: per_second(ios),
        blocks: per_second(bytes / 512),
        queue: of_time(in_flight_ns),
        wait: in_flight_ns as f64 / 1e6 / ios.max(1) as f64,
        busy: 100.0 * of_time(disk.busy_ns - before.busy_ns),
        working,
        waiting,
        idle: (100.0 - working - waiting).max(0.0),
    }
}

/// The clients: all users, and the timed one, whose number follows theirs. Each request needs the
/// one processor first, in the order of arrival.
struct Server {
    users: Crowd<'static>,
    timed: Crowd<'static>,
    /// The request of each client that waits for the processor.
    prepared: Vec<Option<MachineStep>>,
    /// Clients that wait for an answer.
    waiting_count: u32,
    /// Whether each client has a request in flight.
    in_flight: Vec<bool>,
    /// Until when the processor works, and for how long it has worked since `begin`.
    busy_until_ns: u64,
    working_ns: u64,
    /// The time since `begin` in which it did not work and requests waited.
    waiting_ns: u64,
    counted_ns: u64,
}

impl Server {
    fn new(users: u32, disk_bytes: u64, seed: u64) -> Self {
        let clients = users as usize + 1;
        Self {
            users: Crowd::new(&WORK, users, disk_bytes, seed),
            timed: Crowd::new(&TIMED, 1, disk_bytes, !seed),
            prepared: vec![None; clients],
            waiting_count: 0,
            in_flight: vec![false; clients],
            busy_until_ns: 0,
            working_ns: 0,
            waiting_ns: 0,
            counted_ns: 0,
        }
    }

    /// Counts the time up to now, in which nothing has changed since the last call.
    fn count(&mut self, now_ns: u64) {
        let worked_until_ns = self.busy_until_ns.clamp(self.counted_ns, now_ns);
        self.working_ns += worked_until_ns - self.counted_ns;
        if self.waiting_count > 0 {
            self.waiting_ns += now_ns - worked_until_ns;
        }
        self.counted_ns = now_ns;
    }

    /// Begins a measurement.
    fn begin(&mut self, now_ns: u64) {
        self.count(now_ns);
        (self.working_ns, self.waiting_ns) = (0, 0);
        self.timed.begin();
    }

    /// How long the processor has worked since `begin`, and has not worked while requests waited.
    fn end(&mut self, now_ns: u64) -> (u64, u64) {
        self.count(now_ns);
        (self.working_ns, self.waiting_ns)
    }
}

impl Clients for Server {
    fn next(&mut self, client: u32, now_ns: u64) -> MachineStep {
        self.count(now_ns);
        let at = client as usize;
        if let Some(request) = self.prepared[at].take() {
            self.waiting_count += 1;
            self.in_flight[at] = true;
            return request;
        }
        self.waiting_count -= u32::from(std::mem::take(&mut self.in_flight[at]));
        let is_timed = at + 1 == self.prepared.len();
        let step = match is_timed {
            true => self.timed.next(0, now_ns),
            false => self.users.next(client, now_ns),
        };
        if matches!(step, MachineStep::Think(_) | MachineStep::Leave) {
            return step;
        }
        self.prepared[at] = Some(step);
        self.busy_until_ns = self.busy_until_ns.max(now_ns) + PROCESSOR_NS;
        MachineStep::Think(self.busy_until_ns - now_ns)
    }
}

pub(super) fn run(plan: &OltpPlan, seed: u64) -> Result<Report, OpenError> {
    let points = points(plan, seed)?;
    let with_small = users_within(plan, measure(plan.small_pool_bytes, plan, seed)?);
    Ok(Report {
        title: "Users of a database beside one whose response is timed".to_owned(),
        model: model(plan),
        tables: vec![
            limits(plan, &points, with_small),
            shares(&points),
            responses(&points),
            disk(&points),
            processor(&points),
        ],
        plots: plots(&points),
        remarks: vec![
            "The measured cache was an appliance of 0.27 to 12.9 GB for all disks of its server. \
             Its size in this measurement, the number of disks, the database and what a user did \
             are not known. So the shapes of the curves can be compared, and the gain; single \
             figures only where those without a cache agree. One disk is always busy once it \
             limits the users; of several, the published 82.5 % is the mean."
                .to_owned(),
        ],
    })
}

fn model(plan: &OltpPlan) -> Vec<String> {
    vec![
        format!(
            "A user performs {} requests every {} s on average, one after the other. They are \
             those of call-center-users: of 100, 25 read and 15 write 8 KiB in 96 MiB, 35 read \
             and 15 write 8 KiB anywhere in 4 GiB, and 10 append 4 KiB to a log. One more user, \
             who is timed, performs {} of them again and again, with pauses of {} ms on average. \
             The response is the time of these. Each request first needs {:.2} ms of the one \
             processor, in the order of arrival.",
            WORK.requests,
            WORK.think_ns / SECOND_NS,
            TIMED.requests,
            TIMED.pace_ns / 1_000_000,
            PROCESSOR_NS as f64 / 1e6
        ),
        "The pauses are such that, without a cache, the response reaches the limit at as many \
         users as published, and its least is about half of the limit. The processor's time is \
         such that with the cache it works as much as published at 350 users. Nothing else is \
         tuned."
            .to_owned(),
        format!(
            "The disk is {DISK}, used directly, and through Forebay in write-back under a UPS with \
             {} of memory for lines, in which the timed user alone has worked for {} h. Then {} \
             users join every {} s. The last {} s of each step are measured.",
            Size(plan.pool_bytes),
            plan.warmup_ns / SECOND_NS / 3600,
            plan.users_step,
            (plan.schedule.warmup_ns + plan.schedule.measured_ns) / SECOND_NS,
            plan.schedule.measured_ns / SECOND_NS
        ),
    ]
}

/// The users within the limit: one row for each size of the cache, and the published ones.
fn limits(plan: &OltpPlan, points: &[OltpPoint], with_small: u32) -> Table {
    let mut table = Table::new(
        &format!("Users with a response within {PUBLISHED_LIMIT_SECONDS} s"),
        &["", "without", "with", "gain"],
    );
    let without = users_within(plan, points.iter().map(|point| point.without));
    let with = users_within(plan, points.iter().map(|point| point.with));
    let cache = |bytes| format!("a cache of {}", Size(bytes));
    let rows = [
        (cache(plan.pool_bytes), [without, with]),
        (cache(plan.small_pool_bytes), [without, with_small]),
        ("published".to_owned(), PUBLISHED_USERS),
    ];
    for (name, [without, with]) in rows {
        let gain = match without {
            0 => String::new(),
            _ => format!("{:.1}x", f64::from(with) / f64::from(without)),
        };
        table.push(vec![name, without.to_string(), with.to_string(), gain]);
    }
    table
}

/// The shares of the time for the number of users for which they are published.
fn shares(points: &[OltpPoint]) -> Table {
    let mut table = Table::new(
        &format!("Shares of the time with {PUBLISHED_AT} users, %"),
        &["", "without", "with", "published without", "published with"],
    );
    let Some(point) = points.iter().find(|point| point.users == PUBLISHED_AT) else {
        return table;
    };
    type Of = fn(&Measured) -> f64;
    let rows: [(&str, Of, [f64; 2]); 3] = [
        ("disk busy", |it| it.busy, PUBLISHED_BUSY),
        ("processor waits for I/O", |it| it.waiting, PUBLISHED_WAITING),
        ("processor idle", |it| it.idle, PUBLISHED_IDLE),
    ];
    for (name, of, published) in rows {
        let figures = [of(&point.without), of(&point.with), published[0], published[1]];
        let mut row = vec![name.to_owned()];
        row.extend(figures.map(|value| format!("{value:.1}")));
        table.push(row);
    }
    table
}

fn responses(points: &[OltpPoint]) -> Table {
    let published = |point: &OltpPoint| {
        let known = PUBLISHED_RESPONSE.iter().find(|known| known.0 == point.users);
        known.map(|known| known.1)
    };
    Table::of(
        "Response of the timed user, s",
        points,
        &[
            ("users", &|it| it.users.to_string()),
            ("without", &|it| figure(it.without.response)),
            ("with", &|it| figure(it.with.response)),
            ("published with", &|it| figure_or_empty(published(it))),
        ],
    )
}

fn disk(points: &[OltpPoint]) -> Table {
    Table::of(
        "The disk, without and with the cache",
        points,
        &[
            ("users", &|it| it.users.to_string()),
            ("I/Os/s", &|it| figure(it.without.ios)),
            ("with", &|it| figure(it.with.ios)),
            ("blocks/s", &|it| figure(it.without.blocks)),
            ("with", &|it| figure(it.with.blocks)),
            ("queue", &|it| figure(it.without.queue)),
            ("with", &|it| figure(it.with.queue)),
            ("wait ms", &|it| figure(it.without.wait)),
            ("with", &|it| figure(it.with.wait)),
            ("busy %", &|it| figure(it.without.busy)),
            ("with", &|it| figure(it.with.busy)),
        ],
    )
}

fn processor(points: &[OltpPoint]) -> Table {
    Table::of(
        "The processor, without and with the cache, % of the time",
        points,
        &[
            ("users", &|it| it.users.to_string()),
            ("works", &|it| figure(it.without.working)),
            ("with", &|it| figure(it.with.working)),
            ("waits for I/O", &|it| figure(it.without.waiting)),
            ("with", &|it| figure(it.with.waiting)),
            ("idle", &|it| figure(it.without.idle)),
            ("with", &|it| figure(it.with.idle)),
        ],
    )
}

fn plots(points: &[OltpPoint]) -> Vec<Plot> {
    let lines = |of: fn(&Measured) -> f64| {
        let line = |name, measured: fn(&OltpPoint) -> &Measured| {
            let points = points.iter().map(|it| (f64::from(it.users), of(measured(it))));
            Series::line(name, points.filter(|(_, value)| value.is_finite()))
        };
        vec![line("without", |it| &it.without), line("with", |it| &it.with)]
    };
    let plot = |title: &str, unit: &str, scale, series| {
        Plot::new(title, ("users", Scale::Linear), (unit, scale), series)
    };
    let at_published = |[without, with]: [f64; 2]| {
        let users = f64::from(PUBLISHED_AT);
        Series::marks("published", [(users, without), (users, with)])
    };
    let mut response = lines(|it| it.response);
    let published = PUBLISHED_RESPONSE.map(|(users, seconds)| (f64::from(users), seconds));
    response.push(Series::marks("published with", published));
    let mut busy = lines(|it| it.busy);
    busy.push(at_published(PUBLISHED_BUSY));
    let mut waiting = lines(|it| it.waiting);
    waiting.push(at_published(PUBLISHED_WAITING));
    vec![
        plot("Response of the timed user", "seconds", Scale::Decades, response),
        plot("Disk busy", "%", Scale::Linear, busy),
        plot("Processor waiting for I/O", "%", Scale::Linear, waiting),
        plot("I/Os of the disk", "per second", Scale::Linear, lines(|it| it.ios)),
    ]
}
