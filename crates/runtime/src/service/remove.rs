//! The removal of a volume, the undo of a failed addition, and trust in a disk that has failed a
//! flush.

use super::VolumeService;
use super::add::restore;
use super::drain::{OnProgress, POLL, Watchdog, flush, save, wait_until_idle};
use crate::error::{VolumeError, VolumeResult};
use crate::journal::JournalError;
use crate::protect::retention::abandon_lost;
use crate::shared::{JournalUse, Volume};
use forebay_types::{Fault, VolumeId};
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl VolumeService {
    /// Removes a volume: flushes it to its disk, drains its clients, and closes the disk.
    /// `progress` is called as by [`crate::Runtime::stop`].
    ///
    /// # Errors
    /// When there is no such volume, or the disk fails or hangs: the volume is still served then.
    pub fn remove(&self, name: &str, mut progress: impl FnMut(u64)) -> VolumeResult {
        let volume = self.shared.volumes.named(name)?;
        if volume.is_given_up() {
            return self.end_given_up(&volume);
        }
        match volume.half_added.swap(false, Ordering::Relaxed) {
            true => self.retract(&volume, &mut progress)?,
            false => self.remove_served(&volume, &mut progress)?,
        }
        self.forget(name);
        Ok(())
    }

    /// Forgets what was learned about a volume that was removed.
    pub(super) fn forget(&self, name: &str) {
        self.warm_ups.forget(name);
        self.learner.forget(name);
    }

    fn remove_served(&self, volume: &Arc<Volume>, progress: OnProgress<'_>) -> VolumeResult {
        let shared = &self.shared;
        // A first flush while clients are still served: it may be slow, and it may fail.
        flush(shared, volume, progress)?;
        self.close_to_clients(volume)?;
        let emptied = self.empty(volume, progress);
        if emptied.is_err() {
            volume.is_closed.store(false, Ordering::Relaxed);
            self.calibrator.schedule(volume);
            return emptied;
        }
        // Everything is on the disk: no dirty bytes are left.
        progress(0);
        self.finish_removal(volume)
    }

    /// Ends a volume that is clean, idle and closed to clients.
    pub(super) fn finish_removal(&self, volume: &Arc<Volume>) -> VolumeResult {
        self.calibrator.wait_until_free(volume);
        if let Some(used) = volume.journal.get() {
            // The disk has everything. Records that stayed would undo later changes to the disk
            // that are not recorded in the journal.
            used.journal.detach_or_report(used.number);
        }
        if let Some(vault) = self.protectors.vault() {
            vault.detach(volume.id);
        }
        let _changing = self.changes.lock();
        self.deregister(volume.id)?;
        self.pool_volumes().leave(volume.id);
        Ok(())
    }

    /// Undoes a failed addition, before any client has entered the volume. Its data in the pool
    /// goes to the disk; what journal and vault hold beyond that stays in them. If that fails, the
    /// volume stays, and a removal tries again.
    pub(super) fn undo_add(&self, volume: &Arc<Volume>) {
        if let Err(error) = self.retract(volume, &mut |_| {}) {
            tracing::error!(
                volume = %volume.name,
                error = error.with_causes(),
                "cannot undo the failed addition, the volume stays until it is removed"
            );
        }
    }

    /// As [`VolumeService::undo_add`], and returns the error.
    pub(super) fn retract(&self, volume: &Arc<Volume>, progress: OnProgress<'_>) -> VolumeResult {
        let retracted = self.flush_and_retract(volume, progress);
        volume.half_added.store(retracted.is_err(), Ordering::Relaxed);
        retracted
    }

    fn flush_and_retract(&self, volume: &Arc<Volume>, progress: OnProgress<'_>) -> VolumeResult {
        let failure = volume.journal.get().and_then(|used| used.journal.unrecorded_failure());
        if let Some(error) = failure {
            // A flush would wait until the failure is recorded, which does not happen before a
            // volume is served.
            return Err(error.into());
        }
        flush(&self.shared, volume, progress)?;
        self.empty(volume, progress)?;
        let pool_volumes = self.pool_volumes();
        // The pool's record says what is left to do for data that stays in the journal.
        let is_left = match volume.journal.get() {
            Some(used) => used.journal.take_back(used.number),
            None => !pool_volumes.is_marked_whole(volume.id),
        };
        if let Some(vault) = self.protectors.vault() {
            vault.detach(volume.id);
        }
        let _changing = self.changes.lock();
        self.deregister(volume.id)?;
        if !is_left {
            pool_volumes.leave(volume.id);
        }
        Ok(())
    }

    /// Removes an idle and clean volume from the table and from the shards.
    pub(super) fn deregister(&self, id: VolumeId) -> VolumeResult {
        let shared = &self.shared;
        shared.shards.drop_clean(id);
        shared.run_on(0, move |tasks| {
            let shared = tasks.shared();
            shared.shards.remove_volume(id);
            // In the same task: this worker begins all internal flushes.
            shared.volumes.remove(id);
        })?;
        shared.run_on_all(|tasks| tasks.forget_volumes())?;
        Ok(())
    }

    /// Drains the clients of a volume that is being removed, waits until the volume is clean and
    /// has no operation in progress, and saves it if it is in memory.
    fn empty(&self, volume: &Arc<Volume>, progress: OnProgress<'_>) -> VolumeResult {
        let (shared, id) = (&self.shared, volume.id);
        shared.run_on_all(move |tasks| tasks.drain_clients(Some(id)))?;
        wait_until_idle(shared, Some(volume))?;
        self.settle(volume, progress)?;
        save(volume)
    }

    /// Flushes a volume without clients, and waits until it has no operation in progress.
    pub(super) fn settle(&self, volume: &Arc<Volume>, progress: OnProgress<'_>) -> VolumeResult {
        let (shared, id) = (&self.shared, volume.id);
        flush(shared, volume, progress)?;
        // Another internal flush, or read-ahead, may still be in progress.
        let mut watchdog = Watchdog::new(volume);
        let flushes = &volume.internal_flushes;
        while shared.shards.operations(id) > 0 || flushes.load(Ordering::Relaxed) > 0 {
            watchdog.check(shared)?;
            std::thread::sleep(POLL);
        }
        Ok(())
    }

    /// Trusts a disk again that has failed a flush, and flushes it. Data that the journal still
    /// holds is written again first; the clients have to reconnect for that. Other data that the
    /// disk may have lost is not written again: the caller asserts that it is on the disk, or not
    /// needed. From now on, reads of sectors that were lost in memory and are not in the journal
    /// return the disk's content.
    ///
    /// # Errors
    /// As [`VolumeService::flush`], and when the journal cannot be read.
    pub fn trust(&self, name: &str, mut progress: impl FnMut(u64)) -> VolumeResult {
        let volume = self.shared.volumes.named(name)?;
        self.restore_running(&volume)?;
        volume.flush.trust();
        self.abandon_lost(&volume)?;
        flush(&self.shared, &volume, &mut progress)
    }

    /// Abandons the lost sectors of a volume, and their records in its journal.
    pub(super) fn abandon_lost(&self, volume: &Volume) -> VolumeResult {
        match volume.journal.get() {
            Some(used) => abandon_lost(&self.shared, &used, volume.id).map_err(|error| {
                JournalError::Io { name: used.journal.name().to_owned(), error }
            })?,
            None => self.shared.shards.abandon_lost(volume.id),
        }
        Ok(())
    }

    /// Restores a running volume from its journal, because its disk may have lost acknowledged
    /// data. Drains the volume's clients first, so that the restored data is the newest.
    fn restore_running(&self, volume: &Arc<Volume>) -> VolumeResult {
        let Some(used) = volume.journal.get() else { return Ok(()) };
        if volume.flush.failure().is_none() || used.journal.status().failed.is_some() {
            return Ok(());
        }
        self.close_to_clients(volume)?;
        let restored = self.drain_clients_and_restore(volume, &used);
        volume.is_closed.store(false, Ordering::Relaxed);
        restored
    }

    fn drain_clients_and_restore(&self, volume: &Arc<Volume>, used: &JournalUse) -> VolumeResult {
        let id = volume.id;
        self.shared.run_on_all(move |tasks| tasks.drain_clients(Some(id)))?;
        wait_until_idle(&self.shared, Some(volume))?;
        self.restore_drained(volume, used)
    }

    /// Restores a volume without clients from its journal.
    pub(super) fn restore_drained(&self, volume: &Arc<Volume>, used: &JournalUse) -> VolumeResult {
        let failed = |error| VolumeError::Restore { name: volume.name.clone(), error };
        used.journal.reload(used.number).map_err(failed)?;
        restore(&self.shared, volume)
    }
}
