//! Opening a volume: acquiring its stores, reading its journal, restoring, serving.
//!
//! The steps and their order are those of the daemon: the disk, the journal, then the content of
//! the journal. Anything may happen between two of them.

use super::SiteBug;
use super::driver::{Site, StoreRegistration};
use super::plan::FenceKind;
use super::server::{MountPhase, MountedJournal, RequestOrigin, SiteRequest};
use super::store::{DISK, IDENTITY, JOURNAL, StoreWork};
use crate::harness::journal::{SIZE_BYTES, buffers, read_piece, request_of};
use crate::harness::memory::{Memory, payload_of};
use crate::harness::places::{FIRST, SECTORS, STRIPES, VOLUME_BYTES, places};
use crate::harness::shard::pooled_stamp;
use forebay_journal::{Found, Log, Piece, pieces_to_restore, recover};
use forebay_protect::JournalState;
use forebay_types::{IoError, IoResult, VolumeId};
use forebay_volume::{Payload, Request, RequestKind};
use std::collections::VecDeque;

/// Attempts to restore one piece, as in the runtime.
const RESTORES_MAX: u32 = 5;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OpeningStep {
    /// Own this device; both if they share a connection.
    Acquire(usize),
    /// Read the journal too early, by a planted bug.
    ReadEarly,
    ReadJournal,
}

/// The steps in which a volume is opened.
const fn steps_of(fence: FenceKind, planted: Option<SiteBug>) -> &'static [OpeningStep] {
    use OpeningStep::{Acquire, ReadEarly, ReadJournal};
    match (fence, planted) {
        (_, Some(SiteBug::ReadBeforeFence)) => {
            &[ReadEarly, Acquire(JOURNAL), Acquire(DISK), ReadJournal]
        }
        (FenceKind::Connection, _) => &[Acquire(DISK), ReadJournal],
        _ => &[Acquire(DISK), Acquire(JOURNAL), ReadJournal],
    }
}

impl Site {
    /// Begins to open a volume on a server that does not have it.
    pub(super) fn open(&mut self, host: usize, number: u16, takes_over: bool) {
        let registration = self.registrations.len() as u32;
        self.registrations.push(StoreRegistration { host, number });
        self.server(host).mount(number, registration, takes_over);
    }

    /// Carries out the next step of opening a volume.
    pub(super) fn continue_opening(&mut self, host: usize, local: usize) {
        if self.hosts[host].is_cut_from_stores {
            return;
        }
        let mount = self.server(host).machine.mount_mut(local);
        let (number, registration) = (mount.number, mount.registration);
        match &mount.phase {
            MountPhase::Opening { step, takes_over } => {
                let (step, takes_over) = (*step, *takes_over);
                let fence = self.stores[usize::from(number)].fence;
                let steps = steps_of(fence, self.planted.0);
                let Some(&next) = steps.get(step) else {
                    return self.begin_restore(host, local);
                };
                let goes_on = match next {
                    OpeningStep::Acquire(device) => {
                        self.acquire(host, registration, device, takes_over)
                    }
                    OpeningStep::ReadEarly => {
                        let found = recover(&mut self.stores[usize::from(number)].log, SIZE_BYTES);
                        self.server(host).machine.mount_mut(local).early = found.ok();
                        true
                    }
                    OpeningStep::ReadJournal => self.read_journal(host, local),
                };
                self.log_event(|| format!("host {host}, volume {number}: {next:?}: {goes_on}"));
                if !goes_on {
                    return self.fail_opening(host, local, takes_over);
                }
                let mount = self.server(host).machine.mount_mut(local);
                mount.phase = MountPhase::Opening { step: step + 1, takes_over };
            }
            MountPhase::Restoring { .. } => self.continue_restore(host, local),
            _ => {}
        }
    }

    fn fail_opening(&mut self, host: usize, local: usize, takes_over: bool) {
        match takes_over {
            true => self.report.failed_takeovers += 1,
            false => self.report.refused_starts += 1,
        }
        self.give_up(host, local);
    }

    /// Makes a registration the owner of a device. Refused if another host owns it and is not to
    /// be shut out.
    fn acquire(&mut self, host: usize, registration: u32, device: usize, takes_over: bool) -> bool {
        let number = usize::from(self.registrations[registration as usize].number);
        let store = &self.stores[number];
        let devices = match store.fence {
            FenceKind::Connection => vec![DISK, JOURNAL],
            FenceKind::Reservations => vec![device],
        };
        // A host replaces the registration that its former server has left.
        let is_free = devices.iter().all(|&device| {
            let holder = store.holders[device];
            holder.is_none_or(|it| self.registrations[it as usize].host == host)
        });
        if !takes_over && !is_free {
            return false;
        }
        for device in devices {
            if self.stores[number].holders[device] == Some(registration) {
                continue;
            }
            self.fence(number, device);
            self.stores[number].holders[device] = Some(registration);
        }
        let store = &self.stores[number];
        let all: Vec<u32> =
            store.former.iter().copied().filter(|&it| store.is_shut_out(it)).collect();
        for former in all {
            self.expected[number].shut_out(former, self.moment, true);
            self.stores[number].former.retain(|&it| it != former);
            let server = self.hosts[self.registrations[former as usize].host].server.as_ref();
            let mut mounts = server.into_iter().flat_map(|server| server.machine.locals());
            if mounts.all(|(_, mount)| mount.registration != former) {
                self.expected[number].forget(former);
            }
        }
        true
    }

