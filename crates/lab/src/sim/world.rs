//! The simulated machine: the environment of the dispatchers.
//!
//! It combines the shards with the other parts of the machine, each of which owns its state: the
//! device with the disks, the journal, the UPS, the integrity of the pool, the requests in flight,
//! and the expectations. It is the [`Host`] of the dispatchers, which the driver owns. A method is
//! here only if it concerns several parts.

use super::SimOptions;
use super::device::Device;
use super::device::disk::sectors_of;
use super::driver::POWER;
use super::expected::Expected;
use super::freeze::Freezes;
use super::hold_out::HoldOuts;
use super::integrity::{Integrity, check_verified};
use super::journal::Journal;
use super::kill::Kill;
use super::pins::Pins;
use super::plan::Plan;
use super::pool_shares::PoolShares;
use super::power::Power;
use super::requests::{PendingRequest, Requests};
use super::resize::Resize;
use super::run::{Event, Run};
use super::shares::{Shares, check_limit, dirty_lines};
use super::sizing::Sizing;
use super::volume::Volume;
use crate::harness::Sabotage;
use crate::harness::dice::Dice;
use crate::harness::io::Io;
use crate::harness::memory::Memory;
use crate::harness::oracle::{POISON, Promise};
use crate::harness::shard::{PooledShard, VolumeSetup};
use forebay_engine::{
    Answer, Elevator, IoAction, IoId, LineKey, LineMeta, MemoryStep, Outbox, Outcome, Part, PartId,
    Protection, Shard,
};
use forebay_protect::{admission, protection};
use forebay_types::{
    ByteRange, IoError, IoResult, LINE_BYTES, SECTOR_BYTES, SECTORS_PER_LINE, Stripes, VolumeId,
};
use forebay_volume::{
    Admission, Barrier, EpochOrder, Host, JobId, Reply, Request, RequestKind, Streams, shard_of,
};
use std::sync::Arc;

/// The token of a request whose answer is not used.
const UNUSED: u32 = u32::MAX;

pub(crate) struct World {
    pub run: Run,
    pub shards: Vec<PooledShard>,
    pub volumes: Vec<Volume>,
    pub device: Device,
    pub journal: Journal,
    pub power: Power,
    pub integrity: Integrity,
    pub pins: Pins,
    pub requests: Requests,
    pub expected: Expected,
    pub kill: Kill,
    pub resize: Resize,
    /// What decides the size of the pool, in some machines.
    pub sizing: Option<Sizing>,
    pub shares: Shares,
    pub pool_shares: PoolShares,
    pub hold_outs: HoldOuts,
    pub freezes: Freezes,
    /// The worker of the current call.
    pub worker: u8,
    #[cfg(feature = "sabotage")]
    planted: Option<forebay_engine::PlantedBug>,
}

impl World {
    pub(crate) fn new(plan: Plan, mut dice: Dice, options: &SimOptions) -> Self {
        let mut world = Self {
            shards: Vec::new(),
            volumes: plan.volumes.iter().map(Volume::new).collect(),
            device: Device::new(&plan, &mut dice),
            journal: Journal::new(&plan),
            power: Power::new(&plan),
            integrity: Integrity::new(options.seed),
            pins: Pins::new(&plan, options.seed),
            requests: Requests::default(),
            expected: Expected::new(&plan, options.seed),
            kill: Kill::default(),
            resize: Resize::new(plan.resize, options.seed),
            sizing: Sizing::draw(&plan, options.seed),
            shares: Shares::new(options.seed),
            pool_shares: PoolShares::new(plan.volumes.len(), options.seed),
            hold_outs: HoldOuts::new(options.seed),
            freezes: Freezes::new(&plan, options.seed),
            worker: 0,
            #[cfg(feature = "sabotage")]
            planted: options.planted,
            run: Run::new(plan, dice, options),
        };
        world.start_process();
        world
    }

