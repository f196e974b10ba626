//! Submission and completion of requests, with the checks of answers.
//!
//! A read is checked when it is answered and, if its pins are held for a slow client, again when
//! its bytes have been sent. A request may fail only because of a fault in its own range.

use super::device::FaultKind;
use super::disk::sectors_of;
use super::journal::Journal;
use super::order::image;
use super::power;
use super::queue::Event;
use super::world::World;
use crate::harness::Sabotage;
use crate::harness::memory::Memory;
use crate::harness::oracle::{Promise, stamp};
use crate::harness::shard::{ShardWorld, release_pins, reply_stamps};
use forebay_engine::Place;
use forebay_types::{ByteRange, IoError, IoResult, Mode, SECTOR_BYTES, VolumeId};
use forebay_volume::{Reply, ReplySegment, Request, RequestKind};

/// A request in flight.
pub(crate) struct Asked {
    pub client: u16,
    pub request: Request,
    pub submitted: u32,
    /// The version of its content.
    version: u32,
}

/// A read whose bytes are still being sent.
pub(crate) struct Held {
    pub asked: Asked,
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
        let is_read = |asked: &&Asked| asked.request.kind == RequestKind::Read;
        let asked = self.asked.iter().filter(is_read).map(|asked| asked.submitted);
        let held = self.held.iter().map(|held| held.asked.submitted);
        asked.chain(held).min().unwrap_or(self.moment)
    }

    /// The ranges that a request changes. A trim changes only whole blocks of each region.
    fn changed_by(&self, request: Request) -> Vec<ByteRange> {
        let RequestKind::Trim { .. } = request.kind else { return vec![request.range] };
        let block_sectors = self.plan.volumes[usize::from(request.volume.0)].block_sectors;
        let block_bytes = block_sectors * SECTOR_BYTES;
        let whole = |piece: ByteRange| {
            let start = piece.offset.next_multiple_of(block_bytes);
            let end = piece.end() / block_bytes * block_bytes;
            ByteRange::new(start, end.saturating_sub(start))
        };
        self.stripes_of(request.volume).split(request.range).map(whole).collect()
    }

    /// Records the submission of a request in the oracle. Returns its token and the version of its
    /// content.
    pub(crate) fn ask(&mut self, client: u16, request: Request) -> (u32, u32) {
        self.moment += 1;
        self.report.operations += 1;
        let (moment, oldest) = (self.moment, self.oldest_read());
        let volume = request.volume.0;
        let changed = self.changed_by(request);
        let sectors = changed.into_iter().flat_map(sectors_of);
        let oracle = &mut self.volumes[usize::from(volume)].oracle;
        let version = oracle.submit(request.kind, sectors, moment, oldest);
        self.remember(request, version);
        let asked = Asked { client, request, submitted: moment, version };
        let token = self.asked.insert(asked);
        let range = request.range;
        self.note(volume, range, || {
            format!("{moment}: client {client}: {:?} {range} version {version}", request.kind)
        });
        (token, version)
    }

    /// Records a change of an ordered volume in its history.
    fn remember(&mut self, request: Request, version: u32) {
        let (volume, moment) = (request.volume.0, self.moment);
        let changed = self.changed_by(request);
        let Some((_, history)) = &mut self.volumes[usize::from(volume)].order else { return };
        for sector in changed.into_iter().flat_map(sectors_of) {
            let (stamp, fua) = match request.kind {
                RequestKind::Write { fua } => (Some(stamp(volume, sector, version)), fua),
                RequestKind::Zero { fua, .. } => (Some(crate::harness::oracle::ZERO), fua),
                RequestKind::Trim { .. } => (None, false),
                _ => return,
            };
            history.submit(sector, stamp, fua, moment);
        }
    }

    /// Records a successful request of an ordered volume in its history.
    fn remember_answer(&mut self, asked: &Asked) {
        let moment = self.moment;
        let changed = self.changed_by(asked.request);
        let volume = &mut self.volumes[usize::from(asked.request.volume.0)];
        let Some((_, history)) = &mut volume.order else { return };
        match asked.request.kind {
            RequestKind::Flush => history.flush(asked.submitted, moment),
            RequestKind::Write { .. } | RequestKind::Zero { .. } | RequestKind::Trim { .. } => {
                let sectors = changed.into_iter().flat_map(sectors_of);
                sectors.for_each(|sector| history.end(sector, asked.submitted, moment));
            }
            _ => {}
        }
    }

    /// Checks what the disks of ordered volumes would hold without pool and journal.
    pub(crate) fn check_orders(&mut self) {
        for at in 0..self.volumes.len() {
            let volume = &self.volumes[at];
            let Some((_, history)) = &volume.order else { continue };
            let survive = self.dice_of_checks.pick(&[0, 300_000, 1_000_000]);
            let (stable, content) = (volume.disk.stable(), volume.disk.content());
            let disk = image(stable, content, survive, &mut self.dice_of_checks);
            self.report.order_checks += 1;
            if let Some((sector, message)) = history.missing(&disk) {
                self.violate(Some((at as u16, sector)), message);
            }
        }
    }

    /// A bypassed volume keeps only lines that are dirty or in use.
    pub(crate) fn check_emptied(&mut self) {
        for at in 0..self.volumes.len() {
            let id = VolumeId(at as u16);
            let is_left = |shard: &ShardWorld| {
                let shard = &shard.shard;
                shard.has_volume(id)
                    && shard.dirty_lines(id) == 0
                    && shard.operations(id) == 0
                    && shard.resident_lines(id) > 0
            };
            if self.volumes[at].is_emptied && self.shards.iter().any(is_left) {
                self.violate(None, format!("volume {at} is bypassed and keeps clean lines"));
            }
        }
    }

    /// Handles the answer to a request.
    pub(crate) fn take_reply(&mut self, token: u32, reply: Reply<'_, Memory>) {
        let Some(asked) = self.asked.remove(token) else {
            self.violate(None, "a request was answered twice".into());
            return;
        };
        self.moment += 1;
        self.barren = 0;
        self.answered_us = self.now_us;
        let (volume, range) = (asked.request.volume.0, asked.request.range);
        let result = self.unless_halted(asked.request.volume, asked.request.kind, reply.result);
        let (moment, reply) = (self.moment, Reply { result, ..reply });
        self.note(volume, range, || {
            let (kind, version) = (asked.request.kind, asked.version);
            format!("{moment}: {kind:?} {range} version {version} is answered: {result:?}")
        });
        if result == Err(IoError::Shutdown) && self.power.halted {
            self.report.halted += 1;
        } else if result.is_err() {
            self.report.errors += 1;
            self.check_error(&asked, &reply);
        }
        if result.is_ok() {
            self.remember_answer(&asked);
        }
        let think = self.dice.range(0, self.plan.think_us_max);
        self.queue.push(self.now_us + think, Event::Client(asked.client));
        let brings_back = matches!(
            asked.request.kind,
            RequestKind::Restore
                | RequestKind::RestoreZero { .. }
                | RequestKind::Record
                | RequestKind::Destage
        );
        if brings_back && asked.client == super::driver::KEEPER {
            self.restored = Some(result);
        }
        match asked.request.kind {
            RequestKind::Read if result.is_ok() => self.take_bytes(asked, reply),
            RequestKind::Flush if result.is_ok() => self.end_flush_request(&asked),
            RequestKind::Destage => {
                if result.is_ok() {
                    self.volumes[usize::from(volume)].oracle.flush(asked.submitted);
                }
            }
            RequestKind::Checkpoint => {
                self.destaged(asked.request.volume, asked.submitted, result);
                self.drained(&asked, result);
            }
            RequestKind::Restore | RequestKind::RestoreZero { .. } | RequestKind::Record => {}
            RequestKind::Sync => {
                self.stuck_flushed(asked.request.volume, result);
                self.drained(&asked, result);
            }
            RequestKind::Read | RequestKind::Flush | RequestKind::Prefetch => {}
            _ => self.end_change(&asked, result),
        }
    }

    /// Handles the answer to a write or erase: its guarantee applies from now on.
    fn end_change(&mut self, asked: &Asked, result: IoResult) {
        let changed = self.changed_by(asked.request);
        for range in changed.iter().filter(|range| result.is_ok() && range.len > 0) {
            self.found_again(asked.request.volume, *range, asked.submitted);
        }
        let volume = &mut self.volumes[usize::from(asked.request.volume.0)];
        let through = volume.mode != Mode::WriteBack && volume.write_back_until < asked.submitted;
        let journaled = self.journal.as_ref().filter(|_| volume.journal);
        let ack = journaled.is_some_and(Journal::keeps_each_write);
        let promise = match asked.request.kind {
            _ if self.plan.volumes[usize::from(asked.request.volume.0)].ups => {
                power::promise(&self.power, &self.plan, asked, volume)
            }
            RequestKind::Write { fua: false } if through && !ack => Promise::OnDisk,
            kind => Promise::of(kind, journaled.is_some(), ack),
        };
        let promise = result.is_ok().then_some(promise);
        let sectors = changed.into_iter().flat_map(sectors_of);
        volume.oracle.end(sectors, asked.submitted, self.moment, promise);
    }

    /// Ends a request that will not be answered.
    pub(crate) fn end_unanswered(&mut self, asked: &Asked) {
        let Request { volume, kind, .. } = asked.request;
        let changed = self.changed_by(asked.request);
        let changes = matches!(
            kind,
            RequestKind::Write { .. } | RequestKind::Trim { .. } | RequestKind::Zero { .. }
        );
        let sectors = changed.into_iter().flat_map(sectors_of).filter(|_| changes);
        let oracle = &mut self.volumes[usize::from(volume.0)].oracle;
        oracle.end(sectors, asked.submitted, self.moment, None);
    }

    /// Checks that a failed request met a fault.
    fn check_error(&mut self, asked: &Asked, reply: &Reply<'_, Memory>) {
        let Request { volume, kind, range } = asked.request;
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
                let flushes = fua || self.has_ups(volume);
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
            RequestKind::Order => unreachable!("nobody is told of a run"),
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
                fault.moment >= asked.submitted
                    && fault.volume == volume.0
                    && is_reason(fault.kind, fault.range)
            });
        let place = Some((volume.0, range.offset / SECTOR_BYTES));
        if !met {
            let message = format!("{kind:?} {range} failed and met no fault: {:?}", reply.result);
            self.violate(place, message);
        }
        if !reply.segments.is_empty() {
            self.violate(place, format!("{kind:?} {range} failed and has bytes in its answer"));
        }
        if self.device.faults.len() > 4096 {
            let oldest = self.asked.iter().map(|asked| asked.submitted).min();
            let oldest = oldest.unwrap_or(self.moment);
            self.device.faults.retain(|fault| fault.moment >= oldest);
        }
    }

    /// Checks the bytes of a read, and releases its pins now or later.
    fn take_bytes(&mut self, asked: Asked, reply: Reply<'_, Memory>) {
        let mut held = Held {
            asked,
            segments: reply.segments.to_vec(),
            memory: reply.memory,
            stamps: Vec::new(),
            released: self.strikes(Sabotage::ReleaseEarly),
        };
        held.stamps = self.stamps_of(&held);
        self.check_bytes(&held);
        let in_pool = held.segments.iter().any(|s| matches!(s.segment.place, Place::Slot { .. }));
        if in_pool && self.strikes(Sabotage::LeakPin) {
            return;
        }
        if in_pool && self.dice.chance(self.plan.slow_reply) {
            let time = self.now_us + self.dice.range(0, self.plan.slow_reply_us_max);
            if held.released {
                self.release_pins(&held);
            }
            let at = self.held.insert(held);
            self.queue.push(time, Event::Release(at));
        } else {
            self.release_pins(&held);
        }
    }

    /// Handles a reply whose bytes have been sent.
    pub(crate) fn end_reply(&mut self, at: u32) {
        let held = self.held.remove(at).expect("a reply is sent once");
        if self.stamps_of(&held) != held.stamps {
            let Request { volume, range, .. } = held.asked.request;
            let place = Some((volume.0, range.offset / SECTOR_BYTES));
            self.violate(place, format!("the bytes of an answer changed under its pins: {range}"));
        }
        if !held.released {
            self.release_pins(&held);
        }
    }

    fn release_pins(&mut self, held: &Held) {
        release_pins(&held.segments, |at, slot| self.shards[at].shard.release(slot));
    }

    fn stamps_of(&self, held: &Held) -> Vec<u64> {
        reply_stamps(&self.shards, &held.segments, held.memory.as_ref())
    }

    fn check_bytes(&mut self, held: &Held) {
        let Request { volume, range, .. } = held.asked.request;
        let stamps = &held.stamps;
        if stamps.len() as u64 * SECTOR_BYTES != range.len {
            let place = Some((volume.0, range.offset / SECTOR_BYTES));
            let message = format!("the answer to a read of {range} has {} sectors", stamps.len());
            self.violate(place, message);
            return;
        }
        let oracle = &mut self.volumes[usize::from(volume.0)].oracle;
        let contents = sectors_of(range).zip(stamps.iter().copied());
        let submitted = held.asked.submitted;
        let wrong = oracle.first_wrong(contents, |it, at, found| it.read(at, found, submitted));
        if let Some((sector, text)) = wrong {
            let message =
                format!("a read submitted at {submitted}: sector {sector} of {volume} {text}");
            self.violate(Some((volume.0, sector)), message);
        }
    }
}
