//! Users: they think, then do something that takes some requests, one after the other.
//!
//! Each time is drawn evenly between zero and twice its mean, each request by the weights of its
//! kinds, all from one seed.

use super::machine::{Clients, Machine, MachineSpec, Step};
use crate::harness::dice::Dice;
use forebay_backend::OpenError;
use forebay_types::ByteRange;

pub(super) const KIB: u64 = 1 << 10;
pub(super) const MIB: u64 = 1 << 20;

/// The disk of a server of the time: four drives of 10,000 rpm.
pub(super) const SERVER_DISK: &str = "model:raid5?drives=4&chunk=64KiB&drive=hdd&drive-rpm=10000\
    &drive-seek=5ms&drive-transfer=60MiB/s&drive-size=64GiB";

/// A part of the disk, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Area {
    /// One for all, from the beginning of the disk on.
    Shared { offset: u64, bytes: u64 },
    /// One for each, from the beginning of what is theirs on.
    Own { offset: u64, bytes: u64 },
    /// One for all that is gone through in sequence, again and again.
    Log { offset: u64, bytes: u64 },
}

/// A kind of request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Kind {
    /// How often it comes among the others.
    weight: u32,
    is_write: bool,
    /// Bytes, a multiple of 512.
    len: u64,
    /// Where, at any multiple of its length.
    area: Area,
}

impl Kind {
    /// A read.
    pub(super) const fn read(weight: u32, len: u64, area: Area) -> Self {
        Self { weight, is_write: false, len, area }
    }

    /// A write.
    pub(super) const fn write(weight: u32, len: u64, area: Area) -> Self {
        Self { weight, is_write: true, len, area }
    }
}

/// What users do.
#[derive(Clone, Copy, Debug)]
pub(super) struct Work {
    /// How long they think before they do something, in nanoseconds: the mean.
    pub think_ns: u64,
    /// Requests that this takes.
    pub requests: u32,
    /// What goes by between two of these while nobody waits for the disk: the mean.
    pub pace_ns: u64,
    pub kinds: &'static [Kind],
    /// What is shared ends here, and what is each user's own begins, in bytes.
    pub shared_bytes: u64,
    /// What is one user's, in bytes.
    pub own_bytes: u64,
    /// Whether it is another user each time.
    pub is_another: bool,
}

/// How long everything goes on, in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Spell {
    /// Until the cache has what it will have.
    pub warm_ns: u64,
    /// While it is measured.
    pub measured_ns: u64,
}

/// What came of it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Measured {
    /// The share of time in which any request waited for its answer, from 0 to 1.
    pub waiting: f64,
    /// The share in which the disk had something to do.
    pub busy: f64,
    /// Seconds that a request took: the mean.
    pub request_seconds: f64,
    /// The same of everything that is done at a time, with what goes by in between.
    pub operation_seconds: f64,
}

/// Has so many users work on a machine.
///
/// # Errors
/// When there is no such disk.
pub(super) fn measure(
    spec: &MachineSpec<'_>,
    work: &Work,
    users: u32,
    spell: Spell,
    seed: u64,
) -> Result<Measured, OpenError> {
    let mut machine = Machine::new(spec)?;
    let mut crowd = Crowd::new(work, users, machine.disk_bytes(), seed);
    (0..users).for_each(|user| machine.welcome(user, 0));
    machine.run(spell.warm_ns, &mut crowd);
    let (busy_ns, waited_ns) = (machine.disk_tally().busy_ns, machine.waited_ns());
    crowd.requests = Mean::default();
    crowd.operations = Mean::default();
    machine.run(spell.warm_ns + spell.measured_ns, &mut crowd);
    let share = |ns: u64| ns as f64 / spell.measured_ns as f64;
    Ok(Measured {
        waiting: share(machine.waited_ns() - waited_ns),
        busy: share(machine.disk_tally().busy_ns - busy_ns),
        request_seconds: crowd.requests.seconds(),
        operation_seconds: crowd.operations.seconds(),
    })
}

#[derive(Clone, Copy, Debug, Default)]
struct Mean {
    count: u64,
    sum_ns: u64,
}

impl Mean {
    const fn add(&mut self, ns: u64) {
        self.count += 1;
        self.sum_ns += ns;
    }

    /// Zero where there was nothing.
    fn seconds(self) -> f64 {
        self.sum_ns as f64 / 1e9 / self.count.max(1) as f64
    }
}

/// What a user is at.
#[derive(Clone, Copy, Debug)]
enum Doing {
    /// Has not come yet.
    Nothing,
    Thinking,
    /// Waits for a request that was made then.
    Asking(u64),
    /// Works on what came.
    Pacing,
}

#[derive(Clone, Copy, Debug)]
struct User {
    doing: Doing,
    /// Requests that are left to do.
    left: u32,
    begun_ns: u64,
    /// Whose part of the disk it is.
    place: u64,
}

/// All users of a machine.
struct Crowd<'a> {
    work: &'a Work,
    dice: Dice,
    users: Vec<User>,
    /// How many there is room for on the disk, side by side.
    places: u64,
    next_place: u64,
    log_bytes: u64,
    requests: Mean,
    operations: Mean,
}

