//! What waits for disks: flushes from inside, the removal of a volume, the stop.
//!
//! A disk may take its time, as long as it answers something now and then. One that has I/O to
//! answer and answers nothing for [`Patience::disk`](crate::Patience) ends the command with an
//! error and nothing else: the volume is served on with all it has, and commands for other volumes
//! never noticed, as no lock is held while a disk is waited for.
//!
//! Clients hold nothing up. They have [`Patience::farewell`](crate::Patience) to fetch their last
//! replies; then their sockets are shut down, and what the kernel has not ended by
//! [`SHUTDOWN`] is closed by force.

use crate::error::VolumeError;
use crate::server::Runtime;
use crate::shared::Volume;
use crate::stats::add_up_answers;
use crate::worker::Left;
use forebay_types::{IoError, IoResult, VolumeId};
use std::sync::atomic::Ordering;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

/// How long the kernel may take to end what is under way on a socket that was shut down.
const SHUTDOWN: Duration = Duration::from_secs(2);
/// How long an upgrade waits for what clients have asked for.
const PAUSE: Duration = Duration::from_secs(1);
/// How often a condition is looked at.
const POLL: Duration = Duration::from_millis(5);
/// How often progress is told.
const TELL: Duration = Duration::from_millis(100);
/// Flushes of one volume that inside waits, or has given up waiting, for: each keeps a list of
/// dirty lines.
const INSIDE_FLUSHES_MAX: u64 = 16;

/// What holds up a flush, a removal or a stop when it is not the disk.
#[derive(Debug, thiserror::Error)]
pub enum HeldUp {
    /// The journal does not answer.
    #[error(
        "volume '{name}' waits for its journal {journal}, which has not answered for {seconds} s; \
         the volume goes on being served, so that nothing is lost"
    )]
    Journal {
        /// The volume.
        name: String,
        /// Its journal.
        journal: String,
        /// How long was waited.
        seconds: u64,
    },
    /// Neither disk nor journal is waited for, and still not everything ends.
    #[error(
        "{requests} requests and {operations} operations of volume '{name}' have not ended for \
         {seconds} s, although its disk has answered everything; the volume goes on being served, \
         so that nothing is lost"
    )]
    Nothing {
        /// The volume.
        name: String,
        /// How long was waited.
        seconds: u64,
        /// Requests that are not answered.
        requests: usize,
        /// What the cache is doing with lines of it.
        operations: u64,
    },
}

/// Notices when a volume is waited for in vain.
struct Watch<'a> {
    volume: &'a Arc<Volume>,
    answers: u64,
    since: Instant,
}

impl<'a> Watch<'a> {
    fn new(volume: &'a Arc<Volume>) -> Self {
        Self { volume, answers: u64::MAX, since: Instant::now() }
    }

    /// What the volume is waiting for, if that has gone on for too long: its disk if that has I/O
    /// to answer, and something else only when clients had their time to leave as well.
    fn obstacle(&mut self, runtime: &Runtime) -> Result<Option<VolumeError>, VolumeError> {
        let answers = add_up_answers(&self.volume.stats);
        if answers != self.answers {
            (self.answers, self.since) = (answers, Instant::now());
        }
        let patience = runtime.shared.patience;
        let waited = self.since.elapsed();
        if waited < patience.disk {
            return Ok(None);
        }
        let left = runtime.left(Some(self.volume.id))?;
        let is_over = match left.oldest_io {
            Some(began) => began.elapsed() >= patience.disk,
            None if left.requests == 0 && runtime.operations(self.volume.id) == 0 => false,
            None => waited >= patience.disk.max(patience.farewell + 2 * SHUTDOWN),
        };
        Ok(is_over.then(|| runtime.blame(self.volume, left)))
    }
}

impl Runtime {
    /// Brings everything dirty of a volume to its disk. `progress` is told how many bytes are
    /// left, now and then.
    ///
    /// # Errors
    /// When there is no such volume, or the disk fails or hangs; what it did not take is kept.
    pub fn flush_volume(
        &self,
        name: &str,
        mut progress: impl FnMut(u64),
    ) -> Result<(), VolumeError> {
        let volume = self.named(name)?;
        self.flush(&volume, &mut progress)
    }

    /// Trusts a disk again that has failed a flush, and flushes it. What its journal still holds is
    /// written again first; its clients have to connect again. Other lines that the disk may have
    /// lost are not: whoever trusts it says that they do not matter, or are there.
    /// So with sectors that were lost in memory: what the journal does not hold of them reads as
    /// the disk has it from now on.
    ///
    /// # Errors
    /// As [`Runtime::flush_volume`], and when the journal can't be read.
    pub fn trust_volume(
        &self,
        name: &str,
        mut progress: impl FnMut(u64),
    ) -> Result<(), VolumeError> {
        let volume = self.named(name)?;
        self.rewrite(&volume)?;
        volume.flush.trust();
        for shard in 0..self.shared.shards.len() {
            let mut shard = self.shared.shard(shard);
            if shard.has_volume(volume.id) {
                shard.forget_lost(volume.id);
            }
        }
        self.flush(&volume, &mut progress)
    }

