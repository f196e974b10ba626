//! Submission and completion of requests, with the checks of answers.
//!
//! A read is checked when it is answered and, if its pins are held for a slow client, again when
//! its bytes have been sent. A request may fail only because of a fault in its own range.

use super::device::FaultKind;
use super::disk::sectors_of;
use super::driver::KEEPER;
use super::order::crash_image;
use super::power;
use super::run::Event;
use super::world::World;
use crate::harness::Sabotage;
use crate::harness::memory::Memory;
use crate::harness::oracle::{Promise, ZERO, is_change, stamp};
use crate::harness::shard::{PooledShard, release_pins, reply_stamps};
use forebay_engine::Place;
use forebay_types::{ByteRange, IoError, IoResult, Mode, SECTOR_BYTES, VolumeId};
use forebay_volume::{Reply, ReplySegment, Request, RequestKind};

pub(crate) struct PendingRequest {
    pub client: u16,
    pub request: Request,
    pub submitted: u32,
    /// The version of its content.
    version: u32,
}

/// A read whose bytes are still being sent.
pub(crate) struct HeldReply {
    pub pending: PendingRequest,
    segments: Vec<ReplySegment>,
    memory: Option<Memory>,
    /// The answered content.
    stamps: Vec<u64>,
    /// Whether a planted bug has already released the pins.
    released: bool,
}

impl World {
    /// The submission of the oldest read in flight.
    fn oldest_read(&self) -> u32 {
        let is_read = |pending: &&PendingRequest| pending.request.kind == RequestKind::Read;
        let pending = self.requests.iter().filter(is_read).map(|pending| pending.submitted);
        let held = self.held.iter().map(|held| held.pending.submitted);
        pending.chain(held).min().unwrap_or(self.run.moment())
    }

    pub(super) fn has_keeper_request(&self, volume: VolumeId) -> bool {
        self.requests.iter().any(|it| it.client == KEEPER && it.request.volume == volume)
    }

    /// Records the submission of a request in the oracle. Returns its token and the version of its
    /// content.
    pub(crate) fn register(&mut self, client: u16, request: Request) -> (u32, u32) {
        self.run.next_moment();
        self.run.report.operations += 1;
        let (moment, oldest) = (self.run.moment(), self.oldest_read());
        let volume = request.volume.0;
        let changed = self.run.plan.changed_by(request);
        let sectors = changed.into_iter().flat_map(sectors_of);
        let oracle = &mut self.volumes[usize::from(volume)].oracle;
        let version = oracle.submit(request.kind, sectors, moment, oldest);
        self.record_history(request, version);
        let pending = PendingRequest { client, request, submitted: moment, version };
        let token = self.requests.insert(pending);
        let range = request.range;
        self.run.log_event(volume, range, || {
            format!("{moment}: client {client}: {:?} {range} version {version}", request.kind)
        });
        (token, version)
    }

    /// Records a change of an ordered volume in its history.
    fn record_history(&mut self, request: Request, version: u32) {
        let (volume, moment) = (request.volume.0, self.run.moment());
        let changed = self.run.plan.changed_by(request);
        let Some((_, history)) = &mut self.volumes[usize::from(volume)].order else { return };
        for sector in changed.into_iter().flat_map(sectors_of) {
            let (stamp, fua) = match request.kind {
                RequestKind::Write { fua } => (Some(stamp(volume, sector, version)), fua),
                RequestKind::Zero { fua, .. } => (Some(ZERO), fua),
                RequestKind::Trim { .. } => (None, false),
                _ => return,
            };
            history.submit(sector, stamp, fua, moment);
        }
    }

    fn record_history_answer(&mut self, pending: &PendingRequest) {
        let moment = self.run.moment();
        let changed = self.run.plan.changed_by(pending.request);
        let volume = &mut self.volumes[usize::from(pending.request.volume.0)];
        let Some((_, history)) = &mut volume.order else { return };
        match pending.request.kind {
            RequestKind::Flush => history.flush(pending.submitted, moment),
            RequestKind::Write { .. } | RequestKind::Zero { .. } | RequestKind::Trim { .. } => {
                let sectors = changed.into_iter().flat_map(sectors_of);
                sectors.for_each(|sector| history.end(sector, pending.submitted, moment));
            }
            _ => {}
        }
    }

