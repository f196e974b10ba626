//! The commands of kernel drivers that a worker's reactor can start.

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
