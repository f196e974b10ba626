//! Adds a volume: checks its disk and its journal, recovers its data, and lets clients enter.

use super::adopt::RecoveryPlan;
use super::drain::flush;
use super::protectors::pool_and_vault;
use super::record_again::record_again;
use super::taken_over::{are_lost, surrender};
use super::{VolumeService, VolumeSettings};
use crate::disk::{DiskState, DiskTrust};
use crate::error::{VolumeError, VolumeResult};
use crate::journal::{Attachment, JournalError, VolumeJournal};
use crate::platform::locks::{Lock, SharedLock};
use crate::protect::restore::Restorer;
use crate::protect::vault::VolumeVault;
use crate::shared::{
    ExtentQueries, FlushGate, Gather, Govern, JournalSlot, JournalUse, Learn, Shared, SlowVolume,
    Volume, VolumeLimits, VolumePins, Warm, limits_of,
};
use crate::stats::{InternalReads, WorkerStats};
use forebay_backend::Backend;
use forebay_engine::Protection;
use forebay_frontend::VolumeInfo;
use forebay_journal::Freshness;
use forebay_journal::decision::{PoolState, VaultState};
use forebay_protect::VolumePower;
use forebay_types::{Durability, Fault, Mode, Stripes, TlsUse, VolumeId};
use forebay_volume::Streams;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

impl VolumeService {
    /// Adds a volume. It is served when this returns: its data from journal and vault is in the
    /// pool or on its disk.
    ///
    /// # Errors
    /// When its name or its disk is in use, there are too many volumes, or its data cannot be
    /// recovered safely.
    pub fn add(&self, mut settings: VolumeSettings) -> Result<VolumeId, VolumeError> {
        let _addition = self.begin_addition(&settings)?;
        self.pool_volumes().compare(&settings)?;
        self.protectors.check_missing_journal(&settings)?;
        let journal = settings.journal.as_ref().map(|used| used.journal.id());
        let pins = settings.config.pin.clone();
        let on_recovered = settings.on_recovered.take();
        let (name, disk) = (settings.name.clone(), Arc::clone(&settings.backend));
        let used = settings.journal.as_ref().map(|used| Arc::clone(&used.journal));
        let volume = self.add_hidden(settings).map_err(|error| {
            // I/O of a host that is shut out fails.
            if are_lost(&self.shared, disk, used) { VolumeError::TakenOver(name) } else { error }
        })?;
        check_still_here(self, &volume)?;
        // Data in other journals, and what former owners of the disk have left, is void from the
        // first write of a client on.
        let superseded = self.protectors.supersede_journals(&volume.name, journal);
        let is_void = superseded.and_then(|()| {
            let name = volume.name.clone();
            on_recovered
                .map_or(Ok(()), |record| record())
                .map_err(|error| VolumeError::Tenure { name, error })
        });
        if let Err(error) = is_void {
            self.undo_add(&volume);
            return Err(error);
        }
        volume.is_closed.store(false, Ordering::Relaxed);
        self.calibrator.schedule(&volume);
        self.warm_ups.schedule(&volume);
        self.pin_added(&volume, &pins);
        Ok(volume.id)
    }

    /// Adds a volume that clients cannot enter yet. After an error, the volume has been removed
    /// again, if its disk works; see [`VolumeService::undo_add`].
    fn add_hidden(&self, settings: VolumeSettings) -> Result<Arc<Volume>, VolumeError> {
        let plan = self.pool_volumes().recovery_plan(&settings);
        self.protectors.check_missing_vault(&settings, plan)?;
        let mode = settings.config.mode;
        let (volume, vault) = self.register(settings, plan)?;
        if let Err(error) = self.fill(&volume, mode, plan, vault.as_ref()) {
            self.undo_add(&volume);
            return Err(error);
        }
        Ok(volume)
    }

