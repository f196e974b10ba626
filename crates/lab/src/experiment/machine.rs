//! A server in virtual time: clients, a link to them, the cache or none, and one disk.
//!
//! The cache is the shipped one, a dispatcher over shards with the runtime's settings. The machine
//! stands where a worker of the runtime does, behind [`Host`], and does what that does: I/Os of a
//! turn are joined, shards with dirty lines are ticked, a disk that is being read is spared, long
//! payloads are received into the pool. A supply protects what is dirty, as a battery does in an
//! array, so a flush waits for no disk.
//!
//! Only time is modelled: nothing fails, and no byte is kept anywhere. What the processor and the
//! memory take is in the link's constant. The price: no patrol and so no parity, no journal, and
//! one worker.

use super::disk::{Disk, DiskTally, Trouble};
use super::host::{Asker, CacheHost, Purpose};
use crate::harness::queue::Queue;
#[cfg(test)]
use crate::harness::shard::LabShard;
use forebay_backend::{IoKind, OpenError};
use forebay_engine::IoVerb;
use forebay_policy::Limits;
use forebay_types::{ByteRange, DiskGeometry, VolumeId};
use forebay_volume::{Dispatcher, Payload, Request, RequestKind};

pub(crate) const SECOND_NS: u64 = 1_000_000_000;
/// The one volume there is.
pub(crate) const VOLUME: VolumeId = VolumeId(0);
/// How often shards are looked after while something is dirty, and otherwise: as the runtime does.
const TICK_BUSY_NS: u64 = 50_000_000;
const TICK_IDLE_NS: u64 = 500_000_000;
/// Payloads from this length on are received into the pool, as by the runtime.
const DIRECT_BYTES_MIN: u64 = 32 << 10;

/// What lies between a client and the server. It takes any number of requests at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Link {
    /// What each request takes beside its bytes, there and back and in memory, in nanoseconds.
    pub request_ns: u64,
    /// How fast the bytes of a request come, per second.
    pub bytes_per_second: u64,
}

impl Link {
    /// Ten microseconds and the 400 MB/s of Fibre Channel at four gigabits.
    pub(crate) const FIBRE: Self = Self { request_ns: 10_000, bytes_per_second: 400_000_000 };
    /// A link that takes no time.
    #[cfg(test)]
    pub(crate) const NONE: Self = Self { request_ns: 0, bytes_per_second: u64::MAX };

    const fn bytes_ns(self, bytes: u64) -> u64 {
        (bytes as u128 * 1_000_000_000 / self.bytes_per_second as u128) as u64
    }
}

/// What a machine is made of.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MachineSpec<'a> {
    /// The disk, by its name: `model:hdd?size=8GiB`.
    pub disk: &'a str,
    /// Bytes of lines in the cache; zero for no cache, and no Forebay at all.
    pub pool_bytes: u64,
    pub link: Link,
}

/// What a client does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// It thinks so long, in nanoseconds.
    Think(u64),
    Read(ByteRange),
    Write(ByteRange),
    /// It has nothing more to do.
    Leave,
}

/// Those who use a machine.
pub(crate) trait Clients {
    /// What a client does, now that what it did before is over.
    fn next(&mut self, client: u32, now_ns: u64) -> Step;
}

#[derive(Clone, Copy, Debug)]
enum Event {
    /// The client has thought.
    Client(u32),
    /// The client has its answer.
    Answer(u32),
    /// A request has come: whose, whether it writes, and where.
    Request(u32, bool, ByteRange),
    /// It is time to look after the shards.
    Tick,
}

/// See the module's description.
pub(crate) struct Machine {
    now_ns: u64,
    link: Link,
    events: Queue<Event>,
    /// Clients that have come and not left.
    client_count: u32,
    /// Clients that wait for an answer, since when any has, and how long that was before.
    waiting_count: u32,
    waiting_from_ns: u64,
    waited_ns: u64,
    disk: Disk<Purpose>,
    cache: Option<(Dispatcher<CacheHost>, CacheHost)>,
}

