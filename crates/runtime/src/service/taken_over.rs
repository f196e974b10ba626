//! The end of volumes whose disks other clients of their cluster have taken over, and of those on
//! shared disks whose journal has failed.

use super::VolumeService;
use super::drain::wait_until_idle;
use crate::error::VolumeResult;
use crate::journal::{Journal, devices_of, end_records, leave, release_unserved};
use crate::shared::Shared;
use forebay_backend::{Backend, Displaced};
use forebay_threads::Thread;
use std::sync::Arc;

/// The volumes whose disks other clients have taken over.
pub fn taken_over(volumes: &VolumeService) -> Vec<String> {
    let all = volumes.shared.volumes.all().into_iter();
    all.filter(|volume| volume.backend.is_taken_over()).map(|volume| volume.name.clone()).collect()
}

/// The volumes that cannot continue without their journals, which have failed.
pub fn without_journal(volumes: &VolumeService) -> Vec<String> {
    let all = volumes.shared.volumes.all().into_iter();
    all.filter(|volume| volume.has_lost_journal()).map(|volume| volume.name.clone()).collect()
}

/// Whether another host has the disk of a volume or a device of its journal. Asks their servers,
/// for a bounded time, while the other functions here say what was noticed. False for a volume that
/// is not served, and if they do not answer.
pub fn is_lost(volumes: &VolumeService, name: &str) -> bool {
    let shared = &volumes.shared;
    let Ok(volume) = shared.volumes.named(name) else { return false };
    let journal = volume.journal.get().map(|used| Arc::clone(&used.journal));
    are_lost(shared, Arc::clone(&volume.backend), journal)
}

/// Whether another host has a disk, or a device of its journal. As [`is_lost`].
pub(super) fn are_lost(
    shared: &Shared,
    disk: Arc<dyn Backend>,
    journal: Option<Arc<Journal>>,
) -> bool {
    let asked = Thread::named("ask-owner").within(shared.timeouts.disk, move || {
        has_other_owner(&*disk)
            || journal.is_some_and(|journal| devices_of(&journal).any(has_other_owner))
    });
    asked.unwrap_or(false)
}

/// Whether another host has a store.
fn has_other_owner(store: &dyn Backend) -> bool {
    store.is_shared() && matches!(store.ask_presence(), Err(Displaced::TakenOver))
}

/// Removes a volume of one of these kinds: disconnects the clients, and forgets
/// all of its data in the pool, which may be older than the disk. Its records stay in its journal,
/// and the volume relies on them as before.
///
/// # Errors
/// When there is no such volume, or an I/O that has reached the disk does not end.
pub fn surrender(volumes: &VolumeService, name: &str) -> VolumeResult {
    let shared = &volumes.shared;
    let volume = shared.volumes.named(name)?;
    if let Some(used) = volume.journal.get() {
        // The journal may still be here: its records count.
        end_records(&used.journal, used.number);
    }
    if !volume.is_given_up() {
        // Without a wait for requests: a checkpoint in progress ends only when the disk has taken
        // the data, which it never does.
        volumes.give_up(&volume, None, true)?;
    }
    if let Some(used) = volume.journal.get() {
        release_unserved(&used.journal);
    }
    volume.flush.trust();
    shared.shards.abandon_lost(volume.id);
    volumes.settle(&volume, &mut |_| {})?;
    wait_until_idle(shared, Some(&volume))?;
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
