//! A server in virtual time: clients, a link to them, an optional cache, and one disk.
//!
//! The cache is the shipped one: a dispatcher over shards with the runtime's settings. The machine
//! takes the place of a worker of the runtime, behind [`Host`](forebay_volume::Host), and behaves
//! like one: it coalesces the I/Os of a turn, ticks shards with dirty lines, limits writeback
//! beside reads, and receives long payloads into the pool. Unless an experiment turns it off, a UPS
//! protects dirty data, like the battery of an array, so a flush does not wait for the disk; or a
//! journal, which takes no time.
//!
//! Only time is modelled: nothing fails, and data is not stored. The cost of processor and memory
//! is in the link's constants. There is no patrol and no parity, and one worker.

use super::disk::{Disk, DiskTally, Disturbance};
use super::host::{CacheHost, CacheSetup, Purpose, Requester, Token};
use super::journal::{Checkpoints, HostLog};
use super::preloader::Preloader;
use crate::harness::queue::Queue;
#[cfg(test)]
use crate::harness::shard::LabShard;
use forebay_backend::{IoKind, OpenError};
use forebay_engine::{IoVerb, Protection};
use forebay_policy::{Needs, SizePrediction, WritebackLimits};
use forebay_types::{ByteRange, DiskGeometry, Granule, Mode, VolumeId};
use forebay_volume::{Dispatcher, Payload, Request, RequestKind};

pub(crate) const SECOND_NS: u64 = 1_000_000_000;
pub(crate) const VOLUME: VolumeId = VolumeId(0);
/// The intervals of ticks with and without dirty data, as in the runtime.
const TICK_BUSY_NS: u64 = 50_000_000;
const TICK_IDLE_NS: u64 = 500_000_000;
/// Payloads of this length and longer are received into the pool, as in the runtime.
const DIRECT_BYTES_MIN: u64 = 32 << 10;
/// The disk counts as used by clients for this long after a request, as in the runtime.
const CLIENT_PAUSE_NS: u64 = 100_000_000;

/// The link between clients and server. It carries any number of requests at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Link {
    /// The time per request in addition to that of its bytes, in nanoseconds.
    pub request_ns: u64,
    pub bytes_per_second: u64,
}

impl Link {
    /// Ten microseconds, and the 400 MB/s of 4-gigabit Fibre Channel.
    pub(crate) const FIBRE: Self = Self { request_ns: 10_000, bytes_per_second: 400_000_000 };
    /// A link that takes no time.
    #[cfg(test)]
    pub(crate) const NONE: Self = Self { request_ns: 0, bytes_per_second: u64::MAX };

    const fn bytes_ns(self, bytes: u64) -> u64 {
        (bytes as u128 * 1_000_000_000 / self.bytes_per_second as u128) as u64
    }
}

/// The next action of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MachineStep {
    /// Waits, in nanoseconds.
    Think(u64),
    Read(ByteRange),
    Write(ByteRange),
    /// A write that is answered when it is on stable storage.
    WriteStable(ByteRange),
    Flush,
    Leave,
}

/// The behaviour of a machine's clients.
pub(crate) trait Clients {
    /// The next action of a client whose previous one is complete.
    fn next(&mut self, client: u32, now_ns: u64) -> MachineStep;
}

#[derive(Clone, Copy, Debug)]
enum MachineEvent {
    /// The client has waited.
    Client(u32),
    /// The client has received its answer.
    Answer(u32),
    /// A request arrives.
    Request(u32, RequestKind, ByteRange),
    /// The shards are ticked.
    Tick,
    /// The preload is polled, unless a later poll was scheduled since.
    Preload(u64),
}

pub(crate) struct Machine {
    now_ns: u64,
    link: Link,
    events: Queue<MachineEvent>,
    client_count: u32,
    /// The number of clients that wait for an answer, the start of the current period in which any
    /// client waits, and the total length of earlier periods.
    waiting_count: u32,
    waiting_from_ns: u64,
    waited_ns: u64,
    disk: Disk<Purpose>,
    cache: Option<(Dispatcher<CacheHost>, CacheHost)>,
    preloader: Preloader,
    /// When a client last sent a request.
    waited_at_ns: u64,
}

impl Machine {
    /// A machine without clients. Fails if the model of the disk, such as `model:hdd?size=8GiB`,
    /// is invalid. The cache is in write-back, has `pool_bytes` of lines and is empty; zero means
    /// the bare disk without Forebay.
    pub(crate) fn new(disk: &str, pool_bytes: u64) -> Result<Self, OpenError> {
        Self::with_mode(disk, pool_bytes, Mode::WriteBack)
    }

    /// Like [`Machine::new`], with a cache in `mode`.
    pub(crate) fn with_mode(disk: &str, pool_bytes: u64, mode: Mode) -> Result<Self, OpenError> {
        Self::with_cache(disk, pool_bytes, CacheSetup::whole(mode))
    }

