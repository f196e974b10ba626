//! Signals, as the daemon understands them.

use std::io;
use tokio::signal::unix::{self, SignalKind};

/// What a signal asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Signal {
    /// SIGTERM or SIGINT: write all dirty data to the disks, then leave.
    Stop,
    /// SIGHUP: read the configuration file again.
    Reload,
}

/// The signals that arrive, one after the other. Several of a kind that arrive while nobody asks
/// count as one, so a second SIGINT is seen as a second [`Signal::Stop`] only after the first.
#[derive(Debug)]
pub(crate) struct Signals {
    terminate: unix::Signal,
    interrupt: unix::Signal,
    hangup: unix::Signal,
}

impl Signals {
    /// Takes the signals over: from now on none of them ends the process. Needs a tokio runtime
    /// with I/O, and should come before anything that must not be torn.
    ///
    /// # Errors
    /// The system does not let handlers be set.
    pub(crate) fn listen() -> io::Result<Self> {
        Ok(Self {
            terminate: unix::signal(SignalKind::terminate())?,
            interrupt: unix::signal(SignalKind::interrupt())?,
            hangup: unix::signal(SignalKind::hangup())?,
        })
    }

    /// The next signal. Cancelling the wait loses none. Stopping goes before reloading.
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
    async fn each_signal_is_seen_as_what_it_asks_for() {
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
