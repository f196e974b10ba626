//! Watches the journals of volumes on standby that have `takeover-after`. A host that owns such a
//! journal writes its superblock again every few seconds, its *beats*; if none comes for that long,
//! its volumes are taken over here.
//!
//! A wrong alarm does no harm, because the storage shuts the former owner out. It only moves the
//! volumes. So that they do not move to and fro, only time counts in which this host could read the
//! journal, and a takeover that fails doubles the time before the next one.

use super::{Daemon, missing};
use crate::report::problem as problem_of;
use crate::report::sentence_of;
use crate::serve::journals::{JournalHead, JournalPeek, Name};
use forebay_api::{ErrorKind, Problem};
use forebay_config::VolumeSpec;
use forebay_threads::Thread;
use std::collections::BTreeSet;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

/// The longest interval of looks at a journal.
const LOOK_MAX: Duration = Duration::from_secs(1);
/// The beats that may be missed, at least, whatever `takeover-after` says on this host.
const BEATS_MISSED_MIN: u32 = 4;
/// How often a failed takeover doubles the time before the next one.
const DOUBLINGS_MAX: u32 = 5;
/// A look that takes longer than this says that the journal does not answer.
const ANSWER_MAX: Duration = Duration::from_secs(10);

/// What this host knows of the owner of a journal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum OwnerSign {
    /// It was heard last at this time, or the watch began.
    Heard { at: Instant, looked_at: Instant },
    /// Why it cannot be watched.
    Unwatched(String),
}

impl OwnerSign {
    /// For how long the owner has been silent, in seconds.
    pub(super) fn silent_seconds(&self) -> Option<u64> {
        match self {
            Self::Heard { at, .. } => Some(at.elapsed().as_secs()),
            Self::Unwatched(_) => None,
        }
    }

    /// Why its silence would not be noticed.
    pub(super) fn unwatched(&self) -> Option<String> {
        match self {
            Self::Heard { looked_at, .. } if looked_at.elapsed() < ANSWER_MAX => None,
            Self::Heard { looked_at, .. } => {
                let seconds = looked_at.elapsed().as_secs();
                Some(format!("its journal has not answered for {seconds} s"))
            }
            Self::Unwatched(why) => Some(why.clone()),
        }
    }
}

/// The journals that are watched, each by a thread of its own: a device may hang.
#[derive(Default)]
pub(super) struct Vigils {
    names: Mutex<BTreeSet<Name>>,
}

impl Vigils {
    fn names(&self) -> MutexGuard<'_, BTreeSet<Name>> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a host has heard of a journal's owner, and for how long it has listened in vain. Knows no
/// clock: the caller says what time it is, as the time since any moment.
#[derive(Debug, Default)]
struct Vigil {
    last: Option<JournalHead>,
    looked_at: Duration,
    /// The time without a beat in which the journal could be read.
    silent: Duration,
}

#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    /// The first look, which says nothing.
    Unknown,
    /// Another host writes the journal.
    Beats,
    /// Nothing was heard for so long.
    Silent(Duration),
    /// The owner does not promise beats.
    WithoutBeats,
}

impl Vigil {
    /// Adds a look at the journal at the time `now`, `every` so often.
    fn look(&mut self, head: JournalHead, now: Duration, every: Duration) -> Verdict {
        // A host that has slept, or a device that has hung, has heard nothing meanwhile.
        let listened = now.saturating_sub(self.looked_at).min(2 * every);
        self.looked_at = now;
        let before = self.last.replace(head);
        if before != Some(head) {
            self.silent = Duration::ZERO;
            return if before.is_some() { Verdict::Beats } else { Verdict::Unknown };
        }
        if matches!(head, JournalHead::Open { beat_ms: 0, .. }) {
            self.silent = Duration::ZERO;
            return Verdict::WithoutBeats;
        }
        self.silent += listened;
        Verdict::Silent(self.silent)
    }

    /// Notes that the journal could not be read.
    const fn look_in_vain(&mut self) {
        self.last = None;
    }
}

/// After how long a silence volumes with `takeover-after` of `after` are taken over: later by up to
/// an eighth, so that of two hosts one comes first.
fn patience(after: Duration, head: JournalHead, failures: u32, lot: u64) -> Duration {
    let beat_ms = match head {
        JournalHead::Open { beat_ms, .. } => beat_ms,
        JournalHead::Closed { .. } | JournalHead::Blank => 0,
    };
    let missed = Duration::from_millis(beat_ms.into()) * BEATS_MISSED_MIN;
    let delay = after / 8 * (lot % 1024) as u32 / 1024;
    after.max(missed) * 2_u32.pow(failures.min(DOUBLINGS_MAX)) + delay
}

