//! `no-cache`: loads on which a cache gains little, compared with the bare disk.

use super::journal::Checkpoints;
use super::machine::{Clients, Machine, MachineStep, SECOND_NS, attach_journal, set_protection};
use super::report::{Report, Table, figure};
use crate::harness::dice::Dice;
use forebay_backend::OpenError;
use forebay_engine::Protection;
use forebay_types::{ByteRange, Mode, Size};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
/// The size of the journal, which takes no time.
const JOURNAL_BYTES: u64 = 256 * MIB;
/// The time between the first requests of two clients, in nanoseconds.
const STAGGER_NS: u64 = 313_000;

/// Disks: name in tables, and model.
const DISKS: [(&str, &str); 4] = [
    (
        "5 ms",
        "model:ssd?size=64GiB&read-latency=5ms&write-latency=5ms&flush-latency=0us&parallel=256",
    ),
    ("hard disk", "model:hdd?size=64GiB"),
    ("RAID 5 of 15", "model:raid5?drives=15&chunk=8KiB&drive=hdd&drive-size=8GiB"),
    (
        "link of 8 MiB/s",
        "model:ssd?size=64GiB&read-latency=100us&write-latency=100us&flush-latency=100us&\
         parallel=64&bandwidth=8MiB/s",
    ),
];

/// Clients of one kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    /// Writes 4 KiB anywhere, then flushes.
    Commit,
    /// Writes 4 KiB anywhere with FUA.
    Stable,
    /// Reads 4 KiB anywhere, but not what others write.
    Read,
    /// Writes 32 KiB in order.
    WriteInOrder,
    /// Writes 4 KiB anywhere.
    WriteAnywhere,
    /// Reads 1 MiB in order.
    ReadInOrder,
}

/// A load: name in tables, and the number of clients of each role.
type Load = (&'static str, &'static [(Role, u32)]);

const LOADS: [Load; 8] = [
    ("16 commit", &[(Role::Commit, 16)]),
    ("64 commit", &[(Role::Commit, 64)]),
    ("16 FUA", &[(Role::Stable, 16)]),
    ("16 commit, 4 read", &[(Role::Commit, 16), (Role::Read, 4)]),
    ("4 write in order, 4 read", &[(Role::WriteInOrder, 4), (Role::Read, 4)]),
    ("4 write anywhere, 4 read", &[(Role::WriteAnywhere, 4), (Role::Read, 4)]),
    (
        "4 write in order, 1 commits, 4 read",
        &[(Role::WriteInOrder, 4), (Role::Commit, 1), (Role::Read, 4)],
    ),
    ("1 reads 1 MiB in order", &[(Role::ReadInOrder, 1)]),
];

/// Ways to the disk: name in tables, whether there is a cache, its mode, and what protects it.
const WAYS: [(&str, Option<(Mode, Protection)>); 6] = [
    ("bare", None),
    ("bypass", Some((Mode::Bypass, Protection::None))),
    ("write-through", Some((Mode::WriteThrough, Protection::None))),
    ("write-back", Some((Mode::WriteBack, Protection::None))),
    ("write-back, journal", Some((Mode::WriteBack, Protection::Journal))),
    ("write-back, UPS", Some((Mode::WriteBack, Protection::Power))),
];

#[derive(Clone, Copy, Debug)]
pub(super) struct NoCachePlan {
    pub pool_bytes: u64,
    /// The duration of a run, and that of its first part, which is not counted.
    pub seconds: u64,
    pub warm_up_seconds: u64,
}

impl NoCachePlan {
    pub(super) const FULL: Self = Self { pool_bytes: 64 << 20, seconds: 35, warm_up_seconds: 15 };
}

struct Crowd<'a> {
    roles: Vec<Role>,
    dice: Dice,
    disk_bytes: u64,
    counted_from_ns: u64,
    /// The next position of writes and of reads in order.
    next: [u64; 2],
    /// For each client, when its current turn began, and whether it has written and not flushed.
    began: Vec<Option<(u64, bool)>>,
    /// Turns ended: role, and duration in nanoseconds.
    ended: &'a mut Vec<(Role, u64)>,
}

impl Crowd<'_> {
    fn anywhere(&mut self, from: u64, len: u64) -> ByteRange {
        ByteRange::new(from + self.dice.below(self.disk_bytes / 2 / len) * len, len)
    }

    fn in_order(&mut self, which: usize, len: u64) -> ByteRange {
        let at = self.next[which];
        self.next[which] = (at + len) % (self.disk_bytes / 2 / len * len);
        ByteRange::new(at, len)
    }

    fn step(&mut self, role: Role) -> MachineStep {
        let half = self.disk_bytes / 2 / MIB * MIB;
        match role {
            Role::Commit | Role::WriteAnywhere => MachineStep::Write(self.anywhere(0, 4 * KIB)),
            Role::Stable => MachineStep::WriteStable(self.anywhere(0, 4 * KIB)),
            Role::Read => MachineStep::Read(self.anywhere(half, 4 * KIB)),
            Role::WriteInOrder => MachineStep::Write(self.in_order(0, 32 * KIB)),
            Role::ReadInOrder => MachineStep::Read(self.in_order(1, MIB)),
        }
    }
}

impl Clients for Crowd<'_> {
    fn next(&mut self, client: u32, now_ns: u64) -> MachineStep {
        let role = self.roles[client as usize];
        if let Some((began_ns, is_unflushed)) = self.began[client as usize] {
            if is_unflushed {
                self.began[client as usize] = Some((began_ns, false));
                return MachineStep::Flush;
            }
            if began_ns >= self.counted_from_ns {
                self.ended.push((role, now_ns - began_ns));
            }
        }
        self.began[client as usize] = Some((now_ns, role == Role::Commit));
        self.step(role)
    }
}

