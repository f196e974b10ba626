//! Volumes with `nofail=yes` that cannot be served yet: the server starts without them, and tries
//! again until it can.
//!
//! Each attempt has a thread of its own, because the open of a disk may hang. An attempt that ends
//! after the volume was removed adds nothing.

use super::Daemon;
use super::add::{self, Opening};
use crate::report::sentence_of;
use crate::serve::journals::StoreAccess;
use crate::serve::periodic::Periodic;
use forebay_api::{ErrorKind, MissingVolume, Problem};
use forebay_config::VolumeSpec;
use forebay_threads::Thread;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Time between two looks for volumes whose next attempt is due.
const INTERVAL: Duration = Duration::from_secs(1);
/// Time between two attempts: the first, and the last of a row in which each is twice as long.
const RETRY_FIRST: Duration = Duration::from_secs(1);
const RETRY_LAST: Duration = Duration::from_secs(30);

/// How long a start waits for disks that do not answer, at least.
const START_WAIT: Duration = Duration::from_secs(5);

/// When a volume is tried again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DiskAttempt {
    /// A thread is trying.
    Running,
    /// The last one has failed. The next one begins at this time, this long after it.
    Due(Instant, Duration),
    /// Never: another client has taken over the disk.
    Ended,
}

#[derive(Clone)]
struct MissingDisk {
    spec: VolumeSpec,
    since: Instant,
    /// Why it is not served, with the remedy; `None` while its disk has not answered at all.
    reason: Option<String>,
    attempt: DiskAttempt,
    /// The time before the next attempt, if this one fails.
    pause: Duration,
}

impl MissingDisk {
    fn status(&self) -> MissingVolume {
        MissingVolume {
            name: self.spec.name.clone(),
            backing: self.spec.backing.clone(),
            seconds: self.since.elapsed().as_secs(),
            reason: self.reason.clone(),
            taken_over: self.attempt == DiskAttempt::Ended,
        }
    }
}

/// The volumes that are missing.
#[derive(Default)]
pub(super) struct MissingVolumes {
    list: Mutex<Vec<MissingDisk>>,
    /// Notified when an attempt has ended.
    ended: Condvar,
}

impl MissingVolumes {
    fn list(&self) -> MutexGuard<'_, Vec<MissingDisk>> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the status says of them.
    pub(super) fn status(&self) -> Vec<MissingVolume> {
        self.list().iter().map(MissingDisk::status).collect()
    }

    /// Ends the attempts for a volume. Returns whether it was missing.
    pub(super) fn forget(&self, name: &str) -> bool {
        let mut list = self.list();
        let before = list.len();
        list.retain(|missing| missing.spec.name != name);
        list.len() < before
    }

    fn has(&self, spec: &VolumeSpec) -> bool {
        self.list().iter().any(|missing| missing.spec == *spec)
    }

    /// Has a volume tried again later, because it cannot be served now.
    pub(super) fn wait_for(&self, spec: VolumeSpec, problem: &Problem) {
        let reason = reason_of(&spec, problem);
        tracing::error!(volume = %spec.name, error = reason, "serving without a volume");
        let due = DiskAttempt::Due(Instant::now() + RETRY_FIRST, RETRY_FIRST);
        self.enter(spec, Some(reason), due);
    }

    /// Lists a volume whose disk another client has taken over.
    pub(super) fn end(&self, spec: VolumeSpec) {
        let reason = "another client has taken over its disk: stop this server or remove the \
                      volume, or add it again if it is to be served here";
        tracing::error!(volume = %spec.name, error = reason, "serving without a volume");
        self.enter(spec, Some(reason.to_owned()), DiskAttempt::Ended);
    }

    fn enter(&self, spec: VolumeSpec, reason: Option<String>, attempt: DiskAttempt) {
        self.forget(&spec.name);
        let (since, pause) = (Instant::now(), RETRY_FIRST);
        self.list().push(MissingDisk { spec, since, reason, attempt, pause });
    }

    /// The volumes that are due, whose attempts begin.
    fn take_due(&self) -> Vec<VolumeSpec> {
        let now = Instant::now();
        let mut due = Vec::new();
        for missing in self.list().iter_mut() {
            let DiskAttempt::Due(at, pause) = missing.attempt else { continue };
            if at <= now {
                missing.attempt = DiskAttempt::Running;
                missing.pause = (pause * 2).min(RETRY_LAST);
                due.push(missing.spec.clone());
            }
        }
        due
    }