/// Watches the journals of the volumes that want it, each in a thread of its own.
pub(super) fn begin(daemon: &Arc<Daemon>) {
    for name in daemon.missing.watched_journals() {
        if !daemon.vigils.names().insert(name.clone()) {
            continue;
        }
        let (owned, watched) = (Arc::downgrade(daemon), name.clone());
        if let Err(error) = Thread::named("vigil").spawn(move || watch(&owned, &watched)) {
            tracing::error!(journal = %name, %error, "cannot watch a journal");
            daemon.vigils.names().remove(&name);
        }
    }
}

fn watch(daemon: &Weak<Daemon>, name: &Name) {
    let clock = Instant::now();
    let mut heard_at = clock;
    let (mut vigil, mut peek, mut failures) = (Vigil::default(), None, 0);
    let mut lot = RandomState::new().hash_one(0);
    loop {
        // Not kept meanwhile: a stop waits for nothing here.
        let Some(daemon) = daemon.upgrade() else { return };
        let Some(after) = daemon.missing.watched(name).after else {
            daemon.vigils.names().remove(name);
            return;
        };
        let every = (after / 8).min(LOOK_MAX);
        let head = match daemon.journals.is_working(name) {
            // A volume of a journal that is this host's cannot be served by another one.
            true => Ok(JournalHead::Blank),
            false => look(&mut peek, name),
        };
        match head {
            Ok(head) => {
                let verdict = vigil.look(head, clock.elapsed(), every);
                if verdict == Verdict::Beats {
                    (failures, heard_at) = (0, Instant::now());
                }
                daemon.missing.note_owner(name, &verdict.sign(heard_at, after));
                let patience = patience(after, head, failures, lot);
                let is_silent = matches!(verdict, Verdict::Silent(silent) if silent >= patience);
                match head {
                    JournalHead::Open { .. } if verdict == Verdict::Beats => {
                        daemon.missing.note_owned(name);
                    }
                    JournalHead::Open { .. } if !is_silent => {}
                    _ => daemon.missing.note_given_up(name),
                }
                if is_silent {
                    // Before the takeover, which needs a connection of its own.
                    peek = None;
                    match take_over(&daemon, name, vigil.silent) {
                        true => failures = 0,
                        false => failures += 1,
                    }
                    lot = RandomState::new().hash_one(failures);
                    vigil = Vigil::default();
                }
            }
            Err(error) => {
                peek = None;
                vigil.look_in_vain();
                daemon.missing.note_owner(name, &OwnerSign::Unwatched(error));
            }
        }
        drop(daemon);
        std::thread::sleep(every);
    }
}

/// Reads the head of a journal that another host may own.
fn look(peek: &mut Option<JournalPeek>, name: &Name) -> Result<JournalHead, String> {
    let open = match peek.take() {
        Some(open) => open,
        None => JournalPeek::open(name).map_err(|error| sentence_of(&problem_of(&error)))?,
    };
    let head = open.head()?;
    *peek = Some(open);
    Ok(head)
}

impl Verdict {
    fn sign(&self, at: Instant, after: Duration) -> OwnerSign {
        match self {
            Self::Unknown | Self::Beats | Self::Silent(_) => {
                OwnerSign::Heard { at, looked_at: Instant::now() }
            }
            Self::WithoutBeats => OwnerSign::Unwatched(format!(
                "its owner does not say that it lives: set takeover-after={}s there too",
                after.as_secs()
            )),
        }
    }
}

/// Takes over the volumes of a journal whose owner is silent. Returns whether all are served.
fn take_over(daemon: &Daemon, name: &Name, silent: Duration) -> bool {
    let mut is_complete = true;
    for volume in daemon.missing.watched(name).volumes {
        if daemon.claims.is_stopping() {
            return false;
        }
        tracing::warn!(%volume, journal = %name, ?silent, "the owner is silent, taking over");
        if let Err(problem) = missing::take_over(daemon, &volume) {
            let error = sentence_of(&problem);
            tracing::error!(%volume, error, "cannot take over a volume whose owner is silent");
            daemon.missing.note_failure(&volume, &problem);
            is_complete = false;
        }
    }
    is_complete
}