/// What the clients of one role get.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Service {
    /// Turns per second.
    pub rate: f64,
    /// Milliseconds.
    pub mean: f64,
    pub p99: f64,
}

/// One role of a load on one way to a disk.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Row {
    pub disk: &'static str,
    pub load: &'static str,
    pub role: String,
    pub way: &'static str,
    pub service: Service,
    pub bare: Service,
}

impl Row {
    /// The rate, compared with the bare disk.
    pub(super) fn rate_ratio(&self) -> f64 {
        self.service.rate / self.bare.rate
    }

    /// The p99 of the bare disk, compared with this one: below one is slower.
    pub(super) fn p99_ratio(&self) -> f64 {
        self.bare.p99 / self.service.p99
    }
}

pub(super) fn run(plan: &NoCachePlan, seed: u64) -> Result<Report, OpenError> {
    let rows = rows(plan, seed, |_, _| true)?;
    let least = |value: &dyn Fn(&Row) -> f64| rows.iter().map(value).fold(f64::INFINITY, f64::min);
    let remark = format!(
        "No way is slower than {} of the bare disk in rate, and {} in p99.",
        figure(least(&Row::rate_ratio)),
        figure(least(&Row::p99_ratio))
    );
    Ok(Report {
        title: "Not slower than no cache".to_owned(),
        model: vec![format!(
            "Clients without a pause use a disk in several ways: bare, and through Forebay with {} \
             of lines. \"commit\" writes 4 KiB anywhere and flushes, \"FUA\" writes 4 KiB anywhere \
             to stable storage, \"read\" reads 4 KiB that no client has written, \"in order\" is \
             32 KiB each. The journal takes no time. The first {} of {} s are not counted. Ratios \
             compare with the bare disk; more is better. Disks: {}.",
            Size(plan.pool_bytes),
            plan.warm_up_seconds,
            plan.seconds,
            DISKS.map(|(name, model)| format!("{name} is {model}")).join("; "),
        )],
        tables: vec![table(&rows)],
        plots: Vec::new(),
        remarks: vec![remark],
    })
}

/// The selected disks and loads, by every way.
pub(super) fn rows(
    plan: &NoCachePlan,
    seed: u64,
    is_selected: impl Fn(&str, &str) -> bool,
) -> Result<Vec<Row>, OpenError> {
    let mut rows = Vec::new();
    for (disk, model) in DISKS {
        for (load, roles) in LOADS.into_iter().filter(|(load, _)| is_selected(disk, load)) {
            let mut bare = Vec::new();
            for (way, cache) in WAYS {
                let services = services(plan, model, roles, cache, seed)?;
                if cache.is_none() {
                    bare.clone_from(&services);
                }
                for (at, &(role, _)) in roles.iter().enumerate() {
                    let (role, service, bare) = (format!("{role:?}"), services[at], bare[at]);
                    rows.push(Row { disk, load, role, way, service, bare });
                }
            }
        }
    }
    Ok(rows)
}

fn services(
    plan: &NoCachePlan,
    model: &str,
    roles: &[(Role, u32)],
    cache: Option<(Mode, Protection)>,
    seed: u64,
) -> Result<Vec<Service>, OpenError> {
    let mut machine = match cache {
        None => Machine::new(model, 0)?,
        Some((mode, _)) => Machine::with_mode(model, plan.pool_bytes, mode)?,
    };
    match cache {
        Some((_, Protection::Journal)) => {
            attach_journal(&mut machine, JOURNAL_BYTES, Checkpoints::Paced);
        }
        Some((_, protection)) => set_protection(&mut machine, protection),
        None => {}
    }
    let of_role = |&(role, count): &(Role, u32)| (0..count).map(move |_| role);
    let clients: Vec<Role> = roles.iter().flat_map(of_role).collect();
    let mut ended = Vec::new();
    let mut load = Crowd {
        dice: Dice::new(seed),
        disk_bytes: machine.disk_bytes(),
        counted_from_ns: plan.warm_up_seconds * SECOND_NS,
        next: [0; 2],
        began: vec![None; clients.len()],
        roles: clients,
        ended: &mut ended,
    };
    for client in 0..load.roles.len() as u32 {
        // Not at the same time: their requests would go on arriving together.
        machine.add_client(client, u64::from(client) * STAGGER_NS);
    }
    machine.run(plan.seconds * SECOND_NS, &mut load);
    let seconds = (plan.seconds - plan.warm_up_seconds) as f64;
    let service = |&(role, _): &(Role, u32)| {
        let of_role = ended.iter().filter(|(of, _)| *of == role);
        let mut ms: Vec<f64> = of_role.map(|(_, ns)| *ns as f64 / 1e6).collect();
        ms.sort_by(f64::total_cmp);
        let count = ms.len() as f64;
        let p99 = ms.get(ms.len() * 99 / 100).copied().unwrap_or(f64::INFINITY);
        Service { rate: count / seconds, mean: ms.iter().sum::<f64>() / count, p99 }
    };
    Ok(roles.iter().map(service).collect())
}

fn table(rows: &[Row]) -> Table {
    Table::of(
        "Turns per second and their times",
        rows,
        &[
            ("disk", &|row| row.disk.to_owned()),
            ("load", &|row| row.load.to_owned()),
            ("client", &|row| row.role.clone()),
            ("way", &|row| row.way.to_owned()),
            ("per s", &|row| figure(row.service.rate)),
            ("ratio", &|row| figure(row.rate_ratio())),
            ("mean, ms", &|row| figure(row.service.mean)),
            ("p99, ms", &|row| figure(row.service.p99)),
            ("ratio of p99", &|row| figure(row.p99_ratio())),
        ],
    )
}
