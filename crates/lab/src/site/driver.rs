//! One run: requests, I/Os and their ends, and the final checks.

use super::expected::{ReadVerdict, VolumeExpected};
use super::plan::{SitePlan, SiteStep};
use super::server::{EndedRequest, RequestOrigin, SiteRequest, SiteServer};
use super::store::{DISK, SharedStore, StoreWork, number_in_stamps};
use super::{Planted, SiteOptions, SiteReport};
use crate::harness::WHOLE;
use crate::harness::dice::Dice;
use crate::harness::memory::payload_of;
use crate::harness::oracle::stamp;
use crate::harness::places::{all_sectors, places};
use crate::harness::shard::PoolSnapshot;
use forebay_types::{ByteRange, IoError, IoResult, VolumeId};
use forebay_volume::{Payload, Request, RequestKind};

/// The rounds within which a site without faults must be idle, for each volume and host.
const ROUNDS_MAX: usize = 5_000;

#[derive(Default)]
pub(super) struct SiteHost {
    pub server: Option<SiteServer>,
    pub is_frozen: bool,
    pub is_cut_from_stores: bool,
    pub is_cut_from_clients: bool,
    /// What its clock is ahead of its plan, in milliseconds.
    pub ahead_ms: u64,
    /// Volumes whose journal has failed, recorded in its state directory.
    pub marks: Vec<u16>,
    /// What a killed server has left in memory.
    pub pool: Option<PoolSnapshot>,
}

impl SiteHost {
    /// Whether its server runs.
    pub(super) const fn is_running(&self) -> bool {
        self.server.is_some() && !self.is_frozen
    }
}

/// An I/O of a server, on its way to a store or back.
pub(super) struct Transit {
    pub host: usize,
    pub process: u32,
    /// The volume's number on the server.
    pub local: usize,
    /// Its number in the site.
    pub number: u16,
    pub registration: u32,
    pub work: StoreWork,
    /// What the store has answered, if it has.
    pub result: Option<IoResult>,
    pub is_slow: bool,
}

/// Who has registered.
pub(super) struct StoreRegistration {
    pub host: usize,
    pub number: u16,
}

pub(super) struct Site {
    pub plan: SitePlan,
    pub planted: Planted,
    pub dice: Dice,
    pub hosts: Vec<SiteHost>,
    pub stores: Vec<SharedStore>,
    pub expected: Vec<VolumeExpected>,
    pub transits: Vec<Transit>,
    pub registrations: Vec<StoreRegistration>,
    pub processes: u32,
    /// The time of the oracles: advances with each submission and each answer.
    pub moment: u32,
    pub site_ms: u64,
    pub is_healed: bool,
    pub report: SiteReport,
    pub violation: Option<String>,
    /// The volume that it concerns, if it is a single one.
    pub failed_volume: Option<u16>,
    pub log: Option<Vec<String>>,
}

impl Site {
    pub(super) fn new(options: &SiteOptions) -> Self {
        let mut dice = Dice::new(options.seed);
        let plan = SitePlan::draw(&mut dice, options);
        let stores = plan.fences.iter().enumerate();
        let mut site = Self {
            hosts: (0..plan.hosts).map(|_| SiteHost::default()).collect(),
            stores: stores.map(|(at, &fence)| SharedStore::new(at as u16, fence)).collect(),
            expected: (0..plan.volumes).map(VolumeExpected::new).collect(),
            transits: Vec::new(),
            registrations: Vec::new(),
            processes: 0,
            moment: 1,
            site_ms: 0,
            is_healed: false,
            report: SiteReport::default(),
            violation: None,
            failed_volume: None,
            log: None,
            planted: Planted(options.planted),
            plan,
            dice,
        };
        for host in 0..site.plan.hosts {
            site.start(host, false);
        }
        for number in 0..site.plan.volumes {
            site.open(usize::from(number) % site.plan.hosts, number, false);
        }
        site
    }

