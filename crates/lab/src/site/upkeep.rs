//! What servers do on their own: ticks, checkpoints, looks at the stores, the end of volumes.

use super::SiteBug;
use super::driver::Site;
use super::plan::FenceKind;
use super::server::{Mount, MountPhase, RequestOrigin, SiteServer};
use super::store::DISK;
use crate::harness::oracle::is_change;
use forebay_types::{IoResult, VolumeId};
use forebay_volume::RequestKind;

/// How far the clock of a host jumps at a tick: more than the longest pause after a failed destage.
const TICK_MS: u64 = 20_000;

impl Site {
    pub(super) fn maintain_any_host(&mut self) {
        let host = self.dice.below(self.hosts.len() as u64) as usize;
        if !self.hosts[host].is_running() {
            return;
        }
        let locals: Vec<usize> = self.server(host).machine.locals().map(|it| it.0).collect();
        if locals.is_empty() {
            return;
        }
        let local = self.dice.pick(&locals);
        match self.dice.below(10) {
            0 | 1 => self.tick(host),
            2 => self.begin_checkpoint(host, local),
            3 | 4 => self.look(host, local),
            _ => drop(self.continue_phase(host, local)),
        }
    }

    /// Time passes on a host.
    pub(super) fn tick(&mut self, host: usize) {
        self.hosts[host].ahead_ms += TICK_MS;
        let now_ms = self.plan.clocks[host].at(self.site_ms) + self.hosts[host].ahead_ms;
        let server = self.server(host);
        server.machine.now_ms = now_ms;
        server.tick();
        self.settle(host);
        let locals: Vec<usize> = self.server(host).machine.locals().map(|it| it.0).collect();
        for local in locals {
            let mount = self.server(host).machine.mount_of(local);
            let journal = mount.and_then(|mount| mount.journal.as_ref());
            if journal.is_some_and(|it| it.state.log.wants_checkpoint() || it.is_undrained) {
                self.begin_checkpoint(host, local);
            }
        }
    }

    /// Begins a checkpoint, or the destage that follows the failure of the journal.
    fn begin_checkpoint(&mut self, host: usize, local: usize) {
        let machine = &mut self.server(host).machine;
        if machine.has_pending(local, RequestOrigin::Checkpoint) {
            return;
        }
        let mount = machine.mount_mut(local);
        let is_lost = mount.is_lost();
        let Some(journal) = &mut mount.journal else { return };
        let begins = match journal.state.log.failed() {
            Some(_) => journal.is_undrained && !is_lost,
            None => {
                journal.has_checkpoint = journal.state.log.begin_checkpoint().is_some();
                journal.has_checkpoint
            }
        };
        if begins {
            let kind = RequestKind::Checkpoint { urgent: true };
            self.submit_own(host, local, RequestOrigin::Checkpoint, kind);
        }
    }

    /// The destage of a checkpoint has ended.
    pub(super) fn end_checkpoint(
        &mut self,
        host: usize,
        local: usize,
        submitted: u32,
        result: IoResult,
    ) {
        let mount = self.server(host).machine.mount_mut(local);
        let journal = mount.journal.as_mut().expect("the journal is open");
        if journal.state.log.failed().is_some() {
            journal.is_undrained &= result.is_err() || submitted <= journal.failed_at;
        } else if std::mem::take(&mut journal.has_checkpoint) {
            journal.state.end_checkpoint(journal.number, result);
        }
    }

    /// A server looks at its stores: whether it still owns them, and whether the journal has
    /// failed.
    pub(super) fn look(&mut self, host: usize, local: usize) {
        let is_cut = self.hosts[host].is_cut_from_stores;
        let mount = self.server(host).machine.mount_mut(local);
        let (number, registration) = (mount.number, mount.registration);
        if mount.journal.is_none() {
            return;
        }
        let store = &self.stores[usize::from(number)];
        let is_taken = match store.fence {
            FenceKind::Connection => store.is_shut_out(registration),
            FenceKind::Reservations => store.holders[DISK] != Some(registration),
        };
        let is_unanswered = is_cut && store.fence == FenceKind::Connection;
        let mount = self.server(host).machine.mount_mut(local);
        mount.is_taken_over |= is_taken && !is_cut;
        let journal = mount.journal.as_ref().expect("the journal is open");
        if journal.state.poll_failure().is_some() && !mount.is_given_up && !is_unanswered {
            self.end_without_journal(host, local);
        }
    }

