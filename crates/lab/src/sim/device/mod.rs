//! The disks, with the I/Os and flushes in flight.
//!
//! The I/Os of one call are sent together. A read or write is executed by `transfer.rs`.

pub(crate) mod disk;
mod transfer;

use super::faults::{FaultKind, Faults};
use super::plan::{Plan, VolumePlan};
use super::run::{Event, Run};
use crate::harness::dice::Dice;
use crate::harness::io::Io;
use crate::harness::slab::Slab;
use crate::harness::{Sabotage, WHOLE};
use disk::Disk;
use forebay_engine::{Place, Segment};
use forebay_types::{IoError, IoResult, VolumeId};
use forebay_volume::{BlockOwners, JobId, merge};
use transfer::Transfer;

/// A flush of a disk in flight.
struct FlushJob {
    worker: u8,
    volume: VolumeId,
    job: JobId,
    early: bool,
    result: IoResult,
}

/// The disk of each volume, and what is in flight to it.
pub(crate) struct Device {
    disks: Vec<Disk>,
    /// For each disk, the transfers that own its blocks.
    owners: Vec<BlockOwners<u32>>,
    transfers: Slab<Transfer>,
    /// I/Os of the current call, not yet sent.
    started: Vec<Io>,
    flushes: Slab<FlushJob>,
    /// The turn: I/Os started in the same turn are coalesced.
    turn: u64,
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

/// The disk of a volume, some of whose sectors are bad.
fn draw_disk(plan: &Plan, (at, volume): (usize, &VolumePlan), dice: &mut Dice) -> Disk {
    let behind = plan.device.write_behind;
    let mut disk = Disk::new(at as u16, volume.sectors, volume.block_sectors, behind);
    for _ in 0..plan.device.bad_sectors {
        let sector = dice.below(volume.sectors);
        let kind = dice.below(3);
        disk.damage(sector, kind != 0, kind != 1);
    }
    disk
}

impl Device {
    pub(crate) fn new(plan: &Plan, dice: &mut Dice) -> Self {
        let volumes = plan.volumes.iter();
        Self {
            disks: volumes.enumerate().map(|volume| draw_disk(plan, volume, dice)).collect(),
            owners: plan.volumes.iter().map(|_| BlockOwners::default()).collect(),
            transfers: Slab::default(),
            started: Vec::new(),
            flushes: Slab::default(),
            turn: 1,
        }
    }

    pub(crate) fn disk(&self, volume: VolumeId) -> &Disk {
        &self.disks[usize::from(volume.0)]
    }

    pub(crate) fn disk_mut(&mut self, volume: VolumeId) -> &mut Disk {
        &mut self.disks[usize::from(volume.0)]
    }

    /// The content of all disks.
    pub(crate) fn contents(&self) -> Vec<Vec<u64>> {
        self.disks.iter().map(|disk| disk.content().to_vec()).collect()
    }

    /// Repairs all bad sectors.
    pub(crate) fn heal(&mut self) {
        self.disks.iter_mut().for_each(Disk::heal);
    }

    pub(crate) const fn batch(&self) -> u64 {
        self.turn
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.transfers.len() == 0 && self.started.is_empty() && self.flushes.len() == 0
    }

    fn ios(&self) -> impl Iterator<Item = &Io> {
        self.transfers.iter().flat_map(|transfer| &transfer.ios)
    }

    /// Accepts an I/O of a shard. It is sent together with the others of the same call.
    pub(crate) fn start_io(&mut self, run: &mut Run, io: Io) {
        let (volume, range) = (io.action.volume.0, io.action.range);
        run.log_event(volume, range, || {
            format!("shard {}: {:?} {range} {}", io.shard, io.action.verb, places_of(&io))
        });
        run.report.ios += 1;
        self.started.push(io);
    }

    /// Sends the I/Os that the last call has started.
    pub(crate) fn send_ios(&mut self, run: &mut Run) {
        self.turn += 1;
        if self.started.is_empty() {
            return;
        }
        let mut started = std::mem::take(&mut self.started);
        let mut runs: Vec<usize> = Vec::new();
        if run.plan.merge {
            merge(&mut started, |run| runs.push(run.len()));
        } else {
            runs.resize(started.len(), 1);
        }
        let mut ios = started.into_iter();
        for count in runs {
            self.send_transfer(run, ios.by_ref().take(count).collect());
        }
    }

    /// Starts the flush of a disk for a dispatcher's job.
    pub(crate) fn start_flush(&mut self, run: &mut Run, worker: u8, volume: VolumeId, job: JobId) {
        let early = run.dice.chance(500_000);
        let failed = !run.healed && run.dice.chance(run.plan.device.flush_error);
        let result = if failed { Err(IoError::Io) } else { Ok(()) };
        let lost = run.strikes(Sabotage::FlushEarly);
        let flush = FlushJob { worker, volume, job, early: early || lost, result };
        if early && !lost {
            self.execute_flush(run, &flush);
        }
        let at = self.flushes.insert(flush);
        let latency_us = draw_latency(run);
        run.schedule(latency_us, Event::Flushed(at));
    }

    fn execute_flush(&mut self, run: &mut Run, flush: &FlushJob) {
        // A failed flush may have done its work or not.
        if flush.result.is_ok() || run.dice.chance(500_000) {
            self.disk_mut(flush.volume).flush();
        }
    }

    /// Ends a flush. Returns the worker that waits for it, its job and the result.
    pub(crate) fn end_flush(
        &mut self,
        run: &mut Run,
        faults: &mut Faults,
        at: u32,
    ) -> (u8, JobId, IoResult) {
        let flush = self.flushes.remove(at).expect("a flush ends once");
        if !flush.early {
            self.execute_flush(run, &flush);
        }
        if flush.result.is_err() {
            faults.add(run.moment(), flush.volume, FaultKind::Flush, WHOLE);
        }
        let text = || format!("the disk has flushed: {:?}", flush.result);
        run.log_event(flush.volume.0, WHOLE, text);
        (flush.worker, flush.job, flush.result)
    }

    /// Aborts all I/Os because the process dies: each transfer is done wholly, partly or not at
    /// all.
    pub(crate) fn abort(&mut self, run: &mut Run) {
        self.abort_transfers(run);
        self.started.clear();
        self.flushes.drain().for_each(drop);
    }
}

fn draw_latency(run: &mut Run) -> u64 {
    let plan = &run.plan.device;
    if !run.healed && run.dice.chance(plan.stall) {
        return run.dice.range(1_000_000, 100_000_000);
    }
    run.dice.range(plan.latency_us_min, plan.latency_us_max)
}
