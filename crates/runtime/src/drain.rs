//! Operations that wait for disks: internal flushes, the removal of a volume, the stop.
//!
//! A disk may be slow, as long as it completes an I/O now and then. If it has I/O in flight and
//! completes none for [`Timeouts::disk`](crate::Timeouts), the operation fails. The volume is still
//! served then, with all of its data. Operations on other volumes are not affected, as no lock is
//! held while waiting.
//!
//! Clients cannot delay an operation. They have [`Timeouts::farewell`](crate::Timeouts) to fetch
//! their last replies; then their sockets are shut down, and sockets that the kernel has not
//! finished after [`SHUTDOWN`] are closed.

use crate::error::VolumeError;
use crate::server::Runtime;
use crate::shared::Volume;
use crate::stats::add_up_answers;
use crate::worker::Outstanding;
use forebay_types::{IoError, IoResult, VolumeId};
use std::sync::atomic::Ordering;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

/// How long the kernel may take to finish I/O on a socket that was shut down.
const SHUTDOWN: Duration = Duration::from_secs(2);
/// How long a pause waits for requests in flight, and then for the workers.
const PAUSE: Duration = Duration::from_secs(1);
/// The interval at which conditions are polled.
const POLL: Duration = Duration::from_millis(5);
/// The interval of progress reports.
const PROGRESS: Duration = Duration::from_millis(100);
/// Internal flushes in flight per volume, at most, including flushes that are not waited for any
/// more: those of a disk that hangs would otherwise accumulate.
const INTERNAL_FLUSHES_MAX: u64 = 16;

/// Why a flush, a removal or a stop does not complete, if not for the disk.
#[derive(Debug, thiserror::Error)]
pub enum HeldUp {
    /// The journal does not respond.
    #[error(
        "volume '{name}' waits for its journal {journal}, which has not answered for {seconds} s; \
         the volume is still served, and nothing is lost"
    )]
    Journal {
        /// The volume.
        name: String,
        /// Its journal.
        journal: String,
        /// The timeout.
        seconds: u64,
    },
    /// Requests or operations do not complete, although neither disk nor journal is waited for.
    #[error(
        "{requests} requests and {operations} operations of volume '{name}' have not completed \
         for {seconds} s, although its disk has answered everything; the volume is still served, \
         and nothing is lost"
    )]
    Nothing {
        /// The volume.
        name: String,
        /// The timeout.
        seconds: u64,
        /// Requests in flight.
        requests: usize,
        /// Operations of the cache in progress.
        operations: u64,
    },
}

/// Detects that a volume's disk makes no progress.
struct Watchdog<'a> {
    volume: &'a Arc<Volume>,
    /// Completions of the disk when there was progress last.
    answers: u64,
    since: Instant,
}

impl<'a> Watchdog<'a> {
    fn new(volume: &'a Arc<Volume>) -> Self {
        Self { volume, answers: u64::MAX, since: Instant::now() }
    }

    /// The error if the volume has waited too long: for its disk if I/O is in flight, otherwise for
    /// the journal or a request. The latter has to allow for the clients' farewell, too.
    fn stall(&mut self, runtime: &Runtime) -> Result<Option<VolumeError>, VolumeError> {
        let answers = add_up_answers(&self.volume.stats);
        if answers != self.answers {
            (self.answers, self.since) = (answers, Instant::now());
        }
        let timeouts = runtime.shared.timeouts;
        let waited = self.since.elapsed();
        if waited < timeouts.disk {
            return Ok(None);
        }
        let outstanding = runtime.outstanding(Some(self.volume.id))?;
        let is_over = match outstanding.oldest_io {
            Some(began) => began.elapsed() >= timeouts.disk,
            None if outstanding.requests == 0 && runtime.operations(self.volume.id) == 0 => false,
            None => waited >= timeouts.disk.max(timeouts.farewell + 2 * SHUTDOWN),
        };
        Ok(is_over.then(|| runtime.stall_error(self.volume, outstanding)))
    }
}

