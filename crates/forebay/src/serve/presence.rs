//! A thread that checks once a second that the files in use are still in place: journals, vault and
//! disks, through the runtime, and the state directory.
//!
//! If the state directory was deleted or replaced, the thread recreates it with its records and
//! sockets. Without it, the failure of a journal could not be recorded, and no client could
//! reach the control server.

use super::control::ControlServers;
use super::manager::{Daemon, listeners};
use super::periodic::Periodic;
use crate::report::sentence;
use forebay_control::StateDir;
use forebay_threads::Thread;
use std::io;
use std::sync::Arc;
use std::time::Duration;

/// Time between two checks.
const INTERVAL: Duration = Duration::from_secs(1);

/// Starts the thread, which holds the state directory's lock from now on.
///
/// # Errors
/// Fails if no thread can be started.
pub(super) fn start(
    daemon: Arc<Daemon>,
    state: StateDir,
    control_servers: Arc<ControlServers>,
) -> io::Result<Periodic> {
    let mut monitored =
        Monitored { daemon, state, control_servers, misses: 0, next: None, is_failing: false };
    Periodic::start(Thread::named("presence"), INTERVAL, move || monitored.check())
}

/// A step of the recreation of the state directory.
enum PresenceStep {
    Directory,
    Records,
    ControlSocket,
    Listeners,
}

struct Monitored {
    daemon: Arc<Daemon>,
    state: StateDir,
    control_servers: Arc<ControlServers>,
    /// Consecutive checks that did not find the state directory.
    misses: u32,
    /// The step that a recreation in progress has to do next.
    next: Option<PresenceStep>,
    /// The state directory cannot be recreated, which has been logged.
    is_failing: bool,
}

impl Monitored {
    fn check(&mut self) {
        self.daemon.runtime().volumes().check_presence();
        if self.state.is_in_place() {
            self.misses = 0;
        } else {
            self.misses += 1;
            // The deletion may still be in progress.
            if self.misses < 2 {
                return;
            }
            self.next = Some(PresenceStep::Directory);
        }
        if self.next.is_some() {
            self.continue_recreation();
        }
    }

    fn continue_recreation(&mut self) {
        let path = self.state.path().display().to_string();
        if !self.is_failing {
            tracing::error!(
                %path,
                "state directory was deleted or replaced, recreating it; records of journals and \
                 vaults not in use are lost"
            );
        }
        match self.recreate() {
            Ok(()) => {
                tracing::warn!(%path, "state directory recreated");
                (self.misses, self.is_failing) = (0, false);
            }
            Err(error) if !self.is_failing => {
                tracing::error!(
                    %path,
                    error = sentence(&error),
                    "cannot recreate the state directory; if a journal fails, writes wait, because \
                     the failure cannot be recorded: stop the daemon with SIGTERM, correct the \
                     directory, and start it again"
                );
                self.is_failing = true;
            }
            Err(_) => {}
        }
    }

    /// Does the remaining steps. After an error, the next call repeats the step that failed.
    fn recreate(&mut self) -> anyhow::Result<()> {
        while let Some(step) = &self.next {
            self.next = match step {
                PresenceStep::Directory => {
                    self.state = StateDir::take(self.state.path())?;
                    Some(PresenceStep::Records)
                }
                PresenceStep::Records => {
                    self.daemon.runtime().volumes().protectors().renew_records()?;
                    Some(PresenceStep::ControlSocket)
                }
                PresenceStep::ControlSocket => {
                    self.control_servers.serve_again(&self.state)?;
                    Some(PresenceStep::Listeners)
                }
                PresenceStep::Listeners => {
                    listeners::listen_again(&self.daemon)?;
                    None
                }
            };
        }
        Ok(())
    }
}
