//! The simulated machine: the environment of the dispatchers.
//!
//! It owns the shards with their tables and pools, the disks, the clock, the oracle of each volume,
//! and everything in flight. It is the [`Host`] of the dispatchers, which the driver keeps beside
//! it. `device.rs` has the I/Os, `answers.rs` the checks of answers.

use super::SimOptions;
use super::answers::{HeldReply, PendingRequest};
use super::clients::Staging;
use super::damage::{DamagePlan, Lost, Seals};
use super::device::{Device, FlushJob};
use super::disk::Disk;
use super::journal::Journal;
use super::kept::PoolSnapshot;
use super::order::History;
use super::plan::Plan;
use super::power::Power;
use super::run::{Event, Run};
use crate::harness::Sabotage;
use crate::harness::dice::Dice;
use crate::harness::io::Io;
use crate::harness::memory::Memory;
use crate::harness::oracle::Oracle;
use crate::harness::shard::{PooledShard, VolumeSetup};
use crate::harness::slab::Slab;
use forebay_ecc::Code;
use forebay_engine::{
    Answer, Elevator, IoAction, LineMeta, MemoryStep, Outbox, Outcome, Part, PartId, Protection,
    Shard,
};
use forebay_types::{IoError, IoResult, LINE_BYTES, Mode, SECTOR_BYTES, Stripes, VolumeId};
use forebay_volume::{Admission, BlockOwners, Host, JobId, Order, Reply, Streams};
use std::collections::BTreeSet;
use std::sync::Arc;

/// The token of a request whose answer is not used.
const NOBODY: u32 = u32::MAX;

/// One volume and its disk.
pub(crate) struct VolumeState {
    pub sectors: u64,
    pub mode: Mode,
    /// The moment up to which the volume was in write-back for certain, if it no longer is.
    pub write_back_until: u32,
    /// Its lines were dropped when it became bypassed, and it still is.
    pub is_emptied: bool,
    pub disk: Disk,
    /// The transfers that own blocks of the disk.
    pub owners: BlockOwners<u32>,
    pub oracle: Oracle,
    pub streams: Option<Streams>,
    pub journal: bool,
    pub lost: Lost,
    /// Lost sectors that the journal no longer has either.
    pub unrecoverable: BTreeSet<u64>,
    /// Epochs and history of an ordered volume.
    pub order: Option<(Arc<Order>, History)>,
}

pub(crate) struct World {
    pub run: Run,
    /// The turn: I/Os started in the same turn are coalesced.
    pub turn: u64,
    pub shards: Vec<PooledShard>,
    /// The seals of each shard's lines.
    pub seals: Vec<Seals>,
    pub volumes: Vec<VolumeState>,
    pub device: Device,
    pub journal: Journal,
    pub power: Power,
    pub requests: Slab<PendingRequest>,
    pub held: Slab<HeldReply>,
    /// Payloads that are being received into the pool.
    pub staging: Slab<Staging>,
    /// The worker of the current call.
    pub worker: u8,
    /// Damage has a generator of its own, so that seeds keep their machines without it.
    pub damage: DamagePlan,
    pub damage_dice: Dice,
    pub code: Code,
    /// A generator for checks, which must not affect the run.
    pub check_dice: Dice,
    pub flushes: Slab<FlushJob>,
    /// I/Os ended since the last answer.
    pub events_since_answer: u64,
    /// A process is recovering. Nothing is damaged meanwhile, because restored data is not restored
    /// again.
    pub is_recovering: bool,
    /// Calls of shards; some are checked for unverified changes.
    pub calls: u64,
    /// The result of the last restore request.
    pub restored: Option<IoResult>,
    pub answered_us: u64,
    /// Sectors to be copied until a scheduled kill.
    pub kill_in: Option<u64>,
    pub killed_pool: Option<PoolSnapshot>,
    #[cfg(feature = "sabotage")]
    planted: Option<forebay_engine::PlantedBug>,
}