    /// Checks what the disks of ordered volumes would hold without pool and journal.
    pub(crate) fn check_write_order(&mut self) {
        for at in 0..self.volumes.len() {
            let volume = &self.volumes[at];
            let Some((_, history)) = &volume.order else { continue };
            let survive = self.check_dice.pick(&[0, 300_000, 1_000_000]);
            let (stable, content) = (volume.disk.stable(), volume.disk.content());
            let disk = crash_image(stable, content, survive, &mut self.check_dice);
            self.run.report.order_checks += 1;
            if let Some((sector, message)) = history.first_violation(&disk) {
                self.run.violate(Some((at as u16, sector)), message);
            }
        }
    }

    /// A bypassed volume keeps only lines that are dirty or in use.
    pub(crate) fn check_bypassed(&mut self) {
        for at in 0..self.volumes.len() {
            let id = VolumeId(at as u16);
            let is_left = |shard: &PooledShard| {
                let shard = &shard.shard;
                shard.has_volume(id)
                    && shard.volume(id).dirty_lines() == 0
                    && shard.volume(id).operations() == 0
                    && shard.slots().resident_lines(id) > 0
            };
            if self.volumes[at].is_emptied && self.shards.iter().any(is_left) {
                self.run.violate(None, format!("volume {at} is bypassed and keeps clean lines"));
            }
        }
    }

    pub(crate) fn take_reply(&mut self, token: u32, reply: Reply<'_, Memory>) {
        let Some(pending) = self.requests.remove(token) else {
            self.run.violate(None, "a request was answered twice".into());
            return;
        };
        self.run.next_moment();
        self.events_since_answer = 0;
        self.answered_us = self.run.now_us();
        let (volume, range) = (pending.request.volume.0, pending.request.range);
        let result = self.unless_halted(pending.request.volume, pending.request.kind, reply.result);
        let (moment, reply) = (self.run.moment(), Reply { result, ..reply });
        self.run.log_event(volume, range, || {
            let (kind, version) = (pending.request.kind, pending.version);
            format!("{moment}: {kind:?} {range} version {version} answered: {result:?}")
        });
        if result == Err(IoError::Shutdown) && self.power.halted {
            self.run.report.halted += 1;
        } else if result.is_err() {
            self.run.report.errors += 1;
            self.check_error(&pending, &reply);
        }
        if result.is_ok() {
            self.record_history_answer(&pending);
        }
        let think = self.run.dice.range(0, self.run.plan.think_us_max);
        self.run.schedule(think, Event::Client(pending.client));
        let is_restore = matches!(
            pending.request.kind,
            RequestKind::Restore
                | RequestKind::RestoreZero { .. }
                | RequestKind::Record
                | RequestKind::Destage
        );
        if is_restore && pending.client == KEEPER {
            self.restored = Some(result);
        }
        match pending.request.kind {
            RequestKind::Read if result.is_ok() => self.take_bytes(pending, reply),
            RequestKind::Flush if result.is_ok() => self.end_flush_request(&pending),
            RequestKind::Destage => {
                if result.is_ok() {
                    self.volumes[usize::from(volume)].oracle.flush(pending.submitted);
                }
            }
            RequestKind::Checkpoint => {
                self.destaged(pending.request.volume, pending.submitted, result);
                self.drain_ended(&pending, result);
            }
            RequestKind::Restore | RequestKind::RestoreZero { .. } | RequestKind::Record => {}
            RequestKind::Sync => {
                self.stuck_flushed(pending.request.volume, result);
                self.drain_ended(&pending, result);
            }
            RequestKind::Read | RequestKind::Flush | RequestKind::Prefetch => {}
            _ => self.end_change(&pending, result),
        }
    }