    /// Records that a guarantee is broken, for a volume or for all.
    pub(super) fn violate(&mut self, volume: Option<u16>, message: impl FnOnce() -> String) {
        if self.violation.is_none() {
            let place = volume.map(|number| format!("volume {number}: ")).unwrap_or_default();
            self.violation = Some(format!("{place}{}", message()));
            self.failed_volume = volume;
        }
    }

    pub(super) fn log_event(&mut self, text: impl FnOnce() -> String) {
        if let Some(log) = &mut self.log {
            log.push(format!("{}: {}", self.moment, text()));
        }
    }

    pub(super) fn server(&mut self, host: usize) -> &mut SiteServer {
        self.hosts[host].server.as_mut().expect("the host has a server")
    }

    /// Executes the run. A broken guarantee is recorded.
    pub(super) fn run(&mut self) {
        for _ in 0..self.plan.steps {
            if self.violation.is_some() {
                return;
            }
            self.report.steps += 1;
            self.site_ms += self.dice.below(4);
            match self.plan.draw_step(&mut self.dice) {
                SiteStep::Request => self.request_sometimes(),
                SiteStep::Io => self.advance_any_io(),
                SiteStep::Upkeep => self.maintain_any_host(),
                SiteStep::Event => self.cause_event(),
            }
        }
        self.heal();
        self.converge();
        self.verify();
    }

    /// Has a client submit a request to some host that serves its volume.
    fn request_sometimes(&mut self) {
        let host = self.dice.below(self.hosts.len() as u64) as usize;
        let SiteHost { server: Some(server), is_frozen: false, is_cut_from_clients: false, .. } =
            &self.hosts[host]
        else {
            return;
        };
        let clients = server.machine.pending().filter(|it| it.origin == RequestOrigin::Client);
        if clients.count() >= self.plan.requests_max {
            return;
        }
        let open: Vec<usize> =
            server.machine.locals().filter(|(_, it)| it.is_open()).map(|it| it.0).collect();
        if open.is_empty() {
            return;
        }
        let local = self.dice.pick(&open);
        let (kind, range) = self.plan.draw_request(&mut self.dice);
        self.submit_of_client(host, local, kind, range);
    }

    pub(super) fn submit_of_client(
        &mut self,
        host: usize,
        local: usize,
        kind: RequestKind,
        range: ByteRange,
    ) {
        self.moment += 1;
        self.report.requests += 1;
        let (volume, submitted) = (VolumeId(local as u16), self.moment);
        let request = Request { volume, kind, range };
        let number = self.number_of(host, local);
        let oldest = self.oldest_read(number);
        let version = self.expected[usize::from(number)].submit(request, submitted, oldest);
        self.log_event(|| {
            format!("host {host}, volume {number}: {kind:?} {range} version {version}")
        });
        let bytes = match kind {
            RequestKind::Write { .. } => {
                let volume = number_in_stamps(number);
                payload_of(places(range).map(|place| stamp(volume, place as u64, version)))
            }
            _ => Vec::new(),
        };
        let payload = match kind {
            RequestKind::Write { .. } => Payload::Borrowed(&bytes[..]),
            _ => Payload::None,
        };
        let pending =
            SiteRequest { origin: RequestOrigin::Client, request, submitted, is_abandoned: false };
        self.server(host).submit(pending, payload);
        self.settle(host);
    }

    /// Submits a request of the server itself.
    pub(super) fn submit_own(
        &mut self,
        host: usize,
        local: usize,
        origin: RequestOrigin,
        kind: RequestKind,
    ) {
        let request = Request { volume: VolumeId(local as u16), kind, range: WHOLE };
        let submitted = self.moment;
        let pending = SiteRequest { origin, request, submitted, is_abandoned: false };
        self.server(host).submit(pending, Payload::None);
        self.settle(host);
    }

    pub(super) fn number_of(&self, host: usize, local: usize) -> u16 {
        let machine = self.hosts[host].server.as_ref().map(|server| &server.machine);
        let mount = machine.and_then(|machine| machine.mount_of(local));
        mount.expect("the volume is here").number
    }

