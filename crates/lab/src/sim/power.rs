//! A supply with a battery, and the vault that takes what is dirty when the battery runs low.
//!
//! Volumes under it are write-back while the gate is open, which a seed makes come and go. When
//! power fails for them, what the runtime does is done, with other things happening between any
//! two steps: writes are halted, each shard's dirty lines are copied to the vault, the disks are
//! flushed, and only then power is lost. After that every write that was acknowledged is there,
//! on the disk or in the vault. What is in the vault stays there until the disk has it.
//!
//! Some machines lose their power at once instead if that is to happen while the gate is closed:
//! nothing bridges the failure and nothing is saved. What was acknowledged since the gate closed is
//! there after that, and so is everything before, once what was dirty has been drained.

use super::answers::Asked;
use super::disk::sectors_of;
use super::plan::Plan;
use super::world::{VolumeWorld, World};
use crate::harness::Sabotage;
use crate::harness::dice::{Dice, Ppm};
use crate::harness::oracle::Promise;
use forebay_engine::Part;
use forebay_journal::{Extent, Source};
use forebay_types::{ByteRange, IoError, IoResult, LINE_BYTES, Mode, SECTOR_BYTES, VolumeId};
use forebay_volume::{Admission, PowerGate, RequestKind};
use std::collections::BTreeMap;

/// How a supply behaves.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PowerPlan {
    /// Lines that may be dirty while the gate is open.
    pub dirty_lines_max: u64,
    /// Ticks after which it opens or closes.
    pub toggle: Ppm,
    /// Open ticks after which the disks are told to make stable what they have.
    sync: Ppm,
    /// Things that happen between two steps of a dump, at most.
    pub events_between_max: u64,
    /// Times that the process dies right before or after the disk has what the vault held.
    pub death_at_emptying: Ppm,
    /// Power fails at once where that happens while the gate is closed.
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

/// The supply and the vault.
pub(crate) struct Power {
    pub gate: PowerGate,
    is_open: bool,
    /// When the gate closed, if it is closed.
    closed: Option<u32>,
    /// It has closed, and the disks have not been flushed since nothing is dirty.
    sync_due: bool,
    /// Writes are not acknowledged any more.
    pub halted: bool,
    /// Mains has failed: a journal that failed as well would be two faults at once.
    pub failing: bool,
    /// For each volume, the content of sectors by their numbers.
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
}

impl Power {
    /// Whether nothing has been acknowledged from memory for a request submitted then.
    fn was_closed(&self, submitted: u32) -> bool {
        self.closed.is_some_and(|closed| submitted > closed)
    }
}

/// What the answer to a change of a volume under the supply promises.
pub(super) fn promise(power: &Power, plan: &Plan, asked: &Asked, volume: &VolumeWorld) -> Promise {
    if !plan.power.fails_unbridged {
        return Promise::Stable;
    }
    let first_mode = plan.volumes[usize::from(asked.request.volume.0)].mode;
    let is_write_back = first_mode == Mode::WriteBack
        && volume.mode == Mode::WriteBack
        && volume.write_back_until == 0;
    let was_closed = power.was_closed(asked.submitted);
    let is_stable = match asked.request.kind {
        RequestKind::Trim { fua: true } | RequestKind::Zero { fua: true, .. } => true,
        RequestKind::Write { fua: true } => was_closed,
        RequestKind::Write { .. } | RequestKind::Zero { .. } => was_closed && is_write_back,
        _ => false,
    };
    if is_stable { Promise::Stable } else { Promise::Kept }
}

impl World {
    /// A new process knows nothing of the supply yet; the vault is as it was.
    pub(crate) fn restart_power(&mut self) {
        let vault = std::mem::take(&mut self.power.vault);
        self.power = Power { vault, closed: Some(self.moment), ..Power::new(0) };
    }

    /// Whether power that fails now fails at once.
    pub(crate) fn fails_unbridged(&self) -> bool {
        self.plan.power.fails_unbridged && !self.power.is_open
    }

    /// A client's flush was answered well.
    pub(crate) fn end_flush_request(&mut self, asked: &Asked) {
        let is_kept = self.plan.power.fails_unbridged
            && self.has_ups(asked.request.volume)
            && !self.power.was_closed(asked.submitted);
        let oracle = &mut self.volumes[usize::from(asked.request.volume.0)].oracle;
        match is_kept {
            true => oracle.flush_kept(asked.submitted),
            false => oracle.flush(asked.submitted),
        }
    }