    /// Shuts the owner of a device out. What it has in flight reaches the device wholly, partly or
    /// not at all.
    fn fence(&mut self, number: usize, device: usize) {
        let Some(former) = self.stores[number].holders[device].take() else { return };
        if self.planted.is(SiteBug::FenceDiskOnly) && device == JOURNAL {
            return;
        }
        if self.planted.is(SiteBug::FenceExpires)
            && self.hosts[self.registrations[former as usize].host].is_frozen
        {
            self.stores[number].expired.push(former);
            return;
        }
        let Self { transits, stores, dice, report, .. } = self;
        let (hosts, store) = (&self.hosts, &mut stores[number]);
        for transit in transits.iter_mut() {
            let is_meant = transit.registration == former
                && transit.work.device() == device
                && transit.result.is_none();
            if !is_meant {
                continue;
            }
            transit.result = Some(Err(IoError::Io));
            let is_near = !hosts[transit.host].is_cut_from_stores;
            if transit.work.changes() == 0 || !is_near {
                continue;
            }
            report.in_flight += 1;
            match dice.below(4) {
                0 => {
                    store.execute(&mut transit.work, &mut |_| true);
                    transit.result = Some(Ok(()));
                }
                1 => store.execute(&mut transit.work, &mut |_| true),
                2 => {
                    report.torn += 1;
                    store.execute(&mut transit.work, &mut |_| dice.chance(500_000));
                }
                _ => {}
            }
        }
        store.former.push(former);
        self.expected[number].shut_out(former, self.moment, false);
    }

    /// Reads the journal, and resumes its log. Returns false if that is impossible.
    fn read_journal(&mut self, host: usize, local: usize) -> bool {
        let mount = self.server(host).machine.mount_mut(local);
        let (number, registration) = (mount.number, mount.registration);
        let at = usize::from(number);
        let early = mount.early.take();
        if !self.stores[at].permits(registration, JOURNAL, true, self.planted) {
            return false;
        }
        let found = early.map_or_else(|| recover(&mut self.stores[at].log, SIZE_BYTES), Ok);
        let mut found: Found = match found {
            Ok(found) if found.damage.is_empty() => found,
            found => {
                let error = found.map(|found| format!("{:?}", found.damage));
                self.violate(Some(number), || format!("the journal is damaged: {error:?}"));
                return false;
            }
        };
        if self.hosts[host].marks.contains(&number) {
            found.drop_records();
            self.hosts[host].marks.retain(|&it| it != number);
        }
        let numbers = found.superblock.volumes.iter();
        let ours = numbers.filter(|it| it.identity == IDENTITY).map(|it| it.number).next();
        let pieces = ours.map(|ours| pieces_to_restore(&found.records, ours)).unwrap_or_default();
        let mut pieces: VecDeque<Piece> = pieces.into();
        let log = match Log::resume(&found, buffers()) {
            Ok(log) => log,
            Err(_) => {
                // There is no space for another start: the disk gets the content first.
                if !self.stores[at].permits(registration, DISK, false, self.planted) {
                    return false;
                }
                self.report.drained += 1;
                for piece in pieces.drain(..) {
                    let store = &mut self.stores[at];
                    let (piece, stamps) = read_piece(piece, |position| store.log.word(position));
                    store.disk[places(piece.range)].copy_from_slice(&stamps);
                }
                found.drop_records();
                Log::resume(&found, buffers()).expect("an empty log can be resumed")
            }
        };
        let mut state = JournalState::new(log);
        let ours = state.log.add_volume("volume", VOLUME_BYTES, IDENTITY);
        let journal = MountedJournal {
            state,
            number: ours.expect("the journal has one volume"),
            is_writing: false,
            has_checkpoint: false,
            failed_at: 0,
            is_undrained: false,
        };
        let server = self.server(host);
        server.add(local, journal);
        server.machine.mount_mut(local).pieces = pieces;
        true
    }

    fn begin_restore(&mut self, host: usize, local: usize) {
        let serves_early = self.planted.is(SiteBug::ServeEarly);
        let mount = self.server(host).machine.mount_mut(local);
        let pieces = std::mem::take(&mut mount.pieces);
        mount.phase = MountPhase::Restoring { pieces, tries: 0 };
        if serves_early {
            self.serve(host, local);
        }
        self.settle(host);
    }

