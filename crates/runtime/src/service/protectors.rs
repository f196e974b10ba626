//! The devices that protect the volumes of a runtime: its journals and its vault, and the records
//! of which volumes rely on them.
//!
//! A volume that is being added may be served only if its newest data is available. This component
//! collects what is known about journal, pool and vault; [`forebay_journal::decision`] decides.

use super::VolumeSettings;
use super::adopt::{PoolVolumes, RecoveryPlan};
use crate::error::{VolumeError, VolumeResult};
use crate::journal::{Journal, JournalError, JournalRecord, JournalSettings, NoJournalRecord};
use crate::platform::locks::Lock;
use crate::protect::vault::{NoRecord, Vault, VaultError, VaultRecord, VaultSettings};
use crate::shared::Shared;
use crate::stats::InternalReads;
use forebay_format::journal::JournalId;
use forebay_journal::decision::{
    Decision, DiskIdentity, JournalState, PoolState, ServeInputs, ServeRefusal, VaultState, decide,
};
use forebay_types::Mode;
use std::sync::Arc;

/// Whether the pool has all data of the volume.
const fn pool_state(plan: RecoveryPlan) -> PoolState {
    match plan {
        RecoveryPlan::Fresh | RecoveryPlan::Restore => PoolState::New,
        RecoveryPlan::Keep | RecoveryPlan::Record => PoolState::Adopted,
    }
}

/// The state of pool and vault for a volume that is being added.
///
/// # Errors
/// When the vault's data of the volume may not be used, or lacks some.
pub(super) fn pool_and_vault(
    settings: &VolumeSettings,
    plan: RecoveryPlan,
    internal_reads: &InternalReads,
) -> Result<(PoolState, VaultState), VolumeError> {
    let pool = pool_state(plan);
    let vault = match &settings.vault {
        None => VaultState::None,
        Some(used) => {
            let disk = (&*settings.backend, internal_reads);
            used.vault.check(&settings.name, disk, used, pool, settings.trust())?
        }
    };
    Ok((pool, vault))
}

/// The open journals and the open vault. See the module.
pub struct Protectors {
    shared: Arc<Shared>,
    journals: Lock<Vec<Arc<Journal>>>,
    vault: Lock<Option<Arc<Vault>>>,
    vault_record: Lock<Arc<dyn VaultRecord>>,
    journal_record: Lock<Arc<dyn JournalRecord>>,
}

impl Protectors {
    pub(crate) fn new(shared: &Arc<Shared>) -> Self {
        Self {
            shared: Arc::clone(shared),
            journals: Lock::default(),
            vault: Lock::default(),
            vault_record: Lock::new(Arc::new(NoRecord)),
            journal_record: Lock::new(Arc::new(NoJournalRecord)),
        }
    }

    /// Sets the record of the volumes that rely on a journal. By default nothing is recorded.
    ///
    /// # Panics
    /// If a journal is open already.
    pub fn keep_journal_record(&self, record: Arc<dyn JournalRecord>) {
        assert!(self.journals.lock().is_empty(), "the record is set before a journal is opened");
        *self.journal_record.lock() = record;
    }

    /// Sets the record of the volumes that rely on a vault. By default nothing is recorded.
    ///
    /// # Panics
    /// If a vault is open already: its volumes would be missing from the record.
    pub fn keep_vault_record(&self, record: Arc<dyn VaultRecord>) {
        assert!(self.vault().is_none(), "the record is set before a vault is opened");
        *self.vault_record.lock() = record;
    }

    fn journal_record(&self) -> Arc<dyn JournalRecord> {
        Arc::clone(&self.journal_record.lock())
    }

    fn vault_record(&self) -> Arc<dyn VaultRecord> {
        Arc::clone(&self.vault_record.lock())
    }

    /// Opens a journal, or formats one on a device that begins with zeroes.
    ///
    /// # Errors
    /// When the journal cannot be used, or its use could lose acknowledged writes.
    pub fn open_journal(&self, settings: JournalSettings) -> Result<Arc<Journal>, JournalError> {
        let host = Arc::downgrade(&self.shared);
        let workers = self.shared.inboxes.len();
        let journal = Journal::open(settings, host, workers, self.journal_record())?;
        self.journals.lock().push(Arc::clone(&journal));
        Ok(journal)
    }

    /// Whether a volume uses a journal.
    pub fn is_used(&self, journal: &Arc<Journal>) -> bool {
        self.shared.volumes.all().iter().any(|volume| {
            volume.journal.get().is_some_and(|used| Arc::ptr_eq(&used.journal, journal))
        })
    }

    /// Closes a journal that no volume uses.
    pub fn close_journal(&self, journal: &Arc<Journal>) {
        self.journals.lock().retain(|other| !Arc::ptr_eq(other, journal));
        journal.close(true);
    }

    /// Opens the vault, or formats one. It has to hold `needed_bytes`.
    pub(crate) fn open_vault(
        &self,
        settings: VaultSettings,
        needed_bytes: u64,
    ) -> Result<Arc<Vault>, VaultError> {
        let vault = Vault::open(settings, &self.shared, self.vault_record(), needed_bytes)?;
        *self.vault.lock() = Some(Arc::clone(&vault));
        Ok(vault)
    }

