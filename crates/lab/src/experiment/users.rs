//! Users: each waits, then performs an operation of several requests in sequence.
//!
//! Pauses are drawn uniformly between zero and twice their mean, and requests by the weights of
//! their kinds, all from one seed.

use super::machine::{Clients, Machine, MachineStep};
use crate::harness::dice::Dice;
use forebay_backend::OpenError;
use forebay_types::ByteRange;

pub(super) const KIB: u64 = 1 << 10;
pub(super) const MIB: u64 = 1 << 20;

/// A server's disk of that time: four drives of 10,000 rpm.
pub(super) const SERVER_DISK: &str = "model:raid5?drives=4&chunk=64KiB&drive=hdd&drive-rpm=10000\
    &drive-seek=5ms&drive-transfer=60MiB/s&drive-size=64GiB";

/// An area of the disk, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Area {
    /// Shared by all users; the offset counts from the beginning of the disk.
    Shared { offset: u64, bytes: u64 },
    /// One per user; the offset counts from the beginning of the user's place.
    Own { offset: u64, bytes: u64 },
    /// Shared by all users and written sequentially, in a loop.
    Log { offset: u64, bytes: u64 },
}

#[derive(Clone, Copy, Debug)]
pub(super) struct UserKind {
    weight: u32,
    is_write: bool,
    /// Bytes, a multiple of 512.
    len: u64,
    /// The area; the offset in it is a random multiple of the length.
    area: Area,
}

impl UserKind {
    pub(super) const fn read(weight: u32, len: u64, area: Area) -> Self {
        Self { weight, is_write: false, len, area }
    }

    pub(super) const fn write(weight: u32, len: u64, area: Area) -> Self {
        Self { weight, is_write: true, len, area }
    }
}

/// The behaviour of users.
#[derive(Clone, Copy, Debug)]
pub(super) struct Work {
    /// The mean pause before an operation, in nanoseconds.
    pub think_ns: u64,
    /// Requests per operation.
    pub requests: u32,
    /// The mean pause between two requests of an operation, in nanoseconds.
    pub pace_ns: u64,
    pub kinds: &'static [UserKind],
    /// The size of the shared area, in bytes; the users' places follow it.
    pub shared_bytes: u64,
    /// The size of a user's place, in bytes.
    pub place_bytes: u64,
    /// Whether each operation uses a new place, as if another user performed it.
    pub changes_place: bool,
}

/// The length of a measurement, in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Schedule {
    /// The time before the measurement, in which the cache fills.
    pub warmup_ns: u64,
    /// The time that is measured.
    pub measured_ns: u64,
}

/// The number of kinds of requests that users may have.
pub(super) const KINDS_MAX: usize = 5;

/// The result of a measurement.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Measured {
    /// The share of time in which any request waited for its answer, from 0 to 1.
    pub waiting: f64,
    /// The durations of all requests of a kind, as a share of the time. The sum over all kinds
    /// exceeds `waiting` as far as requests overlapped.
    pub kinds: [f64; KINDS_MAX],
    /// The share of time in which the disk was busy, from 0 to 1.
    pub busy: f64,
    /// The mean duration of a request, in seconds.
    pub request_seconds: f64,
    /// The mean duration of an operation, in seconds, with the pauses in it.
    pub operation_seconds: f64,
}

/// Measures users of a server with [`SERVER_DISK`] and a cache of `pool_bytes` of lines, zero for
/// none. The cache is empty at first.
pub(super) fn measure(
    pool_bytes: u64,
    work: &Work,
    users: u32,
    schedule: Schedule,
    seed: u64,
) -> Result<Measured, OpenError> {
    let steps = measure_steps(pool_bytes, work, users, 1, schedule, seed)?;
    Ok(steps[0])
}

/// Measures users who are added to one running server in steps. Each step lasts one `schedule`;
/// the users of earlier steps and the content of the cache stay.
pub(super) fn measure_steps(
    pool_bytes: u64,
    work: &Work,
    users_step: u32,
    steps: u32,
    schedule: Schedule,
    seed: u64,
) -> Result<Vec<Measured>, OpenError> {
    let mut machine = Machine::new(SERVER_DISK, pool_bytes)?;
    let mut crowd = Crowd::new(work, users_step * steps, machine.disk_bytes(), seed);
    let mut step = |step| {
        let users = step * users_step..(step + 1) * users_step;
        users.for_each(|user| machine.add_client(user, 0));
        measure_step(&mut machine, &mut crowd, schedule)
    };
    Ok((0..steps).map(&mut step).collect())
}