impl<'a> Crowd<'a> {
    fn new(work: &'a Work, users: u32, disk_bytes: u64, seed: u64) -> Self {
        let places = (disk_bytes - work.shared_bytes) / work.own_bytes.max(1);
        let user =
            |place| User { doing: Doing::Nothing, left: 0, begun_ns: 0, place: u64::from(place) };
        Self {
            work,
            dice: Dice::new(seed),
            users: (0..users).map(user).collect(),
            places,
            next_place: u64::from(users),
            log_bytes: 0,
            requests: Mean::default(),
            operations: Mean::default(),
        }
    }

    /// Any time up to twice the mean.
    fn any_ns(&mut self, mean_ns: u64) -> u64 {
        // Dice have 32 bits: microseconds are fine enough.
        self.dice.below(mean_ns / 500 + 1) * 1000
    }

    fn ask(&mut self, user: usize, now_ns: u64) -> Step {
        let weights: Vec<u32> = self.work.kinds.iter().map(|kind| kind.weight).collect();
        let Kind { is_write, len, area, .. } = self.work.kinds[self.dice.weighted(&weights)];
        let offset = match area {
            Area::Shared { offset, bytes } => offset + self.dice.below(bytes / len) * len,
            Area::Own { offset, bytes } => {
                let inside = offset + self.dice.below(bytes / len) * len;
                // The places of few users lie as far apart as those of many.
                let stride = 7919 % self.places.max(1);
                let place = self.users[user].place * stride % self.places.max(1);
                self.work.shared_bytes + place * self.work.own_bytes + inside
            }
            Area::Log { offset, bytes } => {
                let at = self.log_bytes % (bytes / len * len);
                self.log_bytes += len;
                offset + at
            }
        };
        self.users[user].doing = Doing::Asking(now_ns);
        let range = ByteRange::new(offset, len);
        if is_write { Step::Write(range) } else { Step::Read(range) }
    }
}

impl Clients for Crowd<'_> {
    fn next(&mut self, client: u32, now_ns: u64) -> Step {
        let user = client as usize;
        let Work { think_ns, requests, pace_ns, is_another, .. } = *self.work;
        match self.users[user].doing {
            Doing::Nothing => {
                // They do not come all at once.
                self.users[user].doing = Doing::Thinking;
                Step::Think(self.any_ns(think_ns + u64::from(requests) * pace_ns))
            }
            Doing::Thinking => {
                self.users[user].left = requests;
                self.users[user].begun_ns = now_ns;
                if is_another {
                    self.users[user].place = self.next_place;
                    self.next_place += 1;
                }
                self.ask(user, now_ns)
            }
            Doing::Asking(asked_ns) => {
                self.requests.add(now_ns - asked_ns);
                self.users[user].left -= 1;
                if self.users[user].left == 0 {
                    self.operations.add(now_ns - self.users[user].begun_ns);
                    self.users[user].doing = Doing::Thinking;
                    return Step::Think(self.any_ns(think_ns));
                }
                if pace_ns == 0 {
                    return self.ask(user, now_ns);
                }
                self.users[user].doing = Doing::Pacing;
                Step::Think(self.any_ns(pace_ns))
            }
            Doing::Pacing => self.ask(user, now_ns),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    const WORK: Work = Work {
        think_ns: 1_000_000,
        requests: 3,
        pace_ns: 1_000_000,
        kinds: &[
            Kind::read(1, 8192, Area::Shared { offset: 0, bytes: MIB }),
            Kind::write(1, 4096, Area::Own { offset: MIB, bytes: MIB }),
            Kind::write(1, 4096, Area::Log { offset: MIB, bytes: 3 * 4096 }),
        ],
        shared_bytes: 2 * MIB,
        own_bytes: 2 * MIB,
        is_another: true,
    };

    /// Everything that one user asks for until the dice have been cast so often.
    fn asked(count: u32) -> Vec<Step> {
        let mut crowd = Crowd::new(&WORK, 1, 64 * MIB, 9);
        let steps = (0..count).map(|at| crowd.next(0, u64::from(at)));
        steps.filter(|step| !matches!(step, Step::Think(_))).collect()
    }

    #[test]
    fn requests_lie_where_their_kind_says() {
        let (mut shared, mut own, mut log) = (0, Vec::new(), Vec::new());
        for step in asked(2000) {
            match step {
                Step::Read(range) => {
                    assert!(range.len == 8192 && range.end() <= MIB, "{range}");
                    shared += 1;
                }
                Step::Write(range) if range.offset < 2 * MIB => log.push(range.offset - MIB),
                Step::Write(range) => {
                    assert!(range.fits(64 * MIB) && range.offset % (2 * MIB) >= MIB, "{range}");
                    own.push(range.offset / (2 * MIB));
                }
                Step::Think(_) | Step::Leave => unreachable!("nobody leaves"),
            }
        }
        assert!(shared > 200 && own.len() > 200 && log.len() > 200);
        assert!(log.iter().zip([0, 4096, 8192].iter().cycle()).all(|(at, next)| at == next));
        own.sort_unstable();
        own.dedup();
        assert_eq!(own.len(), 31, "each time it is another's, until all have had their turn");
    }

    #[test]
    fn times_are_even_about_their_mean() {
        let mut crowd = Crowd::new(&WORK, 1, 64 * MIB, 9);
        let times: Vec<u64> = (0..2000).map(|_| crowd.any_ns(1_000_000)).collect();
        assert!(times.iter().all(|&ns| ns <= 2_000_000));
        let mean = times.iter().sum::<u64>() / 2000;
        assert!((950_000..1_050_000).contains(&mean), "{mean}");
    }
}
