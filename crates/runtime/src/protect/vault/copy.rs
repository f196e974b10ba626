//! Copies the dirty data of one volume to a device of its own, in the format of a vault, before the
//! data is given up.

use super::record::NoRecord;
use super::{Attached, DumpReport, Vault, VaultError, VaultSettings};
use crate::shared::{Shared, Volume};
use forebay_backend::Backend;
use std::sync::Arc;

/// Writes all dirty data of a volume that no client can enter to `device`, which begins with
/// zeroes, and reads it back.
///
/// # Errors
/// The device cannot be used, is too small, or fails.
pub(crate) fn copy_dirty(
    shared: &Arc<Shared>,
    volume: &Volume,
    device: Arc<dyn Backend>,
) -> Result<DumpReport, VaultError> {
    let settings = VaultSettings {
        backend: device,
        is_void: Box::new(|_| Ok(false)),
        on_void: Box::new(|_, _| Ok(())),
    };
    let vault = Vault::open(settings, shared, Arc::new(NoRecord), 0)?;
    let size_bytes = volume.size_bytes();
    vault.state().volumes.push(Attached {
        id: volume.id,
        relies: false,
        has_journal: false,
        name: volume.name.clone(),
        size_bytes,
        identity: volume.identity,
    });
    let copied = vault.dump_after(&[volume.id], None, || {});
    vault.close(false);
    copied
}
