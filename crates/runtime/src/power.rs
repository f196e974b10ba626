//! Write-back under the protection of a supply: how much may be dirty, and when no more is taken.
//!
//! Who watches the supplies says so several times a second with [`Runtime::set_power`]; workers
//! ask a few atomics. Volumes under a supply write through while nothing may be dirty, and once
//! what is dirty has reached what the battery and the vault can bear.
//!
//! How much may be dirty is kept to by [`forebay_volume::PowerGate`].
//!
//! **The halt.** Before a vault is filled, its volumes are halted: whoever has not been told that
//! a write is done is told that it is not. The flag is set before the first shard is looked at,
//! and a worker looks at it after it has let go of the shard; so what is acknowledged was in the
//! pool or on the disk when the vault's copy was made.

use crate::error::VolumeError;
use crate::server::Runtime;
use crate::shared::{Message, Volume};
use forebay_types::{IoResult, UnsafeSupply, VolumeId};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

/// What clients are told when they write to a volume that is halted.
pub(crate) const HALTED: &str =
    "power is failing: what was written is in safety, and nothing more is taken";

/// How a volume stands under a supply.
#[derive(Debug, Default)]
pub(crate) struct PowerUse {
    /// A supply is part of its protection.
    pub protects: bool,
    /// No write is acknowledged any more: the vault's copy is being made, or made.
    pub halted: AtomicBool,
    /// What is dirty is on its way to the disk.
    draining: AtomicBool,
    /// Its disk is being flushed.
    syncing: AtomicBool,
    /// Its disk is to be flushed, once a flush under way has ended.
    sync_due: AtomicBool,
}

impl PowerUse {
    pub(crate) fn new(protects: bool) -> Self {
        Self { protects, ..Self::default() }
    }

    /// Whether writes may not be acknowledged.
    pub(crate) fn is_halted(&self) -> bool {
        self.halted.load(Ordering::SeqCst)
    }
}

impl Volume {
    /// Whether the pool alone keeps what is dirty of it: under a supply, and not in a journal.
    pub(crate) fn is_kept_by_power(&self) -> bool {
        let journal = self.journal.as_ref();
        self.power.protects && journal.is_none_or(|used| used.journal.is_given_up())
    }
}

impl Runtime {
    fn kept_by_power(&self) -> Vec<Arc<Volume>> {
        let mut volumes = self.shared.volumes.all();
        volumes.retain(|volume| volume.is_kept_by_power());
        volumes
    }

    /// The volumes whose dirty data is kept by the pool and a supply alone.
    pub fn power_volumes(&self) -> Vec<VolumeId> {
        self.kept_by_power().iter().map(|volume| volume.id).collect()
    }

    /// Chooses what a write of a volume that a UPS alone protects is acknowledged from while the
    /// UPS does not cover it. A volume begins with [`UnsafeSupply::Stable`].
    ///
    /// # Errors
    /// When there is no such volume, or the runtime is stopping.
    pub fn set_unsafe_supply(&self, name: &str, choice: UnsafeSupply) -> Result<(), VolumeError> {
        let id = self.named(name)?.id;
        self.ask(0, move |tasks| {
            for shard in 0..tasks.shared().shards.len() {
                tasks.shared().shard(shard).set_unsafe_supply(id, choice);
            }
        })
    }

    /// Says how many bytes of lines may be dirty under supplies from now on; with 0 there is no
    /// write-back for their volumes. Returns how many are. To be called several times a second.
    pub fn set_power(&self, dirty_bytes_max: u64) -> u64 {
        let dirty_bytes = self.kept_by_power().iter().map(|v| self.dirty_bytes(v.id)).sum();
        self.shared.power.set(dirty_bytes, dirty_bytes_max);
        dirty_bytes
    }

    /// Begins to bring what supplies keep to the disks, and to stable storage there, unless that
    /// has begun already. What a disk does not take stays dirty.
    pub fn drain_power(&self) {
        for volume in self.kept_by_power() {
            if volume.power.draining.swap(true, Ordering::Relaxed) {
                continue;
            }
            let id = volume.id;
            let done = Box::new(move |result| {
                if let Err(error) = result {
                    let name = &volume.name;
                    tracing::warn!("volume '{name}': not all of it is on its disk yet: {error}");
                }
                volume.power.draining.store(false, Ordering::Relaxed);
            });
            self.shared.inboxes[0].post(Message::Task(Box::new(move |tasks| {
                tasks.checkpoint(id, done);
            })));
        }
    }

    /// Makes a flush due of each disk whose volume a UPS protects: what the disk has been given
    /// until now may be in its volatile cache. [`Runtime::begin_sync_power`] starts it.
    pub fn want_sync_power(&self) {
        for volume in self.kept_by_power() {
            volume.power.sync_due.store(true, Ordering::Relaxed);
        }
    }

    /// Starts the flushes that are due, except of disks whose flush before has not ended: that one
    /// need not cover what was written since, so theirs stays due.
    pub fn begin_sync_power(&self) {
        for volume in self.kept_by_power() {
            let used = &volume.power;
            if !used.sync_due.load(Ordering::Relaxed) || used.syncing.swap(true, Ordering::Relaxed)
            {
                continue;
            }
            used.sync_due.store(false, Ordering::Relaxed);
            let id = volume.id;
            let done = Box::new(move |_| volume.power.syncing.store(false, Ordering::Relaxed));
            self.shared.inboxes[0].post(Message::Task(Box::new(move |tasks| tasks.sync(id, done))));
        }
    }

    /// Brings what the disks of the volumes that supplies keep have been given to stable storage
    /// there, and waits for at most `timeout`. Returns the names of those that have not said so.
    pub fn sync_power(&self, timeout: Duration) -> Vec<String> {
        let (tell, told) = mpsc::channel();
        let volumes = self.kept_by_power();
        for (at, volume) in volumes.iter().enumerate() {
            let (id, tell) = (volume.id, tell.clone());
            let done = Box::new(move |result| {
                // Whoever asked may not wait for the answer any more.
                let _ = tell.send((at, result));
            });
            self.shared.inboxes[0].post(Message::Task(Box::new(move |tasks| tasks.sync(id, done))));
        }
        drop(tell);
        let end = Instant::now() + timeout;
        let mut synced = vec![false; volumes.len()];
        while let Ok((at, result)) =
            told.recv_timeout(end.saturating_duration_since(Instant::now()))
        {
            let result: IoResult = result;
            synced[at] = result.is_ok();
        }
        let failed = volumes.iter().zip(synced).filter(|(_, synced)| !synced);
        failed.map(|(volume, _)| volume.name.clone()).collect()
    }

    /// From now on, or no longer, answers all writes to volumes that supplies keep with an error.
    /// Returns the volumes whose writes have just been halted or let go on.
    pub fn halt_power(&self, halt: bool) -> Vec<VolumeId> {
        let volumes = self.shared.volumes.all();
        let volumes = volumes.iter().filter(|volume| {
            let is_meant = if halt { volume.is_kept_by_power() } else { volume.power.protects };
            is_meant && volume.power.halted.swap(halt, Ordering::SeqCst) != halt
        });
        volumes.map(|volume| volume.id).collect()
    }
}
