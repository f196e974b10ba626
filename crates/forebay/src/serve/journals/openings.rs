//! Which journals are being opened or closed. Each may wait for its devices, for as long as they
//! take, and keeps only those waiting that share a device with it.

use super::Name;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The journals that are being opened or closed.
#[derive(Default)]
pub(super) struct Openings {
    names: Mutex<Vec<Name>>,
    ended: Condvar,
}

/// A journal is being opened or closed until this is dropped.
#[must_use]
pub(super) struct JournalOpening<'a> {
    openings: &'a Openings,
    name: Name,
}

impl Openings {
    fn names(&self) -> MutexGuard<'_, Vec<Name>> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins to open or close a journal, once none that shares a device with it is being opened or
    /// closed. `None` if that takes longer than `wait`.
    pub(super) fn begin(&self, name: &Name, wait: Duration) -> Option<JournalOpening<'_>> {
        let is_under_way = |names: &mut Vec<Name>| names.iter().any(|other| other.overlaps(name));
        let waited = self.ended.wait_timeout_while(self.names(), wait, is_under_way);
        let (mut names, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
        if timeout.timed_out() {
            return None;
        }
        names.push(name.clone());
        Some(JournalOpening { openings: self, name: name.clone() })
    }

    /// The journals that are being opened or closed.
    pub(super) fn under_way(&self) -> Vec<Name> {
        self.names().clone()
    }
}

impl Drop for JournalOpening<'_> {
    fn drop(&mut self) {
        self.openings.names().retain(|name| *name != self.name);
        self.openings.ended.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn journals_that_share_a_device_are_opened_one_at_a_time() {
        let name = |journal: &str, mirror: Option<&str>| Name {
            journal: journal.to_owned(),
            mirror: mirror.map(str::to_owned),
        };
        let openings = Openings::default();
        let first = openings.begin(&name("/j", Some("/k")), Duration::ZERO).unwrap();
        let other = openings.begin(&name("/l", None), Duration::ZERO).unwrap();
        assert!(openings.begin(&name("/m", Some("/j")), Duration::ZERO).is_none());
        assert_eq!(openings.under_way().len(), 2);
        std::thread::scope(|scope| {
            let next = scope.spawn(|| {
                openings.begin(&name("/k", None), Duration::from_secs(60)).map(drop).is_some()
            });
            drop(first);
            assert!(next.join().unwrap());
        });
        drop(other);
        assert!(openings.under_way().is_empty());
    }
}
