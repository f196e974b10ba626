//! Volumes with `nofail=yes` that cannot be served yet: the server starts without them, and tries
//! again until it can.
//!
//! Each attempt has a thread of its own, because the open of a disk may hang. An attempt that ends
//! after the volume was removed adds nothing.

use super::Daemon;
use super::add::{self, Opening};
use super::remove;
use super::vigil::{self, OwnerSign};
use crate::report::{NOTHING_SHUTS_OUT, sentence_of};
use crate::serve::journals::{Name, StoreAccess};
use crate::serve::periodic::Periodic;
use forebay_api::{ErrorKind, MissingVolume, Problem};
use forebay_config::VolumeSpec;
use forebay_control::ProgressFn;
use forebay_runtime::VolumeError;
use forebay_threads::Thread;
use std::collections::BTreeSet;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Time between two looks for volumes whose next attempt is due.
const INTERVAL: Duration = Duration::from_secs(1);
/// Time between two attempts: the first, and the last of a row in which each is twice as long.
const RETRY_FIRST: Duration = Duration::from_secs(1);
const RETRY_LAST: Duration = Duration::from_secs(30);

/// How long a takeover waits for an attempt that is running, or for a volume that another host has
/// taken over to end here.
const ATTEMPT_WAIT: Duration = Duration::from_secs(20);
/// The interval of looks at a volume that is to end.
const ENDING_PAUSE: Duration = Duration::from_millis(20);

/// How long a start waits for disks that are in use, at most.
const START_WAIT: Duration = Duration::from_secs(5);
/// How long a start waits for disks at all.
const START_LIMIT: Duration = Duration::from_secs(6);

/// When a volume is tried again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DiskAttempt {
    /// A thread is trying.
    Running,
    /// The last one has failed. The next one begins at this time, this long after it.
    Due(Instant, Duration),
    /// Never: another client has taken over the disk.
    Ended,
    /// Never: it is to be taken over.
    Standby { rest: Rest },
}

/// Until when a volume that an operator has put on standby is not taken over for its owner's
/// silence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rest {
    /// It is taken over.
    None,
    /// Until another host has it. Until the command, it was served here.
    UntilOwned,
    /// As `UntilOwned`, but not before the present owner has given it up or is silent.
    UntilGivenUp,
}

#[derive(Clone)]
struct MissingDisk {
    spec: VolumeSpec,
    since: Instant,
    /// Why it is not served, with the remedy; `None` while its disk has not answered at all, and on
    /// standby.
    reason: Option<String>,
    attempt: DiskAttempt,
    /// The time before the next attempt, if this one fails.
    pause: Duration,
    /// What is known of its owner, if its journal is watched.
    owner: Option<OwnerSign>,
}

/// The volumes that watch a journal.
#[derive(Default)]
pub(super) struct Watched {
    /// The shortest `takeover-after`; `None` if no volume watches it.
    pub(super) after: Option<Duration>,
    /// The names of those to be taken over.
    pub(super) volumes: Vec<String>,
}

impl MissingDisk {
    const fn is_on_standby(&self) -> bool {
        matches!(self.attempt, DiskAttempt::Standby { .. })
    }

    /// Whether its disk has not answered the first attempt.
    const fn is_unanswered(&self) -> bool {
        self.reason.is_none() && !self.is_on_standby()
    }

    /// After how long a silence of its owner it is taken over, and the journal that is watched for
    /// it.
    fn watches(&self) -> Option<(Duration, Name)> {
        let after = self.spec.config.takeover_after_s.filter(|_| self.is_on_standby())?;
        Some((Duration::from_secs(after), Name::of(&self.spec)?))
    }

    /// What is known of its owner while its journal is watched.
    fn owner_sign(&self) -> Option<&OwnerSign> {
        self.owner.as_ref().filter(|_| self.watches().is_some())
    }

    /// Why its owner's silence would not be noticed, or does not help.
    fn unwatched(&self) -> Option<String> {
        let failure = self.reason.clone().filter(|_| self.watches().is_some());
        failure.or_else(|| self.owner_sign().and_then(OwnerSign::unwatched))
    }

