//! A UPS, and the vault that takes dirty data when its battery runs low.
//!
//! The seed decides what the UPS reports; [`PowerSequence`], which the shipped power monitor drives
//! as well, decides what follows. On a power failure, other events happen between any two steps of
//! a dump. Afterwards power is lost, and every acknowledged write must be on the disk, in the vault
//! or in the journal; or mains is back, and the vault is emptied, possibly after a crash; or a
//! journal fails, and the dump is made again. Steps may fail and are repeated. The vault keeps its
//! content until the disk has it.
//!
//! In some machines, power fails without a bridge while write-back is off: nothing is dumped.
//! Everything acknowledged since then must survive, and everything before, once the dirty data has
//! been drained.

use super::driver::{POWER, Simulation};
use super::expected::Expected;
use super::plan::Plan;
use super::requests::PendingRequest;
use super::run::Run;
use super::volume::Volume;
use super::world::World;
use crate::harness::dice::{Dice, Ppm};
use crate::harness::journal::Restored;
use crate::harness::oracle::{Crash, Promise, is_change};
use crate::harness::shard::PooledShard;
use crate::harness::vault::VaultContent;
use crate::harness::{Sabotage, WHOLE};
use forebay_engine::LineKey;
use forebay_protect::{DumpStep, PowerGate, PowerOrder, PowerSequence, VolumePower};
use forebay_types::{IoError, IoResult, LINE_BYTES, VolumeId};
use forebay_volume::{Request, RequestKind};

/// The probability that a step of a dump fails, and is repeated.
const STEP_FAILURE: Ppm = 50_000;
/// The probability that mains is back after a dump.
const MAINS_BACK: Ppm = 300_000;
/// The probability that a journal fails after a dump.
const JOURNAL_FAILURE: Ppm = 500_000;
/// Events that a journal may take to fail, and to record that.
const FAILURE_EVENTS_MAX: u32 = 20_000;

#[derive(Clone, Copy, Debug)]
pub(crate) struct PowerPlan {
    /// Lines that may be dirty while the gate is open.
    pub dirty_lines_max: u64,
    /// The probability per tick that the gate opens or closes.
    pub toggle: Ppm,
    /// The time between two flushes of the disks, in milliseconds.
    sync_interval_ms: u64,
    /// The maximum number of events between two steps of a dump.
    pub events_between_max: u64,
    /// The probability of a crash directly before or after the disk has the vault's content.
    pub death_at_emptying: Ppm,
    /// Power failures while the gate is closed are not bridged.
    pub fails_unbridged: bool,
}

impl PowerPlan {
    pub(crate) fn draw(dice: &mut Dice) -> Self {
        Self {
            dirty_lines_max: dice.skewed(1, 600),
            toggle: dice.pick(&[1_000, 20_000, 200_000]),
            sync_interval_ms: dice.pick(&[u64::MAX, 500, 20]),
            events_between_max: dice.pick(&[0, 5, 80]),
            death_at_emptying: dice.pick(&[0, 100_000, 500_000]),
            fails_unbridged: false,
        }
    }
}

/// The volumes that only the UPS protects now.
pub(crate) fn ups_volumes(world: &World) -> Vec<VolumeId> {
    world.run.plan.ups_volumes(world.journal.is_abandoned())
}

/// The UPS, and the vault of each volume that has one.
pub(crate) struct Power {
    gate: PowerGate,
    sequence: PowerSequence,
    volumes: Vec<VolumePower>,
    /// What the UPS reports.
    order: PowerOrder,
    /// Power is failing, or was: the order does not change with time.
    is_failing: bool,
    /// The moment when the gate closed, if it is closed.
    closed: Option<u32>,
    /// For each volume.
    vault: Vec<VaultContent>,
}

impl Power {
    pub(crate) fn new(plan: &Plan) -> Self {
        let volumes = plan.volumes.iter().map(|volume| VolumePower::new(volume.ups));
        Self {
            gate: PowerGate::default(),
            sequence: PowerSequence::new(plan.power.sync_interval_ms, 0),
            volumes: volumes.collect(),
            order: PowerOrder::default(),
            is_failing: false,
            closed: Some(0),
            vault: vec![VaultContent::default(); plan.volumes.len()],
        }
    }