    /// Notes the end of an attempt.
    fn attempted(&self, spec: &VolumeSpec, result: Result<(), Problem>) {
        let mut list = self.list();
        if let Some(at) = list.iter().position(|missing| missing.spec == *spec) {
            match result {
                Ok(()) => drop(list.swap_remove(at)),
                Err(problem) => {
                    let missing = &mut list[at];
                    let reason = reason_of(spec, &problem);
                    if missing.reason.as_ref() != Some(&reason) {
                        let volume = &*spec.name;
                        tracing::error!(%volume, error = reason, "serving without a volume");
                    }
                    missing.reason = Some(reason);
                    missing.attempt =
                        DiskAttempt::Due(Instant::now() + missing.pause, missing.pause);
                }
            }
        }
        drop(list);
        self.ended.notify_all();
    }
}

/// Why a volume is not served, without its name.
fn reason_of(spec: &VolumeSpec, problem: &Problem) -> String {
    let sentence = sentence_of(problem);
    let without = sentence.strip_prefix(&format!("volume '{}': ", spec.name));
    without.map(str::to_owned).unwrap_or(sentence)
}

/// Adds the volumes of a start that may be missing, all at once. Returns when each is served or has
/// failed, or when their disks have not answered for a while.
///
/// # Errors
/// The system refuses a thread.
pub(in crate::serve) fn add_all(
    daemon: &Arc<Daemon>,
    specs: Vec<VolumeSpec>,
    in_use_wait: Duration,
) -> io::Result<()> {
    for spec in specs {
        daemon.missing.enter(spec.clone(), None, DiskAttempt::Running);
        attempt(daemon, spec, in_use_wait)?;
    }
    let wait = in_use_wait.max(START_WAIT);
    let list = daemon.missing.list();
    let waited = daemon
        .missing
        .ended
        .wait_timeout_while(list, wait, |list| list.iter().any(|missing| missing.reason.is_none()));
    let (list, _) = waited.unwrap_or_else(PoisonError::into_inner);
    for missing in list.iter().filter(|missing| missing.reason.is_none()) {
        let (volume, disk) = (&missing.spec.name, &missing.spec.backing);
        tracing::error!(%volume, %disk, "serving without a volume: its disk does not answer");
    }
    Ok(())
}

/// Starts the thread that tries missing volumes again. Dropping the result ends it.
///
/// # Errors
/// The system refuses a thread.
pub(in crate::serve) fn start(daemon: Arc<Daemon>) -> io::Result<Periodic> {
    Periodic::start(Thread::named("missing"), INTERVAL, move || {
        for spec in daemon.missing.take_due() {
            if let Err(error) = attempt(&daemon, spec.clone(), Duration::ZERO) {
                let message = format!("cannot start a thread: {error}");
                let problem = Problem::new(ErrorKind::Failed, message, "raise its limit");
                daemon.missing.attempted(&spec, Err(problem));
            }
        }
    })
}

/// Serves a volume that is missing, and ends what another host has of its stores.
///
/// # Errors
/// The volume is not missing, or cannot be served.
pub(super) fn take_over(daemon: &Daemon, name: &str) -> Result<(), Problem> {
    let found = daemon.missing.list().iter().find(|missing| missing.spec.name == name).cloned();
    let Some(MissingDisk { spec, .. }) = found else {
        if !daemon.state().volumes.iter().any(|spec| spec.name == name) {
            return Err(Problem::unknown_volume(name));
        }
        let message = format!("volume '{name}' is served here already");
        return Err(Problem::new(ErrorKind::VolumeExists, message, "nothing is to be done"));
    };
    tracing::warn!(volume = name, disk = %spec.backing, "taking over a volume");
    let (access, disk) = (StoreAccess::TAKING_OVER, spec.clone());
    add::add(daemon, disk, &Opening { access, is_wanted: &|| daemon.missing.has(&spec) })
}

/// Tries to add a volume, in a thread of its own.
fn attempt(daemon: &Arc<Daemon>, spec: VolumeSpec, in_use_wait: Duration) -> io::Result<()> {
    let daemon = Arc::clone(daemon);
    Thread::named("missing-disk").spawn(move || {
        let access = StoreAccess::waiting(in_use_wait);
        let opening = Opening { access, is_wanted: &|| daemon.missing.has(&spec) };
        let result = add::add(&daemon, spec.clone(), &opening);
        daemon.missing.attempted(&spec, result);
    })?;
    Ok(())
}
