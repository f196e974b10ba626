//! Saves of volumes in memory while they are served: by a command, at intervals, again after a
//! failure, and when mains power fails.
//!
//! A save that no command asked for has a thread of its own, because a file system may hang. A
//! volume is not saved twice at once, and not without a change.

use super::periodic::Periodic;
use forebay_runtime::{Runtime, SaveState, VolumeError, remedy_for_save};
use forebay_threads::Thread;
use forebay_types::Fault;
use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The interval between checks for saves that are due.
const INTERVAL: Duration = Duration::from_secs(1);
/// The time from a save that failed to the next attempt, or less if the volume is saved more often.
const RETRY_DELAY: Duration = Duration::from_secs(60);

/// The saves of a server.
pub(super) struct Saves {
    runtime: Arc<Runtime>,
    /// By the name of the volume.
    volumes: Mutex<BTreeMap<String, SaveEntry>>,
}

/// What is known of a volume.
struct SaveEntry {
    /// When the last save began, or else when the volume was first seen.
    since: Instant,
    is_running: bool,
    /// The failure that was logged last, unless a later save succeeded.
    logged: Option<String>,
}

impl SaveEntry {
    fn new() -> Self {
        Self { since: Instant::now(), is_running: false, logged: None }
    }
}

/// Why a save is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cause {
    Command,
    Interval,
    Power,
}

/// Starts the thread that starts the saves that are due.
///
/// # Errors
/// Fails if no thread can be started.
pub(super) fn start(saves: &Arc<Saves>) -> io::Result<Periodic> {
    let saves = Arc::clone(saves);
    Periodic::start(Thread::named("saves"), INTERVAL, move || saves.poll())
}

impl Saves {
    pub(super) fn new(runtime: Arc<Runtime>) -> Arc<Self> {
        Arc::new(Self { runtime, volumes: Mutex::default() })
    }

    fn volumes(&self) -> MutexGuard<'_, BTreeMap<String, SaveEntry>> {
        self.volumes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Saves a volume because of a command, after a save in progress.
    ///
    /// # Errors
    /// There is no such volume, it has no image, or the image cannot be written.
    pub(super) fn save(&self, name: &str) -> Result<(), VolumeError> {
        if let Some(entry) = self.volumes().get_mut(name) {
            entry.since = Instant::now();
        }
        self.save_for(name, Cause::Command)
    }

    /// Starts the saves that are due.
    fn poll(self: &Arc<Self>) {
        let found = self.runtime.volumes().saved();
        let mut volumes = self.volumes();
        volumes
            .retain(|name, entry| entry.is_running || found.iter().any(|(other, _)| other == name));
        for (name, saved) in &found {
            let entry = volumes.entry(name.clone()).or_insert_with(SaveEntry::new);
            if !entry.is_running && is_due(saved, entry.since.elapsed()) {
                self.start(name, entry, Cause::Interval);
            }
        }
    }

    /// Starts to save all volumes that have changed, because mains power has failed. `left` is the
    /// time for it. A volume that took longer the last time is left out.
    pub(super) fn start_for_power(self: &Arc<Self>, left: Duration) {
        let found = self.runtime.volumes().saved();
        let mut volumes = self.volumes();
        for (name, saved) in found.iter().filter(|(_, saved)| saved.is_changed) {
            let entry = volumes.entry(name.clone()).or_insert_with(SaveEntry::new);
            if entry.is_running {
                continue;
            }
            match saved.took.filter(|took| *took > left) {
                None => self.start(name, entry, Cause::Power),
                Some(took) => tracing::warn!(
                    volume = name,
                    last_save_seconds = took.as_secs(),
                    left_seconds = left.as_secs(),
                    "volume in memory not saved: the battery may not last for it"
                ),
            }
        }
    }

    /// Whether a save that was started here is in progress.
    pub(super) fn is_busy(&self) -> bool {
        self.volumes().values().any(|entry| entry.is_running)
    }

    fn start(self: &Arc<Self>, name: &str, entry: &mut SaveEntry, cause: Cause) {
        entry.since = Instant::now();
        let (saves, volume) = (Arc::clone(self), name.to_owned());
        let work = move || {
            // Logged.
            let _ = saves.save_for(&volume, cause);
            if let Some(entry) = saves.volumes().get_mut(&volume) {
                entry.is_running = false;
            }
        };
        match Thread::named("save").spawn(work) {
            Ok(_) => entry.is_running = true,
            Err(error) => tracing::warn!(volume = name, %error, "cannot start a thread for a save"),
        }
    }

    fn save_for(&self, name: &str, cause: Cause) -> Result<(), VolumeError> {
        let saved = self.runtime.volumes().save(name);
        let mut volumes = self.volumes();
        let logged = volumes.get_mut(name).map(|entry| &mut entry.logged);
        match &saved {
            Ok(()) => {
                let had_failed = logged.is_some_and(|logged| logged.take().is_some());
                match cause {
                    Cause::Interval if !had_failed => {
                        tracing::debug!(volume = name, "volume saved")
                    }
                    cause => tracing::info!(volume = name, ?cause, "volume saved"),
                }
            }
            Err(VolumeError::Save { path, source, .. }) => {
                let error = source.to_string();
                let is_known = logged.is_some_and(|logged| {
                    logged.replace(error.clone()).is_some_and(|before| before == error)
                });
                if !is_known {
                    tracing::warn!(
                        volume = name,
                        path,
                        error,
                        remedy = remedy_for_save(source.kind()),
                        "cannot save volume in memory, trying again within a minute"
                    );
                }
            }
            Err(VolumeError::Unknown(_) | VolumeError::NoImage(_) | VolumeError::Stopping) => {}
            Err(error) => {
                tracing::warn!(volume = name, error = error.with_causes(), "cannot save volume");
            }
        }
        saved
    }
}

/// Whether a volume is to be saved now. `since` is the time since the last attempt began.
fn is_due(saved: &SaveState, since: Duration) -> bool {
    let interval = match (&saved.failed, saved.every) {
        (Some(_), every) => Some(every.unwrap_or(RETRY_DELAY).min(RETRY_DELAY)),
        (None, every) => every,
    };
    let is_pending = saved.is_changed && !saved.is_saving;
    is_pending && interval.is_some_and(|interval| since >= interval)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::ErrorKind;

    #[test]
    fn a_volume_is_saved_when_it_has_changed_and_its_interval_is_over() {
        const MINUTE: Duration = Duration::from_secs(60);
        let changed = SaveState {
            path: "/image".into(),
            last: None,
            is_changed: true,
            is_saving: false,
            took: None,
            failed: None,
            every: Some(5 * MINUTE),
        };
        let due = |saved: &SaveState, minutes: u32| is_due(saved, minutes * MINUTE);
        assert!(!due(&changed, 4) && due(&changed, 5));
        assert!(!due(&SaveState { is_changed: false, ..changed.clone() }, 9), "nothing to save");
        assert!(!due(&SaveState { is_saving: true, ..changed.clone() }, 9), "never two at once");
        let without = SaveState { every: None, ..changed.clone() };
        assert!(!due(&without, 1000), "by command only");
        let failed = Some((ErrorKind::StorageFull, "no space".to_owned()));
        for every in [None, changed.every] {
            let failed = SaveState { failed: failed.clone(), every, ..changed.clone() };
            assert!(!due(&failed, 0) && due(&failed, 1), "{every:?}");
        }
        let often = Some(Duration::from_secs(2));
        let failed = SaveState { failed, every: often, ..changed };
        assert!(is_due(&failed, Duration::from_secs(2)), "as often as without a failure");
    }
}
