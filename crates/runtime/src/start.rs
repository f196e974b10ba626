//! Whether a volume that is being added may be served, over everything that may hold its data.
//!
//! What follows is decided in [`forebay_journal::decision`]; here is asked what there is.

use crate::adopt::Beginning;
use crate::server::{Runtime, VolumeError, VolumeSettings};
use crate::vault::VaultError;
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
        recorded.map_err(|error| VolumeError::VaultRecord {
            name: volume.to_owned(),
            error: error.to_string(),
        })
    }
}