    /// Resets the UPS for a new process; the vault is kept.
    pub(crate) fn restart(&mut self, run: &Run) {
        let vault = std::mem::take(&mut self.vault);
        *self = Self { vault, closed: Some(run.moment()), ..Self::new(&run.plan) };
    }

    fn volume(&self, volume: VolumeId) -> &VolumePower {
        &self.volumes[usize::from(volume.0)]
    }

    /// The gate of a volume that has a UPS.
    pub(crate) fn gate_of(&self, run: &Run, volume: VolumeId) -> Option<&PowerGate> {
        run.plan.volume(volume).ups.then_some(&self.gate)
    }

    /// Whether a power failure now would not be bridged.
    pub(crate) fn fails_unbridged(&self, run: &Run) -> bool {
        run.plan.power.fails_unbridged && !self.sequence.is_allowed()
    }

    /// Whether the gate closed before this moment, so that a request submitted then cannot have
    /// been acknowledged from memory.
    fn was_closed(&self, submitted: u32) -> bool {
        self.closed.is_some_and(|closed| submitted > closed)
    }

    /// The guarantee of an acknowledged change of a volume with a UPS.
    pub(crate) fn promise(&self, run: &Run, pending: &PendingRequest, volume: &Volume) -> Promise {
        if !run.plan.power.fails_unbridged {
            return Promise::Stable;
        }
        let was_closed = self.was_closed(pending.submitted);
        let is_stable = match pending.request.kind {
            RequestKind::Trim { fua: true } | RequestKind::Zero { fua: true, .. } => true,
            RequestKind::Write { fua: true } => was_closed,
            RequestKind::Write { .. } | RequestKind::Zero { .. } => {
                was_closed && volume.was_always_in_write_back()
            }
            _ => false,
        };
        if is_stable { Promise::Stable } else { Promise::Kept }
    }

    /// Records a successful flush of a client.
    pub(crate) fn end_flush(
        &self,
        run: &Run,
        expected: &mut Expected,
        pending: &PendingRequest,
        is_abandoned: bool,
    ) {
        let (volume, submitted) = (pending.request.volume, pending.submitted);
        let is_kept = run.plan.power.fails_unbridged
            && run.plan.is_ups_only(volume, is_abandoned)
            && !self.was_closed(submitted);
        match is_kept {
            true => expected.flush_kept(volume, submitted),
            false => expected.flush(volume, submitted),
        }
    }

    /// Handles the end of a drain, or of a flush of a disk. With no dirty data left and a flush
    /// since the gate closed, the disk has everything that was acknowledged before.
    pub(crate) fn end_upkeep(
        &self,
        run: &Run,
        expected: &mut Expected,
        pending: &PendingRequest,
        result: IoResult,
        is_abandoned: bool,
    ) {
        let (volume, submitted) = (pending.request.volume, pending.submitted);
        match pending.request.kind {
            _ if pending.client != POWER => {}
            RequestKind::Sync => self.volume(volume).end_sync(),
            _ => self.volume(volume).end_drain(),
        }
        let is_ups_only = run.plan.is_ups_only(volume, is_abandoned);
        if result.is_ok() && is_ups_only && self.was_closed(submitted) {
            expected.flush(volume, submitted);
        }
    }

    pub(crate) fn is_halted(&self) -> bool {
        self.volumes.iter().any(VolumePower::is_halted)
    }

    /// The result that the client of a request receives.
    pub(crate) fn unless_halted(&self, request: Request, result: IoResult) -> IoResult {
        let refused = is_change(request.kind) && self.volume(request.volume).is_halted();
        if refused { result.and(Err(IoError::Shutdown)) } else { result }
    }

    /// Advances the UPS by a tick. Returns the requests that follow for its volumes.
    pub(crate) fn tick(
        &mut self,
        run: &mut Run,
        shards: &[PooledShard],
        expected: &mut Expected,
        is_abandoned: bool,
    ) -> Vec<(VolumeId, RequestKind)> {
        if self.volumes.iter().all(|volume| !volume.has_ups()) {
            return Vec::new();
        }
        let volumes = run.plan.ups_volumes(is_abandoned);
        if !self.is_failing && run.dice.chance(run.plan.power.toggle) {
            let dirty_bytes_max = match self.order.dirty_bytes_max {
                0 => run.plan.power.dirty_lines_max * LINE_BYTES,
                _ => 0,
            };
            self.order = PowerOrder { dirty_bytes_max, ..self.order };
        }
        self.upkeep(run, shards, expected, &volumes)
    }

