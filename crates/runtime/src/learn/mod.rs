//! Access histories: records what volumes need at which time of the day and week, keeps that across
//! restarts, and preloads it before the time comes again.
//!
//! Workers record what volumes need: reads that miss, unless they belong to a stream, and the first
//! use of preloaded lines. All other hits are not recorded and cost nothing. Each worker collects
//! up to [`NEEDS_MAX`] needs ([`PendingNeeds`]) before it takes the lock of a volume's needs
//! ([`Learn::record`]).
//!
//! One thread (`thread`) follows the clock: at the end of each quarter of an hour it adds the needs
//! to the volume's [`History`], and writes it. Five minutes before the next quarter begins, it
//! passes the forecast for that quarter to the thread of the warm-ups, which preloads it.
//! [`History`] says how forecasts are made, and what limits them.
//!
//! A history is a hint, like a warm list: an error in it is logged, and no request fails.
//!
//! [`History`]: forebay_policy::History
//! [`NEEDS_MAX`]: pending::NEEDS_MAX

mod clock;
mod pending;
mod thread;
mod volume;

pub use clock::{LocalClock, LocalTime, SystemClock};
pub(crate) use pending::PendingNeeds;

use crate::locks::{Lock, order};
use crate::shared::Shared;
use crate::warm_up::WarmUps;
use forebay_policy::Needs;
use forebay_threads::Thread;
use forebay_types::{LINE_BYTES, TimeSlot};
use pending::Need;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
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

/// The state of a volume's learning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LearnState {
    /// Nothing is learned: it is turned off, or no histories are kept.
    #[default]
    Off,
    /// It records, forecasts and preloads.
    Learning,
    /// It records, and compares its forecasts with what is needed, but does not preload: too little
    /// of what it preloaded was used.
    Paused,
    /// It records, but the history cannot be written.
    Unwritable,
}

/// A forecast of a volume.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ForecastStatus {
    /// The slot.
    pub slot: TimeSlot,
    /// Bytes that it probably needs, as far as they fit the budget.
    pub bytes: u64,
    /// Bytes beyond the budget.
    pub bytes_left: u64,
    /// Regions that are needed daily.
    pub daily_regions: usize,
    /// Regions that are needed weekly.
    pub weekly_regions: usize,
}

/// How much of a forecast was used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ForecastScore {
    /// The slot.
    pub slot: TimeSlot,
    /// Lines that were preloaded for it, or were in the pool, unused since an earlier preload.
    pub preloaded_lines: u64,
    /// Preloaded lines that clients have read within the first ten minutes of the slot.
    pub used_lines: u64,
}

/// A snapshot of a volume's learning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LearnStatus {
    /// Its state.
    pub state: LearnState,
    /// The current slot by the clock. `None` if nothing is learned.
    pub slot: Option<TimeSlot>,
    /// Slots of the week that were observed at least once.
    pub observed_slots: usize,
    /// Regions in the history, of all slots.
    pub regions: usize,
    /// The number of days in a row on which a region must have been needed to be preloaded.
    pub days_demanded: u32,
    /// The number of weeks in a row on which it must have been needed instead.
    pub weeks_demanded: u32,
    /// The latest forecast that was not empty.
    pub forecast: Option<ForecastStatus>,
    /// The latest score.
    pub score: Option<ForecastScore>,
}

/// The learning of a volume, as workers and management see it.
pub(crate) struct Learn {
    is_on: AtomicBool,
    needs: Lock<Needs>,
    status: Lock<LearnStatus>,
}

impl Learn {
    pub(crate) fn new(is_on: bool) -> Self {
        // Nothing is recorded before the thread has read the history.
        let needs = Lock::new(Needs::new(0));
        Self { is_on: AtomicBool::new(is_on), needs, status: Lock::default() }
    }

    /// Limits the needs of the current slot to a quarter of the regions that the volume's history
    /// may have.
    fn set_regions_max(&self, regions_max: usize) {
        self.needs.lock().set_regions_max(regions_max / 4);
    }

    pub(crate) fn set_on(&self, is_on: bool) {
        self.is_on.store(is_on, Ordering::Relaxed);
    }

    pub(crate) fn is_on(&self) -> bool {
        self.is_on.load(Ordering::Relaxed)
    }

    /// Records what was needed.
    pub(crate) fn record(&self, all: &[Need]) {
        if self.is_on() {
            let mut needs = self.needs.lock();
            all.iter().for_each(|need| needs.record(need.range, need.lines));
        }
    }

    fn take_needs(&self) -> Needs {
        self.needs.lock().take()
    }

    pub(crate) fn status(&self) -> LearnStatus {
        *self.status.lock()
    }

    fn set_status(&self, status: LearnStatus) {
        *self.status.lock() = status;
    }
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
