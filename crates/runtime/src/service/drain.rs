//! Flushes, and the wait for disks and clients.
//!
//! A disk may be slow as long as it keeps completing I/Os. If it has I/O in flight and completes
//! none for [`Timeouts::disk`](crate::Timeouts), the operation fails. The volume is still served
//! then, with all of its data. Operations on other volumes are not affected, as no lock is held
//! while waiting.
//!
//! Clients cannot delay an operation. They have [`Timeouts::farewell`](crate::Timeouts) to fetch
//! their last replies, from the moment when the disk has completed all I/O; then their sockets are
//! shut down, and sockets that the kernel has not finished after [`SHUTDOWN`] are closed.

use crate::error::{Stall, VolumeError, VolumeResult};
use crate::platform::locks::assert_may_wait;
use crate::shared::{Outstanding, Shared, Volume};
use crate::stats::add_up_answers;
use forebay_types::{IoError, IoResult, VolumeId};
use std::sync::atomic::Ordering;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

/// How long the kernel may take to finish I/O on a socket that was shut down.
const SHUTDOWN: Duration = Duration::from_secs(2);
/// The interval at which conditions are polled.
pub(crate) const POLL: Duration = Duration::from_millis(5);
/// The interval of progress reports.
const PROGRESS: Duration = Duration::from_millis(100);
/// The maximum number of internal flushes in flight per volume, including flushes whose caller has
/// given up: those of a disk that hangs would otherwise accumulate. Further flushes wait for their
/// turn.
const INTERNAL_FLUSHES_MAX: u64 = 16;

/// Called periodically with the dirty bytes left.
pub(crate) type OnProgress<'a> = &'a mut dyn FnMut(u64);

/// Detects that a volume's disk makes no progress.
pub(super) struct Watchdog<'a> {
    volume: &'a Arc<Volume>,
    /// The number of completions of the disk at the last progress.
    answers: u64,
    since: Instant,
}

impl<'a> Watchdog<'a> {
    pub(super) fn new(volume: &'a Arc<Volume>) -> Self {
        Self { volume, answers: u64::MAX, since: Instant::now() }
    }

    /// Fails if the volume has waited too long: for its disk if I/O is in flight, otherwise for the
    /// journal or a request. The latter timeout also covers the clients' farewell.
    pub(super) fn check(&mut self, shared: &Shared) -> VolumeResult {
        let answers = add_up_answers(&self.volume.stats);
        if answers != self.answers {
            (self.answers, self.since) = (answers, Instant::now());
        }
        let timeouts = shared.timeouts;
        let waited = self.since.elapsed();
        if waited < timeouts.disk {
            return Ok(());
        }
        let outstanding = outstanding(shared, Some(self.volume.id))?;
        let is_over = match outstanding.oldest_io {
            Some(began) => began.elapsed() >= timeouts.disk,
            None if outstanding.requests == 0 && shared.shards.operations(self.volume.id) == 0 => {
                false
            }
            None => waited >= timeouts.disk.max(timeouts.farewell + 2 * SHUTDOWN),
        };
        if is_over { Err(stall_error(shared, self.volume, outstanding)) } else { Ok(()) }
    }
}

/// The error for a volume that has waited too long, by what it waits for.
fn stall_error(shared: &Shared, volume: &Volume, outstanding: Outstanding) -> VolumeError {
    let (name, seconds) = (volume.name.clone(), shared.timeouts.disk.as_secs());
    let used = volume.journal.get();
    if let Some(used) = &used
        && let Some(reason) = used.journal.status().waits_for
    {
        return Stall::Record { name, journal: used.journal.name().to_owned(), reason }.into();
    }
    if outstanding.oldest_io.is_some() {
        let dirty_bytes = shared.shards.dirty_bytes(volume.id);
        return VolumeError::Hanging { name, seconds, dirty_bytes };
    }
    match used {
        Some(used) if !used.journal.is_abandoned() => {
            let journal = used.journal.name().to_owned();
            Stall::Journal { name, journal, seconds }.into()
        }
        _ => {
            let operations = shared.shards.operations(volume.id);
            Stall::Nothing { name, seconds, requests: outstanding.requests, operations }.into()
        }
    }
}

/// An internal flush in flight.
struct InternalFlush(Arc<Volume>);

impl InternalFlush {
    /// Counts a flush, unless too many are in flight.
    fn begin(volume: &Arc<Volume>) -> Option<Self> {
        let more = |count: u64| (count < INTERNAL_FLUSHES_MAX).then_some(count + 1);
        let counted =
            volume.internal_flushes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
        counted.ok().map(|_| Self(Arc::clone(volume)))
    }
}

impl Drop for InternalFlush {
    fn drop(&mut self) {
        let before = self.0.internal_flushes.fetch_sub(1, Ordering::Relaxed);
        assert!((1..=INTERNAL_FLUSHES_MAX).contains(&before), "an internal flush ends once");
    }
}

