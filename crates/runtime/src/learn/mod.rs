//! Access histories: records what volumes need at which time of the day and week, keeps that across
//! restarts, and preloads it before the time comes again.
//!
//! Workers record what volumes need: reads that miss, unless they belong to a stream, and the first
//! use of preloaded lines. All other hits are not recorded and cost nothing. Each worker collects
//! a few needs (`worker/needs.rs`) before it takes the lock of a volume's needs (`Learn::record`).
//!
//! One thread (`thread`) follows the clock: at the end of each quarter of an hour it adds the needs
//! to the volume's [`History`], and writes it. Five minutes before the next quarter begins, it
//! passes the forecast for that quarter to the thread of the warm-ups, which preloads it.
//! [`History`] says how forecasts are made, and what limits them.
//!
//! A history is a hint, like a warm list: an error in it is logged, and no request fails.
//!
//! [`History`]: forebay_policy::History

mod thread;
mod volume;

use crate::platform::clock::LocalClock;

use crate::platform::locks::{Lock, order};
use crate::shared::Shared;
use crate::warm_up::WarmUps;
use forebay_threads::Thread;
use forebay_types::LINE_BYTES;
use std::io;
use std::sync::{Arc, Weak, mpsc};
use std::time::Duration;

/// How long a stop waits for a history to be written; a file system may hang.
const END_WAIT: Duration = Duration::from_secs(5);
/// Lines of the pool per region of the histories. A region takes 24 bytes, so all histories
/// together take at most a thousandth of the pool, apart from the minimum of each.
const LINES_PER_REGION: u64 = 8;
/// Limits of the number of regions of a history.
const REGIONS_MIN: u64 = 256;
const REGIONS_MAX: u64 = 1 << 20;

/// Keeps the access histories of volumes across restarts.
pub trait Histories: Send + Sync {
    /// Reads the history of a volume. `None` if there is none.
    ///
    /// # Errors
    /// When it cannot be read, or is longer than `bytes_max`.
    fn read(&self, volume: &str, bytes_max: u64) -> io::Result<Option<Vec<u8>>>;

    /// Replaces the history of a volume, so that after a crash there is the old or the new one.
    ///
    /// # Errors
    /// When it cannot be written.
    fn write(&self, volume: &str, history: &[u8]) -> io::Result<()>;

    /// Renames the history of a volume, so that it is not read again. Returns its new path.
    ///
    /// # Errors
    /// When it cannot be renamed.
    fn put_aside(&self, volume: &str) -> io::Result<String>;

    /// Removes the history of a volume, and one that was put aside, if there are any.
    ///
    /// # Errors
    /// When one cannot be removed.
    fn remove(&self, volume: &str) -> io::Result<()>;
}

/// The maximum number of regions of each of `histories` histories, with a pool of `pool_bytes` of
/// data.
fn regions_max(pool_bytes: u64, histories: usize) -> usize {
    let all = pool_bytes / LINE_BYTES / LINES_PER_REGION;
    (all / histories.max(1) as u64).clamp(REGIONS_MIN, REGIONS_MAX) as usize
}

/// The learning of a runtime. See the module.
pub(crate) struct Learner {
    shared: Weak<Shared>,
    /// The sender for the names of removed volumes. The thread ends when it is dropped.
    removed: Lock<Option<mpsc::Sender<String>>>,
    /// Disconnected once the thread has ended.
    running: Lock<Option<mpsc::Receiver<()>>, { order::THREADS }>,
}

impl Learner {
    pub(crate) fn new(shared: &Arc<Shared>) -> Self {
        let (removed, running) = (Lock::default(), Lock::default());
        Self { shared: Arc::downgrade(shared), removed, running }
    }

    /// See [`crate::Runtime::keep_histories`].
    pub(crate) fn keep(
        &self,
        histories: Arc<dyn Histories>,
        clock: Arc<dyn LocalClock>,
        warm_ups: &Arc<WarmUps>,
    ) {
        self.stop();
        let (sender, removed) = mpsc::channel();
        let (shared, warm_ups) = (self.shared.clone(), Arc::downgrade(warm_ups));
        let (runs, running) = mpsc::channel::<()>();
        let spawned = Thread::named("histories").spawn(move || {
            let _runs = runs;
            thread::run(&shared, &warm_ups, histories, &*clock, &removed);
        });
        match spawned {
            Ok(_) => {
                *self.running.lock() = Some(running);
                *self.removed.lock() = Some(sender);
            }
            Err(error) => tracing::warn!(%error, "cannot start the thread for access histories"),
        }
    }

    /// Removes the history of a volume that was removed.
    pub(crate) fn forget(&self, volume: &str) {
        if let Some(removed) = &*self.removed.lock() {
            // The thread ends early only if the runtime is gone.
            let _ = removed.send(volume.to_owned());
        }
    }

    /// Ends the thread, and waits at most [`END_WAIT`] for it. Needs since the last full quarter of
    /// an hour are not learned.
    pub(crate) fn stop(&self) {
        *self.removed.lock() = None;
        let running = self.running.lock().take();
        let ended = running.map(|running| running.recv_timeout(END_WAIT));
        if ended == Some(Err(mpsc::RecvTimeoutError::Timeout)) {
            tracing::warn!("access histories not written in time, stopping without them");
        }
    }
}
