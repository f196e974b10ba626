//! Checks that journals, vault and disks are still where they were opened.
//!
//! An open file that was deleted, replaced or truncated still accepts writes, and the next process
//! finds none of them. Writing to the open file does not reveal that, so the paths are checked, off
//! the data path ([`check_presence`](crate::VolumeService::check_presence)).
//!
//! A journal device that is displaced counts as failed from then on. A displaced vault fails its
//! next probe, which starts at once, and write-back under a UPS ends until the vault is back. A
//! displaced disk is reported in log and status, and still served: refusing its writes would save
//! nothing.

use crate::platform::locks::Lock;
use forebay_backend::{Backend, Displaced};

/// Consecutive failed checks after which a device counts as displaced: a device manager may remove
/// a name briefly.
const CHECKS_UNTIL_SURE: u8 = 2;

/// The presence of one device: the result of the last check, and the number of consecutive failed
/// checks.
#[derive(Debug, Default)]
pub(crate) struct Presence(Lock<(Option<Displaced>, u8)>);

/// The outcome of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    None,
    /// The device counts as displaced from now on.
    Gone(Displaced),
    /// The device is in its place again.
    Back,
}

impl Presence {
    pub(crate) fn check(&self, backend: &dyn Backend) -> Change {
        // Without the lock, as resolving a path may block.
        let found = backend.check_presence().err();
        let mut state = self.0.lock();
        let was_sure = state.1 >= CHECKS_UNTIL_SURE;
        let Some(displaced) = found else {
            *state = (None, 0);
            return if was_sure { Change::Back } else { Change::None };
        };
        *state = (Some(displaced), state.1.saturating_add(1));
        match !was_sure && state.1 >= CHECKS_UNTIL_SURE {
            true => Change::Gone(displaced),
            false => Change::None,
        }
    }

    /// How the device is displaced, once that is certain.
    pub(crate) fn displaced(&self) -> Option<Displaced> {
        let state = self.0.lock();
        state.0.filter(|_| state.1 >= CHECKS_UNTIL_SURE)
    }
}
