//! Whether a volume that is being added may be served, over everything that may hold its data.
//!
//! What follows is decided in [`forebay_journal::decision`]; here is asked what there is.

use crate::adopt::Beginning;
use crate::error::VolumeError;
use crate::journal::JournalError;
use crate::server::{Runtime, VolumeSettings};
use crate::vault::VaultError;
use forebay_format::journal::JournalId;
use forebay_journal::decision::{
    Decision, DiskIdentity, Inputs, JournalState, PoolState, Refusal, VaultState, decide,
};

/// Whether the pool has what the last server of a volume had.
const fn pool_state(beginning: Beginning) -> PoolState {
    match beginning {
        Beginning::Fresh | Beginning::Restore => PoolState::New,
        Beginning::Keep | Beginning::Record | Beginning::Settle => PoolState::Adopted,
    }
}

impl Runtime {
    /// What beside a journal holds something of a volume that is being added, and may be used.
    ///
    /// # Errors
    /// It may not, or something is lost.
    pub(crate) fn elsewhere(
        &self,
        settings: &VolumeSettings,
        beginning: Beginning,
    ) -> Result<(PoolState, VaultState), VolumeError> {
        let pool = pool_state(beginning);
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

    /// Refuses a volume whose newest data may be in a vault that is not there, unless the pool has
    /// it or the operator says that it is lost.
    pub(crate) fn check_missing_vault(
        &self,
        settings: &VolumeSettings,
        beginning: Beginning,
    ) -> Result<(), VolumeError> {
        let open = self.vault().map(|vault| vault.number());
        let Some(missing) = self.vault_record().elsewhere(&settings.name, open) else {
            return Ok(());
        };
        let pool = pool_state(beginning);
        let decision = decide(Inputs {
            // What a journal has makes up for no vault: see the rules.
            journal: JournalState::None,
            each_write: false,
            pool,
            vault: VaultState::Missing,
            disk: DiskIdentity::Same,
            clean_mark: false,
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
                    "what vault {} holds of volume '{name}' is given up, on the operator's word",
                    missing.name
                );
                Ok(())
            }
        }
    }

    /// Puts on record that what other vaults than the open one hold of a volume is void.
    pub(crate) fn supersede_vaults(&self, volume: &str) -> Result<(), VolumeError> {
        let open = self.vault().map(|vault| vault.number());
        let recorded = self.vault_record().supersede(volume, open);
        recorded.map_err(|error| VolumeError::Record { name: volume.to_owned(), error })
    }

    /// Refuses a volume whose newest data may be in a journal that is not the one it is given,
    /// unless the pool has it or the operator says that it is lost. Nothing is changed before.
    pub(crate) fn check_missing_journal(
        &self,
        settings: &VolumeSettings,
    ) -> Result<(), VolumeError> {
        let named = settings.journal.as_ref().map(|used| used.journal.id());
        let name = &settings.name;
        if self.named(name).is_ok() {
            // No other can be added by this name, and the one that is served relies on its own.
            return Ok(());
        }
        let Some(missing) = self.journal_record().elsewhere(name, named) else { return Ok(()) };
        let pool = if self.pool_is_whole(settings) { PoolState::Adopted } else { PoolState::New };
        let decision = decide(Inputs {
            journal: JournalState::Missing,
            each_write: false,
            pool,
            // What a vault has makes up for no journal: see the rules.
            vault: VaultState::None,
            disk: DiskIdentity::Same,
            clean_mark: false,
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
                "volume '{name}' goes on without journal {journal}: the pool of the process before \
                 has all that is in it"
            ),
            _ => tracing::error!(
                "what journal {journal} holds of volume '{name}' is given up, on the operator's \
                 word"
            ),
        }
        Ok(())
    }

    /// Puts on record that what other journals than this one hold of a volume is void.
    pub(crate) fn supersede_journals(
        &self,
        volume: &str,
        named: Option<JournalId>,
    ) -> Result<(), VolumeError> {
        let recorded = self.journal_record().supersede(volume, named);
        recorded.map_err(|error| VolumeError::Record { name: volume.to_owned(), error })
    }
}