    fn upkeep(
        &mut self,
        run: &mut Run,
        shards: &[PooledShard],
        expected: &mut Expected,
        volumes: &[VolumeId],
    ) -> Vec<(VolumeId, RequestKind)> {
        let dirty = |&volume: &VolumeId| -> usize {
            shards.iter().map(|shard| shard.shard.volume(volume).dirty_lines()).sum()
        };
        let dirty_bytes = volumes.iter().map(dirty).sum::<usize>() as u64 * LINE_BYTES;
        let drain_now = dirty_bytes > self.order.dirty_bytes_max;
        let limit = self.sequence.handle_order(PowerOrder { drain_now, ..self.order });
        self.gate.set(dirty_bytes, limit);
        if self.sequence.has_switched() {
            self.closed = (!self.sequence.is_allowed()).then(|| run.moment());
        }
        let upkeep = self.sequence.handle_dirty(dirty_bytes, run.now_us() / 1000);
        let mut requests = Vec::new();
        for &id in volumes {
            let power = self.volume(id);
            if upkeep.request_sync {
                power.request_sync();
            }
            let kind = match upkeep.drain {
                true if power.begin_drain() => RequestKind::Checkpoint { urgent: true },
                false if power.begin_sync() => RequestKind::Sync,
                _ => continue,
            };
            if kind == RequestKind::Sync && run.strikes_always(Sabotage::SkipClosingSync) {
                power.end_sync();
                if !self.sequence.is_allowed() {
                    expected.flush(id, run.moment());
                }
                continue;
            }
            requests.push((id, kind));
        }
        requests
    }

    /// Dumps the dirty data of a volume in a shard to the vault.
    pub(crate) fn dump_lines(&mut self, run: &mut Run, one: &PooledShard, volume: VolumeId) {
        let keys: Vec<LineKey> = one.shard.volume(volume).dirty_keys().collect();
        for key in keys {
            if !run.strikes(Sabotage::SkipVaultLine) {
                self.vault[usize::from(volume.0)].dump(one, key);
            }
        }
    }

    /// Whether the vault holds data of a volume.
    pub(crate) fn holds(&self, volume: VolumeId) -> bool {
        !self.vault[usize::from(volume.0)].is_empty()
    }

    /// The content of the vault of a volume.
    pub(crate) fn vault_image(&self, volume: VolumeId) -> Vec<Restored> {
        self.vault[usize::from(volume.0)].image()
    }

    /// Empties the vault for a volume whose disk has the content.
    pub(crate) fn empty_vault(&mut self, volume: VolumeId) {
        self.vault[usize::from(volume.0)].clear();
    }
}

impl Simulation {
    /// Mains fail, the battery runs low, and dirty data is dumped. Then power is lost, or mains is
    /// back.
    pub(super) fn lose_mains(&mut self) {
        self.world.kill.cancel();
        self.world.journal.spare();
        let volumes = ups_volumes(&self.world);
        let has_failed = volumes.iter().any(|&volume| self.world.journal.has(volume));
        self.world.run.report.dumps_without_journal += u64::from(has_failed);
        self.world.power.is_failing = true;
        self.set_order(PowerOrder { dirty_bytes_max: 0, drain_now: true, dump_now: true });
        self.advance_dump();
        if self.may_fail_journal() && self.world.run.dice.chance(JOURNAL_FAILURE) {
            self.fail_journal_after_dump();
        }
        if self.world.run.dice.chance(MAINS_BACK) {
            self.set_order(PowerOrder::default());
            self.world.run.report.mains_back += 1;
            if !self.advance_dump() {
                return;
            }
            self.world.power.is_failing = false;
            self.world.journal.unspare(&mut self.world.run);
        } else if self.is_ok() {
            self.crash(Crash::Saved);
        }
    }