    /// The submission of the oldest read of a volume in flight.
    fn oldest_read(&self, number: u16) -> u32 {
        let servers = self.hosts.iter().filter_map(|host| host.server.as_ref());
        let reads = servers.filter_map(|server| {
            let local = server.machine.find(number)?;
            let pending = server.machine.pending().map(|it| (it.request, it.submitted));
            let reads = pending.filter(|(request, _)| {
                usize::from(request.volume.0) == local && request.kind == RequestKind::Read
            });
            reads.map(|(_, submitted)| submitted).min()
        });
        reads.min().unwrap_or(self.moment)
    }

    /// Moves some I/O on by one step.
    fn advance_any_io(&mut self) {
        if self.transits.is_empty() {
            return;
        }
        let at = self.dice.below(self.transits.len() as u64) as usize;
        if self.transits[at].is_slow && !self.is_healed && !self.dice.chance(50_000) {
            return;
        }
        self.advance_io(at);
    }

    fn is_orphan(&self, transit: &Transit) -> bool {
        let server = self.hosts[transit.host].server.as_ref();
        server.is_none_or(|server| server.process != transit.process)
    }

    /// Moves an I/O to the store, or its end to the server. Returns whether it could.
    pub(super) fn advance_io(&mut self, at: usize) -> bool {
        let transit = &self.transits[at];
        let host = &self.hosts[transit.host];
        let is_orphan = self.is_orphan(transit);
        let fence = self.stores[usize::from(transit.number)].fence;
        if host.is_cut_from_stores {
            let fails = self.plan.paths_fail && fence == super::plan::FenceKind::Reservations;
            if !fails || is_orphan || host.is_frozen {
                return false;
            }
            // The system gives the path up.
            self.end_io(at, Err(IoError::Io), false);
            return true;
        }
        match transit.result {
            None => {
                self.land(at);
                if is_orphan {
                    self.transits.swap_remove(at);
                }
                true
            }
            Some(_) if is_orphan => {
                self.transits.swap_remove(at);
                true
            }
            Some(_) if host.is_frozen => false,
            Some(result) => {
                self.end_io(at, result, true);
                true
            }
        }
    }

    /// An I/O reaches its store.
    fn land(&mut self, at: usize) {
        let Self { transits, stores, report, planted, .. } = self;
        let transit = &mut transits[at];
        let store = &mut stores[usize::from(transit.number)];
        let is_read = matches!(&transit.work, StoreWork::Io(io) if io.is_read());
        let (device, registration) = (transit.work.device(), transit.registration);
        report.ios += 1;
        if !store.permits(registration, device, is_read, *planted) {
            report.refused += 1;
            transit.result = Some(Err(IoError::Io));
            return;
        }
        let is_second = transit.work.changes() > 0 && store.is_second_owner(registration);
        store.execute(&mut transit.work, &mut |_| true);
        transit.result = Some(Ok(()));
        if is_second {
            let (number, host) = (transit.number, transit.host);
            self.violate(Some(number), || format!("two owners: host {host} still writes"));
        }
    }

    /// The end of an I/O reaches its server. `is_answer` says that the store has answered.
    fn end_io(&mut self, at: usize, result: IoResult, is_answer: bool) {
        let Transit { host, local, number, registration, work, .. } = self.transits.swap_remove(at);
        let store = &self.stores[usize::from(number)];
        let is_lost = match store.fence {
            super::plan::FenceKind::Connection => store.is_shut_out(registration),
            // Only the disk of the volume says that the volume is lost.
            super::plan::FenceKind::Reservations => {
                work.device() == DISK && store.holders[DISK] != Some(registration)
            }
        };
        self.log_event(|| {
            let what = match &work {
                StoreWork::Io(io) => format!("{:?} {}", io.action.verb, io.action.range),
                StoreWork::Flush(_) => "flush".into(),
                StoreWork::Log(write) => format!("journal write at {}", write.position),
            };
            format!("host {host}, volume {number}: {what} ends: {result:?}")
        });
        let server = self.hosts[host].server.as_mut().expect("the server of the I/O runs");
        if result.is_err() && is_answer && is_lost {
            server.machine.mount_mut(local).is_taken_over = true;
        }
        match work {
            StoreWork::Io(io) => {
                if io.is_write() && io.current_stamps(&server.machine.shards) != io.stamps {
                    let range = io.action.range;
                    self.violate(Some(number), || {
                        format!("the memory of a write in flight changed: {range}")
                    });
                    return;
                }
                server.complete(&io, result);
            }
            StoreWork::Flush(job) => server.flushed(job, result),
            StoreWork::Log(write) => {
                let mount = server.machine.mount_mut(local);
                let journal = mount.journal.as_mut().expect("the journal is open");
                journal.is_writing = false;
                journal.state.handle_written(write, [result; 2]);
            }
        }
        self.settle(host);
    }

