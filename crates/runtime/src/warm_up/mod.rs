//! Warm lists and warm-ups: after an orderly stop or a reboot, the lines of each volume that were
//! valuable are read into the pool again.
//!
//! A warm list says which lines of a volume were valuable in the pool. One thread writes the lists
//! every few minutes (`save`), and at an orderly stop. After a start, the same thread reads the
//! lists, and then the lines in them into free slots of the pool (`thread`);
//! [`forebay_volume::Loader`] decides in which order and when. The reads are requests to the
//! workers like those of clients, so the shards order them with writes.
//!
//! The thread also reads the pinned ranges of volumes (`pins`), and the forecasts of access
//! histories, in the same way.
//!
//! A list is a hint: an error in it, or in the directory that keeps it, is logged. The pool then
//! starts cold, and no request fails.

mod pins;
mod save;
mod thread;

use crate::platform::locks::{Lock, order};
use crate::shared::{Shared, Volume, WarmUpState, WarmUpStatus};
use forebay_threads::Thread;
use forebay_types::Granule;
use std::io;
use std::sync::{Arc, Weak, mpsc};
use std::time::Duration;
use thread::Event;

/// How long a stop waits for the lists to be written, because a file system may hang.
const END_WAIT: Duration = Duration::from_secs(5);

/// Keeps the warm lists of volumes across restarts.
pub trait WarmLists: Send + Sync {
    /// Reads the list of a volume. `None` if there is none.
    ///
    /// # Errors
    /// When it cannot be read, or is longer than `bytes_max`.
    fn read(&self, volume: &str, bytes_max: u64) -> io::Result<Option<Vec<u8>>>;

    /// Replaces the list of a volume, so that after a crash there is the old or the new one.
    ///
    /// # Errors
    /// When it cannot be written.
    fn write(&self, volume: &str, list: &[u8]) -> io::Result<()>;

    /// Removes the list of a volume, if there is one.
    ///
    /// # Errors
    /// When it cannot be removed.
    fn remove(&self, volume: &str) -> io::Result<()>;
}

/// Whether the lists are written once more before the thread ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LastSave {
    /// Write them: the workers have ended, and all data is on the disks.
    Yes,
    /// Do not write them.
    No,
}

/// The warm lists and warm-ups of a runtime. See the module.
pub(crate) struct WarmUps {
    shared: Weak<Shared>,
    events: Lock<Option<mpsc::Sender<Event>>>,
    /// Disconnected once the thread has ended.
    running: Lock<Option<mpsc::Receiver<()>>, { order::THREADS }>,
}

impl WarmUps {
    pub(crate) fn new(shared: &Arc<Shared>) -> Self {
        let (events, running) = (Lock::default(), Lock::default());
        Self { shared: Arc::downgrade(shared), events, running }
    }

    /// See [`crate::Runtime::keep_warm_lists`].
    pub(crate) fn keep(&self, lists: Arc<dyn WarmLists>) {
        self.stop(LastSave::No);
        let (sender, events) = mpsc::channel();
        let (shared, own_sender) = (self.shared.clone(), sender.clone());
        let (runs, running) = mpsc::channel::<()>();
        let spawned = Thread::named("warm-lists").spawn(move || {
            let _runs = runs;
            thread::run(shared, lists, own_sender, events);
        });
        match spawned {
            Ok(_) => {
                *self.running.lock() = Some(running);
                *self.events.lock() = Some(sender);
            }
            Err(error) => tracing::warn!(%error, "cannot start the thread for warm lists"),
        }
    }

    fn send(&self, event: Event) {
        if let Some(events) = &*self.events.lock() {
            // The thread ends early only if the runtime is gone.
            let _ = events.send(event);
        }
    }

    /// Begins the warm-up of a volume that was added, unless the pool has lines of it already.
    pub(crate) fn schedule(&self, volume: &Arc<Volume>) {
        let Some(shared) = self.shared.upgrade() else { return };
        let is_adopted = shared.pool.is_adopted() && shared.shards.resident_lines(volume.id) > 0;
        if self.events.lock().is_none()
            || is_adopted
            || !volume.warm.is_kept()
            || shared.shards.is_bypass(volume.id)
        {
            return volume.warm.set_replaceable();
        }
        let state = WarmUpState::Loading;
        volume.warm.set_status(WarmUpStatus { state, ..WarmUpStatus::default() });
        self.send(Event::Load(Arc::downgrade(volume)));
    }

    /// Begins to read the missing lines of a volume's pinned ranges, which have changed.
    pub(crate) fn load_pins(&self, volume: &Arc<Volume>) {
        self.send(Event::Pin(Arc::downgrade(volume)));
    }

    /// Preloads the forecast of a volume, instead of the rest of an earlier forecast.
    pub(crate) fn preload(&self, volume: &Arc<Volume>, granules: Vec<Granule>) {
        self.send(Event::Preload(Arc::downgrade(volume), granules));
    }

    /// Removes the list of a volume that was removed.
    pub(crate) fn forget(&self, volume: &str) {
        self.send(Event::Forget(volume.to_owned()));
    }

    /// Writes the lists, and waits until they are written.
    pub(crate) fn save(&self) {
        let (done, is_done) = mpsc::channel();
        self.send(Event::Save(done));
        let _ = is_done.recv();
    }

    /// Ends the thread, and waits at most [`END_WAIT`] for it.
    pub(crate) fn stop(&self, last_save: LastSave) {
        self.send(Event::Stop(last_save));
        *self.events.lock() = None;
        let running = self.running.lock().take();
        let ended = running.map(|running| running.recv_timeout(END_WAIT));
        if ended == Some(Err(mpsc::RecvTimeoutError::Timeout)) {
            tracing::warn!("warm lists not written in time, stopping without them");
        }
    }
}

impl Drop for WarmUps {
    fn drop(&mut self) {
        // Not joined: the thread may be writing to a slow disk.
        self.send(Event::Stop(LastSave::No));
    }
}
