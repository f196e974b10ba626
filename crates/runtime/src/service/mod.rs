//! The management of the volumes: add, change, flush, drain, remove, calibrate, report.
//!
//! Nothing here is on the data path. Management operations run on the calling thread. They change
//! the volumes that the workers share through tasks of worker 0, and the shards under their locks.
//! One lock serializes these changes. It is not held during a wait for a disk, a journal or a
//! vault, so a device that hangs delays no operation on a volume that does not use it. An operation
//! that may wait keeps others away from its volume without a lock: an addition by a reservation, a
//! removal and a restore by `Volume::is_closed`.
//!
//! | module | contents |
//! | --- | --- |
//! | `add` | the start of a volume: checks, recovery, registration |
//! | `additions` | the names and disks reserved by additions in progress |
//! | `adopt`, `record_again` | the pool of a previous process, whose volumes continue |
//! | `remove` | the end of a volume, the undo of a failed addition, trust in a failed disk |
//! | `discard` | the end of a volume whose disk does not take its data |
//! | `drain` | flushes, and the wait for disks and clients |
//! | `calibrate` | the measurement of disks |
//! | `grow` | a disk that has become larger |
//! | `move_journal` | a volume that leaves its journal for another one |
//! | `pins` | the ranges of volumes that stay in the pool |
//! | `presence` | the check that disks are where they were opened |
//! | `protectors` | the journals and the vault that volumes rely on |
//! | `recording`, `slow_log` | the requests of clients, for traces and for the log |
//! | `status` | snapshots |
//! | `taken_over` | the end of a volume whose disk another host has, or could have unnoticed |

mod add;
mod additions;
mod adopt;
mod calibrate;
mod condition;
mod discard;
mod drain;
mod grow;
mod move_journal;
mod pins;
mod presence;
mod protectors;
mod record_again;
mod recording;
mod remove;
mod settings;
mod slow_log;
mod status;
mod taken_over;

pub use condition::VolumeCondition;
pub use discard::Discarded;
pub use move_journal::{medium_of, move_journal};
pub use protectors::Protectors;
pub use recording::{RecordError, Recording};
pub use settings::{OnRecovered, VolumeSettings};
pub use slow_log::{SlowLog, SlowUnlogged};
pub(crate) use status::Curves;
pub use status::{MemoryStatus, RuntimeStatus, VolumeStatus};
pub use taken_over::{abandon_in_pool, is_lost, surrender, taken_over, without_journal};

pub(crate) use adopt::shards;
pub(crate) use drain::{POLL, flush, flush_all, outstanding, save, save_all, wait_until_idle};

use crate::error::{VolumeError, VolumeResult};
use crate::learn::Learner;
use crate::platform::locks::{Lock, order};
use crate::shared::{Shared, Tasks, Volume, limits_of};
use crate::warm_up::WarmUps;
use additions::Additions;
use adopt::PoolVolumes;
use calibrate::Calibrator;
use forebay_backend::SaveState;
use forebay_policy::SplitCost;
use forebay_types::{HoldOut, Mode, PoolShare, TlsUse, VolumeConfig};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

/// The management of the volumes. See the module.
pub struct VolumeService {
    shared: Arc<Shared>,
    protectors: Protectors,
    calibrator: Arc<Calibrator>,
    warm_ups: Arc<WarmUps>,
    learner: Learner,
    /// Held while the set of volumes, or a volume's settings, change, but not during a wait for a
    /// disk, a journal or a vault.
    changes: Lock<Additions, { order::CHANGES }>,
}

impl VolumeService {
    pub(crate) fn new(shared: &Arc<Shared>) -> Self {
        Self {
            shared: Arc::clone(shared),
            protectors: Protectors::new(shared),
            calibrator: Calibrator::new(shared),
            warm_ups: Arc::new(WarmUps::new(shared)),
            learner: Learner::new(shared),
            changes: Lock::default(),
        }
    }

    /// The journals and the vault of the volumes.
    pub const fn protectors(&self) -> &Protectors {
        &self.protectors
    }

