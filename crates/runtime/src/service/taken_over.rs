//! The end of volumes whose disks other clients of their cluster have taken over.

use super::VolumeService;
use crate::error::VolumeResult;
use crate::journal::leave;

/// The volumes whose disks other clients have taken over.
pub fn taken_over(volumes: &VolumeService) -> Vec<String> {
    let all = volumes.shared.volumes.all().into_iter();
    all.filter(|volume| volume.backend.is_taken_over()).map(|volume| volume.name.clone()).collect()
}

/// Removes a volume whose disk another client has taken over: disconnects the clients, and forgets
/// all of its data in the pool, which may be older than the disk. Its records stay in its journal,
/// and the volume relies on them as before.
///
/// # Errors
/// When there is no such volume, or an I/O that has reached the disk does not end.
pub fn surrender(volumes: &VolumeService, name: &str) -> VolumeResult {
    let shared = &volumes.shared;
    let volume = shared.volumes.named(name)?;
    if !volume.is_given_up() {
        volumes.give_up(&volume, None, false)?;
    }
    volume.flush.trust();
    shared.shards.abandon_lost(volume.id);
    volumes.settle(&volume, &mut |_| {})?;
    volumes.calibrator.wait_until_free(&volume);
    if let Some(used) = volume.journal.get() {
        leave(&used.journal, used.number);
    }
    if let Some(vault) = volumes.protectors.vault() {
        vault.detach(volume.id);
    }
    let changing = volumes.changes.lock();
    volumes.deregister(volume.id)?;
    volumes.pool_volumes().leave(volume.id);
    drop(changing);
    volumes.forget(name);
    Ok(())
}

/// Drops what the adopted pool has of a volume that is not served, because another server has owned
/// its disk and its journal since. Returns the bytes of dirty data.
pub fn abandon_in_pool(volumes: &VolumeService, name: &str) -> u64 {
    let _additions = volumes.changes.lock();
    volumes.pool_volumes().abandon(name)
}