impl Machine {
    /// A machine without clients, and with nothing in its cache.
    ///
    /// # Errors
    /// When there is no such disk.
    pub(crate) fn new(spec: &MachineSpec<'_>) -> Result<Self, OpenError> {
        let disk = Disk::named(spec.disk)?;
        let host = || CacheHost::new(spec.pool_bytes, disk.size_bytes(), &disk.geometry());
        let cache = (spec.pool_bytes > 0).then(|| (Dispatcher::new(0), host()));
        let mut machine = Self {
            now_ns: 0,
            link: spec.link,
            events: Queue::default(),
            client_count: 0,
            waiting_count: 0,
            waiting_from_ns: 0,
            waited_ns: 0,
            disk,
            cache,
        };
        machine.events.push(TICK_IDLE_NS, Event::Tick);
        Ok(machine)
    }

    /// The time since the machine was made, in nanoseconds.
    pub(crate) const fn now_ns(&self) -> u64 {
        self.now_ns
    }

    /// How long any client has waited for an answer so far, in nanoseconds: what the clients'
    /// own system would call the time of its disk.
    pub(crate) const fn waited_ns(&self) -> u64 {
        match self.waiting_count {
            0 => self.waited_ns,
            _ => self.waited_ns + self.now_ns - self.waiting_from_ns,
        }
    }

    /// What the disk has done so far.
    pub(crate) fn disk_tally(&self) -> DiskTally {
        self.disk.tally(self.now_ns)
    }

    /// The size of the disk in bytes.
    pub(crate) const fn disk_bytes(&self) -> u64 {
        self.disk.size_bytes()
    }

    /// Its stripes, if it has any.
    pub(crate) fn geometry(&self) -> DiskGeometry {
        self.disk.geometry()
    }

    /// The cache, if there is one.
    pub(crate) fn cache(&self) -> Option<&CacheHost> {
        self.cache.as_ref().map(|(_, host)| host)
    }

    /// Says what write-back may do.
    pub(crate) fn set_limits(&mut self, limits: Limits) {
        if let Some((_, host)) = &mut self.cache {
            host.set_limits(limits);
        }
    }

    /// Changes the settings of the cache, shard by shard.
    #[cfg(test)]
    pub(crate) fn set_up(&mut self, set: impl FnMut(&mut LabShard)) {
        let (_, host) = self.cache.as_mut().expect("there is a cache");
        host.set_up(set);
    }

    /// Something will happen to the disk.
    pub(crate) fn expect(&mut self, trouble: Trouble) {
        self.disk.expect(trouble);
    }

    /// Lets a client begin after so many nanoseconds.
    pub(crate) fn welcome(&mut self, client: u32, after_ns: u64) {
        self.client_count += 1;
        self.events.push(self.now_ns + after_ns, Event::Client(client));
    }

    /// Lets the time pass up to `end_ns`, or until the last client has left. What is under way
    /// then goes on with the next call.
    pub(crate) fn run(&mut self, end_ns: u64, clients: &mut impl Clients) {
        while self.client_count > 0 {
            let event_ns = self.events.next_time();
            let next_ns = [event_ns, self.disk.next_ns()].into_iter().flatten().min();
            let next_ns = next_ns.expect("there is always another tick");
            if next_ns > end_ns {
                self.now_ns = end_ns;
                return;
            }
            self.turn(next_ns, clients);
        }
    }