    /// Creates empty shards over the current disks.
    pub(crate) fn start_process(&mut self) {
        let lines = self.run.plan.lines_per_shard;
        self.expected.losses.end_all();
        self.volumes.iter_mut().for_each(Volume::start_empty);
        let (policy, config) = (self.run.plan.policy, self.run.plan.config);
        let shard = |_| PooledShard::new(lines, policy.build(lines), config);
        self.shards = (0..self.run.plan.shards).map(shard).collect();
        self.add_volumes();
        self.make_streams();
    }

    /// Adds the volumes to new shards. Ordered volumes begin without epochs.
    pub(crate) fn add_volumes(&mut self) {
        for (volume, plan) in self.volumes.iter_mut().zip(&self.run.plan.volumes) {
            volume.start_order(plan);
        }
        self.expected.start_histories(&self.run.plan);
        self.integrity.start_shards(self.shards.len());
        let volumes = self.run.plan.volume_ids();
        let setups: Vec<VolumeSetup> = volumes.into_iter().map(|id| self.setup(id)).collect();
        for at in 0..self.shards.len() {
            let shard = &mut self.shards[at].shard;
            shard.set_parity(self.integrity.parity());
            setups.iter().for_each(|setup| setup.add_to(shard, at));
            self.plant(at);
        }
        self.resize.start_shards(&mut self.shards);
        if let Some(sizing) = &mut self.sizing {
            sizing.start_process(&self.shards);
        }
        self.shares.start_shards(&mut self.shards);
        self.pool_shares.start_shards(&mut self.shards);
        self.pins.start_process(&self.run.plan, &mut self.shards);
        self.freezes.start_process(&self.run.plan, &mut self.shards, &self.pins);
    }

    fn setup(&self, id: VolumeId) -> VolumeSetup {
        let plan = self.run.plan.volume(id);
        VolumeSetup {
            mode: self.volumes[usize::from(id.0)].mode(),
            // The disk collects one stripe of writes, if it has stripes.
            elevator: Some(Elevator::new(
                self.run.plan.shards,
                plan.stripes.width(),
                (plan.sectors / 8).is_multiple_of(2),
            )),
            gather_below: Some(plan.gather_below()),
            protection: match self.journal.has(id) {
                true => Protection::Journal,
                false if plan.ups => Protection::Power,
                false => Protection::None,
            },
            is_ordered: plan.ordered,
            ..VolumeSetup::write_back(id, plan.bytes(), plan.stripes)
        }
    }

    #[cfg(feature = "sabotage")]
    fn plant(&mut self, shard: usize) {
        if let Some(bug) = self.planted {
            self.shards[shard].shard.plant(bug);
        }
    }

    #[cfg(not(feature = "sabotage"))]
    const fn plant(&mut self, _: usize) {}

    pub(crate) fn make_streams(&mut self) {
        let lines = self.run.plan.lines_per_shard;
        let pool_bytes = (lines * self.run.plan.shards) as u64 * LINE_BYTES;
        for (volume, plan) in self.volumes.iter_mut().zip(&self.run.plan.volumes) {
            volume.streams = plan.streams.then(|| Streams::new(plan.bytes(), pool_bytes));
        }
    }

    /// Ends the process, except for its shards. Returns the requests that will not be answered.
    pub(crate) fn end_process(&mut self) -> Vec<PendingRequest> {
        self.kill.cancel();
        self.collect_counters();
        self.device.abort(&mut self.run);
        self.expected.faults.end_operations();
        self.run.clear_events();
        self.volumes.iter_mut().for_each(Volume::end_process);
        self.requests.end_process()
    }

    /// Adds the counters of the shards to the report, before the shards are dropped.
    pub(crate) fn collect_counters(&mut self) {
        for shard in &self.shards {
            for volume in self.run.plan.volume_ids() {
                let volume = shard.shard.volume(volume);
                self.run.report.counters.add(volume.counters());
            }
            self.run.report.evicted_lines += shard.shard.usage().evicted_lines;
        }
    }

