//! The end of a runtime: a stop, which flushes everything; a pause, which leaves the pool to
//! another process; and an exit before the machine goes down, whatever the disks do.

use super::Runtime;
use crate::error::{Stall, VolumeError, VolumeResult};
use crate::service::{POLL, flush, flush_all, outstanding, save, save_all, wait_until_idle};
use crate::shared::{Shared, Volume};
use crate::warm_up::LastSave;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// How long a pause waits for clients to leave, then for requests in flight, and then for the
/// workers.
const PAUSE: Duration = Duration::from_secs(1);

impl Runtime {
    /// Stops: flushes all volumes, drains the clients, saves volumes in memory to their images, and
    /// ends the workers. `progress` is called periodically with the dirty bytes left, and with zero
    /// when everything is on the disks and counted in the statistics.
    ///
    /// # Errors
    /// When a disk fails or hangs, if an image cannot be written, or if a volume that is not served
    /// has dirty lines. Nothing is lost then. Clients may have been disconnected, and are served
    /// again when they reconnect.
    pub fn stop(&self, progress: impl FnMut(u64)) -> Result<(), VolumeError> {
        self.stop_without(&[], progress)
    }

    /// As [`Runtime::stop`], and discards the dirty lines of the volumes `given_up` that are not
    /// served.
    ///
    /// # Errors
    /// As [`Runtime::stop`].
    pub fn stop_without(
        &self,
        given_up: &[String],
        mut progress: impl FnMut(u64),
    ) -> Result<(), VolumeError> {
        let shared = &*self.shared;
        let is_kept = |(name, _): &(String, u64)| !given_up.contains(name);
        if let Some((name, dirty_bytes)) = self.unserved().into_iter().find(is_kept) {
            return Err(VolumeError::Unserved { name, dirty_bytes });
        }
        // A first flush while clients are still served: it may be slow, and it may fail.
        flush_all(shared, &mut progress)?;
        shared.stopping.store(true, Ordering::Relaxed);
        shared.run_on(0, |tasks| tasks.accept(false))?;
        shared.run_on_all(|tasks| tasks.drain_clients(None))?;
        let (idle, abandons) = match wait_until_idle(shared, None) {
            // Nothing waits for a disk or a journal, and all clients were disconnected.
            Err(error @ VolumeError::Stalled(Stall::Nothing { .. })) => {
                tracing::error!(%error, "abandoning requests, stopping after a flush");
                (Ok(()), true)
            }
            idle => (idle, false),
        };
        let flushed = idle.and_then(|()| flush_all(shared, &mut progress));
        if let Err(error) = flushed.and_then(|()| save_all(shared)) {
            shared.stopping.store(false, Ordering::Relaxed);
            shared.run_on(0, |tasks| tasks.accept(true))?;
            return Err(error);
        }
        let given_up = shared.volumes.all().iter().any(|volume| volume.is_given_up());
        shared.run_on_all(move |tasks| tasks.stop(abandons || given_up))?;
        self.crew.join();
        if given_up {
            // The disks of these volumes may still use the pool, and closing one may hang.
            std::mem::forget(Arc::clone(&self.shared));
        }
        // Everything is on the disks, and counted.
        progress(0);
        self.collapser.stop();
        self.resizer.stop();
        self.volumes.learner().stop();
        self.volumes.warm_ups().stop(LastSave::Yes);
        self.volumes.close();
        Ok(())
    }

    /// Ends the workers without a flush, so that another process can adopt the pool. Requests in
    /// flight have a moment to complete; the front ends hand over the clients that have none then.
    /// Volumes in memory are saved to their images.
    ///
    /// # Errors
    /// When the runtime is stopping already, or an image cannot be written. In the latter case
    /// clients were handed over or disconnected. The runtime serves those again that the caller
    /// takes back, and those that reconnect.
    pub fn pause(&self) -> Result<(), VolumeError> {
        let shared = &*self.shared;
        shared.run_on(0, |tasks| tasks.accept(false))?;
        // Before requests are refused: those that have begun to arrive are carried out.
        shared.run_on_all(|tasks| tasks.hand_over_clients())?;
        let until = Instant::now() + PAUSE;
        while has_leaving_clients(shared)? && Instant::now() < until {
            std::thread::sleep(POLL);
        }
        shared.stopping.store(true, Ordering::Relaxed);
        shared.run_on_all(|tasks| tasks.drain_clients(None))?;
        let until = Instant::now() + PAUSE;
        while outstanding(shared, None)?.is_busy() && Instant::now() < until {
            std::thread::sleep(POLL);
        }
        if let Err(error) = save_all(shared) {
            shared.stopping.store(false, Ordering::Relaxed);
            shared.run_on(0, |tasks| tasks.accept(true))?;
            return Err(error);
        }
        self.collapser.stop();
        self.resizer.stop();
        self.volumes.learner().stop();
        // The pool keeps the lines that the lists would name.
        self.volumes.warm_ups().stop(LastSave::No);
        // Two processes must not use one pool at the same time; only a worker whose disk hangs may
        // remain.
        shared.run_on_all(|tasks| tasks.stop(false))?;
        self.crew.wait(PAUSE);
        Ok(())
    }
}

