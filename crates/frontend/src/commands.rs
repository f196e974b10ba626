//! What a worker's reactor can do besides sockets: commands to kernel drivers, and event counters.

use std::os::fd::RawFd;

/// A command to a kernel driver. Its result is reported as [`crate::FrontEndEvent::Command`].
#[derive(Clone, Copy, Debug)]
pub struct DriverCommand {
    /// The front end's name of the command.
    pub key: u32,
    /// The driver's descriptor, which the caller keeps open until the event.
    pub fd: RawFd,
    /// The number of the command.
    pub op: u32,
    /// Its argument.
    pub argument: [u8; 16],
}

/// Event counters (`eventfd`) of other processes. The caller keeps each open until its last event,
/// [`crate::FrontEndEvent::CounterEnded`].
pub trait EventCounters {
    /// Reports [`crate::FrontEndEvent::Counted`] whenever a counter is not zero, and resets it. The
    /// key is the front end's name of the counter, and has one at a time.
    fn watch_counter(&mut self, key: u32, fd: RawFd);

    /// Ends the watch of a counter. Events that have happened may still be reported before the
    /// last.
    fn unwatch_counter(&mut self, key: u32);
}