    /// Checks that a bypassed volume whose lines were dropped has no lines in the pool, unless some
    /// are dirty or operations are in progress.
    pub(crate) fn check_bypassed(&mut self) {
        for id in self.run.plan.volume_ids() {
            let is_left = |shard: &PooledShard| {
                let shard = &shard.shard;
                shard.has_volume(id)
                    && shard.volume(id).dirty_lines() == 0
                    && shard.volume(id).operations() == 0
                    && shard.slots().resident_lines(id) > 0
            };
            let volume = &self.volumes[usize::from(id.0)];
            if volume.is_emptied() && self.shards.iter().any(is_left) {
                let message = format!("volume {} is bypassed and keeps clean lines", id.0);
                self.run.violate(None, message);
            }
        }
    }

    /// Checks the invariants that hold between any two events.
    pub(crate) fn self_check(&mut self) {
        self.shards.iter().for_each(|shard| shard.shard.self_check());
        self.journal.self_check();
        self.integrity.check_seals(&mut self.run, &mut self.shards);
        self.expected.check_write_order(&mut self.run, &self.device);
        self.check_bypassed();
        self.freezes.check(&mut self.run, &self.shards);
    }

    fn apply_step(&mut self, shard: usize, step: MemoryStep, payload: &[u8]) {
        if self.kill.is_dead() {
            return;
        }
        let (run, one) = (&mut self.run, &mut self.shards[shard]);
        if let MemoryStep::Verify { seal, kept } = step {
            let (integrity, expected) = (&mut self.integrity, &mut self.expected);
            return integrity.verify_before_change(run, expected, shard, one, &seal, kept);
        }
        let cut = self.kill.cut(step);
        let step = cut.map_or(step, |(step, ..)| step);
        if !Sabotage::skipping_step(&step).is_some_and(|bug| run.strikes(bug)) {
            one.apply_step(step, payload);
        }
        if let Some((_, slot, torn)) = cut {
            if run.dice.chance(500_000) {
                one.set_stamp(slot, torn, POISON);
            }
            self.kill.kill(&self.shards);
        }
    }

    /// Accepts an I/O of a shard.
    ///
    /// Checked for each: it lies inside its volume; its memory covers it exactly; a client wrote
    /// its data to that very sector.
    fn take_io(&mut self, mut io: Io) {
        let Self { run, shards, expected, .. } = self;
        if !io.is_valid(run.plan.volume(io.action.volume).bytes()) {
            let action = &io.action;
            run.violate(None, format!("an I/O exceeds its volume or memory: {action:?}"));
            return;
        }
        if io.is_write() {
            if !self.integrity.verify_destage(run, expected, &mut shards[io.shard], &io) {
                // Its data is lost.
                io.result = Err(IoError::Io);
            }
            io.stamps = io.current_stamps(shards);
            if io.result.is_ok() {
                expected.check_write(run, &io);
            }
        }
        self.device.start_io(run, io);
    }

    /// Sends the I/Os that the last call has started.
    pub(crate) fn send_ios(&mut self) {
        self.journal.pump(&mut self.run);
        self.device.send_ios(&mut self.run);
    }

    /// Ends a step of a transfer. Returns the results of its I/Os for the dispatcher if it was the
    /// last one.
    pub(crate) fn end_step(&mut self, transfer: u32) -> Vec<(usize, IoId, IoResult)> {
        let faults = &mut self.expected.faults;
        self.device.end_step(&mut self.run, &mut self.shards, faults, transfer)
    }

    /// Records the submission of a request. Returns its token and the version of its content.
    pub(crate) fn register(&mut self, client: u16, request: Request) -> (u32, u32) {
        self.requests.submit(&mut self.run, &mut self.expected, client, request)
    }