    /// The journal of a served volume has failed.
    fn end_without_journal(&mut self, host: usize, local: usize) {
        let (now, planted) = (self.moment, self.planted);
        let mount = self.server(host).machine.mount_mut(local);
        let (number, is_taken_over) = (mount.number, mount.is_taken_over);
        let continues = !is_taken_over && planted.is(SiteBug::ContinueWithoutJournal);
        let journal = mount.journal.as_mut().expect("the journal is open");
        journal.has_checkpoint = false;
        // What waits for the journal goes to the disk, which refuses it if it was taken over. If it
        // was not, nothing reaches it any more: another host would not know that the records are
        // void.
        mount.has_lost_journal = !continues && !is_taken_over;
        journal.state.handle_failure_recorded();
        (journal.failed_at, journal.is_undrained) = (now, continues);
        self.report.ended_without_journal += u64::from(mount.has_lost_journal);
        if continues || planted.is(SiteBug::MarkTakenOver) {
            self.hosts[host].marks.push(number);
        }
        self.log_event(|| format!("host {host}, volume {number}: the journal has failed"));
        self.settle(host);
    }

    /// Advances what a volume is in the middle of. Returns whether it is.
    pub(super) fn continue_phase(&mut self, host: usize, local: usize) -> bool {
        let mount = self.server(host).machine.mount_mut(local);
        match mount.phase {
            MountPhase::Serving | MountPhase::Stopping if mount.is_lost() => {
                mount.phase = MountPhase::Draining;
                self.report.ended += 1;
                self.end_records(host, local);
            }
            MountPhase::Draining => {
                // Requests that are not answered in time are abandoned.
                let machine = &self.server(host).machine;
                if !machine.has_pending(local, RequestOrigin::Client) || self.dice.chance(50_000) {
                    self.give_up(host, local);
                }
            }
            MountPhase::Serving => return false,
            MountPhase::Opening { .. } | MountPhase::Restoring { .. } => {
                self.continue_opening(host, local)
            }
            MountPhase::Stopping => self.continue_hand_over(host, local),
            MountPhase::Ending => self.continue_ending(host, local),
        }
        true
    }

    /// Nothing more of a volume is recorded. Another host has its disk, and this one may still have
    /// the journal.
    fn end_records(&mut self, host: usize, local: usize) {
        let records = self.planted.is(SiteBug::RecordAtEnd);
        let mount = self.server(host).machine.mount_mut(local);
        if let Some(journal) = mount.journal.as_mut().filter(|_| !records) {
            journal.state.end(journal.number);
        }
    }

    /// Ends a volume without its stores: disconnects its clients, and forgets its data.
    pub(super) fn give_up(&mut self, host: usize, local: usize) {
        let mount = self.server(host).machine.mount_mut(local);
        let (number, registration) = (mount.number, mount.registration);
        self.log_event(|| format!("host {host}, volume {number}: ends"));
        self.abandon_clients(host, local);
        self.end_records(host, local);
        let server = self.server(host);
        let mount = server.machine.mount_mut(local);
        (mount.phase, mount.is_given_up) = (MountPhase::Ending, true);
        if mount.journal.is_none() {
            server.unmount(local);
            self.end_registration(number, registration);
            return;
        }
        for one in &mut server.machine.shards {
            one.shard.abandon_lost(VolumeId(local as u16));
        }
        self.submit_own(host, local, RequestOrigin::End, RequestKind::Destage);
        self.continue_ending(host, local);
    }

    /// A journal that fails while no volume of it is served keeps its records, and nothing waits
    /// for more.
    fn release_waiters(&mut self, host: usize, local: usize) {
        let mount = self.server(host).machine.mount_mut(local);
        let Some(journal) = &mut mount.journal else { return };
        if mount.is_given_up && journal.state.unrecorded_failure().is_some() {
            journal.state.handle_failure_recorded();
            self.settle(host);
        }
    }