/// Whether clients have to leave that have not yet.
fn has_leaving_clients(shared: &Shared) -> Result<bool, VolumeError> {
    let counts = shared.run_on_all(|tasks| tasks.leaving_clients())?;
    Ok(counts.iter().any(|&clients| clients > 0))
}

/// Dirty data that a volume's disk did not take before an exit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeftBehind {
    /// The volume.
    pub volume: String,
    /// Bytes in dirty lines.
    pub bytes: u64,
    /// The journal or vault that keeps the data for the next start; `None` if it is lost.
    pub kept_by: Option<String>,
}

/// Ends a runtime before the machine goes down, although disks refuse their data or do not answer:
/// flushes and saves what it can, and leaves the rest in the journals, or in the vault if a UPS
/// protects it, as if power had failed. Takes a disk's timeout for each disk that does not answer.
/// The caller exits the process.
///
/// # Errors
/// When the runtime has stopped.
pub fn leave(runtime: &Runtime) -> Result<Vec<LeftBehind>, VolumeError> {
    let shared = &*runtime.shared;
    shared.stopping.store(true, Ordering::Relaxed);
    shared.run_on(0, |tasks| tasks.accept(false))?;
    shared.run_on_all(|tasks| tasks.drain_clients(None))?;
    if let Err(error) = wait_until_idle(shared, None) {
        tracing::error!(%error, "disconnecting clients whose requests are not answered");
    }
    shared.run_on_all(|tasks| tasks.drop_clients(None))?;
    let mut volumes = shared.volumes.all();
    volumes.retain(|volume| !volume.is_given_up() && flush_and_save(runtime, volume).is_err());
    let dumped = dump(runtime, &volumes);
    let mut left: Vec<LeftBehind> = volumes.iter().map(|it| left_of(runtime, it, dumped)).collect();
    left.retain(|left| left.bytes > 0);
    let unserved = runtime.unserved().into_iter();
    left.extend(unserved.map(|(volume, bytes)| LeftBehind { volume, bytes, kept_by: None }));
    runtime.volumes.learner().stop();
    runtime.volumes.warm_ups().stop(LastSave::Yes);
    shared.run_on_all(|tasks| tasks.stop(true))?;
    runtime.crew.wait(PAUSE);
    // Disks that hang may still use the pool.
    std::mem::forget(Arc::clone(&runtime.shared));
    Ok(left)
}

fn flush_and_save(runtime: &Runtime, volume: &Arc<Volume>) -> VolumeResult {
    let done = flush(&runtime.shared, volume, &mut |_| {}).and_then(|()| save(volume));
    done.inspect_err(|error| tracing::error!(volume = volume.name, %error, "data is left behind"))
}

/// Whether the volume's journal has all of its data.
fn is_journalled(volume: &Volume) -> bool {
    volume.journal.get().is_some_and(|used| used.journal.status().failed.is_none())
}

/// Dumps the volumes among these that only a UPS protects. Returns whether that succeeded.
fn dump(runtime: &Runtime, volumes: &[Arc<Volume>]) -> bool {
    let under_ups =
        volumes.iter().filter(|volume| volume.power.has_ups() && !is_journalled(volume));
    let ids: Vec<_> = under_ups.map(|volume| volume.id).collect();
    let Some(vault) = runtime.volumes().protectors().vault().filter(|_| !ids.is_empty()) else {
        return false;
    };
    runtime.ups().halt(true);
    let dumped = vault.leave(&ids);
    dumped.inspect_err(|error| tracing::error!(%error, "dump failed")).is_ok()
}

fn left_of(runtime: &Runtime, volume: &Volume, is_dumped: bool) -> LeftBehind {
    let journal = volume.journal.get().filter(|_| is_journalled(volume));
    let vault =
        runtime.volumes().protectors().vault().filter(|_| is_dumped && volume.power.has_ups());
    let kept_by = journal.map(|used| format!("journal {}", used.journal.name()));
    LeftBehind {
        volume: volume.name.clone(),
        bytes: runtime.shared.shards.dirty_bytes(volume.id),
        kept_by: kept_by.or_else(|| vault.map(|vault| format!("vault {}", vault.name()))),
    }
}