    /// Handles the answer to a write or erase: its guarantee applies from now on.
    fn end_change(&mut self, pending: &PendingRequest, result: IoResult) {
        let changed = self.run.plan.changed_by(pending.request);
        for range in changed.iter().filter(|range| result.is_ok() && range.len > 0) {
            self.end_loss(pending.request.volume, *range, pending.submitted);
        }
        let volume = &mut self.volumes[usize::from(pending.request.volume.0)];
        let through = volume.mode != Mode::WriteBack && volume.write_back_until < pending.submitted;
        let ack = volume.journal && self.journal.keeps_each_write();
        let promise = match pending.request.kind {
            _ if self.run.plan.volume(pending.request.volume).ups => {
                power::promise(&self.power, &self.run.plan, pending, volume)
            }
            RequestKind::Write { fua: false } if through && !ack => Promise::OnDisk,
            kind => Promise::of(kind, volume.journal, ack),
        };
        let promise = result.is_ok().then_some(promise);
        let sectors = changed.into_iter().flat_map(sectors_of);
        volume.oracle.end(sectors, pending.submitted, self.run.moment(), promise);
    }

    /// Ends a request that will not be answered.
    pub(crate) fn abandon(&mut self, pending: &PendingRequest) {
        let Request { volume, kind, .. } = pending.request;
        let changed = self.run.plan.changed_by(pending.request);
        let sectors = changed.into_iter().flat_map(sectors_of).filter(|_| is_change(kind));
        let oracle = &mut self.volumes[usize::from(volume.0)].oracle;
        oracle.end(sectors, pending.submitted, self.run.moment(), None);
    }

    fn check_error(&mut self, pending: &PendingRequest, reply: &Reply<'_, Memory>) {
        let Request { volume, kind, range } = pending.request;
        // A destage also writes other dirty data of the region.
        let stripes = self.stripes_of(volume);
        let first = stripes.region_at(range.offset).offset;
        let end = stripes.region_at(range.end().max(1) - 1).end();
        let around = ByteRange::new(first, end - first);
        let journaled = self.volumes[usize::from(volume.0)].journal;
        let ordered = self.volumes[usize::from(volume.0)].order.is_some();
        let is_reason = |fault: FaultKind, at: ByteRange| match kind {
            // The disk has the change, but the journal could not record it, so only the change's
            // own request fails.
            _ if fault == FaultKind::NoRoom => kind != RequestKind::Read && at.overlaps(range),
            RequestKind::Read => {
                let ours = at.offset >= range.offset && at.end() <= range.end();
                matches!(fault, FaultKind::Read | FaultKind::Lost) && ours
            }
            // Data that a journal fails to keep is destaged and flushed.
            _ if journaled && matches!(fault, FaultKind::Flush | FaultKind::Write) => true,
            // In an ordered volume, a destage fails together with the destages before it.
            _ if ordered
                && matches!(fault, FaultKind::Flush | FaultKind::Write | FaultKind::Lost) =>
            {
                true
            }
            RequestKind::Write { .. } => fault == FaultKind::Write && at.overlaps(around),
            // Zeroes are flushed while the UPS is not safe.
            RequestKind::Trim { fua } | RequestKind::Zero { fua, .. } => {
                let flushes = fua || self.run.plan.volume(volume).ups;
                fault == FaultKind::Erase && at.overlaps(range)
                    || flushes && fault == FaultKind::Flush
            }
            RequestKind::Sync => fault == FaultKind::Flush,
            RequestKind::Flush | RequestKind::Destage | RequestKind::Checkpoint => {
                matches!(fault, FaultKind::Write | FaultKind::Flush | FaultKind::Lost)
            }
            RequestKind::Restore | RequestKind::Record => fault == FaultKind::Write,
            RequestKind::RestoreZero { .. } => fault == FaultKind::Erase,
            RequestKind::Prefetch => false,
            RequestKind::Order => unreachable!("a run has no answer"),
        };
        let mut faults = self.device.faults.iter().rev();
        let lost = match kind {
            RequestKind::Read => self.is_lost(volume, Some(range)),
            RequestKind::Flush | RequestKind::Destage | RequestKind::Checkpoint => {
                self.is_lost(volume, None)
            }
            // Data that a journal fails to keep is flushed to the disk.
            _ => (journaled || ordered) && self.is_lost(volume, None),
        };
        let met = lost
            || faults.any(|fault| {
                fault.moment >= pending.submitted
                    && fault.volume == volume.0
                    && is_reason(fault.kind, fault.range)
            });
        let place = Some((volume.0, range.offset / SECTOR_BYTES));
        if !met {
            let message = format!("{kind:?} {range} failed without a fault: {:?}", reply.result);
            self.run.violate(place, message);
        }
        if !reply.segments.is_empty() {
            self.run.violate(place, format!("{kind:?} {range} failed, but its answer has bytes"));
        }
        if self.device.faults.len() > 4096 {
            let oldest = self.requests.iter().map(|pending| pending.submitted).min();
            let oldest = oldest.unwrap_or(self.run.moment());
            self.device.faults.retain(|fault| fault.moment >= oldest);
        }
    }

