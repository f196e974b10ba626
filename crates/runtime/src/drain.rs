//! What waits for disks: flushes from inside, the removal of a volume, the stop.
//!
//! A disk may take its time, as long as it answers something now and then. One that answers
//! nothing for [`Patience::disk`](crate::Patience) ends the command with an error and nothing
//! else: the volume is served on with all it has, and commands for other volumes never noticed,
//! as no lock is held while a disk is waited for.

use crate::server::{Runtime, VolumeError};
use crate::shared::Volume;
use crate::stats::add_up_answers;
use forebay_types::{IoError, IoResult, VolumeId};
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError, mpsc};
use std::time::{Duration, Instant};

/// How long clients may take to fetch their last replies.
const FAREWELL: Duration = Duration::from_secs(5);
/// How long an upgrade waits for what clients have asked for.
const PAUSE: Duration = Duration::from_secs(1);
/// How often a condition is looked at.
const POLL: Duration = Duration::from_millis(5);
/// How often progress is told.
const TELL: Duration = Duration::from_millis(100);
/// Flushes of one volume that inside waits, or has given up waiting, for: each keeps a list of
/// dirty lines.
const INSIDE_FLUSHES_MAX: u64 = 16;

/// Notices when disks have stopped answering.
struct Watch {
    answers: u64,
    since: Instant,
}

impl Watch {
    fn new() -> Self {
        Self { answers: u64::MAX, since: Instant::now() }
    }

    /// Whether none of `volumes` has had an answer of its disk for so long.
    fn is_stalled(&mut self, volumes: &[Arc<Volume>], patience: Duration) -> bool {
        let answers = volumes.iter().map(|volume| add_up_answers(&volume.stats)).sum();
        if answers != self.answers {
            *self = Self { answers, since: Instant::now() };
        }
        self.since.elapsed() >= patience
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
            return Err(self.hanging(volume));
        }
        let (id, name) = (volume.id, volume.name.clone());
        self.ask(0, move |tasks| {
            // Removed volumes leave by this worker as well, so it stays until the flush has begun.
            let served = tasks.shared().volume(id).is_some_and(|volume| volume.name == name);
            if served { tasks.flush(id, Box::new(done)) } else { done(Ok(())) }
        })?;
        let mut watch = Watch::new();
        loop {
            match told.recv_timeout(TELL) {
                Ok(result) => return result.map_err(|error| self.failed(volume, error)),
                Err(mpsc::RecvTimeoutError::Disconnected) => return Err(VolumeError::Stopping),
                Err(mpsc::RecvTimeoutError::Timeout) => {}
            }
            progress(self.dirty_bytes(id));
            if watch.is_stalled(std::slice::from_ref(volume), self.shared.patience.disk) {
                return Err(self.hanging(volume));
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

    fn hanging(&self, volume: &Volume) -> VolumeError {
        let (name, dirty_bytes) = (volume.name.clone(), self.dirty_bytes(volume.id));
        let seconds = self.shared.patience.disk.as_secs();
        VolumeError::Hanging { name, seconds, dirty_bytes }
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
        let _changing = self.changes.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(used) = &volume.journal {
            // The disk has everything. A record that stayed would undo what is written there once
            // nobody tells the journal of it.
            used.journal.detach(used.number)?;
        }
        if let Some(vault) = &volume.vault {
            vault.detach(volume.id);
        }
        let id = volume.id;
        self.ask(0, move |tasks| {
            let shared = tasks.shared();
            for shard in 0..shared.shards.len() {
                shared.shard(shard).remove_volume(id);
            }
            // In the same turn of this worker, which begins all flushes from inside.
            let mut volumes = shared.volumes.write().unwrap_or_else(PoisonError::into_inner);
            volumes[usize::from(id.0)] = None;
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
        let mut watch = Watch::new();
        while self.operations(id) > 0 || volume.inside_flushes.load(Ordering::Relaxed) > 0 {
            if watch.is_stalled(std::slice::from_ref(volume), self.shared.patience.disk) {
                return Err(self.hanging(volume));
            }
            std::thread::sleep(POLL);
        }
        Ok(())
    }

    /// Waits until the clients of a volume, or all, have gone; those that take too long to fetch
    /// their replies are dropped.
    pub(crate) fn wait_until_idle(&self, volume: Option<&Arc<Volume>>) -> Result<(), VolumeError> {
        let id = volume.map(|volume| volume.id);
        let farewell = Instant::now() + FAREWELL;
        let mut watch = Watch::new();
        while self.busy(id)? > 0 {
            if Instant::now() > farewell {
                self.ask_all(move |tasks| tasks.drop_clients(id))?;
            }
            let volumes = volume.map_or_else(|| self.volumes(), |one| vec![Arc::clone(one)]);
            if watch.is_stalled(&volumes, self.shared.patience.disk.max(2 * FAREWELL)) {
                for volume in &volumes {
                    if self.busy(Some(volume.id))? > 0 {
                        return Err(self.hanging(volume));
                    }
                }
            }
            std::thread::sleep(POLL);
        }
        Ok(())
    }

    fn busy(&self, id: Option<VolumeId>) -> Result<usize, VolumeError> {
        Ok(self.ask_all(move |tasks| tasks.busy(id))?.into_iter().sum())
    }

    fn volumes(&self) -> Vec<Arc<Volume>> {
        let volumes = self.shared.volumes.read().unwrap_or_else(PoisonError::into_inner);
        volumes.iter().flatten().cloned().collect()
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
        let idle = self.wait_until_idle(None);
        if let Err(error) = idle.and_then(|()| self.flush_all(&mut progress)) {
            self.shared.stopping.store(false, Ordering::Relaxed);
            self.each_listener(|tasks, number, fd| tasks.listen(number, fd))?;
            return Err(error);
        }
        self.ask_all(|tasks| tasks.leave())?;
        let mut workers = self.workers.lock().unwrap_or_else(PoisonError::into_inner);
        for worker in workers.drain(..) {
            let _ = worker.join();
        }
        self.warmer.end();
        self.calibrator.close();
        self.journals().iter().for_each(|journal| journal.close(true));
        if let Some(vault) = self.vault() {
            vault.close(true);
        }
        // From here on anybody may change the disks.
        self.volumes().iter().for_each(|volume| self.leave_pool(volume.id));
        if self.unserved().is_empty() {
            self.shared.pool.close();
        }
        // A volume knows its vault, which knows what all share, which is where volumes are kept.
        self.shared.volumes.write().unwrap_or_else(PoisonError::into_inner).clear();
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
        while self.busy(None)? > 0 && Instant::now() < until {
            std::thread::sleep(POLL);
        }
        self.warmer.end();
        // Two processes must not walk in one pool; a worker whose disk hangs is left behind.
        self.ask_all(|tasks| tasks.leave())?;
        let until = Instant::now() + PAUSE;
        let workers = self.workers.lock().unwrap_or_else(PoisonError::into_inner);
        while Instant::now() < until && !workers.iter().all(|worker| worker.is_finished()) {
            std::thread::sleep(POLL);
        }
        Ok(())
    }

    fn flush_all(&self, progress: &mut dyn FnMut(u64)) -> Result<(), VolumeError> {
        self.volumes().iter().try_for_each(|volume| self.flush(volume, progress))
    }
}