    fn abandon_clients(&mut self, host: usize, local: usize) {
        let server = self.server(host);
        let abandoned = server.machine.abandon(local);
        let Mount { number, registration, .. } = *server.machine.mount_mut(local);
        let expected = &mut self.expected[usize::from(number)];
        for pending in abandoned.iter().filter(|it| is_change(it.request.kind)) {
            expected.leave_open(registration, pending.request.range, pending.submitted);
        }
    }

    /// A server has ended what it had under a registration.
    fn end_registration(&mut self, number: u16, registration: u32) {
        let at = usize::from(number);
        if self.stores[at].is_shut_out(registration) {
            self.expected[at].shut_out(registration, self.moment, true);
            self.expected[at].forget(registration);
        }
    }

    fn continue_ending(&mut self, host: usize, local: usize) {
        self.release_waiters(host, local);
        let process = self.server(host).process;
        let is_in_flight = self
            .transits
            .iter()
            .any(|it| it.host == host && it.process == process && it.local == local);
        let server = self.server(host);
        if is_in_flight {
            return;
        }
        if !server.is_settled(local) {
            if !server.machine.has_pending(local, RequestOrigin::End) {
                self.submit_own(host, local, RequestOrigin::End, RequestKind::Destage);
            }
            return;
        }
        let Mount { number, registration, .. } = server.unmount(local);
        self.end_registration(number, registration);
    }

    /// Removes some volume in order: its data goes to the disk first.
    pub(super) fn begin_hand_over(&mut self, host: usize) {
        if !self.hosts[host].is_running() {
            return;
        }
        let server = self.server(host);
        let open = server.machine.locals().find(|(_, mount)| mount.is_open() && !mount.is_lost());
        let Some((local, _)) = open else { return };
        server.machine.mount_mut(local).phase = MountPhase::Stopping;
        self.report.handed_over += 1;
        self.log_event(|| format!("host {host}: removes a volume in order"));
    }

    fn continue_hand_over(&mut self, host: usize, local: usize) {
        let server = self.server(host);
        let machine = &server.machine;
        let busy = [RequestOrigin::Client, RequestOrigin::Checkpoint, RequestOrigin::End];
        if busy.iter().any(|&origin| machine.has_pending(local, origin)) {
            return;
        }
        if !server.is_settled(local) {
            return self.submit_own(host, local, RequestOrigin::End, RequestKind::Destage);
        }
        let journal = server.machine.mount_mut(local).journal.as_mut();
        let journal = journal.expect("the journal is open");
        let log = &mut journal.state.log;
        if log.failed().is_some() || log.superblock().is_clean && log.is_idle() {
            let Mount { number, registration, .. } = server.unmount(local);
            return self.end_registration(number, registration);
        }
        if !log.superblock().volumes.is_empty() {
            log.mark_clean(journal.number);
            if log.remove_volume(journal.number).is_err() {
                // The disk was not flushed since the last record.
                return self.submit_own(
                    host,
                    local,
                    RequestOrigin::Checkpoint,
                    RequestKind::Checkpoint { urgent: true },
                );
            }
        }
        log.close();
        self.settle(host);
    }

    /// After all faults: finishes what is under way, and gives volumes without an owner one.
    /// Returns false when nothing is left to do.
    pub(super) fn finish_any(&mut self) -> bool {
        let mut has_any = false;
        for host in 0..self.hosts.len() {
            let locals: Vec<usize> = self.server(host).machine.locals().map(|it| it.0).collect();
            let mut is_busy = false;
            for local in locals {
                self.look(host, local);
                is_busy |= self.continue_phase(host, local);
            }
            if is_busy {
                self.tick(host);
            }
            has_any |= is_busy;
        }
        if has_any {
            return true;
        }
        for number in 0..self.plan.volumes {
            let mut servers = self.hosts.iter().filter_map(|host| host.server.as_ref());
            if servers.all(|server| server.machine.find(number).is_none()) {
                let host = self.dice.below(self.hosts.len() as u64) as usize;
                self.take_over(host, number);
                has_any = true;
            }
        }
        if has_any {
            return true;
        }
        let mut servers = self.hosts.iter().map(|host| host.server.as_ref());
        let waiting = servers.position(|server| server.is_some_and(SiteServer::is_waiting));
        let Some(host) = waiting else { return false };
        self.tick(host);
        true
    }
}
