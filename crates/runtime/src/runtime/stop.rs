//! The end of a runtime: a stop, which flushes everything, and a pause, which leaves the pool to
//! another process.

use super::Runtime;
use crate::error::VolumeError;
use crate::service::{POLL, Stall, flush_all, outstanding, save_all, wait_until_idle};
use crate::warm_up::LastSave;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// How long a pause waits for requests in flight, and then for the workers.
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
    /// flight have a moment to complete. Volumes in memory are saved to their images.
    ///
    /// # Errors
    /// When the runtime is stopping already, or an image cannot be written. In the latter case
    /// clients were disconnected, and are served again when they reconnect.
    pub fn pause(&self) -> Result<(), VolumeError> {
        let shared = &*self.shared;
        shared.stopping.store(true, Ordering::Relaxed);
        shared.run_on(0, |tasks| tasks.accept(false))?;
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