    pub(crate) fn flush(
        &self,
        volume: &Arc<Volume>,
        progress: &mut dyn FnMut(u64),
    ) -> Result<(), VolumeError> {
        let count = volume.inside_flushes.fetch_add(1, Ordering::Relaxed);
        let theirs = Arc::clone(volume);
        let (tell, told) = mpsc::channel();
        let done = move |result: IoResult| {
            theirs.inside_flushes.fetch_sub(1, Ordering::Relaxed);
            let _ = tell.send(result);
        };
        if count >= INSIDE_FLUSHES_MAX {
            done(Ok(()));
            return Err(self.blame(volume, self.left(Some(volume.id))?));
        }
        let (id, name) = (volume.id, volume.name.clone());
        self.ask(0, move |tasks| {
            // Removed volumes leave by this worker as well, so it stays until the flush has begun.
            let served = tasks.shared().volume(id).is_some_and(|volume| volume.name == name);
            if served { tasks.flush(id, Box::new(done)) } else { done(Ok(())) }
        })?;
        let mut watch = Watch::new(volume);
        loop {
            match told.recv_timeout(TELL) {
                Ok(result) => return result.map_err(|error| self.failed(volume, error)),
                Err(mpsc::RecvTimeoutError::Disconnected) => return Err(VolumeError::Stopping),
                Err(mpsc::RecvTimeoutError::Timeout) => {}
            }
            progress(self.dirty_bytes(id));
            if let Some(error) = watch.obstacle(self)? {
                return Err(error);
            }
        }
    }

    fn failed(&self, volume: &Volume, error: IoError) -> VolumeError {
        let (name, dirty_bytes) = (volume.name.clone(), self.dirty_bytes(volume.id));
        match volume.flush.failure() {
            Some(error) => VolumeError::FlushFailed { name, error },
            None => VolumeError::Dirty { name, dirty_bytes, error },
        }
    }

    /// Says what a volume waits for, of which so much is left.
    fn blame(&self, volume: &Volume, left: Left) -> VolumeError {
        let (name, seconds) = (volume.name.clone(), self.shared.patience.disk.as_secs());
        if left.oldest_io.is_some() {
            let dirty_bytes = self.dirty_bytes(volume.id);
            return VolumeError::Hanging { name, seconds, dirty_bytes };
        }
        match &volume.journal {
            Some(used) if !used.journal.is_given_up() => {
                let journal = used.journal.name.clone();
                HeldUp::Journal { name, journal, seconds }.into()
            }
            _ => {
                let operations = self.operations(volume.id);
                HeldUp::Nothing { name, seconds, requests: left.requests, operations }.into()
            }
        }
    }

    /// Removes a volume: what is dirty is brought to the disk, its clients are let go, and the
    /// disk is closed.
    ///
    /// # Errors
    /// When there is no such volume, or the disk fails or hangs: then it goes on being served.
    pub fn remove_volume(
        &self,
        name: &str,
        mut progress: impl FnMut(u64),
    ) -> Result<(), VolumeError> {
        let volume = self.named(name)?;
        // While clients are still served: it may take a while, and it may fail.
        self.flush(&volume, &mut progress)?;
        if volume.leaving.swap(true, Ordering::Relaxed) {
            return Err(VolumeError::Leaving(name.to_owned()));
        }
        let emptied = self.empty(&volume, &mut progress);
        if emptied.is_err() {
            volume.leaving.store(false, Ordering::Relaxed);
            self.calibrator.want(&volume);
            return emptied;
        }
        self.calibrator.wait_until_free(&volume);
        let _changing = self.changes.lock();
        if let Some(used) = &volume.journal {
            // The disk has everything. A record that stayed would undo what is written there once
            // nobody tells the journal of it.
            used.journal.detach(used.number)?;
        }
        if let Some(vault) = &volume.vault {
            vault.detach(volume.id);
        }
        let id = volume.id;
        self.drop_clean(id);
        self.ask(0, move |tasks| {
            let shared = tasks.shared();
            for shard in 0..shared.shards.len() {
                shared.shard(shard).remove_volume(id);
            }
            // In the same turn of this worker, which begins all flushes from inside.
            shared.volumes.remove(id);
        })?;
        self.ask_all(|tasks| tasks.forget_volumes())?;
        self.leave_pool(id);
        Ok(())
    }

    /// Lets the clients of a leaving volume go, and waits until nothing of it is dirty or under
    /// way.
    fn empty(
        &self,
        volume: &Arc<Volume>,
        progress: &mut dyn FnMut(u64),
    ) -> Result<(), VolumeError> {
        let id = volume.id;
        self.ask_all(move |tasks| tasks.dismiss(Some(id)))?;
        self.wait_until_idle(Some(volume))?;
        self.flush(volume, progress)?;
        // A flush of somebody else inside may still be on its way, and reading ahead.
        let mut watch = Watch::new(volume);
        while self.operations(id) > 0 || volume.inside_flushes.load(Ordering::Relaxed) > 0 {
            if let Some(error) = watch.obstacle(self)? {
                return Err(error);
            }
            std::thread::sleep(POLL);
        }
        Ok(())
    }

