//! Write-back of volumes that only a UPS protects: the dirty limit, and the halt before a dump.
//! [`forebay_protect::PowerSequence`] decides when each of these steps is due.
//!
//! The power monitor sets the limit several times a second with [`UpsVolumes::set_limit`], and
//! workers read it from atomics ([`forebay_protect::PowerGate`]). At a limit of 0, or once the
//! dirty data has reached the limit, these volumes write through.
//!
//! **The halt.** Before a dump, its volumes are halted: every write not acknowledged yet fails. The
//! flag is set before the dump reads the first shard, and a worker reads the flag after it has
//! released its shard. So each acknowledged write was in the pool, or on the disk, when the dump
//! copied the shard.

use crate::shared::{Message, Shared, Volume};
use forebay_types::{IoResult, VolumeId};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

/// The error message of a write to a halted volume.
pub(crate) const HALTED: &str =
    "power is failing: acknowledged writes are safe, and no further write is accepted";

/// The volumes that a UPS protects.
pub struct UpsVolumes<'a> {
    shared: &'a Shared,
}

impl<'a> UpsVolumes<'a> {
    pub(crate) const fn of(shared: &'a Shared) -> Self {
        Self { shared }
    }

    fn ups_only_volumes(&self) -> Vec<Arc<Volume>> {
        let mut volumes = self.shared.volumes.all();
        volumes.retain(|volume| volume.is_ups_only());
        volumes
    }

    /// The ids of the volumes that only a UPS protects.
    pub fn ids(&self) -> Vec<VolumeId> {
        self.ups_only_volumes().iter().map(|volume| volume.id).collect()
    }

    /// Sets the dirty limit, in bytes of lines, of the volumes that only a UPS protects; at 0 they
    /// write through. Returns the dirty bytes of these volumes. Must be called several times a
    /// second.
    pub fn set_limit(&self, dirty_bytes_max: u64) -> u64 {
        let volumes = self.ups_only_volumes();
        let dirty_bytes = volumes.iter().map(|v| self.shared.shards.dirty_bytes(v.id)).sum();
        self.shared.power.set(dirty_bytes, dirty_bytes_max);
        dirty_bytes
    }

    /// Starts to destage the volumes that only a UPS protects, and to flush their disks, unless
    /// that is in progress. Data that a disk does not take stays dirty.
    pub fn drain(&self) {
        for volume in self.ups_only_volumes() {
            if !volume.power.begin_drain() {
                continue;
            }
            let id = volume.id;
            let done = Box::new(move |result| {
                if let Err(error) = result {
                    let name = &volume.name;
                    tracing::warn!(volume = %name, %error, "drain incomplete, data stays dirty");
                }
                volume.power.end_drain();
            });
            self.shared.inboxes[0].post(Message::Task(Box::new(move |tasks| {
                tasks.checkpoint(id, true, done);
            })));
        }
    }

    /// Makes a flush due for the disk of each volume that only a UPS protects, because the disk's
    /// cache may be volatile. [`UpsVolumes::start_syncs`] starts the flushes.
    pub fn request_sync(&self) {
        for volume in self.ups_only_volumes() {
            volume.power.request_sync();
        }
    }

    /// Starts the flushes that are due. A disk whose previous flush is still in progress stays due,
    /// because that flush need not cover later writes.
    pub fn start_syncs(&self) {
        for volume in self.ups_only_volumes() {
            if !volume.power.begin_sync() {
                continue;
            }
            let id = volume.id;
            let done = Box::new(move |_| volume.power.end_sync());
            self.shared.inboxes[0].post(Message::Task(Box::new(move |tasks| tasks.sync(id, done))));
        }
    }

    /// Flushes the disks of the volumes that only a UPS protects, and waits for at most `timeout`.
    /// Returns the names of the volumes whose flush has failed or not completed.
    pub fn sync(&self, timeout: Duration) -> Vec<String> {
        let (sender, results) = mpsc::channel();
        let volumes = self.ups_only_volumes();
        for (at, volume) in volumes.iter().enumerate() {
            let (id, sender) = (volume.id, sender.clone());
            let done = Box::new(move |result| {
                // The receiver is gone after the timeout.
                let _ = sender.send((at, result));
            });
            self.shared.inboxes[0].post(Message::Task(Box::new(move |tasks| tasks.sync(id, done))));
        }
        drop(sender);
        let end = Instant::now() + timeout;
        let mut synced = vec![false; volumes.len()];
        while let Ok((at, result)) =
            results.recv_timeout(end.saturating_duration_since(Instant::now()))
        {
            let result: IoResult = result;
            synced[at] = result.is_ok();
        }
        let failed = volumes.iter().zip(synced).filter(|(_, synced)| !synced);
        failed.map(|(volume, _)| volume.name.clone()).collect()
    }

    /// Halts writes to the volumes that only a UPS protects, or ends the halt. Returns the volumes
    /// whose state has changed.
    pub fn halt(&self, halt: bool) -> Vec<VolumeId> {
        let volumes = self.shared.volumes.all();
        let volumes = volumes.iter().filter(|volume| {
            let is_concerned = if halt { volume.is_ups_only() } else { volume.power.has_ups() };
            is_concerned && volume.power.set_halted(halt)
        });
        volumes.map(|volume| volume.id).collect()
    }
}