    /// Attaches a volume to its journal, and adds it to the table and to the shards.
    fn register(
        &self,
        settings: VolumeSettings,
        plan: RecoveryPlan,
    ) -> Result<(Arc<Volume>, Option<VolumeVault>), VolumeError> {
        let (id, stripes) = self.assign_id(&settings)?;
        let internal_reads = Arc::default();
        let elsewhere = pool_and_vault(&settings, plan, &internal_reads)?;
        let has_other_owner = settings.has_other_owner;
        let info = info_of(id, &settings);
        let config = settings.config;
        let (size, mode) = (info.size_bytes, config.mode);
        let warm = Warm::new(config.warm, &*settings.backend, settings.identity);
        let gather_below = settings.gather_below.or(config.gather_below.set());
        let mut streams = Streams::new(size, self.shared.pool.lines_bytes());
        settings.split_cost.iter().for_each(|cost| streams.set_split_cost(cost));
        let named = (id, &info.name[..]);
        let disk = (&settings.backend, &internal_reads);
        let relies = mode == Mode::WriteBack || plan == RecoveryPlan::Record;
        let journal = attach(named, disk, settings.journal, elsewhere, (relies, has_other_owner))?;
        let protection = protection_of(journal.is_some(), config.protection.has_ups());
        let volume = Arc::new(Volume {
            id,
            name: info.name.clone(),
            identity: settings.identity,
            read_only: AtomicBool::new(info.read_only),
            limits: VolumeLimits::new(&config, self.shared.started),
            info: SharedLock::new(info),
            backend: settings.backend,
            streams: Lock::new(streams),
            geometry: settings.geometry,
            stripes,
            gather: Gather::new(gather_below, settings.split_cost, settings.on_measured),
            govern: Govern::new(limits_of(&config), self.shared.shards.len()),
            flush: FlushGate::default(),
            blocks: Lock::default(),
            freshness: Freshness::new(plan == RecoveryPlan::Record),
            order: config.ordered.then(Arc::default),
            journal: JournalSlot::new(journal),
            power: VolumePower::new(config.protection.has_ups()),
            disk: DiskState { internal_reads, ..DiskState::default() },
            slow: SlowVolume::new(config.slow_us),
            warm,
            pins: VolumePins::default(),
            learn: Learn::new(config.learn),
            internal_flushes: AtomicU64::new(0),
            extent_queries: ExtentQueries::default(),
            stats: self.shared.inboxes.iter().map(|_| WorkerStats::default()).collect(),
            connections: AtomicU64::new(0),
            // Clients must not enter before the volume's data is recovered.
            is_closed: AtomicBool::new(true),
            half_added: AtomicBool::new(false),
            given_up: AtomicBool::new(false),
            has_lost_journal: AtomicBool::new(false),
            has_hold_out: AtomicBool::new(false),
            is_frozen: AtomicBool::new(config.frozen),
            config: SharedLock::new(config),
        });
        let registered = Arc::clone(&volume);
        self.shared.run_on(0, move |tasks| {
            tasks.shared().register(registered, protection);
        })?;
        Ok((volume, settings.vault))
    }

    /// Brings all data of a registered volume into the pool or to its disk, and prepares its vault.
    fn fill(
        &self,
        volume: &Arc<Volume>,
        mode: Mode,
        plan: RecoveryPlan,
        vault: Option<&VolumeVault>,
    ) -> VolumeResult {
        if mode == Mode::Bypass {
            // Drops clean lines of an adopted pool.
            self.shared.shards.drop_clean(volume.id);
        }
        self.recover(volume, plan)?;
        if let Some(used) = vault {
            let failed = |error| VolumeError::Load { name: volume.name.clone(), error };
            used.load(&self.shared, volume, failed, || flush(&self.shared, volume, &mut |_| {}))?;
            used.vault.attach(volume, volume.size_bytes(), used.identity, mode)?;
        }
        // Data in other vaults is void from the first write of a client on.
        self.protectors.supersede_vaults(&volume.name)
    }

    /// Recovers a volume's data from the adopted pool and the journal.
    fn recover(&self, volume: &Volume, plan: RecoveryPlan) -> VolumeResult {
        if self.shared.pool.is_adopted() {
            // The previous process may have written to the disk without a flush.
            volume.flush.record_write();
        }
        match plan {
            RecoveryPlan::Fresh | RecoveryPlan::Keep => {}
            RecoveryPlan::Restore => restore(&self.shared, volume)?,
            RecoveryPlan::Record => record_again(&self.shared, volume)?,
        }
        if let Some(used) = volume.journal.get() {
            let is_newest = volume.freshness.newest().is_some();
            let has_all = used.durability == Durability::Ack && is_newest;
            self.pool_volumes().mark_whole(volume.id, has_all.then_some(used.journal.id()));
        }
        Ok(())
    }