    /// Carries out what the calls have left on a server, until nothing is.
    pub(super) fn settle(&mut self, host: usize) {
        loop {
            self.pump_journals(host);
            let server = self.server(host);
            while server.deliver_answer() {}
            let machine = &mut server.machine;
            let (ios, flushes) =
                (std::mem::take(&mut machine.started), std::mem::take(&mut machine.flushes));
            let ended = std::mem::take(&mut machine.ended);
            if ios.is_empty() && flushes.is_empty() && ended.is_empty() {
                if self.pump_journals(host) || !self.server(host).machine.answers.is_empty() {
                    continue;
                }
                return;
            }
            for io in ios {
                self.send(host, usize::from(io.action.volume.0), StoreWork::Io(io));
            }
            for (volume, job) in flushes {
                self.send(host, usize::from(volume.0), StoreWork::Flush(job));
            }
            ended.into_iter().for_each(|it| self.end_request(host, it));
        }
    }

    /// Sends an I/O. Those to the disk of a volume that ends do so at once: reads fail, and so do
    /// writes until the volume is given up. From then on they go nowhere.
    pub(super) fn send(&mut self, host: usize, local: usize, work: StoreWork) {
        let server = self.hosts[host].server.as_mut().expect("the host has a server");
        let mount = server.machine.mount_mut(local);
        let (number, registration) = (mount.number, mount.registration);
        if mount.is_given_up || mount.has_lost_journal {
            let change = if mount.is_given_up { Ok(()) } else { Err(IoError::Io) };
            match work {
                StoreWork::Io(io) if io.is_read() => return server.complete(&io, Err(IoError::Io)),
                StoreWork::Io(io) => return server.complete(&io, change),
                StoreWork::Flush(job) => return server.flushed(job, change),
                StoreWork::Log(_) => {}
            }
        }
        let process = server.process;
        let is_slow = self.dice.chance(self.plan.slow);
        self.transits.push(Transit {
            host,
            process,
            local,
            number,
            registration,
            work,
            result: None,
            is_slow,
        });
    }

    fn end_request(&mut self, host: usize, ended: EndedRequest) {
        let EndedRequest { pending, result, stamps } = ended;
        let local = usize::from(pending.request.volume.0);
        match pending.origin {
            RequestOrigin::Client if pending.is_abandoned => {}
            RequestOrigin::Client => self.end_of_client(host, &pending, result, &stamps),
            RequestOrigin::Checkpoint => {
                self.end_checkpoint(host, local, pending.submitted, result)
            }
            RequestOrigin::Restore => self.end_restore(host, local, result),
            RequestOrigin::End => {}
        }
    }

