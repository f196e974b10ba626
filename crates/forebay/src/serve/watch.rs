//! A thread that looks once a second whether the files that the daemon depends on are still there:
//! journals, vault and disks, which the runtime looks at, and the state directory.
//!
//! A state directory that was deleted or replaced is made anew, with what has to be on record in it
//! and with its sockets: without, a journal that fails later could not be put on record, and nobody
//! could ask or stop the daemon.

use super::manager::Daemon;
use forebay_control::StateDir;
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::Duration;

/// How often it looks.
const INTERVAL: Duration = Duration::from_secs(1);

/// Serves the control API at the socket of a state directory.
pub(super) type ServeControl = Box<dyn Fn(&StateDir) -> anyhow::Result<()> + Send>;

/// The watch, until it is dropped.
pub(super) struct Watch {
    end: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Watch {
    /// Begins to look, and keeps the state directory taken.
    ///
    /// # Errors
    /// When no thread can be started.
    pub(super) fn start(
        daemon: Arc<Daemon>,
        state: StateDir,
        serve_control: ServeControl,
    ) -> std::io::Result<Self> {
        let (end, ended) = mpsc::channel::<()>();
        let mut watched = Watched { daemon, state, serve_control, misses: 0, is_failing: false };
        let thread = std::thread::Builder::new().name("watch".into()).spawn(move || {
            while ended.recv_timeout(INTERVAL) == Err(RecvTimeoutError::Timeout) {
                watched.look();
            }
        })?;
        Ok(Self { end: Some(end), thread: Some(thread) })
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.end = None;
        if let Some(thread) = self.thread.take() {
            // It has no result, and a panic in it was logged.
            let _ = thread.join();
        }
    }
}

struct Watched {
    daemon: Arc<Daemon>,
    state: StateDir,
    serve_control: ServeControl,
    /// Looks in a row that did not find the state directory.
    misses: u32,
    /// That it can't be made anew has been logged.
    is_failing: bool,
}

impl Watched {
    fn look(&mut self) {
        self.daemon.runtime().check_presence();
        if self.state.is_in_place() {
            self.misses = 0;
            return;
        }
        self.misses += 1;
        // Whatever deletes it may be at it still.
        if self.misses < 2 {
            return;
        }
        let path = self.state.path().display().to_string();
        if !self.is_failing {
            tracing::error!(
                %path,
                "the state directory was deleted or replaced: it is made anew. What it said of \
                 journals and vaults that are not in use is lost"
            );
        }
        match self.renew() {
            Ok(()) => {
                tracing::warn!(%path, "the state directory has been made anew");
                (self.misses, self.is_failing) = (0, false);
            }
            Err(error) if !self.is_failing => {
                tracing::error!(
                    %path,
                    "the state directory can't be made anew: {error:#}. The failure of a journal \
                     can't be put on record, so writes would wait if one failed; stop the daemon \
                     with SIGTERM, mend the directory, and start it again"
                );
                self.is_failing = true;
            }
            Err(_) => {}
        }
    }

    fn renew(&mut self) -> anyhow::Result<()> {
        self.state = StateDir::take(self.state.path())?;
        self.daemon.runtime().renew_records()?;
        (self.serve_control)(&self.state)?;
        self.daemon.listen_again()
    }
}