impl Runtime {
    /// Flushes a volume to its disk. `progress` is called periodically with the dirty bytes left.
    ///
    /// # Errors
    /// When there is no such volume, or the disk fails or hangs; data not written stays dirty.
    pub fn flush_volume(
        &self,
        name: &str,
        mut progress: impl FnMut(u64),
    ) -> Result<(), VolumeError> {
        let volume = self.named(name)?;
        self.flush(&volume, &mut progress)
    }

    /// Trusts a disk again that has failed a flush, and flushes it. Data that the journal still
    /// holds is written again first; the clients have to reconnect for that. Other data that the
    /// disk may have lost is not written again: the caller asserts that it is on the disk, or not
    /// needed. Likewise, sectors lost in memory that the journal does not hold read as the disk has
    /// them from now on.
    ///
    /// # Errors
    /// As [`Runtime::flush_volume`], and when the journal cannot be read.
    pub fn trust_volume(
        &self,
        name: &str,
        mut progress: impl FnMut(u64),
    ) -> Result<(), VolumeError> {
        let volume = self.named(name)?;
        self.restore_running(&volume)?;
        volume.flush.trust();
        for shard in 0..self.shared.shards.len() {
            let mut shard = self.shared.shard(shard);
            if shard.has_volume(volume.id) {
                shard.abandon_lost(volume.id);
            }
        }
        self.flush(&volume, &mut progress)
    }

    pub(crate) fn flush(
        &self,
        volume: &Arc<Volume>,
        progress: &mut dyn FnMut(u64),
    ) -> Result<(), VolumeError> {
        let count = volume.internal_flushes.fetch_add(1, Ordering::Relaxed);
        let flushed = Arc::clone(volume);
        let (sender, results) = mpsc::channel();
        let done = move |result: IoResult| {
            flushed.internal_flushes.fetch_sub(1, Ordering::Relaxed);
            let _ = sender.send(result);
        };
        if count >= INTERNAL_FLUSHES_MAX {
            done(Ok(()));
            return Err(self.stall_error(volume, self.outstanding(Some(volume.id))?));
        }
        let (id, name) = (volume.id, volume.name.clone());
        self.run_on(0, move |tasks| {
            // This worker also removes volumes, so the volume exists until the flush has begun.
            let served = tasks.shared().volume(id).is_some_and(|volume| volume.name == name);
            if served { tasks.flush(id, Box::new(done)) } else { done(Ok(())) }
        })?;
        let mut watchdog = Watchdog::new(volume);
        loop {
            match results.recv_timeout(PROGRESS) {
                Ok(result) => return result.map_err(|error| self.flush_error(volume, error)),
                Err(mpsc::RecvTimeoutError::Disconnected) => return Err(VolumeError::Stopping),
                Err(mpsc::RecvTimeoutError::Timeout) => {}
            }
            progress(self.dirty_bytes(id));
            if let Some(error) = watchdog.stall(self)? {
                return Err(error);
            }
        }
    }

    fn flush_error(&self, volume: &Volume, error: IoError) -> VolumeError {
        let (name, dirty_bytes) = (volume.name.clone(), self.dirty_bytes(volume.id));
        match volume.flush.failure() {
            Some(error) => VolumeError::FlushFailed { name, error },
            None => VolumeError::Dirty { name, dirty_bytes, error },
        }
    }

    /// Names what a volume waits for.
    fn stall_error(&self, volume: &Volume, outstanding: Outstanding) -> VolumeError {
        let (name, seconds) = (volume.name.clone(), self.shared.timeouts.disk.as_secs());
        if outstanding.oldest_io.is_some() {
            let dirty_bytes = self.dirty_bytes(volume.id);
            return VolumeError::Hanging { name, seconds, dirty_bytes };
        }
        match &volume.journal {
            Some(used) if !used.journal.is_abandoned() => {
                let journal = used.journal.name().to_owned();
                HeldUp::Journal { name, journal, seconds }.into()
            }
            _ => {
                let operations = self.operations(volume.id);
                HeldUp::Nothing { name, seconds, requests: outstanding.requests, operations }.into()
            }
        }
    }

