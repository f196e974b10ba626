//! Checks whether a volume that is being added may be served, given the journal, pool and vault
//! that may hold its data.
//!
//! This module collects the inputs; [`forebay_journal::decision`] decides.

use crate::error::VolumeError;
use crate::protect::adopt::RecoveryPlan;
use crate::protect::journal::JournalError;
use crate::protect::vault::VaultError;
use crate::server::{Runtime, VolumeSettings};
use forebay_format::journal::JournalId;
use forebay_journal::decision::{
    Decision, DiskIdentity, Inputs, JournalState, PoolState, Refusal, VaultState, decide,
};

/// Whether the pool has all data of the volume.
const fn pool_state(plan: RecoveryPlan) -> PoolState {
    match plan {
        RecoveryPlan::Fresh | RecoveryPlan::Restore => PoolState::New,
        RecoveryPlan::Keep | RecoveryPlan::Record | RecoveryPlan::Flush => PoolState::Adopted,
    }
}

impl Runtime {
    /// The state of pool and vault for a volume that is being added.
    ///
    /// # Errors
    /// When the vault's data of the volume may not be used, or lacks some.
    pub(crate) fn elsewhere(
        &self,
        settings: &VolumeSettings,
        plan: RecoveryPlan,
    ) -> Result<(PoolState, VaultState), VolumeError> {
        let pool = pool_state(plan);
        let vault = match &settings.vault {
            None => VaultState::None,
            Some(used) => {
                let accept_disk = settings.accept_disk;
                let disk = &*settings.backend;
                used.vault.check(&settings.name, disk, used, pool, accept_disk)?
            }
        };
        Ok((pool, vault))
    }

    /// Refuses a volume whose newest data may be in a vault that is not open, unless the pool has
    /// the data or the operator accepts its loss.
    pub(crate) fn check_missing_vault(
        &self,
        settings: &VolumeSettings,
        plan: RecoveryPlan,
    ) -> Result<(), VolumeError> {
        let open = self.vault().map(|vault| vault.number());
        let Some(missing) = self.vault_record().elsewhere(&settings.name, open) else {
            return Ok(());
        };
        let pool = pool_state(plan);
        let decision = decide(Inputs {
            // A journal does not replace a missing vault: see `forebay_journal::decision`.
            journal: JournalState::None,
            has_each_write: false,
            pool,
            vault: VaultState::Missing,
            disk: DiskIdentity::Same,
            has_clean_mark: false,
            accept_loss: missing.is_given_up,
            accept_disk: false,
        });
        let name = &settings.name;
        match decision {
            Decision::Refuse(Refusal::VaultMissing) => {
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
    pub(crate) fn supersede_vaults(&self, volume: &str) -> Result<(), VolumeError> {
        let open = self.vault().map(|vault| vault.number());
        let recorded = self.vault_record().supersede(volume, open);
        recorded.map_err(|error| VolumeError::Record { name: volume.to_owned(), error })
    }

    /// Refuses a volume whose newest data may be in a journal other than the configured one, unless
    /// the pool has the data or the operator accepts its loss. Called before anything is changed.
    pub(crate) fn check_missing_journal(
        &self,
        settings: &VolumeSettings,
    ) -> Result<(), VolumeError> {
        let named = settings.journal.as_ref().map(|used| used.journal.id());
        let name = &settings.name;
        if self.named(name).is_ok() {
            // The name is in use: the volume is refused later, and the served one is not affected.
            return Ok(());
        }
        let Some(missing) = self.journal_record().elsewhere(name, named) else { return Ok(()) };
        let pool = if self.pool_is_whole(settings) { PoolState::Adopted } else { PoolState::New };
        let decision = decide(Inputs {
            journal: JournalState::Missing,
            has_each_write: false,
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
    pub(crate) fn supersede_journals(
        &self,
        volume: &str,
        named: Option<JournalId>,
    ) -> Result<(), VolumeError> {
        let recorded = self.journal_record().supersede(volume, named);
        recorded.map_err(|error| VolumeError::Record { name: volume.to_owned(), error })
    }
}