    /// The open journals.
    pub fn journals(&self) -> Vec<Arc<Journal>> {
        self.journals.lock().clone()
    }

    /// The open vault.
    pub fn vault(&self) -> Option<Arc<Vault>> {
        self.vault.lock().clone()
    }

    /// Closes journals and vault. All data is on the disks.
    pub(crate) fn close(&self) {
        self.journals().iter().for_each(|journal| journal.close(true));
        if let Some(vault) = self.vault() {
            vault.close(true);
        }
    }

    /// Checks that journals and vault are still where they were opened. May block as long as
    /// resolving a path can.
    pub(crate) fn check_presence(&self) {
        self.journals().iter().for_each(|journal| journal.check_presence());
        if let Some(vault) = self.vault() {
            vault.check_presence();
        }
    }

    /// Rewrites the records of which volumes rely on which journal and vault, and of failed
    /// journals, after the records were deleted.
    pub fn renew_records(&self) -> VolumeResult {
        for volume in self.shared.volumes.all() {
            let mode = {
                let shard = self.shared.shard(0);
                if !shard.has_volume(volume.id) {
                    continue;
                }
                shard.volume(volume.id).mode()
            };
            if let Some(vault) = self.vault() {
                vault.rely(volume.id, mode)?;
            }
            if let (Some(used), Mode::WriteBack) = (volume.journal.get(), mode) {
                used.journal.rely(&volume.name)?;
            }
        }
        self.journals().iter().try_for_each(|journal| journal.renew_records())?;
        Ok(())
    }

    /// Refuses a volume whose newest data may be in a vault that is not open, unless the pool has
    /// the data or the operator accepts its loss.
    pub(super) fn check_missing_vault(
        &self,
        settings: &VolumeSettings,
        plan: RecoveryPlan,
    ) -> VolumeResult {
        let open = self.vault().map(|vault| vault.number());
        let Some(missing) = self.vault_record().elsewhere(&settings.name, open) else {
            return Ok(());
        };
        let pool = pool_state(plan);
        let decision = decide(ServeInputs {
            // A journal does not replace a missing vault: see `forebay_journal::decision`.
            journal: JournalState::None,
            pool,
            vault: VaultState::Missing,
            disk: DiskIdentity::Same,
            has_clean_mark: false,
            accept_loss: missing.is_given_up,
            accept_disk: false,
        });
        let name = &settings.name;
        match decision {
            Decision::Refuse(ServeRefusal::VaultMissing) => {
                Err(VaultError::Missing { name: missing.name, volume: name.clone() }.into())
            }
            _ if pool == PoolState::Adopted => Ok(()),
            _ => {
                tracing::error!(
                    vault = %missing.name,
                    volume = %name,
                    "recorded vault missing, loss of its data accepted by the operator"
                );
                Ok(())
            }
        }
    }

    /// Records that the data of a volume in vaults other than the open one is void.
    pub(super) fn supersede_vaults(&self, volume: &str) -> VolumeResult {
        let open = self.vault().map(|vault| vault.number());
        let recorded = self.vault_record().supersede(volume, open);
        recorded.map_err(|error| VolumeError::Record { name: volume.to_owned(), error })
    }

    /// Refuses a volume whose newest data may be in a journal other than the configured one, unless
    /// the pool has the data or the operator accepts its loss. Called before anything is changed.
    pub(super) fn check_missing_journal(&self, settings: &VolumeSettings) -> VolumeResult {
        let named = settings.journal.as_ref().map(|used| used.journal.id());
        let name = &settings.name;
        let Some(missing) = self.journal_record().elsewhere(name, named) else { return Ok(()) };
        let is_whole = PoolVolumes::of(&self.shared).is_whole(settings);
        let pool = if is_whole { PoolState::Adopted } else { PoolState::New };
        let decision = decide(ServeInputs {
            journal: JournalState::Missing,
            pool,
            // A vault does not replace a missing journal: see `forebay_journal::decision`.
            vault: VaultState::None,
            disk: DiskIdentity::Same,
            has_clean_mark: false,
            accept_loss: missing.is_given_up,
            accept_disk: false,
        });
        let journal = missing.name;
        match decision {
            Decision::Refuse(_) => {
                let volume = name.clone();
                return Err(JournalError::Missing { name: journal, volume }.into());
            }
            _ if pool == PoolState::Adopted => tracing::warn!(
                volume = %name,
                %journal,
                "recorded journal missing, not needed as the adopted pool has all of its data"
            ),
            _ => tracing::error!(
                volume = %name,
                %journal,
                "recorded journal missing, loss of its data accepted by the operator"
            ),
        }
        Ok(())
    }

    /// Records that the data of a volume in journals other than this one is void.
    pub(super) fn supersede_journals(
        &self,
        volume: &str,
        named: Option<JournalId>,
    ) -> VolumeResult {
        let recorded = self.journal_record().supersede(volume, named);
        recorded.map_err(|error| VolumeError::Record { name: volume.to_owned(), error })
    }
}