    fn take_reply(&mut self, token: u32, reply: Reply<'_, Memory>) {
        let Self { run, shards, expected, power, requests, journal, .. } = self;
        let Some(pending) = requests.answer(run, token) else {
            run.violate(None, "a request was answered twice".into());
            return;
        };
        let Request { volume, kind, range } = pending.request;
        let result = power.unless_halted(pending.request, reply.result);
        let (moment, reply) = (run.moment(), Reply { result, ..reply });
        run.log_event(volume.0, range, || {
            format!("{moment}: {kind:?} {range} version {} answered: {result:?}", pending.version)
        });
        if result == Err(IoError::Shutdown) && power.is_halted() {
            run.report.halted += 1;
        } else if result.is_err() {
            run.report.errors += 1;
            check_error(run, expected, &pending, &reply);
            expected.faults.prune(|| requests.oldest().unwrap_or(moment));
        }
        if result.is_ok() {
            expected.acknowledge(run, &pending);
        }
        let think_us = run.dice.range(0, run.plan.think_us_max);
        run.schedule(think_us, Event::Client(pending.client));
        requests.end_restore(&pending, result);
        match kind {
            RequestKind::Read if result.is_ok() => {
                requests.take_bytes(run, shards, expected, pending, reply);
            }
            RequestKind::Flush if result.is_ok() => {
                power.end_flush(run, expected, &pending, journal.is_abandoned());
            }
            RequestKind::Destage if result.is_ok() => expected.flush(volume, pending.submitted),
            RequestKind::Checkpoint { .. } => {
                if pending.client != POWER {
                    journal.destaged(run, shards, &pending, result);
                }
                power.end_upkeep(run, expected, &pending, result, journal.is_abandoned());
            }
            RequestKind::Sync => {
                if pending.client != POWER {
                    journal.disk_flushed(run, volume, result);
                }
                power.end_upkeep(run, expected, &pending, result, journal.is_abandoned());
            }
            RequestKind::Read
            | RequestKind::Flush
            | RequestKind::Prefetch
            | RequestKind::Preload { .. } => {}
            RequestKind::Record if result.is_ok() => {
                expected.end_loss(run, volume, range, pending.submitted);
            }
            RequestKind::Restore
            | RequestKind::RestoreZero { .. }
            | RequestKind::Record
            | RequestKind::Destage => {}
            _ => self.end_change(&pending, result),
        }
    }

    /// Handles the answer to a write or erase: its guarantee applies from now on.
    fn end_change(&mut self, pending: &PendingRequest, result: IoResult) {
        let Request { volume, kind, .. } = pending.request;
        let (plan, state) = (self.run.plan.volume(volume), &self.volumes[usize::from(volume.0)]);
        let ack = plan.journal && self.journal.keeps_each_write();
        let is_abandoned = self.journal.is_abandoned();
        let promise = match kind {
            _ if self.run.plan.is_ups_only(volume, is_abandoned) => {
                self.power.promise(&self.run, pending, state)
            }
            RequestKind::Write { fua: false }
                if state.is_through_since(pending.submitted) && !ack =>
            {
                Promise::OnDisk
            }
            kind => Promise::of(kind, plan.journal, ack),
        };
        self.expected.end_change(&self.run, pending, result.is_ok().then_some(promise));
    }

    /// Restores data that is lost in the pool from the journal, at some of the ticks at which
    /// everything is recorded.
    pub(crate) fn restore_lost(&mut self) {
        let volumes = self.run.plan.volume_ids();
        let takes_older = self.run.strikes_always(Sabotage::RestoreOlder);
        let is_lost = |volume: &VolumeId| {
            let state = &self.volumes[usize::from(volume.0)];
            let may_restore = state.freshness.newest().is_some() || takes_older;
            self.run.plan.volume(*volume).journal
                && may_restore
                && self.expected.losses.any_in(*volume, None)
        };
        let volumes: Vec<VolumeId> = volumes.into_iter().filter(is_lost).collect();
        if volumes.is_empty() || !self.journal.is_settled() || !self.run.dice.chance(200_000) {
            return;
        }
        let Some(found) = self.journal.read_log() else { return };
        for volume in volumes {
            for (piece, stamps) in self.journal.image(&found, volume) {
                if !self.expected.losses.any_in(volume, None) {
                    break;
                }
                for (sector, stamp) in sectors_of(piece.range).zip(stamps) {
                    self.restore_sector(volume, sector, stamp);
                }
            }
        }
    }