    /// What followed from the closing of the gate has ended: with nothing dirty any more and a
    /// flush, the disk has all that was acknowledged before.
    pub(crate) fn drained(&mut self, asked: &Asked, result: IoResult) {
        let volume = asked.request.volume;
        if !self.has_ups(volume) || !self.power.was_closed(asked.submitted) {
            return;
        }
        match result {
            Ok(()) => self.volumes[usize::from(volume.0)].oracle.flush(asked.submitted),
            Err(_) => self.power.sync_due = true,
        }
    }

    pub(crate) fn has_ups(&self, volume: VolumeId) -> bool {
        self.plan.volumes[usize::from(volume.0)].ups
    }

    /// The volumes under the supply.
    pub(crate) fn ups_volumes(&self) -> Vec<VolumeId> {
        let volumes = (0..self.plan.volumes.len()).map(|at| VolumeId(at as u16));
        volumes.filter(|&volume| self.has_ups(volume)).collect()
    }

    pub(crate) fn admit_by_power(&self, part: &Part) -> Admission {
        let ByteRange { offset, len } = part.range;
        let lines = (offset + len).div_ceil(LINE_BYTES) - offset / LINE_BYTES;
        if self.power.gate.admit(lines) { Admission::Free } else { Admission::Through }
    }

    /// The result of a request as its client may be told.
    pub(crate) fn unless_halted(
        &self,
        volume: VolumeId,
        kind: RequestKind,
        result: IoResult,
    ) -> IoResult {
        let writes = matches!(
            kind,
            RequestKind::Write { .. } | RequestKind::Trim { .. } | RequestKind::Zero { .. }
        );
        let refused = self.power.halted && writes && self.has_ups(volume);
        if refused { result.and(Err(IoError::Shutdown)) } else { result }
    }

    /// The supply comes and goes. Returns what is to be asked of volumes for it.
    pub(crate) fn tick_power(&mut self) -> Vec<(VolumeId, RequestKind)> {
        let volumes = self.ups_volumes();
        if volumes.is_empty() || self.power.halted {
            return Vec::new();
        }
        let plan = self.plan.power;
        if self.dice.chance(plan.toggle) {
            self.power.is_open ^= true;
            let is_open = self.power.is_open;
            (self.power.closed, self.power.sync_due) =
                if is_open { (None, false) } else { (Some(self.moment), true) };
        }
        let dirty = |&volume: &VolumeId| -> usize {
            self.shards.iter().map(|shard| shard.shard.dirty_lines(volume)).sum()
        };
        let dirty_lines: usize = volumes.iter().map(dirty).sum();
        let max = if self.power.is_open { plan.dirty_lines_max } else { 0 };
        self.power.gate.set(dirty_lines as u64 * LINE_BYTES, max * LINE_BYTES);
        let is_keeper = |asked: &Asked| {
            asked.client == super::driver::KEEPER && volumes.contains(&asked.request.volume)
        };
        let is_busy = self.asked.iter().any(is_keeper);
        let is_open = self.power.is_open;
        let kind = match is_open {
            false if dirty_lines > 0 => RequestKind::Checkpoint,
            // A flush that has begun before need not cover what was written since.
            false if is_busy || !std::mem::take(&mut self.power.sync_due) => return Vec::new(),
            false if self.strikes_always(Sabotage::SkipClosingSync) => {
                let moment = self.moment;
                volumes.iter().for_each(|volume| {
                    self.volumes[usize::from(volume.0)].oracle.flush(moment);
                });
                return Vec::new();
            }
            false => RequestKind::Sync,
            true if self.dice.chance(plan.sync) => RequestKind::Sync,
            true => return Vec::new(),
        };
        volumes.into_iter().map(|volume| (volume, kind)).collect()
    }

    /// Copies what a shard has dirty of a volume to the vault.
    pub(crate) fn save(&mut self, shard: usize, volume: VolumeId) {
        let mut keys = Vec::new();
        self.shards[shard].shard.dirty_keys(volume, &mut keys);
        for key in keys {
            if self.strikes(Sabotage::SkipVaultLine) {
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

    /// What the vault holds of a volume.
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

    /// The disk of a volume has what the vault held of it.
    pub(crate) fn empty_vault(&mut self, volume: VolumeId) {
        self.power.vault[usize::from(volume.0)].clear();
    }
}
