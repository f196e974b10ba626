//! `forebay takeover` and `forebay standby`.
//!
//! Both requests may take as long as a journal is read, or a disk takes dirty data. Meanwhile the
//! server is asked once a second whether it still answers, so that neither waits for one that
//! hangs.
//!
//! With `--hold`, the command stays while the server serves the volume, so that a program that runs
//! a command on one host at a time decides where it is served: the end of the command is the end of
//! the service, and the other way round. Whatever that program does, and however late, the storage
//! itself shuts the former owner out.

use super::{named, sentences, socket};
use crate::arguments::StateArguments;
use crate::keeper::systemd::notify_ready;
use crate::report::{NOTHING_SHUTS_OUT, note, print, with_remedy};
use crate::signals::Signals;
use anyhow::{Context, anyhow};
use forebay_api::{Client, ClientError, ErrorKind, MissingVolume, VolumeStatus};
use std::pin::pin;
use std::time::Duration;
use tokio::time::Instant;

/// Time between two questions to the server.
const INTERVAL: Duration = Duration::from_secs(1);
/// From when on a command says what it waits for.
const PATIENCE: Duration = Duration::from_secs(3);
/// How long a server may be away, or not serve the volume, before another host is to have it. One
/// that a keeper or systemd starts again takes about a second, an upgrade seldom more than a few.
const ABSENCE_MAX: Duration = Duration::from_secs(10);

/// `forebay takeover`.
pub(crate) fn take_over(name: &str, holds: bool, arguments: &StateArguments) -> anyhow::Result<()> {
    let owner = Owner { client: Client::new(socket(arguments)?), name };
    run(async {
        if holds {
            return owner.hold().await;
        }
        let volume = owner.take_over().await?;
        print(&taken_over(&volume))
    })
}

/// `forebay standby`.
pub(crate) fn stand_by(name: &str, arguments: &StateArguments) -> anyhow::Result<()> {
    let owner = Owner { client: Client::new(socket(arguments)?), name };
    run(async {
        owner.stand_by().await?;
        print(&on_standby(name))
    })
}

/// Runs a future on an event loop of its own.
fn run(future: impl Future<Output = anyhow::Result<()>>) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| {
        let error = anyhow::Error::new(error).context("cannot create an event loop");
        with_remedy(error, "check the limit of open files (`ulimit -n`)")
    })?;
    runtime.block_on(future)
}

fn taken_over(volume: &VolumeStatus) -> String {
    let fence = match volume.shared {
        true => String::new(),
        false => format!("\nnote: {NOTHING_SHUTS_OUT}"),
    };
    format!("{} is served here now: {}{fence}\n", named(&volume.name), sentences::summary(volume))
}

fn on_standby(name: &str) -> String {
    format!("{} is on standby: another host can take it over\n", named(name))
}

/// Why a volume is not served here.
enum Absence {
    /// Another host is to have it: this one does not try again.
    Over(anyhow::Error),
    /// It may be served again in a moment.
    Now(anyhow::Error),
}

/// A volume, and the server that is to own its disk.
struct Owner<'a> {
    client: Client,
    name: &'a str,
}