    /// Waits until the clients of a volume, or all, have gone, and disks have answered everything;
    /// clients that take too long to fetch their replies are dropped.
    pub(crate) fn wait_until_idle(&self, volume: Option<&Arc<Volume>>) -> Result<(), VolumeError> {
        let id = volume.map(|volume| volume.id);
        let volumes = volume.map_or_else(|| self.shared.volumes.all(), |one| vec![Arc::clone(one)]);
        let mut watches: Vec<Watch<'_>> = volumes.iter().map(Watch::new).collect();
        let farewell = Instant::now() + self.shared.patience.farewell;
        while !self.left(id)?.is_nothing() {
            let now = Instant::now();
            if now > farewell + SHUTDOWN {
                self.ask_all(move |tasks| tasks.abandon_clients(id))?;
            } else if now > farewell {
                self.ask_all(move |tasks| tasks.drop_clients(id))?;
            }
            for watch in &mut watches {
                if let Some(error) = watch.obstacle(self)? {
                    return Err(error);
                }
            }
            std::thread::sleep(POLL);
        }
        Ok(())
    }

    fn left(&self, id: Option<VolumeId>) -> Result<Left, VolumeError> {
        let left = self.ask_all(move |tasks| tasks.left(id))?;
        Ok(left.into_iter().fold(Left::default(), Left::and))
    }

    /// Stops: what is dirty is brought to the disks, clients are let go, the workers end.
    /// `progress` is told how many bytes are left, now and then.
    ///
    /// # Errors
    /// The first volume whose disk fails or hangs, or, the first time, one that is not served and
    /// has dirty lines. Then nothing is lost, and clients are served as before.
    pub fn stop(&self, mut progress: impl FnMut(u64)) -> Result<(), VolumeError> {
        if let Some((name, dirty_bytes)) = self.unserved().into_iter().next()
            && !self.shared.warned.swap(true, Ordering::Relaxed)
        {
            return Err(VolumeError::Unserved { name, dirty_bytes });
        }
        // Most of it while clients are still served: it may take a while, and it may fail.
        self.flush_all(&mut progress)?;
        self.shared.stopping.store(true, Ordering::Relaxed);
        self.each_listener(|tasks, number, fd| tasks.stop_listening(number, fd))?;
        self.ask_all(|tasks| tasks.dismiss(None))?;
        let idle = match self.wait_until_idle(None) {
            // No disk and no journal owes anything, and nobody can be there to miss an answer.
            Err(error @ VolumeError::Held(HeldUp::Nothing { .. })) => {
                tracing::error!(%error, "stopping all the same, once everything is flushed");
                self.ask_all(|tasks| tasks.abandon_requests()).map(drop)
            }
            idle => idle,
        };
        if let Err(error) = idle.and_then(|()| self.flush_all(&mut progress)) {
            self.shared.stopping.store(false, Ordering::Relaxed);
            self.each_listener(|tasks, number, fd| tasks.listen(number, fd))?;
            return Err(error);
        }
        self.ask_all(|tasks| tasks.leave())?;
        {
            let mut workers = self.workers.lock();
            for worker in workers.drain(..) {
                let _ = worker.join();
            }
        }
        self.warmer.end();
        self.calibrator.close();
        self.journals().iter().for_each(|journal| journal.close(true));
        if let Some(vault) = self.vault() {
            vault.close(true);
        }
        // From here on anybody may change the disks.
        self.shared.volumes.all().iter().for_each(|volume| self.leave_pool(volume.id));
        if self.unserved().is_empty() {
            self.shared.pool.close();
        }
        // A volume knows its vault, which knows what all share, which is where volumes are kept.
        self.shared.volumes.clear();
        Ok(())
    }

    /// Lets clients go once what they asked for is answered, or after a moment, and the workers
    /// end. Nothing dirty is brought to the disks: another process is to go on with the pool, as
    /// after a death.
    ///
    /// # Errors
    /// The runtime is stopping already.
    pub fn pause(&self) -> Result<(), VolumeError> {
        self.shared.stopping.store(true, Ordering::Relaxed);
        self.each_listener(|tasks, number, fd| tasks.stop_listening(number, fd))?;
        self.ask_all(|tasks| tasks.dismiss(None))?;
        let until = Instant::now() + PAUSE;
        while self.left(None)?.is_busy() && Instant::now() < until {
            std::thread::sleep(POLL);
        }
        self.warmer.end();
        // Two processes must not walk in one pool; a worker whose disk hangs is left behind.
        self.ask_all(|tasks| tasks.leave())?;
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
