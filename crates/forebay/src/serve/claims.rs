//! Who changes what: one change of a volume at a time, and none while the daemon stops.
//!
//! A change may wait for a disk. It holds the name of its volume and nothing else, so that a disk
//! that hangs keeps nobody from administering the others.

use forebay_api::{ErrorKind, Problem};
use std::collections::HashSet;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The names that are claimed.
pub(super) struct Claims {
    state: Mutex<State>,
    freed: Condvar,
    /// How long a change waits for another one of the same volume.
    patience: Duration,
}

#[derive(Default)]
struct State {
    names: HashSet<String>,
    everything: bool,
}

/// A claim, given back when dropped.
#[must_use]
pub(super) struct Claim<'a> {
    claims: &'a Claims,
    /// `None` for everything.
    name: Option<String>,
}

impl Claims {
    pub(super) fn new(patience: Duration) -> Self {
        Self { state: Mutex::default(), freed: Condvar::new(), patience }
    }

    /// Claims a volume for a change.
    ///
    /// # Errors
    /// Another change of it takes long, or the daemon is stopping.
    pub(super) fn volume(&self, name: &str) -> Result<Claim<'_>, Problem> {
        let is_taken = |state: &mut State| !state.everything && state.names.contains(name);
        let waited = self.freed.wait_timeout_while(self.lock(), self.patience, is_taken);
        let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        if state.everything {
            let remedy = "ask again if it goes on after all";
            return Err(Problem::new(ErrorKind::Stopping, "the server is stopping", remedy));
        }
        if !state.names.insert(name.to_owned()) {
            let message = format!("volume '{name}' is being changed by another command");
            return Err(Problem::new(ErrorKind::Busy, message, "ask again when that is done"));
        }
        Ok(Claim { claims: self, name: Some(name.to_owned()) })
    }

    /// Claims everything, as soon as the changes under way are done; each of them has an end.
    ///
    /// # Errors
    /// Somebody else has.
    pub(super) fn everything(&self) -> Result<Claim<'_>, Problem> {
        let mut state = self.lock();
        if state.everything {
            let message = "the server is being stopped already";
            return Err(Problem::new(ErrorKind::Busy, message, "wait for that"));
        }
        state.everything = true;
        self.freed.notify_all();
        let waited = self.freed.wait_while(state, |state| !state.names.is_empty());
        drop(waited.unwrap_or_else(PoisonError::into_inner));
        Ok(Claim { claims: self, name: None })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        let mut state = self.claims.lock();
        match &self.name {
            Some(name) => drop(state.names.remove(name)),
            None => state.everything = false,
        }
        drop(state);
        self.claims.freed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_keeps_the_name_of_its_volume_and_no_other() {
        let claims = Claims::new(Duration::ZERO);
        let first = claims.volume("a").unwrap();
        let other = claims.volume("b").unwrap();
        assert_eq!(claims.volume("a").err().unwrap().kind, ErrorKind::Busy);
        drop(first);
        drop(claims.volume("a").unwrap());
        drop(other);
        let stop = claims.everything().unwrap();
        assert_eq!(claims.volume("a").err().unwrap().kind, ErrorKind::Stopping);
        assert_eq!(claims.everything().err().unwrap().kind, ErrorKind::Busy);
        drop(stop);
        drop(claims.volume("a").unwrap());
    }

    #[test]
    fn a_stop_waits_for_changes_and_a_change_for_its_predecessor() {
        let claims = Claims::new(Duration::from_secs(60));
        let first = claims.volume("a").unwrap();
        std::thread::scope(|scope| {
            let second = scope.spawn(|| claims.volume("a").map(drop));
            drop(first);
            second.join().unwrap().unwrap();
            let third = claims.volume("a").unwrap();
            let stop = scope.spawn(|| claims.everything().map(drop));
            // Once the stop waits, nobody else gets in.
            while claims.volume("b").is_ok() {
                std::thread::yield_now();
            }
            assert!(!stop.is_finished());
            drop(third);
            stop.join().unwrap().unwrap();
        });
    }
}
