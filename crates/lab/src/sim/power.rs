//! A UPS, and the vault that takes dirty data when its battery runs low.
//!
//! Volumes with a UPS are in write-back while the gate is open; the seed decides when. On a power
//! failure, the steps of the runtime are executed, with other events between any two of them:
//! writes are halted, the dirty lines of each shard are dumped, the disks are flushed, and only
//! then the power is lost. Afterwards every acknowledged write must be on the disk or in the vault.
//! The vault keeps its content until the disk has it.
//!
//! In some machines, power fails without a bridge while the gate is closed: nothing is dumped.
//! Everything acknowledged since the gate closed must survive, and everything before, once the
//! dirty data has been drained.

use super::device::disk::sectors_of;
use super::expected::Expected;
use super::requests::{PendingRequest, Requests};
use super::run::Run;
use super::volume::Volume;
use super::world::World;
use crate::harness::Sabotage;
use crate::harness::dice::{Dice, Ppm};
use crate::harness::oracle::{Promise, is_change};
use crate::harness::shard::PooledShard;
use forebay_engine::LineKey;
use forebay_journal::{Extent, Source};
use forebay_protect::PowerGate;
use forebay_types::{ByteRange, IoError, IoResult, LINE_BYTES, SECTOR_BYTES, VolumeId};
use forebay_volume::{Request, RequestKind};
use std::collections::BTreeMap;

#[derive(Clone, Copy, Debug)]
pub(crate) struct PowerPlan {
    /// Lines that may be dirty while the gate is open.
    pub dirty_lines_max: u64,
    /// The probability per tick that the gate opens or closes.
    pub toggle: Ppm,
    /// The probability per tick of a flush of the disks while the gate is open.
    sync: Ppm,
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
            sync: dice.pick(&[0, 10_000, 300_000]),
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
    is_open: bool,
    /// The moment when the gate closed, if it is closed.
    closed: Option<u32>,
    /// The gate has closed, and the disks have not been flushed since the last dirty data was
    /// destaged.
    sync_due: bool,
    /// The volumes whose writes are no longer acknowledged.
    halted: Vec<VolumeId>,
    /// For each volume, the content of sectors by number.
    vault: Vec<BTreeMap<u64, u64>>,
}

impl Power {
    pub(crate) fn new(volumes: usize) -> Self {
        Self {
            gate: PowerGate::default(),
            is_open: false,
            closed: Some(0),
            sync_due: true,
            halted: Vec::new(),
            vault: vec![BTreeMap::new(); volumes],
        }
    }

    /// Resets the UPS for a new process; the vault is kept.
    pub(crate) fn restart(&mut self, moment: u32) {
        let vault = std::mem::take(&mut self.vault);
        *self = Self { vault, closed: Some(moment), ..Self::new(0) };
    }

    /// The gate of a volume that has a UPS.
    pub(crate) fn gate_of(&self, run: &Run, volume: VolumeId) -> Option<&PowerGate> {
        run.plan.volume(volume).ups.then_some(&self.gate)
    }