    /// The warm lists and the warm-ups of the volumes.
    pub(crate) const fn warm_ups(&self) -> &Arc<WarmUps> {
        &self.warm_ups
    }

    /// The learning of the volumes.
    pub(crate) const fn learner(&self) -> &Learner {
        &self.learner
    }

    /// The volumes in the pool, served or not.
    pub(crate) fn pool_volumes(&self) -> PoolVolumes<'_> {
        PoolVolumes::of(&self.shared)
    }

    /// Changes the settings of a volume, from the next request on. Those that cannot change while
    /// it is served keep their effect. Clients that have entered the volume are not notified, but
    /// read-only and the cache mode apply to them, too. The ranges are pinned only if `has_pins`,
    /// also if they are the former ones, which may have been refused.
    ///
    /// # Errors
    /// When there is no such volume, its disk is read-only and the change makes the volume
    /// writable, its ranges may not be pinned, the guaranteed shares of all volumes leave no room,
    /// or a journal or vault cannot record that the volume relies on it. Nothing has changed then.
    pub fn change(&self, name: &str, new: VolumeConfig, has_pins: bool) -> VolumeResult {
        let changing = self.changes.lock();
        let volume = self.shared.volumes.named(name)?;
        if volume.is_closed.load(Ordering::Relaxed) {
            return Err(VolumeError::Leaving(name.to_owned()));
        }
        if !new.read_only && volume.backend.description().read_only {
            return Err(VolumeError::BackingReadOnly(name.to_owned()));
        }
        changing.check_shares(&self.shared, name, PoolShare::of_config(&new).min_percent())?;
        let pins = has_pins.then(|| self.check_pins(&volume, &new.pin)).transpose()?;
        // A record that the volume relies on more than it does is harmless if the change fails.
        if let Some(vault) = self.protectors.vault() {
            vault.rely(volume.id, new.mode)?;
        }
        if let (Some(used), Mode::WriteBack) = (volume.journal.get(), new.mode) {
            used.journal.rely(&volume.name)?;
        }
        let (id, mode, frozen, config) = (volume.id, new.mode, new.frozen, new.clone());
        // Before the shards: a warm-up would count reads that they refuse as done.
        let was_frozen = volume.is_frozen.fetch_or(frozen, Ordering::Relaxed);
        let configure = move |tasks: &mut dyn Tasks| tasks.shared().shards.configure(id, &config);
        let changed = self.shared.run_on(0, configure);
        volume
            .is_frozen
            .store(if changed.is_ok() { frozen } else { was_frozen }, Ordering::Relaxed);
        changed?;
        // Nothing below fails.
        volume.warm.set_kept(new.warm);
        volume.learn.set_on(new.learn);
        volume.govern.set(limits_of(&new));
        volume.slow.set(new.slow_us);
        for waiter in volume.limits.set(&new, Instant::now()) {
            self.shared.wake_waiter(Some(waiter));
        }
        if volume.gather.set(new.gather_below.set()) {
            self.calibrator.schedule(&volume);
        }
        volume.read_only.store(new.read_only, Ordering::Relaxed);
        let mut info = volume.info.write();
        info.read_only = new.read_only;
        info.tls_only = new.tls == TlsUse::Required;
        info.description = new.description.clone().unwrap_or_default();
        drop(info);
        *volume.config.write() = new;
        if let Some(pins) = pins {
            self.apply_pins(&volume, pins);
        }
        if mode == Mode::Bypass {
            self.shared.shards.drop_clean(id);
        }
        Ok(())
    }

    /// Sets which regions of a volume are served as if there were no cache, from the next request
    /// on. Their response times, and those of the others, are counted in
    /// [`crate::NamedStatistics::arms`]. Nothing that was acknowledged is affected.
    ///
    /// # Errors
    /// When there is no such volume.
    pub fn set_hold_out(&self, name: &str, hold_out: HoldOut) -> VolumeResult {
        let _changing = self.changes.lock();
        let volume = self.shared.volumes.named(name)?;
        // At the start of a hold-out, a request that is answered before the shards change counts as
        // served, which it was. At the end of a hold-out, such a request is no longer counted.
        volume.has_hold_out.store(!hold_out.is_none(), Ordering::Relaxed);
        self.shared.shards.set_hold_out(volume.id, hold_out);
        Ok(())
    }

    /// Reserves a served volume for a removal or a restore: once this returns, no change of its
    /// settings is in progress, and none begins.
    fn close_to_clients(&self, volume: &Volume) -> VolumeResult {
        let _changing = self.changes.lock();
        if volume.is_closed.swap(true, Ordering::Relaxed) {
            return Err(VolumeError::Leaving(volume.name.clone()));
        }
        Ok(())
    }

    /// Flushes a volume to its disk. `progress` is called periodically with the dirty bytes left.
    ///
    /// # Errors
    /// When there is no such volume, or the disk fails or hangs; data not written stays dirty.
    pub fn flush(&self, name: &str, mut progress: impl FnMut(u64)) -> VolumeResult {
        let volume = self.shared.volumes.named(name)?;
        drain::flush(&self.shared, &volume, &mut progress)
    }

    /// Saves a volume in memory to its image, as it is now, unless it has not changed since the
    /// last save. Clients are served meanwhile. Waits for a save in progress first.
    ///
    /// # Errors
    /// When there is no such volume, it has no image, or the image cannot be written.
    pub fn save(&self, name: &str) -> VolumeResult {
        let volume = self.shared.volumes.named(name)?;
        if self.shared.stopping.load(Ordering::Relaxed) {
            // The stop saves it; afterwards, another process may use the image.
            return Err(VolumeError::Stopping);
        }
        if volume.backend.saved().is_none() {
            return Err(VolumeError::NoImage(name.to_owned()));
        }
        drain::save(&volume)
    }

    /// The volumes that are saved to images, and the state of these.
    pub fn saved(&self) -> Vec<(String, SaveState)> {
        let volumes = self.shared.volumes.all();
        let saved =
            volumes.iter().map(|volume| Some((volume.name.clone(), volume.backend.saved()?)));
        saved.flatten().collect()
    }

    /// Measures the write-split cost of a volume's disk with some reads. Waits up to ten seconds
    /// for the volume to be idle.
    ///
    /// # Errors
    /// When there is no such volume, it is busy all the time, or its disk cannot be measured. It is
    /// served as before.
    pub fn calibrate(&self, name: &str) -> Result<SplitCost, VolumeError> {
        let volume = self.shared.volumes.named(name)?;
        if volume.is_closed.load(Ordering::SeqCst) {
            return Err(VolumeError::Leaving(name.to_owned()));
        }
        self.calibrator.measure_now(&volume)
    }

    /// Must be called once all volumes of a start have been added. Drops the clean lines of volumes
    /// that are not served, because other programs may change their disks. Dirty lines stay.
    /// Returns the volumes that have some, each as `name=backing`, with the bytes.
    pub fn close_adoption(&self) -> Vec<(String, u64)> {
        let additions = self.changes.lock();
        self.pool_volumes().drop_unserved(|name| additions.has(name))
    }

    /// Checks that journals, vault and disks are still where they were opened. Call this about once
    /// a second; a device counts as displaced after two consecutive failed checks. May block as
    /// long as resolving a path can.
    pub fn check_presence(&self) {
        self.protectors.check_presence();
        self.shared.volumes.all().iter().for_each(|volume| presence::check_presence(volume));
    }

    /// Ends the service once all volumes are clean and the workers have ended.
    pub(crate) fn close(&self) {
        self.calibrator.close();
        self.protectors.close();
        // From here on other programs may change the disks.
        let pool_volumes = self.pool_volumes();
        pool_volumes.leave_served();
        if pool_volumes.unserved().is_empty() {
            self.shared.pool.close();
        }
        // Closes the disks.
        self.shared.volumes.clear();
    }
}

#[cfg(test)]
mod tests;