    fn restore_sector(&mut self, volume: VolumeId, sector: u64, stamp: u64) {
        let is_older = self.expected.losses.is_unrecoverable(volume, sector);
        if is_older && !self.run.strikes_always(Sabotage::RestoreOlder) {
            return;
        }
        let range = ByteRange::new(sector * SECTOR_BYTES, SECTOR_BYTES);
        let key = LineKey::new(volume, sector / u64::from(SECTORS_PER_LINE));
        let shard = shard_of(volume, self.stripes_of(volume), range.offset, self.shards.len());
        let bit = 1 << (sector % u64::from(SECTORS_PER_LINE));
        let one = &mut self.shards[shard];
        if one.shard.slots().line(key).lost() & bit == 0 {
            return;
        }
        let Some(slot) = one.shard.idle_slot_of(key) else { return };
        self.integrity.verify_idle(&mut self.run, &mut self.expected, shard, one, slot);
        one.set_stamp(slot, (range.offset - key.offset()) as u32, stamp);
        one.shard.regained(key, bit);
        let run = &mut self.run;
        run.log_event(volume.0, range, || "restored from the journal".into());
        run.report.regained_sectors += 1;
        let moment = run.next_moment();
        self.expected.end_loss(run, volume, range, moment);
    }

    pub(crate) fn stripes_of(&self, volume: VolumeId) -> Stripes {
        self.run.plan.volume(volume).stripes
    }
}

/// Checks that a failed request had a fault as its reason and that its answer has no bytes.
fn check_error(
    run: &mut Run,
    expected: &Expected,
    pending: &PendingRequest,
    reply: &Reply<'_, Memory>,
) {
    let Request { volume, kind, range } = pending.request;
    let place = Some((volume.0, range.offset / SECTOR_BYTES));
    if !expected.permits_failure(&run.plan, pending) {
        let message = format!("{kind:?} {range} failed without a fault: {:?}", reply.result);
        run.violate(place, message);
    }
    if !reply.segments.is_empty() {
        run.violate(place, format!("{kind:?} {range} failed, but its answer has bytes"));
    }
}

impl Host for World {
    type Token = u32;
    type Memory = Memory;
    type Table = Vec<LineMeta>;

    fn shards(&self) -> usize {
        self.shards.len()
    }

    fn stripes(&mut self, volume: VolumeId) -> Stripes {
        self.stripes_of(volume)
    }

    fn block_bytes(&mut self, volume: VolumeId) -> u64 {
        self.run.plan.volume(volume).block_bytes()
    }

    fn now_ms(&self) -> u64 {
        self.run.now_us() / 1000
    }

    fn batch(&self) -> u64 {
        if self.run.plan.merge { self.device.batch() } else { 0 }
    }

    fn call<R>(
        &mut self,
        shard: usize,
        payload: &[u8],
        out: &mut Outbox,
        call: impl FnOnce(&mut Shard<Self::Table>, &mut Outbox) -> R,
    ) -> R {
        let sealed = self.integrity.sealed_lines(&self.shards[shard]);
        let dirty = dirty_lines(&self.run, &self.shards[shard]);
        let held = self.pool_shares.held(&self.shards[shard]);
        let result = call(&mut self.shards[shard].shard, out);
        let one = &mut self.shards[shard];
        self.pool_shares.check_call(&mut self.run, (shard, one), &held, false);
        check_limit(&mut self.run, &mut self.shards[shard], &dirty);
        check_verified(&mut self.run, &self.shards[shard], &sealed, &out.memory);
        for at in 0..out.memory.len() {
            self.apply_step(shard, out.memory[at], payload);
        }
        out.memory.clear();
        self.shards[shard].shard.finish_call();
        if self.kill.is_dead() {
            out.journal_requests.clear();
        }
        for request in out.journal_requests.drain(..) {
            let (run, faults) = (&mut self.run, &mut self.expected.faults);
            let answer =
                self.journal.take_request(run, faults, &self.shards[shard], &request, payload);
            out.answers.extend(answer);
        }
        result
    }