    /// Like [`Machine::new`], with this cache.
    pub(crate) fn with_cache(
        disk: &str,
        pool_bytes: u64,
        cache: CacheSetup,
    ) -> Result<Self, OpenError> {
        let disk = Disk::named(disk)?;
        let host = || CacheHost::new(pool_bytes, cache, disk.size_bytes(), &disk.geometry());
        let cache = (pool_bytes > 0).then(|| (Dispatcher::new(0), host()));
        let mut machine = Self {
            now_ns: 0,
            link: Link::FIBRE,
            events: Queue::default(),
            client_count: 0,
            waiting_count: 0,
            waiting_from_ns: 0,
            waited_ns: 0,
            disk,
            cache,
            preloader: Preloader::default(),
            waited_at_ns: 0,
        };
        machine.events.push(TICK_IDLE_NS, MachineEvent::Tick);
        Ok(machine)
    }

    pub(crate) const fn now_ns(&self) -> u64 {
        self.now_ns
    }

    /// The time in which any client waited for an answer, in nanoseconds: the disk time that the
    /// clients' own system would report.
    pub(crate) const fn waited_ns(&self) -> u64 {
        match self.waiting_count {
            0 => self.waited_ns,
            _ => self.waited_ns + self.now_ns - self.waiting_from_ns,
        }
    }

    pub(crate) fn disk_tally(&self) -> DiskTally {
        self.disk.tally(self.now_ns)
    }

    pub(crate) const fn disk_bytes(&self) -> u64 {
        self.disk.size_bytes()
    }

    pub(crate) fn geometry(&self) -> DiskGeometry {
        self.disk.geometry()
    }

    pub(crate) fn cache(&self) -> Option<&CacheHost> {
        self.cache.as_ref().map(|(_, host)| host)
    }

    pub(crate) fn set_limits(&mut self, limits: WritebackLimits) {
        if let Some((_, host)) = &mut self.cache {
            host.set_limits(limits);
        }
    }

    #[cfg(test)]
    pub(crate) fn set_link(&mut self, link: Link) {
        self.link = link;
    }

    #[cfg(test)]
    pub(crate) fn configure(&mut self, set: impl FnMut(&mut LabShard)) {
        let (_, host) = self.cache.as_mut().expect("there is a cache");
        host.configure(set);
    }

    pub(crate) fn disturb(&mut self, disturbance: Disturbance) {
        self.disk.disturb(disturbance);
    }

    /// Adds a client that begins after `after_ns`.
    pub(crate) fn add_client(&mut self, client: u32, after_ns: u64) {
        self.client_count += 1;
        self.events.push(self.now_ns + after_ns, MachineEvent::Client(client));
    }

    /// Advances the time to `end_ns`, or until the last client has left. Requests in flight
    /// continue with the next call.
    pub(crate) fn run(&mut self, end_ns: u64, clients: &mut impl Clients) {
        while self.client_count > 0 {
            let event_ns = self.events.next_time();
            let next_ns = [event_ns, self.disk.next_ns()].into_iter().flatten().min();
            let next_ns = next_ns.expect("a tick is always scheduled");
            if next_ns > end_ns {
                self.now_ns = end_ns;
                return;
            }
            self.turn(next_ns, clients);
        }
    }

