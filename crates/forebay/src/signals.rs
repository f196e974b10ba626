//! The signals that the daemon handles.

use std::io;
use tokio::signal::unix::{self, SignalKind};

/// The action that a signal requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Signal {
    /// SIGTERM or SIGINT: write all dirty data to the disks, then exit.
    Stop,
    /// SIGHUP: reload the configuration file.
    Reload,
}

/// A stream of incoming signals. Signals of one kind that arrive before [`next`](Signals::next) is
/// polled coalesce into one, so a second SIGINT counts only after the first was delivered.
#[derive(Debug)]
pub(crate) struct Signals {
    terminate: unix::Signal,
    interrupt: unix::Signal,
    hangup: unix::Signal,
}

impl Signals {
    /// Installs the handlers: from now on none of these signals ends the process. Requires a tokio
    /// runtime with I/O. Call this before any work that a signal must not interrupt.
    ///
    /// # Errors
    /// Fails if the system refuses a handler.
    pub(crate) fn listen() -> io::Result<Self> {
        Ok(Self {
            terminate: unix::signal(SignalKind::terminate())?,
            interrupt: unix::signal(SignalKind::interrupt())?,
            hangup: unix::signal(SignalKind::hangup())?,
        })
    }

    /// Waits for the next signal. Cancel-safe. [`Signal::Stop`] takes precedence.
    pub(crate) async fn next(&mut self) -> Signal {
        tokio::select! {
            biased;
            _ = self.terminate.recv() => Signal::Stop,
            _ = self.interrupt.recv() => Signal::Stop,
            _ = self.hangup.recv() => Signal::Reload,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::process::{Signal as Number, getpid, kill_process};

    #[tokio::test]
    async fn each_signal_maps_to_its_action() {
        let mut signals = Signals::listen().unwrap();
        for (number, signal) in [
            (Number::HUP, Signal::Reload),
            (Number::TERM, Signal::Stop),
            (Number::HUP, Signal::Reload),
            (Number::INT, Signal::Stop),
        ] {
            kill_process(getpid(), number).unwrap();
            assert_eq!(signals.next().await, signal);
        }
    }
}
