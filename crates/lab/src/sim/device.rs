//! I/Os from the shards to the disks; `transfer.rs` executes them.
//!
//! Checked for each I/O: it lies inside its volume; its memory covers it exactly; no other I/O in
//! flight changes the same sectors; a client wrote its data to that very sector; its memory does
//! not change while it is in flight.

use super::disk::sectors_of;
use super::run::Event;
use super::transfer::Transfer;
use super::world::World;
use crate::harness::io::Io;
use crate::harness::slab::Slab;
use crate::harness::{Sabotage, WHOLE};
use forebay_engine::{IoId, IoVerb, Place, Segment, Slot};
use forebay_types::{ByteRange, IoError, IoResult, SECTOR_BYTES, VolumeId};
use forebay_volume::{JobId, merge};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FaultKind {
    Read,
    Write,
    Erase,
    Flush,
    /// Sectors were lost in the pool until then.
    Lost,
    /// A full journal could not record that the disk has a change.
    NoRoom,
}

/// A fault; a request may fail only because of one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fault {
    pub moment: u32,
    pub volume: u16,
    pub kind: FaultKind,
    pub range: ByteRange,
}

pub(crate) struct FlushJob {
    pub worker: u8,
    pub volume: u16,
    pub job: JobId,
    early: bool,
    result: IoResult,
}

#[derive(Default)]
pub(crate) struct Device {
    pub transfers: Slab<Transfer>,
    /// I/Os of the current call, not yet sent.
    started: Vec<Io>,
    pub faults: Vec<Fault>,
    /// Faults of operations that have other I/Os in flight; they count again when the last of these
    /// ends.
    latched: Vec<(usize, IoId, Fault)>,
}

pub(crate) const fn fault_kind(verb: IoVerb) -> FaultKind {
    match verb {
        IoVerb::Read => FaultKind::Read,
        IoVerb::Write { .. } => FaultKind::Write,
        IoVerb::Discard | IoVerb::Zero { .. } => FaultKind::Erase,
    }
}

fn slots_of(io: &Io) -> Vec<Slot> {
    let slot = |segment: &Segment| match segment.place {
        Place::Slot { slot, .. } => Some(slot),
        _ => None,
    };
    let mut slots: Vec<Slot> = io.action.segments.iter().filter_map(slot).collect();
    slots.dedup();
    slots
}

fn places_of(io: &Io) -> String {
    let place = |segment: &Segment| match segment.place {
        Place::Slot { slot, .. } => format!("slot {slot}"),
        Place::Private { .. } => "private".into(),
        Place::Discard => "nowhere".into(),
    };
    let mut places: Vec<String> = io.action.segments.iter().map(place).collect();
    places.dedup();
    if places.len() > 12 {
        places.truncate(11);
        places.push("...".into());
    }
    places.join(", ")
}

impl Device {
    pub(crate) fn is_idle(&self) -> bool {
        self.transfers.len() == 0 && self.started.is_empty()
    }

    pub(crate) fn ios(&self) -> impl Iterator<Item = &Io> {
        self.transfers.iter().flat_map(|transfer| &transfer.ios)
    }

    /// Records the end of an I/O: its own fault, and at the last I/O of an operation the earlier
    /// faults of that operation.
    pub(crate) fn record(&mut self, io: &Io, result: IoResult, moment: u32) {
        let (shard, id) = (io.shard, io.action.id);
        if result.is_err() {
            let (volume, range) = (io.action.volume.0, io.action.range);
            let fault = Fault { moment, volume, kind: fault_kind(io.action.verb), range };
            self.faults.push(fault);
            self.latched.push((shard, id, fault));
        }
        if self.latched.is_empty() {
            return;
        }
        let last = !self.ios().any(|io| io.shard == shard && io.action.id == id);
        if last {
            let faults = &mut self.faults;
            self.latched.retain(|&(its_shard, its_id, fault)| {
                let ours = its_shard == shard && its_id == id;
                if ours {
                    faults.push(Fault { moment, ..fault });
                }
                !ours
            });
        }
    }
}