    /// Removes a volume: flushes it to its disk, drains its clients, and closes the disk.
    ///
    /// # Errors
    /// When there is no such volume, or the disk fails or hangs: the volume is still served then.
    pub fn remove_volume(
        &self,
        name: &str,
        mut progress: impl FnMut(u64),
    ) -> Result<(), VolumeError> {
        let volume = self.named(name)?;
        // A first flush while clients are still served: it may be slow, and it may fail.
        self.flush(&volume, &mut progress)?;
        if volume.leaving.swap(true, Ordering::Relaxed) {
            return Err(VolumeError::Leaving(name.to_owned()));
        }
        let emptied = self.empty(&volume, &mut progress);
        if emptied.is_err() {
            volume.leaving.store(false, Ordering::Relaxed);
            self.calibrator.schedule(&volume);
            return emptied;
        }
        self.calibrator.wait_until_free(&volume);
        let _changing = self.changes.lock();
        if let Some(used) = &volume.journal {
            // The disk has everything. Records that stayed would undo later changes to the disk
            // that are not recorded in the journal.
            used.journal.detach(used.number)?;
        }
        if let Some(vault) = &volume.vault {
            vault.detach(volume.id);
        }
        let id = volume.id;
        self.drop_clean(id);
        self.run_on(0, move |tasks| {
            let shared = tasks.shared();
            for shard in 0..shared.shards.len() {
                shared.shard(shard).remove_volume(id);
            }
            // In the same task: this worker begins all internal flushes.
            shared.volumes.remove(id);
        })?;
        self.run_on_all(|tasks| tasks.forget_volumes())?;
        self.leave_pool(id);
        Ok(())
    }

    /// Drains the clients of a volume that is being removed, and waits until the volume is clean
    /// and has no operation in progress.
    fn empty(
        &self,
        volume: &Arc<Volume>,
        progress: &mut dyn FnMut(u64),
    ) -> Result<(), VolumeError> {
        let id = volume.id;
        self.run_on_all(move |tasks| tasks.drain_clients(Some(id)))?;
        self.wait_until_idle(Some(volume))?;
        self.flush(volume, progress)?;
        // Another internal flush, or read-ahead, may still be in progress.
        let mut watchdog = Watchdog::new(volume);
        while self.operations(id) > 0 || volume.internal_flushes.load(Ordering::Relaxed) > 0 {
            if let Some(error) = watchdog.stall(self)? {
                return Err(error);
            }
            std::thread::sleep(POLL);
        }
        Ok(())
    }

    /// Waits until the clients of a volume, or all clients, have disconnected and the disks have
    /// completed all I/O. Clients that take too long to fetch their replies are dropped.
    pub(crate) fn wait_until_idle(&self, volume: Option<&Arc<Volume>>) -> Result<(), VolumeError> {
        let id = volume.map(|volume| volume.id);
        let volumes = volume.map_or_else(|| self.shared.volumes.all(), |one| vec![Arc::clone(one)]);
        let mut watchdogs: Vec<Watchdog<'_>> = volumes.iter().map(Watchdog::new).collect();
        let farewell = Instant::now() + self.shared.timeouts.farewell;
        while !self.outstanding(id)?.is_empty() {
            let now = Instant::now();
            if now > farewell + SHUTDOWN {
                self.run_on_all(move |tasks| tasks.abandon_clients(id))?;
            } else if now > farewell {
                self.run_on_all(move |tasks| tasks.drop_clients(id))?;
            }
            for watchdog in &mut watchdogs {
                if let Some(error) = watchdog.stall(self)? {
                    return Err(error);
                }
            }
            std::thread::sleep(POLL);
        }
        Ok(())
    }