impl World {
    pub(crate) fn new(plan: Plan, dice: Dice, options: &SimOptions) -> Self {
        let seed = options.seed;
        let mut damage_dice = Dice::new(seed.rotate_left(32) ^ 0xecc);
        let mut world = Self {
            turn: 1,
            shards: Vec::new(),
            seals: Vec::new(),
            volumes: Vec::new(),
            device: Device::default(),
            journal: Journal::new(&plan),
            power: Power::new(plan.volumes.len()),
            requests: Slab::default(),
            held: Slab::default(),
            staging: Slab::default(),
            worker: 0,
            damage: DamagePlan::draw(&mut damage_dice),
            damage_dice,
            code: Code::detect(),
            check_dice: Dice::new(seed.rotate_left(16) ^ 0x0def),
            flushes: Slab::default(),
            events_since_answer: 0,
            is_recovering: false,
            calls: 0,
            restored: None,
            answered_us: 0,
            kill_in: None,
            killed_pool: None,
            #[cfg(feature = "sabotage")]
            planted: options.planted,
            run: Run::new(plan, dice, options),
        };
        world.make_volumes();
        world.start_process();
        world
    }

    fn make_volumes(&mut self) {
        for (at, plan) in self.run.plan.volumes.iter().enumerate() {
            let behind = self.run.plan.device.write_behind;
            let mut disk = Disk::new(at as u16, plan.sectors, plan.block_sectors, behind);
            for _ in 0..self.run.plan.device.bad_sectors {
                let sector = self.run.dice.below(plan.sectors);
                let kind = self.run.dice.below(3);
                disk.damage(sector, kind != 0, kind != 1);
            }
            self.volumes.push(VolumeState {
                sectors: plan.sectors,
                mode: plan.mode,
                write_back_until: 0,
                is_emptied: false,
                disk,
                owners: BlockOwners::default(),
                oracle: Oracle::new(at as u16, plan.sectors, !plan.journal && !plan.ups),
                streams: None,
                journal: plan.journal,
                lost: Lost::default(),
                unrecoverable: BTreeSet::new(),
                order: None,
            });
        }
    }

    /// Creates empty shards over the current disks.
    pub(crate) fn start_process(&mut self) {
        let lines = self.run.plan.lines_per_shard;
        self.volumes.iter_mut().for_each(|volume| volume.lost.clear());
        let (policy, config) = (self.run.plan.policy, self.run.plan.config);
        let shard = |_| PooledShard::new(lines, policy.build(lines), config);
        self.shards = (0..self.run.plan.shards).map(shard).collect();
        self.add_volumes();
        self.make_streams();
    }

    /// Adds the volumes to new shards. Ordered volumes begin without epochs.
    pub(crate) fn add_volumes(&mut self) {
        for (volume, plan) in self.volumes.iter_mut().zip(&self.run.plan.volumes) {
            volume.order = plan.ordered.then(Default::default);
        }
        self.seals = self.shards.iter().map(|_| Seals::default()).collect();
        let setups: Vec<VolumeSetup> = (0..self.volumes.len()).map(|at| self.setup(at)).collect();
        for at in 0..self.shards.len() {
            let shard = &mut self.shards[at].shard;
            shard.set_parity(self.damage.parity);
            setups.iter().for_each(|setup| setup.add_to(shard, at));
            self.plant(at);
        }
    }

    fn setup(&self, at: usize) -> VolumeSetup {
        let (id, plan, state) =
            (VolumeId(at as u16), &self.run.plan.volumes[at], &self.volumes[at]);
        VolumeSetup {
            mode: state.mode,
            // One stripe, if the disk has stripes.
            elevator: Some(Elevator::new(self.run.plan.shards, plan.stripes.width())),
            gather_below: Some(plan.gather_below()),
            protection: match self.has_journal(id) {
                true => Protection::Journal,
                false if self.run.plan.volume(id).ups => Protection::Power,
                false => Protection::None,
            },
            is_ordered: plan.ordered,
            ..VolumeSetup::write_back(id, state.sectors * SECTOR_BYTES, plan.stripes)
        }
    }

    #[cfg(feature = "sabotage")]
    pub(crate) fn plant(&mut self, shard: usize) {
        if let Some(bug) = self.planted {
            self.shards[shard].shard.plant(bug);
        }
    }

    #[cfg(not(feature = "sabotage"))]
    pub(crate) const fn plant(&mut self, _: usize) {}

    pub(crate) fn make_streams(&mut self) {
        let lines = self.run.plan.lines_per_shard;
        let pool_bytes = (lines * self.run.plan.shards) as u64 * LINE_BYTES;
        for (volume, plan) in self.volumes.iter_mut().zip(&self.run.plan.volumes) {
            let streams = || Streams::new(plan.sectors * SECTOR_BYTES, pool_bytes);
            volume.streams = plan.streams.then(streams);
        }
    }