impl World {
    /// Accepts an I/O of a shard. It is sent together with the others of the same call.
    pub(crate) fn take_io(&mut self, mut io: Io) {
        let (volume, range) = (io.action.volume.0, io.action.range);
        let size = self.volumes[usize::from(volume)].sectors * SECTOR_BYTES;
        if !io.is_valid(size) {
            let action = &io.action;
            self.run.violate(None, format!("an I/O exceeds its volume or memory: {action:?}"));
            return;
        }
        if io.is_write() {
            if !self.verify_destage(io.shard, &slots_of(&io), &io.action.seals) {
                // Its data is lost.
                io.result = Err(IoError::Io);
            }
            io.stamps = io.current_stamps(&self.shards);
            let oracle = &self.volumes[usize::from(volume)].oracle;
            if io.result.is_ok()
                && let Some((sector, found)) = io.first_foreign(sectors_of(range).start, oracle)
            {
                let message = "no client wrote what goes to the disk:";
                self.run.violate(Some((volume, sector)), format!("{message} {found}"));
            }
        }
        self.run.log_event(volume, range, || {
            format!("shard {}: {:?} {range} {}", io.shard, io.action.verb, places_of(&io))
        });
        self.run.report.ios += 1;
        self.device.started.push(io);
    }

    /// Sends the I/Os that the last call has started.
    pub(crate) fn send_ios(&mut self) {
        self.pump_journal();
        self.turn += 1;
        if self.device.started.is_empty() {
            return;
        }
        let mut started = std::mem::take(&mut self.device.started);
        let mut runs: Vec<usize> = Vec::new();
        if self.run.plan.merge {
            merge(&mut started, |run| runs.push(run.len()));
        } else {
            runs.resize(started.len(), 1);
        }
        let mut ios = started.into_iter();
        for count in runs {
            self.send_transfer(ios.by_ref().take(count).collect());
        }
    }

    pub(crate) fn draw_latency(&mut self) -> u64 {
        let plan = &self.run.plan.device;
        if !self.run.healed && self.run.dice.chance(plan.stall) {
            return self.run.dice.range(1_000_000, 100_000_000);
        }
        self.run.dice.range(plan.latency_us_min, plan.latency_us_max)
    }

    pub(crate) fn fill_memory(&mut self, io: &Io) {
        let misplaced = io.has_base() && self.run.strikes(Sabotage::WrongBase);
        if !io.fill_memory(&mut self.shards, misplaced) {
            self.run.violate(None, format!("a read exceeds its memory: {:?}", io.action));
        }
    }

    pub(crate) fn start_flush(&mut self, volume: VolumeId, job: JobId) {
        let early = self.run.dice.chance(500_000);
        let failed = !self.run.healed && self.run.dice.chance(self.run.plan.device.flush_error);
        let result = if failed { Err(IoError::Io) } else { Ok(()) };
        let lost = self.run.strikes(Sabotage::FlushEarly);
        let flush = FlushJob { worker: self.worker, volume: volume.0, job, early, result };
        if early && !lost {
            self.execute_flush(&flush);
        }
        let early = early || lost;
        let at = self.flushes.insert(FlushJob { early, ..flush });
        let latency_us = self.draw_latency();
        self.run.schedule(latency_us, Event::Flushed(at));
    }

    fn execute_flush(&mut self, flush: &FlushJob) {
        // A failed flush may have done its work or not.
        if flush.result.is_ok() || self.run.dice.chance(500_000) {
            self.volumes[usize::from(flush.volume)].disk.flush();
        }
    }

    pub(crate) fn end_flush(&mut self, at: u32) -> (u8, JobId, IoResult) {
        let flush = self.flushes.remove(at).expect("a flush ends once");
        if !flush.early {
            self.execute_flush(&flush);
        }
        let range = WHOLE;
        if flush.result.is_err() {
            let (moment, volume, kind) = (self.run.moment(), flush.volume, FaultKind::Flush);
            self.device.faults.push(Fault { moment, volume, kind, range });
        }
        self.run
            .log_event(flush.volume, range, || format!("the disk has flushed: {:?}", flush.result));
        (flush.worker, flush.job, flush.result)
    }

    /// Aborts all I/Os because the process dies: each transfer is done wholly, partly or not at
    /// all.
    pub(crate) fn abort_ios(&mut self) {
        self.abort_transfers();
        self.device.started.clear();
        self.device.latched.clear();
        self.flushes.drain().for_each(drop);
    }
}