fn measure_step(machine: &mut Machine, crowd: &mut Crowd<'_>, schedule: Schedule) -> Measured {
    let begun_ns = machine.now_ns();
    machine.run(begun_ns + schedule.warmup_ns, crowd);
    let (busy_ns, waited_ns) = (machine.disk_tally().busy_ns, machine.waited_ns());
    crowd.begin();
    machine.run(begun_ns + schedule.warmup_ns + schedule.measured_ns, crowd);
    let share = |ns: u64| ns as f64 / schedule.measured_ns as f64;
    let mut operations = Mean::default();
    crowd.operations.iter().for_each(|operation| operations.add(operation.took_ns, 1));
    Measured {
        waiting: share(machine.waited_ns() - waited_ns),
        kinds: crowd.requests.map(|kind| share(kind.sum_ns)),
        busy: share(machine.disk_tally().busy_ns - busy_ns),
        request_seconds: crowd.request_seconds(),
        operation_seconds: operations.seconds(),
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Mean {
    count: u64,
    sum_ns: u64,
}

impl Mean {
    /// Adds `count` durations with the sum `ns`.
    const fn add(&mut self, ns: u64, count: u64) {
        self.count += count;
        self.sum_ns += ns;
    }

    /// The mean; zero if nothing was counted.
    fn seconds(self) -> f64 {
        self.sum_ns as f64 / 1e9 / self.count.max(1) as f64
    }
}

/// A completed operation.
#[derive(Clone, Copy, Debug)]
pub(super) struct Operation {
    pub ended_ns: u64,
    pub took_ns: u64,
}

#[derive(Clone, Copy, Debug)]
enum UserState {
    /// The user has not arrived yet.
    Absent,
    Thinking,
    /// Waits for a request that was submitted at this time.
    Waiting(u64),
    /// Pauses between two requests of an operation.
    Pacing,
}

#[derive(Clone, Copy, Debug)]
struct User {
    state: UserState,
    /// The index of the kind of the request in flight.
    kind: usize,
    /// Requests left in the operation.
    left: u32,
    begun_ns: u64,
    /// The number of the user's place on the disk.
    place: u64,
}

pub(super) struct Crowd<'a> {
    work: &'a Work,
    dice: Dice,
    users: Vec<User>,
    /// The number of places on the disk.
    places: u64,
    next_place: u64,
    log_bytes: u64,
    /// The durations of requests, by kind.
    requests: [Mean; KINDS_MAX],
    /// The completed operations, in the order of their ends.
    operations: Vec<Operation>,
}

impl<'a> Crowd<'a> {
    /// Users who have not arrived yet; each arrives when it is added to a machine as a client.
    pub(super) fn new(work: &'a Work, users: u32, disk_bytes: u64, seed: u64) -> Self {
        assert!(work.kinds.len() <= KINDS_MAX, "each kind has a counter");
        let places = (disk_bytes - work.shared_bytes) / work.place_bytes.max(1);
        let user = |place| User {
            state: UserState::Absent,
            kind: 0,
            left: 0,
            begun_ns: 0,
            place: u64::from(place),
        };
        Self {
            work,
            dice: Dice::new(seed),
            users: (0..users).map(user).collect(),
            places,
            next_place: u64::from(users),
            log_bytes: 0,
            requests: [Mean::default(); KINDS_MAX],
            operations: Vec::new(),
        }
    }

    /// The completed operations, in the order of their ends.
    pub(super) fn operations(&self) -> &[Operation] {
        &self.operations
    }

    /// Forgets all requests and operations so far.
    pub(super) fn begin(&mut self) {
        self.requests = [Mean::default(); KINDS_MAX];
        self.operations.clear();
    }

    /// The mean duration of the requests since [`Crowd::begin`], in seconds.
    pub(super) fn request_seconds(&self) -> f64 {
        let mut requests = Mean::default();
        self.requests.iter().for_each(|kind| requests.add(kind.sum_ns, kind.count));
        requests.seconds()
    }

    /// A random time up to twice the mean.
    fn draw_ns(&mut self, mean_ns: u64) -> u64 {
        // Dice draw up to 32 bits, so times are drawn in microseconds.
        self.dice.below(mean_ns / 500 + 1) * 1000
    }

    fn request(&mut self, user: usize, now_ns: u64) -> MachineStep {
        let weights: Vec<u32> = self.work.kinds.iter().map(|kind| kind.weight).collect();
        let kind = self.dice.weighted(&weights);
        let UserKind { is_write, len, area, .. } = self.work.kinds[kind];
        self.users[user].kind = kind;
        let offset = match area {
            Area::Shared { offset, bytes } => offset + self.dice.below(bytes / len) * len,
            Area::Own { offset, bytes } => {
                let inside = offset + self.dice.below(bytes / len) * len;
                // Places are spread over the disk, so that few users seek as far as many.
                let stride = 7919 % self.places.max(1);
                let place = self.users[user].place * stride % self.places.max(1);
                self.work.shared_bytes + place * self.work.place_bytes + inside
            }
            Area::Log { offset, bytes } => {
                let at = self.log_bytes % (bytes / len * len);
                self.log_bytes += len;
                offset + at
            }
        };
        self.users[user].state = UserState::Waiting(now_ns);
        let range = ByteRange::new(offset, len);
        if is_write { MachineStep::Write(range) } else { MachineStep::Read(range) }
    }
}

impl Clients for Crowd<'_> {
    fn next(&mut self, client: u32, now_ns: u64) -> MachineStep {
        let user = client as usize;
        let Work { think_ns, requests, pace_ns, changes_place, .. } = *self.work;
        match self.users[user].state {
            UserState::Absent => {
                // Users do not arrive all at once.
                self.users[user].state = UserState::Thinking;
                MachineStep::Think(self.draw_ns(think_ns + u64::from(requests) * pace_ns))
            }
            UserState::Thinking => {
                self.users[user].left = requests;
                self.users[user].begun_ns = now_ns;
                if changes_place {
                    self.users[user].place = self.next_place;
                    self.next_place += 1;
                }
                self.request(user, now_ns)
            }
            UserState::Waiting(submitted_ns) => {
                self.requests[self.users[user].kind].add(now_ns - submitted_ns, 1);
                self.users[user].left -= 1;
                if self.users[user].left == 0 {
                    let took_ns = now_ns - self.users[user].begun_ns;
                    self.operations.push(Operation { ended_ns: now_ns, took_ns });
                    self.users[user].state = UserState::Thinking;
                    return MachineStep::Think(self.draw_ns(think_ns));
                }
                if pace_ns == 0 {
                    return self.request(user, now_ns);
                }
                self.users[user].state = UserState::Pacing;
                MachineStep::Think(self.draw_ns(pace_ns))
            }
            UserState::Pacing => self.request(user, now_ns),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WORK: Work = Work {
        think_ns: 1_000_000,
        requests: 3,
        pace_ns: 1_000_000,
        kinds: &[
            UserKind::read(1, 8192, Area::Shared { offset: 0, bytes: MIB }),
            UserKind::write(1, 4096, Area::Own { offset: MIB, bytes: MIB }),
            UserKind::write(1, 4096, Area::Log { offset: MIB, bytes: 3 * 4096 }),
        ],
        shared_bytes: 2 * MIB,
        place_bytes: 2 * MIB,
        changes_place: true,
    };

    /// The requests of one user in `count` steps.
    fn requests(count: u32) -> Vec<MachineStep> {
        let mut crowd = Crowd::new(&WORK, 1, 64 * MIB, 9);
        let steps = (0..count).map(|at| crowd.next(0, u64::from(at)));
        steps.filter(|step| !matches!(step, MachineStep::Think(_))).collect()
    }

    #[test]
    fn requests_are_in_the_area_of_their_kind() {
        let (mut shared, mut own, mut log) = (0, Vec::new(), Vec::new());
        for step in requests(2000) {
            match step {
                MachineStep::Read(range) => {
                    assert!(range.len == 8192 && range.end() <= MIB, "{range}");
                    shared += 1;
                }
                MachineStep::Write(range) if range.offset < 2 * MIB => log.push(range.offset - MIB),
                MachineStep::Write(range) => {
                    assert!(range.fits(64 * MIB) && range.offset % (2 * MIB) >= MIB, "{range}");
                    own.push(range.offset / (2 * MIB));
                }
                other => unreachable!("users read and write, and do not {other:?}"),
            }
        }
        assert!(shared > 200 && own.len() > 200 && log.len() > 200);
        assert!(log.iter().zip([0, 4096, 8192].iter().cycle()).all(|(at, next)| at == next));
        own.sort_unstable();
        own.dedup();
        assert_eq!(own.len(), 31, "each operation uses another place, until all were used");
    }

    #[test]
    fn pauses_are_uniform_around_their_mean() {
        let mut crowd = Crowd::new(&WORK, 1, 64 * MIB, 9);
        let times: Vec<u64> = (0..2000).map(|_| crowd.draw_ns(1_000_000)).collect();
        assert!(times.iter().all(|&ns| ns <= 2_000_000));
        let mean = times.iter().sum::<u64>() / 2000;
        assert!((950_000..1_050_000).contains(&mean), "{mean}");
    }
}