    /// Handles everything that happens at one moment. The resulting I/Os start together, as in a
    /// turn of a worker.
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
                MachineEvent::Client(client) => self.step(client, clients.next(client, now_ns)),
                MachineEvent::Answer(client) => {
                    self.waiting_count -= 1;
                    if self.waiting_count == 0 {
                        self.waited_ns += now_ns - self.waiting_from_ns;
                    }
                    self.step(client, clients.next(client, now_ns));
                }
                MachineEvent::Request(client, kind, range) => self.request(client, kind, range),
                MachineEvent::Tick => tick(self),
                MachineEvent::Preload(number) => {
                    let is_read =
                        self.waiting_count > 0 || now_ns < self.waited_at_ns + CLIENT_PAUSE_NS;
                    let next_ns = self.cache.as_mut().and_then(|(dispatcher, host)| {
                        self.preloader.poll(number, dispatcher, host, is_read)
                    });
                    if let Some(next_ns) = next_ns {
                        self.events.push(next_ns, MachineEvent::Preload(self.preloader.schedule()));
                    }
                }
            }
        }
        if let Some((dispatcher, host)) = &mut self.cache {
            for answer in host.log_mut().map(HostLog::commit).unwrap_or_default() {
                dispatcher.answer(host, answer);
            }
            host.start_ios(&mut self.disk);
            let replies = std::mem::take(&mut host.replies);
            let preloaded = std::mem::take(&mut host.preloaded);
            replies.into_iter().for_each(|requester| self.answer(requester));
            if self.preloader.complete(preloaded) {
                self.events.push(now_ns, MachineEvent::Preload(self.preloader.schedule()));
            }
        }
    }

    fn io_done(&mut self, purpose: Purpose) {
        match (purpose, &mut self.cache) {
            (Purpose::Client(requester), _) => self.answer(requester),
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

    fn step(&mut self, client: u32, step: MachineStep) {
        let (kind, range) = match step {
            MachineStep::Think(think_ns) => {
                return self.events.push(self.now_ns + think_ns, MachineEvent::Client(client));
            }
            MachineStep::Leave => {
                self.client_count -= 1;
                return;
            }
            MachineStep::Read(range) => (RequestKind::Read, range),
            MachineStep::Write(range) => (RequestKind::Write { fua: false }, range),
            MachineStep::WriteStable(range) => (RequestKind::Write { fua: true }, range),
            MachineStep::Flush => (RequestKind::Flush, ByteRange::new(0, 0)),
        };
        assert!(range.fits(self.disk.size_bytes()), "{range} is beyond the disk");
        self.waited_at_ns = self.now_ns;
        if self.waiting_count == 0 {
            self.waiting_from_ns = self.now_ns;
        }
        self.waiting_count += 1;
        let is_write = matches!(kind, RequestKind::Write { .. });
        let payload_ns = if is_write { self.link.bytes_ns(range.len) } else { 0 };
        let at_ns = self.now_ns + self.link.request_ns + payload_ns;
        self.events.push(at_ns, MachineEvent::Request(client, kind, range));
    }

    fn request(&mut self, client: u32, kind: RequestKind, range: ByteRange) {
        let (io_kind, is_write) = match kind {
            RequestKind::Write { fua } => (IoKind::Write { fua }, true),
            RequestKind::Flush => (IoKind::Flush, false),
            _ => (IoKind::Read, false),
        };
        let requester = Requester { client, bytes: if is_write { 0 } else { range.len } };
        let Some((dispatcher, host)) = &mut self.cache else {
            return self.disk.start(self.now_ns, io_kind, range, Purpose::Client(requester));
        };
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
        dispatcher.submit(host, Token::Client(requester), request, payload);
    }

    /// A request is complete in the server; the bytes of the answer are still on the link.
    fn answer(&mut self, requester: Requester) {
        let at_ns = self.now_ns + self.link.bytes_ns(requester.bytes);
        self.events.push(at_ns, MachineEvent::Answer(requester.client));
    }
}

/// Changes what preserves dirty data; initially a UPS.
pub(crate) fn set_protection(machine: &mut Machine, protection: Protection) {
    if let Some((_, host)) = &mut machine.cache {
        host.set_protection(protection);
    }
}

/// What the volume misses now, and would miss with other sizes of the pool.
pub(crate) fn size_prediction_of(machine: &Machine) -> SizePrediction {
    machine.cache().map(CacheHost::size_prediction).unwrap_or_default()
}

/// Takes the needs recorded since the last call.
pub(crate) fn take_needs(machine: &mut Machine) -> Needs {
    let (_, host) = machine.cache.as_mut().expect("there is a cache");
    host.needs.take()
}

/// Begins to preload lines, as the runtime does it for a forecast: while no client waits, and once
/// per second beside clients. Lines of an earlier call that have not been read yet are dropped.
pub(crate) fn preload(machine: &mut Machine, granules: Vec<Granule>) {
    if let Some((_, host)) = &mut machine.cache {
        host.begin_forecast();
    }
    machine.preloader.begin(granules);
    let poll = MachineEvent::Preload(machine.preloader.schedule());
    machine.events.push(machine.now_ns, poll);
}

/// Ends the forecast of the slot that is over.
pub(crate) fn end_former_forecasts(machine: &mut Machine) {
    let (_, host) = machine.cache.as_mut().expect("there is a cache");
    host.end_former_forecasts();
}

/// Makes a journal of `bytes` protect dirty data, instead of a UPS.
pub(crate) fn attach_journal(machine: &mut Machine, bytes: u64, checkpoints: Checkpoints) {
    let volume_bytes = machine.disk.size_bytes();
    let (_, host) = machine.cache.as_mut().expect("only a cache has a journal");
    host.attach_journal(bytes, volume_bytes, checkpoints);
}

/// Ticks the shards with dirty lines, and begins a checkpoint that is due.
fn tick(machine: &mut Machine) {
    let mut is_dirty = false;
    if let Some((dispatcher, host)) = &mut machine.cache {
        host.pass_time();
        for shard in host.shards_to_tick() {
            dispatcher.tick(host, shard);
            is_dirty = true;
        }
        let now_ms = machine.now_ns / 1_000_000;
        let due = host.log_mut().and_then(|log| log.begin_checkpoint(now_ms));
        if let Some(request) = due {
            dispatcher.submit(host, Token::Checkpoint, request, Payload::None);
        }
    }
    let pause_ns = if is_dirty { TICK_BUSY_NS } else { TICK_IDLE_NS };
    machine.events.push(machine.now_ns + pause_ns, MachineEvent::Tick);
}