    fn set_order(&mut self, order: PowerOrder) {
        self.world.power.order = order;
        self.maintain_power();
    }

    /// Submits the requests that follow from the state of the UPS.
    pub(super) fn maintain_power(&mut self) {
        let World { run, shards, power, expected, journal, .. } = &mut self.world;
        for (volume, kind) in power.tick(run, shards, expected, journal.is_abandoned()) {
            self.submit_anywhere(POWER, volume, kind, WHOLE);
        }
    }

    /// Carries out the steps of a dump, or of its end. Returns false if the process crashed
    /// meanwhile; then the next one has recovered.
    fn advance_dump(&mut self) -> bool {
        while self.is_ok() {
            let volumes = match self.world.run.strikes_always(Sabotage::DumpOnce) {
                true if self.world.power.sequence.is_complete() => Vec::new(),
                _ => ups_volumes(&self.world),
            };
            let now_ms = self.world.run.now_us() / 1000;
            let Some(step) = self.world.power.sequence.poll_dump(&volumes, now_ms) else {
                return true;
            };
            let fails = self.world.run.dice.chance(STEP_FAILURE);
            match step {
                DumpStep::Halt if self.world.run.strikes_always(Sabotage::HaltLate) => {}
                DumpStep::Halt => self.halt(&volumes),
                DumpStep::Dump => self.dump(&volumes),
                DumpStep::FlushDisks => self.flush_disks(&volumes),
                DumpStep::EmptyVault => {
                    if self.world.run.strikes_always(Sabotage::ResumeEarly) {
                        self.resume();
                        self.run_some_events();
                    }
                    let chance = self.world.run.plan.power.death_at_emptying;
                    if self.dies_in_recovery(chance) {
                        return false;
                    }
                    if !fails {
                        self.world.power.vault.iter_mut().for_each(VaultContent::clear);
                    }
                }
                DumpStep::Resume => self.resume(),
            }
            self.run_some_events();
            let now_ms = self.world.run.now_us() / 1000;
            let is_certain = matches!(step, DumpStep::Halt | DumpStep::Resume);
            self.world.power.sequence.handle_done(is_certain || !fails, now_ms);
        }
        true
    }

    fn halt(&self, volumes: &[VolumeId]) {
        for &volume in volumes {
            self.world.power.volume(volume).set_halted(true);
        }
    }

    fn resume(&self) {
        for volume in &self.world.power.volumes {
            volume.set_halted(false);
        }
    }

    fn dump(&mut self, volumes: &[VolumeId]) {
        self.world.power.vault.iter_mut().for_each(VaultContent::clear);
        for shard in 0..self.world.shards.len() {
            for &volume in volumes {
                let World { run, shards, power, .. } = &mut self.world;
                power.dump_lines(run, &shards[shard], volume);
                self.run_some_events();
            }
        }
        self.halt(volumes);
    }

    fn flush_disks(&mut self, volumes: &[VolumeId]) {
        if !self.world.run.strikes_always(Sabotage::SkipPowerFlush) {
            for &volume in volumes {
                self.world.device.disk_mut(volume).flush();
            }
        }
    }

    /// Whether a journal may fail after a dump: each of its volumes has a UPS as well.
    fn may_fail_journal(&self) -> bool {
        let plan = &self.world.run.plan;
        let is_bridged = plan.volumes.iter().all(|volume| volume.ups || !volume.journal);
        plan.has_both() && is_bridged && !self.world.journal.has_failed()
    }

    /// A journal fails while its machine runs on battery. Its volumes depend on the UPS from then
    /// on.
    fn fail_journal_after_dump(&mut self) {
        self.world.journal.unspare(&mut self.world.run);
        self.world.journal.fail_next_write();
        for _ in 0..FAILURE_EVENTS_MAX {
            if !self.is_ok() || self.world.journal.is_abandoned() {
                break;
            }
            self.step();
        }
        self.world.journal.spare();
        if self.world.journal.is_abandoned() {
            self.world.run.report.dumps_again += 1;
            self.advance_dump();
        }
    }

    fn run_some_events(&mut self) {
        for _ in 0..self.world.run.dice.range(0, self.world.run.plan.power.events_between_max) {
            if self.is_ok() {
                self.step();
            }
        }
    }
}