/// Refuses `takeover-after` for stores that do not shut a former owner out.
///
/// # Errors
/// The disk or a device of the journal has no owner.
pub(in crate::serve) fn check(spec: &VolumeSpec) -> Result<(), Problem> {
    if spec.config.takeover_after_s.is_none() {
        return Ok(());
    }
    let config = &spec.config;
    let stores = [Some(&spec.backing), config.journal.as_ref(), config.journal_mirror.as_ref()];
    let mut stores = stores.into_iter().flatten();
    let other = stores.find(|store| !forebay_backend::can_be_shared(store, config.reserve));
    let Some(other) = other else { return Ok(()) };
    let message = format!(
        "volume '{}': with takeover-after, its disk and journal must shut out a former owner, and \
         {other} does not",
        spec.name
    );
    let remedy = "set reserve=yes for SCSI or NVMe disks, use images of Ceph or S3, or leave \
                  takeover-after out";
    Err(Problem::new(ErrorKind::Invalid, message, remedy))
}

#[cfg(test)]
mod tests {
    use super::*;

    use forebay_runtime::JournalId;

    const EVERY: Duration = Duration::from_secs(1);

    fn open(sequence: u64, beat_ms: u32) -> JournalHead {
        JournalHead::Open { journal: JournalId([7; 16]), sequence, beat_ms }
    }

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    /// Looks once a second from `from` on. Returns the last verdict.
    fn looks(vigil: &mut Vigil, head: JournalHead, times: std::ops::Range<u64>) -> Verdict {
        times.map(|at| vigil.look(head, seconds(at), EVERY)).last().unwrap()
    }

    #[test]
    fn silence_is_counted_from_the_last_beat_on() {
        let mut vigil = Vigil::default();
        assert_eq!(looks(&mut vigil, open(1, 1250), 100..101), Verdict::Unknown);
        assert_eq!(looks(&mut vigil, open(1, 1250), 101..104), Verdict::Silent(seconds(3)));
        assert_eq!(looks(&mut vigil, open(2, 1250), 104..105), Verdict::Beats);
        assert_eq!(looks(&mut vigil, open(2, 1250), 105..107), Verdict::Silent(seconds(2)));
        // Closing the journal is a sign of life, too, and after it none comes.
        let closed = JournalHead::Closed { journal: JournalId([7; 16]), sequence: 4 };
        assert_eq!(looks(&mut vigil, closed, 107..108), Verdict::Beats);
        assert_eq!(looks(&mut vigil, closed, 108..118), Verdict::Silent(seconds(10)));
        assert_eq!(
            looks(&mut Vigil::default(), JournalHead::Blank, 0..5),
            Verdict::Silent(seconds(4))
        );
    }

    #[test]
    fn time_in_which_this_host_could_not_look_does_not_count() {
        let mut vigil = Vigil::default();
        looks(&mut vigil, open(1, 1250), 0..3);
        // It has slept for an hour.
        let verdict = vigil.look(open(1, 1250), seconds(3600), EVERY);
        assert_eq!(verdict, Verdict::Silent(seconds(4)), "two seconds before, and two of the gap");
        // The journal could not be read: all that was counted is void.
        vigil.look_in_vain();
        assert_eq!(looks(&mut vigil, open(1, 1250), 3601..3602), Verdict::Unknown);
        assert_eq!(looks(&mut vigil, open(1, 1250), 3602..3603), Verdict::Silent(seconds(1)));
    }

    #[test]
    fn an_owner_without_beats_is_never_silent() {
        let mut vigil = Vigil::default();
        assert_eq!(looks(&mut vigil, open(1, 0), 0..100), Verdict::WithoutBeats);
        // From the moment on at which it promises some, it is.
        assert_eq!(looks(&mut vigil, open(2, 500), 100..101), Verdict::Beats);
        assert_eq!(looks(&mut vigil, open(2, 500), 101..103), Verdict::Silent(seconds(2)));
    }

    #[test]
    fn a_takeover_waits_for_missed_beats_and_longer_after_failures() {
        assert_eq!(patience(seconds(10), open(1, 1250), 0, 0), seconds(10));
        // The owner has a longer `takeover-after`.
        assert_eq!(patience(seconds(2), open(1, 5000), 0, 0), seconds(20));
        assert_eq!(patience(seconds(2), JournalHead::Blank, 3, 0), seconds(16));
        assert_eq!(patience(seconds(2), JournalHead::Blank, 900, 0), seconds(64));
        let late = patience(seconds(8), JournalHead::Blank, 0, 1023);
        assert!(late > seconds(8) && late < seconds(9), "{late:?}");
    }
}