    fn outstanding(&self, id: Option<VolumeId>) -> Result<Outstanding, VolumeError> {
        let outstanding = self.run_on_all(move |tasks| tasks.outstanding(id))?;
        Ok(outstanding.into_iter().fold(Outstanding::default(), Outstanding::plus))
    }

    /// Stops: flushes all volumes, drains the clients, and ends the workers. `progress` is called
    /// periodically with the dirty bytes left.
    ///
    /// # Errors
    /// When a disk fails or hangs; and the first time if a volume that is not served has dirty
    /// lines. Nothing is lost then, and clients are served as before.
    pub fn stop(&self, mut progress: impl FnMut(u64)) -> Result<(), VolumeError> {
        if let Some((name, dirty_bytes)) = self.unserved().into_iter().next()
            && !self.shared.warned.swap(true, Ordering::Relaxed)
        {
            return Err(VolumeError::Unserved { name, dirty_bytes });
        }
        // A first flush while clients are still served: it may be slow, and it may fail.
        self.flush_all(&mut progress)?;
        self.shared.stopping.store(true, Ordering::Relaxed);
        self.run_on(0, |tasks| tasks.accept(false))?;
        self.run_on_all(|tasks| tasks.drain_clients(None))?;
        let idle = match self.wait_until_idle(None) {
            // Neither a disk nor a journal is waited for, and all clients were disconnected.
            Err(error @ VolumeError::Held(HeldUp::Nothing { .. })) => {
                tracing::error!(%error, "abandoning requests, stopping after a flush");
                self.run_on_all(|tasks| tasks.abandon_requests()).map(drop)
            }
            idle => idle,
        };
        if let Err(error) = idle.and_then(|()| self.flush_all(&mut progress)) {
            self.shared.stopping.store(false, Ordering::Relaxed);
            self.run_on(0, |tasks| tasks.accept(true))?;
            return Err(error);
        }
        self.run_on_all(|tasks| tasks.stop())?;
        {
            let mut workers = self.workers.lock();
            for worker in workers.drain(..) {
                let _ = worker.join();
            }
        }
        self.warmer.stop();
        self.calibrator.close();
        self.journals().iter().for_each(|journal| journal.close(true));
        if let Some(vault) = self.vault() {
            vault.close(true);
        }
        // From here on other programs may change the disks.
        self.shared.volumes.all().iter().for_each(|volume| self.leave_pool(volume.id));
        if self.unserved().is_empty() {
            self.shared.pool.close();
        }
        // Breaks the reference cycle of a volume, its vault, and `shared`.
        self.shared.volumes.clear();
        Ok(())
    }

    /// Ends the workers without a flush, so that another process can adopt the pool. Requests in
    /// flight have a moment to complete.
    ///
    /// # Errors
    /// When the runtime is stopping already.
    pub fn pause(&self) -> Result<(), VolumeError> {
        self.shared.stopping.store(true, Ordering::Relaxed);
        self.run_on(0, |tasks| tasks.accept(false))?;
        self.run_on_all(|tasks| tasks.drain_clients(None))?;
        let until = Instant::now() + PAUSE;
        while self.outstanding(None)?.is_busy() && Instant::now() < until {
            std::thread::sleep(POLL);
        }
        self.warmer.stop();
        // Two processes must not use one pool at once; only a worker whose disk hangs may remain.
        self.run_on_all(|tasks| tasks.stop())?;
        let until = Instant::now() + PAUSE;
        let workers = self.workers.lock();
        while Instant::now() < until && !workers.iter().all(|worker| worker.is_finished()) {
            std::thread::sleep(POLL);
        }
        Ok(())
    }

    fn flush_all(&self, progress: &mut dyn FnMut(u64)) -> Result<(), VolumeError> {
        self.shared.volumes.all().iter().try_for_each(|volume| self.flush(volume, progress))
    }
}

#[cfg(test)]
mod tests;