    /// What it waits for on standby.
    fn standby_reason(&self) -> Option<String> {
        let DiskAttempt::Standby { rest } = self.attempt else { return None };
        let command = format!("`forebay takeover {}` serves it", self.spec.name);
        Some(match (self.watches(), rest) {
            (None, _) if !self.is_shared() => {
                format!("on standby: {command}, and {NOTHING_SHUTS_OUT}")
            }
            (None, _) => format!("on standby: {command}"),
            (Some((after, _)), Rest::None) => {
                format!("on standby: {command}, or a silence of its owner of {} s", after.as_secs())
            }
            (Some(_), Rest::UntilOwned | Rest::UntilGivenUp) => {
                format!("on standby by command: {command}; watched again once a host has had it")
            }
        })
    }

    /// Whether its disk shuts a former owner out.
    fn is_shared(&self) -> bool {
        forebay_backend::can_be_shared(&self.spec.backing, self.spec.config.reserve)
    }

    fn status(&self) -> MissingVolume {
        MissingVolume {
            name: self.spec.name.clone(),
            backing: self.spec.backing.clone(),
            seconds: self.since.elapsed().as_secs(),
            reason: self.reason.clone().or_else(|| self.standby_reason()),
            taken_over: self.attempt == DiskAttempt::Ended,
            standby: self.is_on_standby(),
            owner_silent_seconds: self.owner_sign().and_then(OwnerSign::silent_seconds),
            unwatched: self.unwatched(),
            shared: self.is_shared(),
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

    /// Why a volume that is not served cannot be asked or changed.
    pub(super) fn problem(&self, name: &str) -> Problem {
        let list = self.list();
        let Some(missing) = list.iter().find(|missing| missing.spec.name == name) else {
            return super::problem(VolumeError::Unknown(name.to_owned()));
        };
        let why = missing.status().reason.unwrap_or_else(|| "its disk does not answer".to_owned());
        Problem::new(ErrorKind::UnknownVolume, format!("volume '{name}' is not served"), why)
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
        let name = &spec.name;
        let reason = format!(
            "another client has taken over its disk: `forebay takeover {name}` takes it back, and \
             `forebay standby {name}` leaves it to the other host"
        );
        tracing::error!(volume = %name, error = reason, "serving without a volume");
        match spec.config.takeover_after_s {
            Some(_) => self.enter(spec, None, DiskAttempt::Standby { rest: Rest::None }),
            None => self.enter(spec, Some(reason), DiskAttempt::Ended),
        }
    }

    /// Lists a volume that is served from a takeover on.
    pub(super) fn stand_by(&self, spec: VolumeSpec, rest: Rest) {
        tracing::info!(volume = %spec.name, "on standby");
        self.enter(spec, None, DiskAttempt::Standby { rest });
    }

    /// The journals that are watched.
    pub(super) fn watched_journals(&self) -> BTreeSet<Name> {
        self.list().iter().filter_map(MissingDisk::watches).map(|(_, name)| name).collect()
    }

    /// The volumes that watch a journal.
    pub(super) fn watched(&self, journal: &Name) -> Watched {
        let mut watched = Watched::default();
        for missing in self.list().iter() {
            let Some((after, _)) = missing.watches().filter(|(_, name)| name == journal) else {
                continue;
            };
            watched.after = Some(watched.after.map_or(after, |other| after.min(other)));
            if missing.attempt == (DiskAttempt::Standby { rest: Rest::None }) {
                watched.volumes.push(missing.spec.name.clone());
            }
        }
        watched
    }

    /// Notes what is known of the owner of a journal.
    pub(super) fn note_owner(&self, journal: &Name, sign: &OwnerSign) {
        for missing in self.list().iter_mut() {
            if missing.watches().is_some_and(|(_, name)| name == *journal) {
                if let OwnerSign::Unwatched(why) = sign
                    && missing.owner.as_ref() != Some(sign)
                {
                    tracing::error!(volume = %missing.spec.name, %journal, why, "cannot watch");
                }
                missing.owner = Some(sign.clone());
            }
        }
    }

    /// Another host has the volumes of a journal: those that the operator has put on standby here
    /// are watched again, and an earlier failure to take them over says nothing any more.
    pub(super) fn note_owned(&self, journal: &Name) {
        self.change_watched(journal, |missing, rest| {
            missing.reason = None;
            match rest {
                Rest::None | Rest::UntilOwned => Rest::None,
                Rest::UntilGivenUp => Rest::UntilGivenUp,
            }
        });
    }

    /// No host has the volumes of a journal, or their owner is silent.
    pub(super) fn note_given_up(&self, journal: &Name) {
        self.change_watched(journal, |_, rest| match rest {
            Rest::UntilGivenUp => Rest::UntilOwned,
            other => other,
        });
    }

    fn change_watched(&self, journal: &Name, change: impl Fn(&mut MissingDisk, Rest) -> Rest) {
        for missing in self.list().iter_mut() {
            if missing.watches().is_some_and(|(_, name)| name == *journal)
                && let DiskAttempt::Standby { rest } = missing.attempt
            {
                missing.attempt = DiskAttempt::Standby { rest: change(missing, rest) };
            }
        }
    }

    /// Notes why a volume on standby could not be taken over.
    pub(super) fn note_failure(&self, volume: &str, problem: &Problem) {
        for missing in self.list().iter_mut().filter(|missing| missing.spec.name == volume) {
            missing.reason = Some(reason_of(&missing.spec, problem));
        }
    }

    fn enter(&self, spec: VolumeSpec, reason: Option<String>, attempt: DiskAttempt) {
        self.forget(&spec.name);
        let (since, pause) = (Instant::now(), RETRY_FIRST);
        self.list().push(MissingDisk { spec, since, reason, attempt, pause, owner: None });
    }

    /// Claims a missing volume for an attempt, once one that is running has ended. Returns when it
    /// would have been tried next; `None` if it is not missing.
    ///
    /// # Errors
    /// The other attempt does not end.
    fn claim(&self, name: &str) -> Result<Option<(VolumeSpec, DiskAttempt)>, Problem> {
        let waited = self.ended.wait_timeout_while(self.list(), ATTEMPT_WAIT, |list| {
            let mut named = list.iter().filter(|missing| missing.spec.name == name);
            named.any(|missing| missing.attempt == DiskAttempt::Running)
        });
        let (mut list, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
        if timeout.timed_out() {
            let message = format!("volume '{name}': its disk is being opened, and does not answer");
            let remedy = "check the disk, and repeat the command";
            return Err(Problem::new(ErrorKind::Busy, message, remedy));
        }
        let found = list.iter_mut().find(|missing| missing.spec.name == name);
        Ok(found.map(|missing| {
            let former = std::mem::replace(&mut missing.attempt, DiskAttempt::Running);
            (missing.spec.clone(), former)
        }))
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
                    missing.attempt = match spec.config.standby {
                        true => DiskAttempt::Standby { rest: Rest::None },
                        false => DiskAttempt::Due(Instant::now() + missing.pause, missing.pause),
                    };
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
    // A disk that another host owns stays in use.
    let in_use_wait = in_use_wait.min(START_WAIT);
    for spec in specs {
        // One that the previous process on this pool has served goes on.
        if spec.config.standby && !daemon.runtime.is_in_pool(&spec.name) {
            daemon.missing.stand_by(spec, Rest::None);
            continue;
        }
        daemon.missing.enter(spec.clone(), None, DiskAttempt::Running);
        attempt(daemon, spec, in_use_wait)?;
    }
    let list = daemon.missing.list();
    let waited = daemon
        .missing
        .ended
        .wait_timeout_while(list, START_LIMIT, |list| list.iter().any(MissingDisk::is_unanswered));
    let (list, _) = waited.unwrap_or_else(PoisonError::into_inner);
    for missing in list.iter().filter(|missing| missing.is_unanswered()) {
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
        vigil::begin(&daemon);
        for spec in daemon.missing.take_due() {
            if let Err(error) = attempt(&daemon, spec.clone(), Duration::ZERO) {
                let message = format!("cannot start a thread: {error}");
                let problem = Problem::new(ErrorKind::Failed, message, "raise its limit");
                daemon.missing.attempted(&spec, Err(problem));
            }
        }
    })
}

/// Serves a volume that is missing, and ends what another host has of its stores. Succeeds if it is
/// served here already.
///
/// # Errors
/// There is no such volume, or it cannot be served.
pub(super) fn take_over(daemon: &Daemon, name: &str) -> Result<(), Problem> {
    let begun = Instant::now();
    let (spec, former) = loop {
        if let Some(claimed) = daemon.missing.claim(name)? {
            break claimed;
        }
        if !is_known(daemon, name)? {
            return Err(Problem::unknown_volume(name));
        }
        if !forebay_runtime::is_lost(daemon.runtime.volumes(), name) {
            return Ok(());
        }
        // Another host has taken it over, and this one has yet to end it.
        if begun.elapsed() > ATTEMPT_WAIT {
            let message = format!("volume '{name}': another host has it, and it does not end here");
            return Err(Problem::new(ErrorKind::Busy, message, "repeat the command"));
        }
        remove::surrender(daemon);
        std::thread::sleep(ENDING_PAUSE);
    };
    tracing::warn!(volume = name, disk = %spec.backing, "taking over a volume");
    if !forebay_backend::can_be_shared(&spec.backing, spec.config.reserve) {
        tracing::warn!(volume = name, "{NOTHING_SHUTS_OUT}");
    }
    let (access, disk) = (StoreAccess::TAKING_OVER, spec.clone());
    let opening = Opening { access, is_wanted: &|| daemon.missing.has(&spec) };
    add::add(daemon, disk, &opening).inspect_err(|_| {
        // Another host may have taken it over in the same moment.
        daemon.journals.close_if_unused(&daemon.runtime, &spec);
        // It is tried again as before: not at all if another host has taken it over.
        let mut list = daemon.missing.list();
        let missing = list.iter_mut().filter(|missing| missing.spec == spec);
        missing.for_each(|missing| missing.attempt = former);
        daemon.missing.ended.notify_all();
    })
}

/// Whether a volume is served or missing, once no command changes it.
fn is_known(daemon: &Daemon, name: &str) -> Result<bool, Problem> {
    let _claim = daemon.claims.volume(name)?;
    let is_served = daemon.state().volumes.iter().any(|spec| spec.name == name);
    Ok(is_served || daemon.missing.list().iter().any(|missing| missing.spec.name == name))
}

/// Ends the service of a volume, so that another host can take it over: its clients are
/// disconnected, and its disk gets all of its data. Succeeds if it is on standby already.
///
/// # Errors
/// There is no such volume, its disk does not take its data, or no other host can have it.
pub(super) fn stand_by(
    daemon: &Daemon,
    name: &str,
    progress: ProgressFn<'_>,
) -> Result<MissingVolume, Problem> {
    let served = daemon.state().volumes.iter().find(|spec| spec.name == name).cloned();
    let (spec, rest) = match served {
        Some(spec) => {
            check_can_move(&spec)?;
            remove::remove(daemon, name, true, progress)?;
            daemon.journals.close_if_unused(&daemon.runtime, &spec);
            (spec, Rest::UntilOwned)
        }
        None => {
            let claimed = daemon.missing.claim(name)?;
            let (spec, former) = claimed.ok_or_else(|| Problem::unknown_volume(name))?;
            match former {
                DiskAttempt::Standby { rest: Rest::UntilOwned } => (spec, Rest::UntilOwned),
                _ => (spec, Rest::UntilGivenUp),
            }
        }
    };
    daemon.missing.stand_by(spec, rest);
    let mut missing = daemon.missing.status().into_iter();
    missing.find(|missing| missing.name == name).ok_or_else(|| Problem::unknown_volume(name))
}

/// Refuses to put a volume on standby that no other host can have.
fn check_can_move(spec: &VolumeSpec) -> Result<(), Problem> {
    if spec.config.standby || forebay_backend::can_be_shared(&spec.backing, spec.config.reserve) {
        return Ok(());
    }
    let message = format!("volume '{}': its disk is of this host alone", spec.name);
    let remedy = "`forebay volume remove` ends its service; if something else moves the disk to \
                  other hosts, set standby=yes";
    Err(Problem::new(ErrorKind::Invalid, message, remedy))
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