impl Owner<'_> {
    async fn take_over(&self) -> Result<VolumeStatus, ClientError> {
        let storage = "its disk and its journal have to answer, and the journal is read";
        self.while_answering(self.client.take_over_volume(self.name), storage).await
    }

    async fn stand_by(&self) -> Result<MissingVolume, ClientError> {
        let disk = "its disk takes what it lacks";
        self.while_answering(self.client.stand_by_volume(self.name), disk).await
    }

    /// Waits for the answer to a long request as long as the server answers short ones. Says after
    /// a while what it waits for.
    async fn while_answering<T>(
        &self,
        request: impl Future<Output = Result<T, ClientError>>,
        waits_for: &str,
    ) -> Result<T, ClientError> {
        tokio::select! {
            biased;
            answer = request => answer,
            error = self.unanswered(waits_for) => Err(error),
        }
    }

    /// Ends once the server does not answer.
    async fn unanswered(&self, waits_for: &str) -> ClientError {
        let begun = Instant::now();
        let (mut absent_since, mut is_said) = (None, false);
        loop {
            tokio::time::sleep(INTERVAL).await;
            let asked_at = Instant::now();
            if !is_said && begun.elapsed() >= PATIENCE {
                is_said = true;
                note(&format!("waiting for {}: {waits_for}", named(self.name)));
            }
            match self.client.volume(self.name).await {
                Ok(_) | Err(ClientError::Refused(_)) => absent_since = None,
                Err(error) => {
                    if absent_since.get_or_insert(asked_at).elapsed() >= ABSENCE_MAX {
                        return error;
                    }
                }
            }
        }
    }

    /// `forebay takeover --hold`.
    async fn hold(&self) -> anyhow::Result<()> {
        let mut signals = Signals::listen().context("cannot handle signals")?;
        let mut taking = pin!(self.take_over());
        let (volume, is_ending) = match unless_signalled(&mut signals, &mut taking).await {
            Some(volume) => (volume?, false),
            // The server would take it over nevertheless.
            None => match unless_signalled(&mut signals, taking).await {
                Some(volume) => (volume?, true),
                None => return Err(interrupted(self.name, "taking it over")),
            },
        };
        print(&taken_over(&volume))?;
        notify_ready();
        if !is_ending && let Some(error) = unless_signalled(&mut signals, self.lost()).await {
            return Err(error);
        }
        match unless_signalled(&mut signals, self.stand_by()).await {
            Some(given_up) => {
                given_up?;
                print(&on_standby(self.name))
            }
            None => Err(interrupted(self.name, "giving it up")),
        }
    }

    /// Ends once the volume is not served here any more, with the reason.
    async fn lost(&self) -> anyhow::Error {
        let mut absent_since = None;
        loop {
            let asked_at = Instant::now();
            match self.check().await {
                Ok(()) => absent_since = None,
                Err(Absence::Over(error)) => return error,
                Err(Absence::Now(error)) => {
                    if absent_since.get_or_insert(asked_at).elapsed() >= ABSENCE_MAX {
                        return error;
                    }
                }
            }
            tokio::time::sleep(INTERVAL).await;
        }
    }

    /// Whether the server serves the volume.
    async fn check(&self) -> Result<(), Absence> {
        match self.client.volume(self.name).await {
            Ok(_) => return Ok(()),
            Err(ClientError::Refused(problem)) if problem.kind == ErrorKind::UnknownVolume => {}
            Err(error) => return Err(self.unreachable(error)),
        }
        let status = self.client.status().await.map_err(|error| self.unreachable(error))?;
        let mut missing = status.missing.iter();
        Err(self.not_served(missing.find(|missing| missing.name == self.name)))
    }

    /// The server cannot be asked.
    fn unreachable(&self, error: ClientError) -> Absence {
        let is_over = matches!(error, ClientError::NotAllowed { .. });
        let error = anyhow::Error::new(error).context(format!("{} is lost", named(self.name)));
        if is_over { Absence::Over(error) } else { Absence::Now(error) }
    }

    /// The server runs, and does not serve the volume.
    fn not_served(&self, missing: Option<&MissingVolume>) -> Absence {
        let again = "take it over again if it is to be served here";
        let (why, remedy, is_over) = match missing {
            Some(missing) if missing.taken_over => ("another host has taken it over", again, true),
            Some(missing) if missing.standby => {
                let why = "it is on standby, because of a command or a start of the server";
                (why, again, true)
            }
            Some(missing) => {
                let why = missing.reason.as_deref().unwrap_or("its disk does not answer");
                (why, "see `forebay status`", false)
            }
            None => {
                let why = "the server has no such volume";
                (why, "see the names with `forebay volume list`", false)
            }
        };
        let error = anyhow!("{} is not served here any more: {why}", named(self.name));
        let error = with_remedy(error, remedy);
        if is_over { Absence::Over(error) } else { Absence::Now(error) }
    }
}

/// Waits for a future until a signal arrives; then returns `None`.
async fn unless_signalled<T>(signals: &mut Signals, future: impl Future<Output = T>) -> Option<T> {
    tokio::select! {
        biased;
        value = future => Some(value),
        _ = signals.next() => None,
    }
}

/// A second signal does not wait for the server.
fn interrupted(name: &str, what: &str) -> anyhow::Error {
    let error = anyhow!("interrupted, but the server goes on {what}: {}", named(name));
    with_remedy(error, "see `forebay status`")
}