    fn continue_restore(&mut self, host: usize, local: usize) {
        let server = self.server(host);
        if server.machine.has_pending(local, RequestOrigin::Restore) {
            return;
        }
        let mount = server.machine.mount_mut(local);
        let (number, registration) = (mount.number, mount.registration);
        let journal = mount.journal.as_ref().expect("the journal is open");
        let has_failed = journal.state.unrecorded_failure().is_some();
        let MountPhase::Restoring { pieces, tries } = &mut mount.phase else { return };
        if has_failed || *tries == RESTORES_MAX {
            return self.fail_opening(host, local, true);
        }
        let Some(piece) = pieces.front().copied() else {
            return match self.is_still_owner(number, registration) {
                true => self.serve(host, local),
                false => self.fail_opening(host, local, true),
            };
        };
        *tries += 1;
        let store = &self.stores[usize::from(number)];
        if !store.permits(registration, JOURNAL, true, self.planted) {
            return self.fail_opening(host, local, true);
        }
        self.report.restored += 1;
        let (piece, stamps) = read_piece(piece, |position| store.log.word(position));
        let kind = request_of(&piece);
        let bytes = payload_of(stamps.iter().copied());
        let payload = match kind {
            RequestKind::Restore => Payload::Owned(Memory::payload(&bytes)),
            _ => Payload::None,
        };
        let request = Request { volume: VolumeId(local as u16), kind, range: piece.range };
        let submitted = self.moment;
        let pending =
            SiteRequest { origin: RequestOrigin::Restore, request, submitted, is_abandoned: false };
        self.server(host).submit(pending, payload);
        self.settle(host);
    }

    /// A server looks once more at its stores before it serves. Another one may have taken over
    /// either meanwhile, and what was restored may be the records of that.
    fn is_still_owner(&self, number: u16, registration: u32) -> bool {
        let holders = self.stores[usize::from(number)].holders;
        self.planted.is(SiteBug::SkipLook) || holders == [Some(registration); 2]
    }

    /// A piece is restored, or not.
    pub(super) fn end_restore(&mut self, host: usize, local: usize, result: IoResult) {
        let mount = self.server(host).machine.mount_mut(local);
        if let MountPhase::Restoring { pieces, tries } = &mut mount.phase
            && result.is_ok()
        {
            (*tries, _) = (0, pieces.pop_front());
        }
    }

    /// Everything is restored: clients are served from now on.
    fn serve(&mut self, host: usize, local: usize) {
        let mount = self.server(host).machine.mount_mut(local);
        let (number, registration) = (mount.number, mount.registration);
        let journal = mount.journal.as_mut().expect("the journal is open");
        journal.state.serve(journal.number);
        mount.phase = MountPhase::Serving;
        self.report.owners += 1;
        let at = usize::from(number);
        let (now, machine) = (self.moment, &self.server(host).machine);
        let volume = (VolumeId(local as u16), STRIPES);
        let sectors = FIRST..FIRST + SECTORS as u64;
        let in_pool: Vec<Option<u64>> =
            sectors.map(|sector| pooled_stamp(&machine.shards, volume, sector)).collect();
        let store = &mut self.stores[at];
        let content = std::array::from_fn(|place| in_pool[place].unwrap_or(store.disk[place]));
        // A server that was shut out meanwhile does not know it yet.
        if self.expected[at].shut_out_since(registration).is_some() {
            return;
        }
        store.serving = Some(registration);
        store.served.push(registration);
        self.log_event(|| format!("host {host}: serves volume {number}"));
        match self.expected[at].begin_service(&content, now) {
            Ok(vanished) => self.report.vanished_reads += vanished,
            Err(message) => self.violate(Some(number), || format!("host {host}: {message}")),
        }
    }

    /// Starts the next writes of the journals of a server. Returns whether there was one.
    pub(super) fn pump_journals(&mut self, host: usize) -> bool {
        let machine = &mut self.server(host).machine;
        let mut writes = Vec::new();
        for local in 0..machine.mounts.len() {
            let Some(mount) = &mut machine.mounts[local] else { continue };
            let Some(journal) = &mut mount.journal else { continue };
            let mut answers = Vec::new();
            journal.state.poll_answers(&mut answers);
            machine.answers.extend(answers);
            if journal.is_writing || journal.state.log.failed().is_some() {
                continue;
            }
            if let Some(write) = journal.state.log.poll_write() {
                journal.is_writing = true;
                writes.push((local, write));
            }
        }
        let has_any = !writes.is_empty();
        for (local, write) in writes {
            self.send(host, local, StoreWork::Log(write));
        }
        has_any
    }
}
