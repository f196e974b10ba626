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

use super::answers::PendingRequest;
use super::disk::sectors_of;
use super::plan::Plan;
use super::world::{VolumeState, World};
use crate::harness::Sabotage;
use crate::harness::dice::{Dice, Ppm};
use crate::harness::oracle::{Promise, is_change};
use forebay_engine::{LineKey, Part};
use forebay_journal::{Extent, Source};
use forebay_types::{ByteRange, IoError, IoResult, LINE_BYTES, Mode, SECTOR_BYTES, VolumeId};
use forebay_volume::{Admission, PowerGate, RequestKind};
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

pub(crate) struct Power {
    pub gate: PowerGate,
    is_open: bool,
    /// The moment when the gate closed, if it is closed.
    closed: Option<u32>,
    /// The gate has closed, and the disks have not been flushed since the last dirty data was
    /// destaged.
    sync_due: bool,
    /// Writes are no longer acknowledged.
    pub halted: bool,
    /// Mains have failed: a failing journal would be a second fault.
    pub failing: bool,
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
            halted: false,
            failing: false,
            vault: vec![BTreeMap::new(); volumes],
        }
    }

    /// Whether a request submitted then cannot have been acknowledged from memory.
    fn was_closed(&self, submitted: u32) -> bool {
        self.closed.is_some_and(|closed| submitted > closed)
    }
}

/// The guarantee of an acknowledged change of a volume with a UPS.
pub(super) fn promise(
    power: &Power,
    plan: &Plan,
    pending: &PendingRequest,
    volume: &VolumeState,
) -> Promise {
    if !plan.power.fails_unbridged {
        return Promise::Stable;
    }
    let first_mode = plan.volumes[usize::from(pending.request.volume.0)].mode;
    let is_write_back = first_mode == Mode::WriteBack
        && volume.mode == Mode::WriteBack
        && volume.write_back_until == 0;
    let was_closed = power.was_closed(pending.submitted);
    let is_stable = match pending.request.kind {
        RequestKind::Trim { fua: true } | RequestKind::Zero { fua: true, .. } => true,
        RequestKind::Write { fua: true } => was_closed,
        RequestKind::Write { .. } | RequestKind::Zero { .. } => was_closed && is_write_back,
        _ => false,
    };
    if is_stable { Promise::Stable } else { Promise::Kept }
}

impl World {
    /// Resets the UPS for a new process; the vault is kept.
    pub(crate) fn restart_power(&mut self) {
        let vault = std::mem::take(&mut self.power.vault);
        self.power = Power { vault, closed: Some(self.run.moment()), ..Power::new(0) };
    }

    /// Whether a power failure now would not be bridged.
    pub(crate) fn fails_unbridged(&self) -> bool {
        self.run.plan.power.fails_unbridged && !self.power.is_open
    }

    /// Records a successful flush of a client.
    pub(crate) fn end_flush_request(&mut self, pending: &PendingRequest) {
        let is_kept = self.run.plan.power.fails_unbridged
            && self.run.plan.volume(pending.request.volume).ups
            && !self.power.was_closed(pending.submitted);
        let oracle = &mut self.volumes[usize::from(pending.request.volume.0)].oracle;
        match is_kept {
            true => oracle.flush_kept(pending.submitted),
            false => oracle.flush(pending.submitted),
        }
    }

    /// Handles the end of a drain after the gate closed: with no dirty data left and a flush, the
    /// disk has everything that was acknowledged before.
    pub(crate) fn drain_ended(&mut self, pending: &PendingRequest, result: IoResult) {
        let volume = pending.request.volume;
        if !self.run.plan.volume(volume).ups || !self.power.was_closed(pending.submitted) {
            return;
        }
        match result {
            Ok(()) => self.volumes[usize::from(volume.0)].oracle.flush(pending.submitted),
            Err(_) => self.power.sync_due = true,
        }
    }

    pub(crate) fn admit_by_power(&self, part: &Part) -> Admission {
        let ByteRange { offset, len } = part.range;
        let lines = (offset + len).div_ceil(LINE_BYTES) - offset / LINE_BYTES;
        if self.power.gate.admit(lines) { Admission::Free } else { Admission::Through }
    }

    /// The result that the client of a request receives.
    pub(crate) fn unless_halted(
        &self,
        volume: VolumeId,
        kind: RequestKind,
        result: IoResult,
    ) -> IoResult {
        let refused = self.power.halted && is_change(kind) && self.run.plan.volume(volume).ups;
        if refused { result.and(Err(IoError::Shutdown)) } else { result }
    }

    /// Advances the UPS by a tick. Returns the requests that follow for its volumes.
    pub(crate) fn tick_power(&mut self) -> Vec<(VolumeId, RequestKind)> {
        let volumes = self.run.plan.ups_volumes();
        if volumes.is_empty() || self.power.halted {
            return Vec::new();
        }
        let plan = self.run.plan.power;
        if self.run.dice.chance(plan.toggle) {
            self.power.is_open ^= true;
            let is_open = self.power.is_open;
            (self.power.closed, self.power.sync_due) =
                if is_open { (None, false) } else { (Some(self.run.moment()), true) };
        }
        let dirty = |&volume: &VolumeId| -> usize {
            self.shards.iter().map(|shard| shard.shard.volume(volume).dirty_lines()).sum()
        };
        let dirty_lines: usize = volumes.iter().map(dirty).sum();
        let max = if self.power.is_open { plan.dirty_lines_max } else { 0 };
        self.power.gate.set(dirty_lines as u64 * LINE_BYTES, max * LINE_BYTES);
        let is_busy = volumes.iter().any(|&volume| self.has_keeper_request(volume));
        let is_open = self.power.is_open;
        let kind = match is_open {
            false if dirty_lines > 0 => RequestKind::Checkpoint,
            // A flush that began earlier need not cover later writes.
            false if is_busy || !std::mem::take(&mut self.power.sync_due) => return Vec::new(),
            false if self.run.strikes_always(Sabotage::SkipClosingSync) => {
                let moment = self.run.moment();
                volumes.iter().for_each(|volume| {
                    self.volumes[usize::from(volume.0)].oracle.flush(moment);
                });
                return Vec::new();
            }
            false => RequestKind::Sync,
            true if self.run.dice.chance(plan.sync) => RequestKind::Sync,
            true => return Vec::new(),
        };
        volumes.into_iter().map(|volume| (volume, kind)).collect()
    }

    /// Dumps the dirty data of a volume in a shard to the vault.
    pub(crate) fn dump_lines(&mut self, shard: usize, volume: VolumeId) {
        let keys: Vec<LineKey> = self.shards[shard].shard.volume(volume).dirty_keys().collect();
        for key in keys {
            if self.run.strikes(Sabotage::SkipVaultLine) {
                continue;
            }
            let one = &self.shards[shard];
            let Some(line) = one.shard.dirty_line(key) else { continue };
            let vault = &mut self.power.vault[usize::from(volume.0)];
            for (offset, len) in line.runs() {
                for at in (offset..offset + len).step_by(SECTOR_BYTES as usize) {
                    let sector = (key.offset() + u64::from(at)) / SECTOR_BYTES;
                    vault.insert(sector, one.stamp(line.slot, at));
                }
            }
        }
    }

    pub(crate) fn vault_image(&self, volume: usize) -> Vec<(Extent, Vec<u64>)> {
        let mut image: Vec<(Extent, Vec<u64>)> = Vec::new();
        for (&sector, &stamp) in &self.power.vault[volume] {
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
        self.power.vault[usize::from(volume.0)].clear();
    }
}
