//! Moves of served volumes from journal to journal.

use super::{Daemon, problem};
use crate::report::sentence_of;
use crate::serve::journals::{self, Name, StoreAccess};
use forebay_api::{ErrorKind, Problem};
use forebay_config::VolumeSpec;
use forebay_runtime::{VolumeJournal, medium_of, move_journal};
use forebay_threads::Thread;
use std::sync::{Arc, mpsc};
use std::time::Duration;

/// How long a journal may take to be opened.
const OPEN_MAX: Duration = Duration::from_secs(30);

/// Changes a volume, which moves to another journal, to none, or from none. The caller has claimed
/// it.
pub(super) fn change(
    daemon: &Daemon,
    (old, new): (&VolumeSpec, &VolumeSpec),
    has_pins: bool,
) -> Result<(), Problem> {
    let moved = move_volume(daemon, (old, new), has_pins);
    // The former one after a success, the new one after a failure; both stay open if others use
    // them.
    for spec in [old, new] {
        daemon.journals.close_if_unused(&daemon.runtime, spec);
    }
    moved
}

/// Moves a volume that was added with its former journal to the one that its settings name. If that
/// fails, the volume is served with the former one.
pub(super) fn complete(daemon: &Daemon, former: &VolumeSpec, wanted: VolumeSpec) {
    let name = wanted.name.clone();
    match change(daemon, (former, &wanted), false) {
        Ok(()) => {
            let mut state = daemon.state();
            state.volumes.iter_mut().filter(|it| it.name == name).for_each(|it| {
                it.clone_from(&wanted);
            });
        }
        Err(problem) => tracing::error!(
            volume = name,
            error = sentence_of(&problem),
            "the volume stays with its former journal, until its settings change"
        ),
    }
}

fn move_volume(
    daemon: &Daemon,
    (old, new): (&VolumeSpec, &VolumeSpec),
    has_pins: bool,
) -> Result<(), Problem> {
    let _lease = daemon.journals.lease();
    let to = match Name::of(new) {
        Some(name) => Some(open(daemon, new, &name)?),
        None => None,
    };
    let volumes = daemon.runtime.volumes();
    daemon.journals.begin_move(old)?;
    move_journal(volumes, &new.name, to, new.config.clone(), has_pins).map_err(problem)?;
    daemon.journals.end_move(new);
    if let Some(medium) = medium_of(volumes, &new.name) {
        daemon.notes.set(&new.name, &medium, &daemon.journals.media_of(new));
    }
    Ok(())
}

/// Opens the journal of a volume, unless it is open.
fn open(daemon: &Daemon, spec: &VolumeSpec, name: &Name) -> Result<VolumeJournal, Problem> {
    let (journals, runtime) = (Arc::clone(&daemon.journals), Arc::clone(&daemon.runtime));
    let (sender, opened) = mpsc::channel();
    let opening = spec.clone();
    // A device may hang.
    let started = Thread::named("journal-open").spawn(move || {
        let opened = journals.of_volume(&runtime, &opening, StoreAccess::waiting(Duration::ZERO));
        if sender.send(opened).is_err() {
            journals.close_if_unused(&runtime, &opening);
        }
    });
    let opened = opened.recv_timeout(if started.is_ok() { OPEN_MAX } else { Duration::ZERO });
    let (message, remedy) = match opened {
        Ok(opened) => match opened? {
            Some(journal) => return Ok(journal),
            None => (format!("its journal {name} has failed"), journals::NAME_ANOTHER),
        },
        Err(_) => (
            format!("its journal {name} has not answered for {} s", OPEN_MAX.as_secs()),
            "check the journal's device and the kernel log",
        ),
    };
    let message = format!("volume '{}': {message}", spec.name);
    Err(Problem::new(ErrorKind::Failed, message, remedy))
}