    fn allocate(&mut self, len: u64, content: Option<&[u8]>) -> Memory {
        match content {
            Some(bytes) => Memory::payload(bytes),
            None => Memory::buffer(len),
        }
    }

    fn start_io(&mut self, shard: usize, io: IoAction, memory: Option<(&Memory, u64)>) {
        if self.kill.is_dead() {
            return;
        }
        let memory = memory.map(|(memory, base)| (memory.clone(), base));
        let block_bytes = self.block_bytes(io.volume);
        self.take_io(Io::new(shard, io, memory, block_bytes));
    }

    fn flush_backend(&mut self, volume: VolumeId, job: JobId) {
        if !self.kill.is_dead() {
            self.device.start_flush(&mut self.run, self.worker, volume, job);
        }
    }

    fn protection(&mut self, volume: VolumeId) -> Protection {
        let ups = self.power.gate_of(&self.run, volume);
        let journal = self.journal.has(volume).then_some(&self.journal);
        protection(ups, journal.map(|journal| || journal.is_abandoned()))
    }

    fn admit_erase(&mut self, part: &Part) -> bool {
        self.journal.admit_erase(part)
    }

    fn admit(&mut self, part: &Part, fua: bool) -> Admission {
        let ups = self.power.gate_of(&self.run, part.volume);
        admission(part.range, fua, ups, self.journal.admit(part))
    }

    fn order(&mut self, volume: VolumeId) -> Option<Arc<EpochOrder>> {
        self.volumes[usize::from(volume.0)].order()
    }

    fn internal_token(&mut self) -> u32 {
        UNUSED
    }

    fn withdraw(&mut self, _volume: VolumeId) {
        self.journal.withdraw();
    }

    fn barrier(&mut self, volume: VolumeId, part: PartId) -> Result<Barrier, IoError> {
        let has_lost = |one: &PooledShard| one.shard.volume(volume).lost_sectors() > 0;
        let freshness = &self.volumes[usize::from(volume.0)].freshness;
        let is_stale = freshness.is_stale(|| self.shards.iter().any(has_lost));
        let is_complete = !is_stale && !self.expected.losses.any_unrecoverable(volume);
        let ignores_barrier = self.run.strikes_always(Sabotage::IgnoreBarrier);
        let ignores_loss = self.run.strikes_always(Sabotage::IgnoreUnrecordedLoss);
        let is_ignored = ignores_barrier || ignores_loss && self.journal.is_written();
        let is_durable = is_ignored || self.journal.barrier(part)?;
        Ok(Barrier { is_durable, is_complete })
    }

    fn reply(&mut self, token: u32, reply: Reply<'_, Memory>) {
        if !self.kill.is_dead() && token != UNUSED {
            self.take_reply(token, reply);
        }
    }

    fn forward(&mut self, worker: u8, answer: Answer) {
        if self.kill.is_dead() {
            return;
        }
        let retry = matches!(answer.outcome, Outcome::Retry(_));
        if retry && self.run.strikes(Sabotage::DropRetry) {
            return;
        }
        let delay_us = self.run.dice.range(0, self.run.plan.forward_us_max);
        self.run.schedule(delay_us, Event::Answer(worker, answer));
        if self.run.strikes(Sabotage::AnswerTwice) {
            self.run.schedule(delay_us, Event::Answer(worker, answer));
        }
    }

    fn streams<R>(&mut self, volume: VolumeId, call: impl FnOnce(&mut Streams) -> R) -> Option<R> {
        self.volumes[usize::from(volume.0)].streams.as_mut().map(call)
    }
}
