//! A thread that does something at intervals, until it is dropped.

use std::io;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::Duration;

/// The thread. Dropping this stops and joins it.
pub(super) struct Periodic {
    end: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Periodic {
    /// Starts a thread that calls `act` after each `interval`.
    ///
    /// # Errors
    /// Fails if no thread can be started.
    pub(super) fn start(
        name: &str,
        interval: Duration,
        mut act: impl FnMut() + Send + 'static,
    ) -> io::Result<Self> {
        let (end, ended) = mpsc::channel::<()>();
        let thread = std::thread::Builder::new().name(name.into()).spawn(move || {
            while ended.recv_timeout(interval) == Err(RecvTimeoutError::Timeout) {
                act();
            }
        })?;
        Ok(Self { end: Some(end), thread: Some(thread) })
    }
}

impl Drop for Periodic {
    fn drop(&mut self) {
        self.end = None;
        if let Some(thread) = self.thread.take() {
            // Fails only if the thread panicked, which was logged.
            let _ = thread.join();
        }
    }
}
