//! The limit of file descriptors, a part of which is reserved for everything but clients.
//!
//! Each client takes a descriptor. Without a free descriptor, the process could not accept a
//! connection at the control socket, not even to be stopped, and could not open a disk. The system
//! assigns the lowest free number. So if a client gets a number near the limit, all lower numbers
//! are in use, and the client is refused. This needs no count of open descriptors, and remains
//! correct when volumes and journals are added and removed.

use rustix::process::{Resource, getrlimit, setrlimit};
use std::io;
use std::os::fd::RawFd;

/// Descriptors reserved for the control socket, disks and journals.
const RESERVED: u64 = 64;
/// With a low limit, one descriptor in this many is reserved instead.
const RESERVED_PART: u64 = 4;

/// The descriptors of the process, and which of them clients may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Descriptors {
    /// The limit of the process.
    pub limit: u64,
    /// The number of descriptors that clients may not use.
    pub reserved: u64,
}

impl Descriptors {
    /// Raises the soft limit of this process to its hard limit.
    ///
    /// # Errors
    /// The system's error; the limit is unchanged.
    pub fn raise() -> io::Result<()> {
        let mut limit = getrlimit(Resource::Nofile);
        limit.current = limit.maximum;
        Ok(setrlimit(Resource::Nofile, limit)?)
    }

    /// Reads the current limit.
    pub fn read() -> Self {
        Self::of(getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX))
    }

    fn of(limit: u64) -> Self {
        Self { limit, reserved: RESERVED.min(limit / RESERVED_PART) }
    }

    /// Whether a client may use this descriptor.
    pub(crate) fn admit(self, fd: RawFd) -> bool {
        u64::try_from(fd).is_ok_and(|fd| fd < self.limit - self.reserved)
    }

    /// The number of clients that the limit allows in addition to `used` descriptors.
    pub const fn clients_beside(self, used: u64) -> u64 {
        (self.limit - self.reserved).saturating_sub(used)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quarter_of_a_low_limit_is_reserved() {
        let few = Descriptors::of(64);
        assert_eq!(few, Descriptors { limit: 64, reserved: 16 });
        assert!(few.admit(47) && !few.admit(48));
        assert_eq!((few.clients_beside(20), few.clients_beside(60)), (28, 0));
        assert_eq!(Descriptors::of(1 << 20).reserved, RESERVED);
        assert!(Descriptors::of(u64::MAX).admit(RawFd::MAX));
    }
}
