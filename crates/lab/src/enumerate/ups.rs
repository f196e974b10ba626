//! The UPS of an enumerated machine, and what a crash leaves beside the disk and the journal.
//!
//! While only the UPS protects the volume, each loss of power is bridged, and the pool outlives a
//! killed process. While a journal protects it, or a start restores the vault's content, recovery
//! may rely on neither.

use super::machine::{EnumeratedMachine, VOLUME};
use crate::harness::Sabotage;
use crate::harness::oracle::Crash;
use crate::harness::places::{FIRST, SECTORS, STRIPES};
use crate::harness::shard::{PoolSnapshot, PooledShard, pooled_stamp};
use crate::harness::vault::VaultContent;
use forebay_engine::LineKey;
use forebay_protect::{DumpStep, PowerGate, PowerOrder, PowerSequence, VolumePower};
use forebay_types::LINE_BYTES;

/// More than the machine's lines.
const DIRTY_BYTES_MAX: u64 = 64 * LINE_BYTES;

/// The UPS. Its battery is always charged.
pub(super) struct Ups {
    gate: PowerGate,
    power: VolumePower,
    /// Dirty data that a dump has saved, until the disk has it. It survives losses of power.
    pub vault: VaultContent,
    /// The process has found content in the vault, and does not serve yet: crashes are not bridged,
    /// and its pool is not kept.
    is_loading: bool,
}

/// What a crash leaves beside the disk and the journal.
#[derive(Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct Left {
    pub vault: VaultContent,
    pub pool: Option<PoolSnapshot>,
}

impl Ups {
    /// The UPS of a process that has found this content in the vault.
    pub(super) fn new(vault: VaultContent) -> Self {
        let is_loading = !vault.is_empty();
        Self { gate: PowerGate::default(), power: VolumePower::new(true), vault, is_loading }
    }
}

impl EnumeratedMachine {
    pub(super) fn gate(&self) -> Option<&PowerGate> {
        self.ups.as_ref().map(|ups| &ups.gate)
    }

    /// Whether only the UPS protects the volume.
    pub(super) fn is_ups_only(&self) -> bool {
        let journal = self.journal.as_ref();
        self.ups.as_ref().is_some_and(|ups| {
            ups.power.is_ups_only(journal.map(|journal| || journal.state.is_abandoned()))
        })
    }

    /// Whether the UPS protects what an abandoned journal does not.
    pub(super) fn has_ups_for_journal(&self) -> bool {
        self.journal.is_some() && self.is_ups_only()
    }

    /// Opens the gate of a process that serves, or counts what has been admitted since.
    pub(super) fn maintain_ups(&mut self) {
        let Some(ups) = &mut self.ups else { return };
        let dirty = self.shards.iter().map(|one| one.shard.volume(VOLUME).dirty_lines());
        ups.gate.set(dirty.sum::<usize>() as u64 * LINE_BYTES, DIRTY_BYTES_MAX);
        ups.is_loading = false;
    }

    /// What a kill and a loss of power are now.
    pub(super) fn crashes(&self) -> [Crash; 2] {
        let is_loaded = self.ups.as_ref().is_some_and(|ups| !ups.is_loading);
        match (self.is_ups_only() && is_loaded, &self.journal) {
            (false, _) => [Crash::Process, Crash::Power],
            (true, None) => [Crash::Kill, Crash::Saved],
            // Recording an adopted pool in a new journal is left to the simulator.
            (true, Some(_)) => [Crash::Saved; 2],
        }
    }

    /// What a crash leaves beside the disk and the journal.
    pub(super) fn left_by(&self, crash: Crash) -> Left {
        let Some(ups) = &self.ups else { return Left::default() };
        match crash {
            Crash::Kill => Left {
                pool: Some(self.shards.iter().map(PooledShard::snapshot).collect()),
                ..Left::default()
            },
            Crash::Saved => Left { vault: self.dump().0, pool: None },
            Crash::Process | Crash::Power => Left { vault: ups.vault.clone(), pool: None },
        }
    }

    /// The contents that each sector of the disk may have after a crash, without those in flight.
    pub(super) fn disk_after(&self, crash: Crash) -> [Vec<u64>; SECTORS] {
        let is_flushed = match crash {
            Crash::Kill | Crash::Process => true,
            Crash::Saved => self.dump().1,
            Crash::Power => false,
        };
        match is_flushed {
            true => self.disk.content().map(|stamp| vec![stamp]),
            false => self.disk.possible(),
        }
    }

    /// The dump that the power monitor makes when the battery runs low, during which nothing else
    /// happens. Returns the vault's content and whether the disk was flushed.
    fn dump(&self) -> (VaultContent, bool) {
        let mut sequence = PowerSequence::new(u64::MAX, 0);
        sequence.handle_order(PowerOrder { dump_now: true, ..PowerOrder::default() });
        let (mut vault, mut is_flushed) = (VaultContent::default(), false);
        while let Some(step) = sequence.poll_dump(&[VOLUME], 0) {
            match step {
                DumpStep::Halt => {}
                DumpStep::Dump => vault = self.dirty_data(),
                DumpStep::FlushDisks => is_flushed = !self.strikes(Sabotage::SkipPowerFlush),
                DumpStep::EmptyVault | DumpStep::Resume => unreachable!("power does not return"),
            }
            sequence.handle_done(true, 0);
        }
        (vault, is_flushed)
    }

    fn dirty_data(&self) -> VaultContent {
        let mut vault = VaultContent::default();
        let left_out = usize::from(self.strikes(Sabotage::SkipVaultLine));
        for one in &self.shards {
            let keys: Vec<LineKey> = one.shard.volume(VOLUME).dirty_keys().collect();
            keys.into_iter().skip(left_out).for_each(|key| vault.dump(one, key));
        }
        vault
    }

    /// The content of each sector as readers see it.
    pub(super) fn visible_content(&self) -> [u64; SECTORS] {
        let on_disk = self.disk.content();
        std::array::from_fn(|place| {
            let sector = FIRST + place as u64;
            let in_pool = pooled_stamp(&self.shards, (VOLUME, STRIPES), sector);
            in_pool.unwrap_or(on_disk[place])
        })
    }
}
