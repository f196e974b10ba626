//! File descriptors: each client is one, and some are kept for everything else.
//!
//! A process without descriptors can't even be asked to stop: accepting at the control socket takes
//! one, and so does opening a disk. The system gives out the lowest free number, so a client that
//! gets one near the limit says that all below are in use. That needs no count of what is open, and
//! stays true when volumes and journals come and go.

use rustix::process::{Resource, getrlimit, setrlimit};
use std::io;
use std::os::fd::RawFd;

/// Descriptors kept for the control socket, disks and journals.
const RESERVED: u64 = 64;
/// Where there are few, a part of them as small as this is kept.
const RESERVED_PART: u64 = 4;

/// Which descriptors clients may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Descriptors {
    /// All that the process may have.
    pub limit: u64,
    /// Those of them that no client gets.
    pub reserved: u64,
}

impl Descriptors {
    /// Raises the limit of this process as far as it may.
    ///
    /// # Errors
    /// What the system says; the limit is as it was.
    pub fn raise() -> io::Result<()> {
        let mut limit = getrlimit(Resource::Nofile);
        limit.current = limit.maximum;
        Ok(setrlimit(Resource::Nofile, limit)?)
    }

    /// As the limit is now.
    pub fn read() -> Self {
        Self::of(getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX))
    }

    fn of(limit: u64) -> Self {
        Self { limit, reserved: RESERVED.min(limit / RESERVED_PART) }
    }

    /// Whether a client may have this one.
    pub(crate) fn admit(self, fd: RawFd) -> bool {
        u64::try_from(fd).is_ok_and(|fd| fd < self.limit - self.reserved)
    }

    /// How many clients there is room for beside so many descriptors in use.
    pub const fn clients_beside(self, used: u64) -> u64 {
        (self.limit - self.reserved).saturating_sub(used)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quarter_is_kept_where_there_are_few() {
        let few = Descriptors::of(64);
        assert_eq!(few, Descriptors { limit: 64, reserved: 16 });
        assert!(few.admit(47) && !few.admit(48));
        assert_eq!((few.clients_beside(20), few.clients_beside(60)), (28, 0));
        assert_eq!(Descriptors::of(1 << 20).reserved, RESERVED);
        assert!(Descriptors::of(u64::MAX).admit(RawFd::MAX));
    }
}
