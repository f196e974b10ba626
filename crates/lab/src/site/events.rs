//! Faults, their repair, and the commands of the operator.

use super::SiteBug;
use super::driver::Site;
use super::plan::SiteEvent;
use super::server::{MountPhase, RequestOrigin, SiteRequest, SiteServer};
use crate::harness::oracle::is_change;
use crate::harness::shard::PooledShard;

impl Site {
    pub(super) fn cause_event(&mut self) {
        let host = self.dice.below(self.hosts.len() as u64) as usize;
        match self.plan.draw_event(&mut self.dice) {
            SiteEvent::Kill => self.kill(host),
            SiteEvent::Start => self.start(host, true),
            SiteEvent::Pause => self.freeze(host),
            SiteEvent::Resume => self.resume(host),
            SiteEvent::CutStore => {
                self.report.cuts += 1;
                self.log_event(|| format!("host {host}: cut off from the stores"));
                self.hosts[host].is_cut_from_stores = true;
            }
            SiteEvent::CutClients => {
                self.report.cuts += 1;
                self.log_event(|| format!("host {host}: cut off from the clients"));
                self.hosts[host].is_cut_from_clients = true;
            }
            SiteEvent::Heal => self.reconnect(host),
            SiteEvent::TakeOver => {
                let number = self.dice.below(u64::from(self.plan.volumes)) as u16;
                self.take_over(host, number);
            }
            SiteEvent::TakeOverTwice => {
                let number = self.dice.below(u64::from(self.plan.volumes)) as u16;
                self.take_over(host, number);
                let other = (host + 1) % self.hosts.len();
                self.take_over(other, number);
            }
            SiteEvent::HandOver => self.begin_hand_over(host),
        }
    }

    fn reconnect(&mut self, host: usize) {
        let host = &mut self.hosts[host];
        (host.is_cut_from_stores, host.is_cut_from_clients) = (false, false);
    }

    fn freeze(&mut self, host: usize) {
        if self.hosts[host].is_running() {
            self.report.pauses += 1;
            self.log_event(|| format!("host {host}: frozen"));
            self.hosts[host].is_frozen = true;
        }
    }

    fn resume(&mut self, host: usize) {
        if std::mem::take(&mut self.hosts[host].is_frozen) {
            self.log_event(|| format!("host {host}: resumed"));
        }
    }

    /// Kills a server. What it has sent may still reach the stores.
    fn kill(&mut self, host: usize) {
        self.hosts[host].is_frozen = false;
        let Some(server) = self.hosts[host].server.take() else { return };
        self.report.kills += 1;
        self.log_event(|| format!("host {host}: killed"));
        let machine = &server.machine;
        for pending in machine.pending() {
            self.lose(&server, pending);
        }
        for (_, mount) in machine.locals() {
            let store = &self.stores[usize::from(mount.number)];
            let expected = &mut self.expected[usize::from(mount.number)];
            if store.is_shut_out(mount.registration) {
                expected.shut_out(mount.registration, self.moment, true);
                expected.forget(mount.registration);
            }
        }
        if self.planted.is(SiteBug::AdoptStalePool) {
            let pool = machine.shards.iter().map(PooledShard::snapshot).collect();
            self.hosts[host].pool = Some(pool);
        }
    }

    /// A request whose server is gone.
    fn lose(&mut self, server: &SiteServer, pending: &SiteRequest) {
        if pending.origin != RequestOrigin::Client || pending.is_abandoned {
            return;
        }
        let mount = server.machine.mount_of(usize::from(pending.request.volume.0));
        let mount = mount.expect("the volume of a request is here");
        if is_change(pending.request.kind) {
            let expected = &mut self.expected[usize::from(mount.number)];
            expected.leave_open(mount.registration, pending.request.range, pending.submitted);
        }
    }

    /// Starts a server, if the host has none. It tries to open all volumes, and is refused those
    /// that another host has.
    pub(super) fn start(&mut self, host: usize, opens: bool) {
        if self.hosts[host].server.is_some() {
            return;
        }
        self.processes += 1;
        let pool = self.hosts[host].pool.take();
        self.hosts[host].server = Some(SiteServer::new(&self.plan, self.processes, pool));
        if !opens {
            return;
        }
        self.report.starts += 1;
        self.log_event(|| format!("host {host}: started"));
        for number in 0..self.plan.volumes {
            self.open(host, number, false);
        }
    }

    /// Has a host take a volume over, if it does not have it.
    pub(super) fn take_over(&mut self, host: usize, number: u16) {
        let Some(server) = &self.hosts[host].server else { return };
        if self.hosts[host].is_frozen || server.machine.find(number).is_some() {
            return;
        }
        self.report.takeovers += 1;
        let phases: Vec<MountPhase> = self
            .hosts
            .iter()
            .filter_map(|host| {
                let machine = &host.server.as_ref()?.machine;
                Some(machine.mount_of(machine.find(number)?)?.phase.clone())
            })
            .collect();
        self.report.raced += u64::from(phases.iter().any(is_takeover));
        self.report.wrong += u64::from(phases.contains(&MountPhase::Serving));
        self.log_event(|| format!("host {host}: takes volume {number} over"));
        self.open(host, number, true);
    }

    /// Repairs all faults.
    pub(super) fn heal(&mut self) {
        self.log_event(|| "all faults are repaired".into());
        self.is_healed = true;
        for host in 0..self.hosts.len() {
            self.reconnect(host);
            self.resume(host);
            self.start(host, true);
        }
    }
}

/// Whether a takeover is under way.
const fn is_takeover(phase: &MountPhase) -> bool {
    matches!(phase, MountPhase::Opening { takes_over: true, .. } | MountPhase::Restoring { .. })
}