/// Flushes a volume to its disk. `progress` is called periodically with the dirty bytes left.
///
/// # Errors
/// When the disk fails or hangs; data not written stays dirty.
pub(crate) fn flush(
    shared: &Shared,
    volume: &Arc<Volume>,
    progress: OnProgress<'_>,
) -> VolumeResult {
    let (id, name) = (volume.id, volume.name.clone());
    assert_may_wait();
    let mut watchdog = Watchdog::new(volume);
    let turn = loop {
        if let Some(turn) = InternalFlush::begin(volume) {
            break turn;
        }
        std::thread::sleep(PROGRESS);
        progress(shared.shards.dirty_bytes(id));
        watchdog.check(shared)?;
    };
    let (sender, results) = mpsc::channel();
    let done = move |result: IoResult| {
        drop(turn);
        let _ = sender.send(result);
    };
    shared.run_on(0, move |tasks| {
        // This worker also removes volumes, so the volume exists until the flush has begun.
        let served = tasks.shared().volume(id).is_some_and(|volume| volume.name == name);
        if served { tasks.flush(id, Box::new(done)) } else { done(Ok(())) }
    })?;
    let mut watchdog = Watchdog::new(volume);
    loop {
        match results.recv_timeout(PROGRESS) {
            Ok(result) => return result.map_err(|error| flush_error(shared, volume, error)),
            Err(mpsc::RecvTimeoutError::Disconnected) => return Err(VolumeError::Stopping),
            Err(mpsc::RecvTimeoutError::Timeout) => {}
        }
        progress(shared.shards.dirty_bytes(id));
        watchdog.check(shared)?;
    }
}

pub(crate) fn flush_all(shared: &Shared, progress: OnProgress<'_>) -> VolumeResult {
    kept(shared).try_for_each(|volume| flush(shared, &volume, progress))
}

/// The volumes that were not given up.
fn kept(shared: &Shared) -> impl Iterator<Item = Arc<Volume>> {
    shared.volumes.all().into_iter().filter(|volume| !volume.is_given_up())
}

/// Saves a volume whose store is in memory to its image.
///
/// # Errors
/// The image cannot be written; the previous one is unchanged.
pub(crate) fn save(volume: &Volume) -> VolumeResult {
    volume.backend.save().map_err(|source| {
        let path = volume.backend.saved().map(|saved| saved.path.display().to_string());
        let (name, path) = (volume.name.clone(), path.unwrap_or_default());
        VolumeError::Save { name, path, source }
    })
}

pub(crate) fn save_all(shared: &Shared) -> VolumeResult {
    kept(shared).try_for_each(|volume| save(&volume))
}

pub(super) fn flush_error(shared: &Shared, volume: &Volume, error: IoError) -> VolumeError {
    let (name, dirty_bytes) = (volume.name.clone(), shared.shards.dirty_bytes(volume.id));
    match volume.flush.failure() {
        Some(error) => VolumeError::FlushFailed { name, error },
        None => VolumeError::Dirty { name, dirty_bytes, error },
    }
}

/// Waits until the clients of a volume, or all clients, have disconnected and the disks have
/// completed all I/O. Clients that take too long to fetch their replies are dropped.
pub(crate) fn wait_until_idle(shared: &Shared, volume: Option<&Arc<Volume>>) -> VolumeResult {
    let id = volume.map(|volume| volume.id);
    let volumes = volume.map_or_else(|| kept(shared).collect(), |one| vec![Arc::clone(one)]);
    let mut watchdogs: Vec<Watchdog<'_>> = volumes.iter().map(Watchdog::new).collect();
    let mut farewell = Instant::now() + shared.timeouts.farewell;
    loop {
        let outstanding = outstanding(shared, id)?;
        if outstanding.is_empty() {
            return Ok(());
        }
        let now = Instant::now();
        if outstanding.oldest_io.is_some() {
            // A client that waits for the disk has had no reply to fetch so far.
            farewell = now + shared.timeouts.farewell;
        } else if now > farewell + SHUTDOWN {
            shared.run_on_all(move |tasks| tasks.abandon_clients(id))?;
        } else if now > farewell {
            shared.run_on_all(move |tasks| tasks.drop_clients(id))?;
        }
        watchdogs.iter_mut().try_for_each(|watchdog| watchdog.check(shared))?;
        std::thread::sleep(POLL);
    }
}

/// The connections, requests and I/Os of a volume, or of all that were not given up, that have not
/// ended.
pub(crate) fn outstanding(
    shared: &Shared,
    id: Option<VolumeId>,
) -> Result<Outstanding, VolumeError> {
    let outstanding = shared.run_on_all(move |tasks| tasks.outstanding(id))?;
    Ok(outstanding.into_iter().fold(Outstanding::default(), Outstanding::plus))
}

#[cfg(test)]
mod tests;