    /// Records a volume in the pool, which assigns its number and its stripes.
    fn assign_id(&self, settings: &VolumeSettings) -> Result<(VolumeId, Stripes), VolumeError> {
        // Another addition must not find the same number free.
        let _changing = self.changes.lock();
        self.pool_volumes().enter(settings)
    }
}

/// Checks that no other host has taken over the disk or the journal while a volume was added. Two
/// hosts that take a volume over at once could have one of the two each; and what was restored may
/// be records of the other host, if this one has slept.
fn check_still_here(volumes: &VolumeService, volume: &Arc<Volume>) -> VolumeResult {
    let journal = volume.journal.get().map(|used| Arc::clone(&used.journal));
    if !are_lost(&volumes.shared, Arc::clone(&volume.backend), journal) {
        return Ok(());
    }
    // Its data goes nowhere.
    if let Err(error) = surrender(volumes, &volume.name) {
        volume.half_added.store(true, Ordering::Relaxed);
        let error = error.with_causes();
        tracing::error!(volume = %volume.name, error, "the volume stays until it is removed");
    }
    Err(VolumeError::TakenOver(volume.name.clone()))
}

/// Attaches a volume to its journal, if it has one. Records that the volume relies on the journal
/// if the journal holds its data or will (`relies`).
fn attach(
    (id, name): (VolumeId, &str),
    (disk, internal_reads): (&Arc<dyn Backend>, &Arc<InternalReads>),
    journal: Option<VolumeJournal>,
    (pool, vault): (PoolState, VaultState),
    (relies, has_other_owner): (bool, bool),
) -> Result<Option<JournalUse>, JournalError> {
    let Some(VolumeJournal { journal, durability, identity, accept_disk }) = journal else {
        return Ok(None);
    };
    let trust = DiskTrust { is_accepted: accept_disk, has_other_owner };
    let attachment = Attachment { name, id, identity, disk, internal_reads, trust, pool, vault };
    let number = journal.attach(&attachment)?;
    if (relies || journal.holds(number))
        && let Err(error) = journal.rely(name)
    {
        journal.take_back(number);
        return Err(error);
    }
    Ok(Some(JournalUse { journal, number, durability }))
}

/// The protection of a volume's dirty data, for the shards.
pub(super) const fn protection_of(has_journal: bool, has_ups: bool) -> Protection {
    match (has_journal, has_ups) {
        (true, _) => Protection::Journal,
        (false, true) => Protection::Power,
        (false, false) => Protection::None,
    }
}

/// The description of a volume for clients.
fn info_of(id: VolumeId, settings: &VolumeSettings) -> VolumeInfo {
    let description = settings.backend.description();
    VolumeInfo {
        id,
        name: settings.name.clone(),
        identity: settings.identity,
        description: settings.config.description.clone().unwrap_or_default(),
        size_bytes: description.size_bytes(),
        read_only: settings.config.read_only || description.read_only,
        rotational: settings.geometry.rotational == Some(true),
        block_bytes: description.alignment_bytes,
        can_trim: description.can_discard,
        can_fast_zero: description.can_zero_fast,
        tls_only: settings.config.tls == TlsUse::Required,
    }
}

/// Restores the volume's data from its journal.
pub(super) fn restore(shared: &Shared, volume: &Volume) -> VolumeResult {
    let Some(used) = volume.journal.get() else { return Ok(()) };
    let failed = |error| VolumeError::Restore { name: volume.name.clone(), error };
    let begun = Instant::now();
    let mut reader = used.journal.reader();
    let mut restorer = Restorer::new(shared, volume.id, false);
    let mut bytes = 0;
    for piece in used.journal.pieces_to_restore(used.number) {
        bytes += piece.range.len;
        restorer.restore(piece, |at, into| reader.read(at, into)).map_err(failed)?;
    }
    restorer.finish().map_err(failed)?;
    used.journal.restored(used.number)?;
    if bytes > 0 {
        let ms = begun.elapsed().as_millis() as u64;
        tracing::info!(volume = %volume.name, bytes, ms, "restored from the journal");
    }
    Ok(())
}
