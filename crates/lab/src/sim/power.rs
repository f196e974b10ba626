//! A supply with a battery, and the vault that takes what is dirty when the battery runs low.
//!
//! Volumes under it are write-back while the gate is open, which a seed makes come and go. When
//! power fails for them, what the runtime does is done, with other things happening between any
//! two steps: writes are halted, each shard's dirty lines are copied to the vault, the disks are
//! flushed, and only then power is lost. After that every write that was acknowledged is there,
//! on the disk or in the vault. What is in the vault stays there until the disk has it.

use super::dice::{Dice, Ppm};
use super::disk::sectors_of;
use super::sabotage::Sabotage;
use super::world::{ShardWorld, World, pool_index};
use forebay_engine::Part;
use forebay_journal::{Extent, Source};
use forebay_types::{ByteRange, IoError, IoResult, LINE_BYTES, SECTOR_BYTES, VolumeId};
use forebay_volume::{Admission, PowerGate, RequestKind};
use std::collections::BTreeMap;

/// How a supply behaves.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PowerPlan {
    /// Lines that may be dirty while the gate is open.
    dirty_lines_max: u64,
    /// Ticks after which it opens or closes.
    toggle: Ppm,
    /// Open ticks after which the disks are told to make stable what they have.
    sync: Ppm,
    /// Things that happen between two steps of a dump, at most.
    pub events_between_max: u64,
    /// Times that the process dies right before or after the disk has what the vault held.
    pub death_at_emptying: Ppm,
}

impl PowerPlan {
    pub(crate) fn draw(dice: &mut Dice) -> Self {
        Self {
            dirty_lines_max: dice.skewed(1, 600),
            toggle: dice.pick(&[1_000, 20_000, 200_000]),
            sync: dice.pick(&[0, 10_000, 300_000]),
            events_between_max: dice.pick(&[0, 5, 80]),
            death_at_emptying: dice.pick(&[0, 100_000, 500_000]),
        }
    }
}

/// The supply and the vault.
pub(crate) struct Power {
    pub gate: PowerGate,
    is_open: bool,
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
            halted: false,
            failing: false,
            vault: vec![BTreeMap::new(); volumes],
        }
    }
}

impl Power {
    /// A new process knows nothing of the supply yet; the vault is as it was.
    pub(crate) fn restart(&mut self) {
        let vault = std::mem::take(&mut self.vault);
        *self = Self { vault, ..Self::new(0) };
    }
}

impl World {
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
        }
        let dirty = |&volume: &VolumeId| -> usize {
            self.shards.iter().map(|shard| shard.shard.dirty_lines(volume)).sum()
        };
        let dirty_lines: usize = volumes.iter().map(dirty).sum();
        let max = if self.power.is_open { plan.dirty_lines_max } else { 0 };
        self.power.gate.set(dirty_lines as u64 * LINE_BYTES, max * LINE_BYTES);
        let kind = match self.power.is_open {
            false if dirty_lines == 0 => return Vec::new(),
            false => RequestKind::Checkpoint,
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
            let ShardWorld { shard, pool, .. } = &self.shards[shard];
            let Some(line) = shard.dirty_line(key) else { continue };
            let vault = &mut self.power.vault[usize::from(volume.0)];
            for (offset, len) in line.runs() {
                for at in (offset..offset + len).step_by(SECTOR_BYTES as usize) {
                    let sector = (key.offset() + u64::from(at)) / SECTOR_BYTES;
                    vault.insert(sector, pool[pool_index(line.slot, at)]);
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