    /// Everything that happens at one moment. The I/Os that come of it start together, as in a turn
    /// of a worker.
    fn turn(&mut self, now_ns: u64, clients: &mut impl Clients) {
        self.now_ns = now_ns;
        if let Some((_, host)) = &mut self.cache {
            host.now_ns = now_ns;
        }
        while let Some(purpose) = self.disk.end(now_ns) {
            self.io_done(purpose);
        }
        while self.events.next_time().is_some_and(|at_ns| at_ns <= now_ns)
            && let Some((_, event)) = self.events.pop()
        {
            match event {
                Event::Client(client) => self.step(client, clients.next(client, now_ns)),
                Event::Answer(client) => {
                    self.waiting_count -= 1;
                    if self.waiting_count == 0 {
                        self.waited_ns += now_ns - self.waiting_from_ns;
                    }
                    self.step(client, clients.next(client, now_ns));
                }
                Event::Request(client, is_write, range) => self.request(client, is_write, range),
                Event::Tick => self.tick(),
            }
        }
        if let Some((_, host)) = &mut self.cache {
            host.start_ios(&mut self.disk);
            let replies = std::mem::take(&mut host.replies);
            replies.into_iter().for_each(|asker| self.answer(asker));
        }
    }

    fn io_done(&mut self, purpose: Purpose) {
        match (purpose, &mut self.cache) {
            (Purpose::Client(asker), _) => self.answer(asker),
            (Purpose::Flush(job), Some((dispatcher, host))) => {
                dispatcher.flushed(host, job, Ok(()));
            }
            (Purpose::Shards(verb, members, began_ns), Some((dispatcher, host))) => {
                if verb == IoVerb::Read {
                    host.end_read(began_ns);
                }
                for (shard, id) in members {
                    dispatcher.complete(host, shard, id, Ok(()));
                }
            }
            (_, None) => unreachable!("only a cache has I/Os of its own"),
        }
    }

    fn tick(&mut self) {
        let mut is_dirty = false;
        if let Some((dispatcher, host)) = &mut self.cache {
            for shard in host.shards_to_tick() {
                dispatcher.tick(host, shard);
                is_dirty = true;
            }
        }
        let pause_ns = if is_dirty { TICK_BUSY_NS } else { TICK_IDLE_NS };
        self.events.push(self.now_ns + pause_ns, Event::Tick);
    }

    fn step(&mut self, client: u32, step: Step) {
        let (is_write, range) = match step {
            Step::Think(think_ns) => {
                return self.events.push(self.now_ns + think_ns, Event::Client(client));
            }
            Step::Leave => {
                self.client_count -= 1;
                return;
            }
            Step::Read(range) => (false, range),
            Step::Write(range) => (true, range),
        };
        assert!(range.fits(self.disk.size_bytes()), "{range} is beyond the disk");
        if self.waiting_count == 0 {
            self.waiting_from_ns = self.now_ns;
        }
        self.waiting_count += 1;
        let payload_ns = if is_write { self.link.bytes_ns(range.len) } else { 0 };
        let at_ns = self.now_ns + self.link.request_ns + payload_ns;
        self.events.push(at_ns, Event::Request(client, is_write, range));
    }

    fn request(&mut self, client: u32, is_write: bool, range: ByteRange) {
        let asker = Asker { client, bytes: if is_write { 0 } else { range.len } };
        let Some((dispatcher, host)) = &mut self.cache else {
            let kind = if is_write { IoKind::Write { fua: false } } else { IoKind::Read };
            return self.disk.start(self.now_ns, kind, range, Purpose::Client(asker));
        };
        let kind = if is_write { RequestKind::Write { fua: false } } else { RequestKind::Read };
        let request = Request { volume: VOLUME, kind, range };
        let staged = match is_write && range.len >= DIRECT_BYTES_MIN {
            true => dispatcher.stage(host, VOLUME, range),
            false => None,
        };
        let payload = match staged {
            Some(slots) => Payload::Staged(slots),
            None if is_write => Payload::Owned(host.blank(range.len)),
            None => Payload::None,
        };
        dispatcher.submit(host, Some(asker), request, payload);
    }

    /// The server has done what a client asked for; its bytes are still on their way.
    fn answer(&mut self, asker: Asker) {
        let at_ns = self.now_ns + self.link.bytes_ns(asker.bytes);
        self.events.push(at_ns, Event::Answer(asker.client));
    }
}
