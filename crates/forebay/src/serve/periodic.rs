//! A thread that calls a function at intervals, until it is dropped.

use forebay_threads::Thread;
use std::io;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::time::Duration;

/// How long a drop waits for a call in progress, because a file system may hang.
const END_WAIT: Duration = Duration::from_secs(2);

/// The thread. Dropping this ends it.
pub(super) struct Periodic {
    thread: Thread,
    end: Option<Sender<()>>,
    /// Disconnected once the thread has ended.
    running: Receiver<()>,
}

impl Periodic {
    /// Starts a thread that calls `act` after each `interval`.
    ///
    /// # Errors
    /// Fails if no thread can be started.
    pub(super) fn start(
        thread: Thread,
        interval: Duration,
        mut act: impl FnMut() + Send + 'static,
    ) -> io::Result<Self> {
        let ((end, ended), (runs, running)) = (mpsc::channel::<()>(), mpsc::channel());
        thread.spawn(move || {
            let _runs = runs;
            while ended.recv_timeout(interval) == Err(RecvTimeoutError::Timeout) {
                act();
            }
            // Drops what the closure owns. For the state directory, this marks an orderly stop.
            drop(act);
        })?;
        Ok(Self { thread, end: Some(end), running })
    }
}

impl Drop for Periodic {
    fn drop(&mut self) {
        self.end = None;
        if self.running.recv_timeout(END_WAIT) == Err(RecvTimeoutError::Timeout) {
            tracing::warn!(
                thread = self.thread.name(),
                "thread did not end in time, exiting without waiting for it"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_action_that_hangs_does_not_prevent_the_end() {
        let ((begun, begins), (release, released)) = (mpsc::channel(), mpsc::channel::<()>());
        let periodic = Periodic::start(Thread::named("hang"), Duration::ZERO, move || {
            begun.send(()).unwrap();
            let _ = released.recv();
        });
        begins.recv().unwrap();
        drop(periodic.unwrap());
        drop(release);
    }
}