    /// Whether a power failure now would not be bridged.
    pub(crate) const fn fails_unbridged(&self, run: &Run) -> bool {
        run.plan.power.fails_unbridged && !self.is_open
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

    /// Handles the end of a drain after the gate closed: with no dirty data left and a flush, the
    /// disk has everything that was acknowledged before.
    pub(crate) fn end_drain(
        &mut self,
        run: &Run,
        expected: &mut Expected,
        pending: &PendingRequest,
        result: IoResult,
        is_abandoned: bool,
    ) {
        let (volume, submitted) = (pending.request.volume, pending.submitted);
        if !run.plan.is_ups_only(volume, is_abandoned) || !self.was_closed(submitted) {
            return;
        }
        match result {
            Ok(()) => expected.flush(volume, submitted),
            Err(_) => self.sync_due = true,
        }
    }

    /// Stops the acknowledgement of changes to these volumes, because power is about to be lost.
    pub(crate) fn halt(&mut self, volumes: &[VolumeId]) {
        self.halted = volumes.to_vec();
    }

    pub(crate) const fn is_halted(&self) -> bool {
        !self.halted.is_empty()
    }

    /// The result that the client of a request receives.
    pub(crate) fn unless_halted(&self, request: Request, result: IoResult) -> IoResult {
        let refused = is_change(request.kind) && self.halted.contains(&request.volume);
        if refused { result.and(Err(IoError::Shutdown)) } else { result }
    }

    /// Advances the UPS by a tick. Returns the requests that follow for its volumes.
    pub(crate) fn tick(
        &mut self,
        run: &mut Run,
        shards: &[PooledShard],
        requests: &Requests,
        expected: &mut Expected,
        is_abandoned: bool,
    ) -> Vec<(VolumeId, RequestKind)> {
        let volumes = run.plan.ups_volumes(is_abandoned);
        if volumes.is_empty() || self.is_halted() {
            return Vec::new();
        }
        let plan = run.plan.power;
        if run.dice.chance(plan.toggle) {
            self.is_open ^= true;
            (self.closed, self.sync_due) =
                if self.is_open { (None, false) } else { (Some(run.moment()), true) };
        }
        let dirty = |&volume: &VolumeId| -> usize {
            shards.iter().map(|shard| shard.shard.volume(volume).dirty_lines()).sum()
        };
        let dirty_lines: usize = volumes.iter().map(dirty).sum();
        let max = if self.is_open { plan.dirty_lines_max } else { 0 };
        self.gate.set(dirty_lines as u64 * LINE_BYTES, max * LINE_BYTES);
        let is_busy = volumes.iter().any(|&volume| requests.has_internal_request(volume));
        let kind = match self.is_open {
            false if dirty_lines > 0 => RequestKind::Checkpoint { urgent: true },
            // A flush that began earlier may not cover later writes, so wait for its end.
            false if is_busy || !std::mem::take(&mut self.sync_due) => return Vec::new(),
            false if run.strikes_always(Sabotage::SkipClosingSync) => {
                volumes.iter().for_each(|&volume| expected.flush(volume, run.moment()));
                return Vec::new();
            }
            false => RequestKind::Sync,
            true if run.dice.chance(plan.sync) => RequestKind::Sync,
            true => return Vec::new(),
        };
        volumes.into_iter().map(|volume| (volume, kind)).collect()
    }

    /// Dumps the dirty data of a volume in a shard to the vault.
    pub(crate) fn dump_lines(&mut self, run: &mut Run, one: &PooledShard, volume: VolumeId) {
        let keys: Vec<LineKey> = one.shard.volume(volume).dirty_keys().collect();
        for key in keys {
            if run.strikes(Sabotage::SkipVaultLine) {
                continue;
            }
            let Some(line) = one.shard.dirty_line(key) else { continue };
            let vault = &mut self.vault[usize::from(volume.0)];
            for (offset, len) in line.runs() {
                for at in (offset..offset + len).step_by(SECTOR_BYTES as usize) {
                    let sector = (key.offset() + u64::from(at)) / SECTOR_BYTES;
                    vault.insert(sector, one.stamp(line.slot, at));
                }
            }
        }
    }

    /// Whether the vault holds data of a volume.
    pub(crate) fn holds(&self, volume: VolumeId) -> bool {
        !self.vault[usize::from(volume.0)].is_empty()
    }

    /// The content of the vault of a volume.
    pub(crate) fn vault_image(&self, volume: VolumeId) -> Vec<(Extent, Vec<u64>)> {
        let mut image: Vec<(Extent, Vec<u64>)> = Vec::new();
        for (&sector, &stamp) in &self.vault[usize::from(volume.0)] {
            let offset = sector * SECTOR_BYTES;
            match image.last_mut() {
                Some((extent, stamps)) if extent.range.end() == offset => {
                    extent.range.len += SECTOR_BYTES;
                    stamps.push(stamp);
                }
                _ => {
                    let source = Source::Write { record: 0, offset: 0 };
                    let range = ByteRange::new(offset, SECTOR_BYTES);
                    image.push((Extent { range, source }, vec![stamp]));
                }
            }
        }
        debug_assert!(image.iter().all(|(extent, stamps)| {
            let sectors = sectors_of(extent.range);
            (sectors.end - sectors.start) as usize == stamps.len()
        }));
        image
    }

    /// Empties the vault for a volume whose disk has the content.
    pub(crate) fn empty_vault(&mut self, volume: VolumeId) {
        self.vault[usize::from(volume.0)].clear();
    }
}
