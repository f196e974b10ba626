//! Whether a volume that is being added may be served, over everything that may hold its data.
//!
//! What follows is decided in [`forebay_journal::decision`]; here is asked what there is.

use crate::adopt::Beginning;
use crate::server::{Runtime, VolumeError, VolumeSettings};
use crate::vault::VaultError;
use forebay_journal::decision::{
    Decision, DiskIdentity, Inputs, JournalState, PoolState, Refusal, VaultState, decide,
};

impl Runtime {
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
        let is_in_pool = !matches!(beginning, Beginning::Fresh | Beginning::Restore);
        let decision = decide(Inputs {
            // What a journal has makes up for no vault: see the rules.
            journal: JournalState::None,
            each_write: false,
            pool: if is_in_pool { PoolState::Adopted } else { PoolState::New },
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
            _ if is_in_pool => Ok(()),
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