    /// A server answers a client.
    fn end_of_client(
        &mut self,
        host: usize,
        pending: &SiteRequest,
        result: IoResult,
        stamps: &[u64],
    ) {
        let Request { volume, kind, range } = pending.request;
        let server = self.hosts[host].server.as_ref().expect("the host has a server");
        let mount = server.machine.mount_of(usize::from(volume.0)).expect("the volume is here");
        let (number, registration) = (mount.number, mount.registration);
        self.moment += 1;
        let now = self.moment;
        let is_heard = !self.hosts[host].is_cut_from_clients;
        self.log_event(|| {
            let heard = if is_heard { "" } else { ", unheard" };
            format!("host {host}, volume {number}: {kind:?} {range} answered{heard}: {result:?}")
        });
        self.report.errors += u64::from(result.is_err());
        let expected = &mut self.expected[usize::from(number)];
        match kind {
            RequestKind::Read if result.is_ok() && is_heard => {
                let is_shut_out = expected.shut_out_since(registration).is_some();
                self.report.unnoticed_reads += u64::from(is_shut_out);
                let read =
                    expected.check_read(pending.request, pending.submitted, registration, stamps);
                match read {
                    Ok(verdict) => {
                        self.report.late_reads += u64::from(verdict == ReadVerdict::Late);
                    }
                    Err(message) => {
                        self.violate(Some(number), || format!("host {host}: {message}"));
                    }
                }
            }
            RequestKind::Write { .. } | RequestKind::Trim { .. } | RequestKind::Zero { .. } => {
                let is_done = result.is_ok() && is_heard;
                self.report.acknowledged += u64::from(is_done);
                if result.is_ok() {
                    expected.end_change(pending.request, pending.submitted, now, is_done);
                } else {
                    // Its I/Os may still be on their way.
                    expected.leave_open(registration, range, pending.submitted);
                    let is_shut_out = self.stores[usize::from(number)].is_shut_out(registration);
                    if is_shut_out {
                        self.expected[usize::from(number)].shut_out(registration, now, true);
                    }
                }
            }
            _ => {}
        }
    }

    /// Lets everything run that is left, until the site is idle and each volume has an owner.
    fn converge(&mut self) {
        for _ in 0..ROUNDS_MAX * usize::from(self.plan.volumes).max(self.plan.hosts) {
            if self.violation.is_some() {
                return;
            }
            let count = self.transits.len();
            if count > 0 {
                let at = self.dice.below(count as u64) as usize;
                self.advance_io(at);
                continue;
            }
            if !self.finish_any() {
                return;
            }
        }
        let waiting = self.hosts.iter().filter_map(|host| host.server.as_ref());
        let waiting: Vec<_> = waiting.flat_map(|it| it.machine.pending().copied()).collect();
        self.violate(None, || format!("the site is never idle; in flight: {waiting:?}"));
    }

    /// Has the owner of a volume do something, and waits for that.
    fn ask_owner(&mut self, number: u16, kind: RequestKind, range: ByteRange) {
        let owner = self.hosts.iter().enumerate().find_map(|(host, it)| {
            let machine = &it.server.as_ref()?.machine;
            let local = machine.find(number)?;
            machine.mount_of(local)?.is_open().then_some((host, local))
        });
        let Some((host, local)) = owner else {
            return self.violate(Some(number), || "it has no owner in the end".into());
        };
        let errors = self.report.errors;
        self.submit_of_client(host, local, kind, range);
        self.converge();
        if self.report.errors > errors {
            self.violate(Some(number), || format!("{kind:?} failed after the last fault"));
        }
    }

    /// The final checks: each volume has an owner, all reads are right, and after a destage the
    /// disk has everything.
    fn verify(&mut self) {
        for number in 0..self.plan.volumes {
            if self.violation.is_some() {
                return;
            }
            self.ask_owner(number, RequestKind::Read, all_sectors());
            self.ask_owner(number, RequestKind::Flush, WHOLE);
            self.ask_owner(number, RequestKind::Destage, WHOLE);
            let now = self.moment + 1;
            let disk = self.stores[usize::from(number)].disk;
            let oracle = &mut self.expected[usize::from(number)].oracle;
            let contents = (0..).zip(disk);
            if let Some((at, text)) =
                oracle.first_mismatch(contents, |it, at, found| it.check_read(at, found, now))
            {
                self.violate(Some(number), || {
                    format!("after the last destage, sector {at} {text}")
                });
            }
        }
        let servers = self.hosts.iter().filter_map(|host| host.server.as_ref());
        if let Some(leak) = servers.filter_map(SiteServer::leaks).next() {
            self.violate(None, || leak);
        }
    }
}