    /// Checks the bytes of a read, and releases its pins now or later.
    fn take_bytes(&mut self, pending: PendingRequest, reply: Reply<'_, Memory>) {
        let mut held = HeldReply {
            pending,
            segments: reply.segments.to_vec(),
            memory: reply.memory,
            stamps: Vec::new(),
            released: self.run.strikes(Sabotage::ReleaseEarly),
        };
        held.stamps = self.stamps_of(&held);
        self.check_bytes(&held);
        let in_pool = held.segments.iter().any(|s| matches!(s.segment.place, Place::Slot { .. }));
        if in_pool && self.run.strikes(Sabotage::LeakPin) {
            return;
        }
        if in_pool && self.run.dice.chance(self.run.plan.slow_reply) {
            let delay_us = self.run.dice.range(0, self.run.plan.slow_reply_us_max);
            if held.released {
                self.release_pins(&held);
            }
            let at = self.held.insert(held);
            self.run.schedule(delay_us, Event::Release(at));
        } else {
            self.release_pins(&held);
        }
    }

    pub(crate) fn end_reply(&mut self, at: u32) {
        let held = self.held.remove(at).expect("a reply is sent once");
        if self.stamps_of(&held) != held.stamps {
            let Request { volume, range, .. } = held.pending.request;
            let place = Some((volume.0, range.offset / SECTOR_BYTES));
            self.run
                .violate(place, format!("the bytes of an answer changed under its pins: {range}"));
        }
        if !held.released {
            self.release_pins(&held);
        }
    }

    fn release_pins(&mut self, held: &HeldReply) {
        release_pins(&held.segments, |at, slot| self.shards[at].shard.release(slot));
    }

    fn stamps_of(&self, held: &HeldReply) -> Vec<u64> {
        reply_stamps(&self.shards, &held.segments, held.memory.as_ref())
    }

    fn check_bytes(&mut self, held: &HeldReply) {
        let Request { volume, range, .. } = held.pending.request;
        let stamps = &held.stamps;
        if stamps.len() as u64 * SECTOR_BYTES != range.len {
            let place = Some((volume.0, range.offset / SECTOR_BYTES));
            let message = format!("the answer to a read of {range} has {} sectors", stamps.len());
            self.run.violate(place, message);
            return;
        }
        let oracle = &mut self.volumes[usize::from(volume.0)].oracle;
        let contents = sectors_of(range).zip(stamps.iter().copied());
        let submitted = held.pending.submitted;
        let wrong =
            oracle.first_mismatch(contents, |it, at, found| it.check_read(at, found, submitted));
        if let Some((sector, text)) = wrong {
            let message =
                format!("a read submitted at {submitted}: sector {sector} of {volume} {text}");
            self.run.violate(Some((volume.0, sector)), message);
        }
    }
}