    /// Adds the counters of the shards to the report, before the shards are dropped.
    pub(crate) fn collect_counters(&mut self) {
        for shard in &self.shards {
            for volume in 0..self.volumes.len() {
                let volume = shard.shard.volume(VolumeId(volume as u16));
                self.run.report.counters.add(volume.counters());
            }
            self.run.report.evicted_lines += shard.shard.usage().evicted_lines;
        }
    }

    pub(crate) fn stripes_of(&self, volume: VolumeId) -> Stripes {
        self.run.plan.volume(volume).stripes
    }

    pub(crate) fn apply_step(&mut self, shard: usize, step: MemoryStep, payload: &[u8]) {
        if self.is_dead() || self.is_killed_in(shard, step, payload) {
            return;
        }
        if let MemoryStep::Verify { seal, kept } = step {
            return self.verify_before_change(shard, &seal, kept);
        }
        if !Sabotage::skipping_step(&step).is_some_and(|bug| self.run.strikes(bug)) {
            self.shards[shard].apply_step(step, payload);
        }
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

    fn turn(&self) -> u64 {
        if self.run.plan.merge { self.turn } else { 0 }
    }

    fn call<R>(
        &mut self,
        shard: usize,
        payload: &[u8],
        out: &mut Outbox,
        call: impl FnOnce(&mut Shard<Self::Table>, &mut Outbox) -> R,
    ) -> R {
        let sealed = self.sealed_lines(shard);
        let result = call(&mut self.shards[shard].shard, out);
        self.check_verified(shard, &sealed, &out.memory);
        for at in 0..out.memory.len() {
            self.apply_step(shard, out.memory[at], payload);
        }
        out.memory.clear();
        self.shards[shard].shard.finish_call();
        if self.is_dead() {
            out.notes.clear();
        }
        for at in 0..out.notes.len() {
            let note = out.notes[at].clone();
            let answer = self.take_note(shard, note, payload);
            out.answers.extend(answer);
        }
        out.notes.clear();
        result
    }

    fn allocate(&mut self, len: u64, content: Option<&[u8]>) -> Memory {
        match content {
            Some(bytes) => Memory::payload(bytes),
            None => Memory::buffer(len),
        }
    }

    fn start_io(&mut self, shard: usize, io: IoAction, memory: Option<(&Memory, u64)>) {
        if self.is_dead() {
            return;
        }
        let memory = memory.map(|(memory, base)| (memory.clone(), base));
        let block_bytes = self.block_bytes(io.volume);
        self.take_io(Io::new(shard, io, memory, block_bytes));
    }

    fn flush_backend(&mut self, volume: VolumeId, job: JobId) {
        if !self.is_dead() {
            self.start_flush(volume, job);
        }
    }

    fn protection(&mut self, volume: VolumeId) -> Protection {
        match self.has_journal(volume) {
            true => Protection::Journal,
            false if self.run.plan.volume(volume).ups && self.power.gate.is_open() => {
                Protection::Power
            }
            false => Protection::None,
        }
    }

    fn touch(&mut self, part: &Part) -> bool {
        let Some(number) = self.journal.number(part.volume) else { return true };
        self.journal.log.admit_erase(number, part.id)
    }

    fn admit(&mut self, part: &Part, fua: bool) -> Admission {
        match self.run.plan.volume(part.volume).ups {
            true => self.admit_by_power(part),
            false => self.admit_to_journal(part, fua),
        }
    }

    fn order(&mut self, volume: VolumeId) -> Option<Arc<Order>> {
        let order = self.volumes[usize::from(volume.0)].order.as_ref();
        order.map(|(order, _)| Arc::clone(order))
    }

    fn internal_token(&mut self) -> u32 {
        NOBODY
    }

    fn withdraw(&mut self, _volume: VolumeId) {
        self.journal.log.withdraw();
    }

    fn barrier(&mut self, volume: VolumeId, part: PartId) -> Result<bool, IoError> {
        let volume = &self.volumes[usize::from(volume.0)];
        if volume.unrecoverable.iter().any(|sector| volume.lost.contains_key(sector)) {
            return Err(IoError::Io);
        }
        if self.run.strikes_always(Sabotage::IgnoreBarrier) {
            return Ok(true);
        }
        self.journal.log.barrier(part)
    }

    fn reply(&mut self, token: u32, reply: Reply<'_, Memory>) {
        if !self.is_dead() && token != NOBODY {
            self.take_reply(token, reply);
        }
    }

    fn forward(&mut self, worker: u8, answer: Answer) {
        if self.is_dead() {
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
