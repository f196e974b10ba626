//! Claims: one change of a volume at a time, and none while the daemon stops.
//!
//! A change may wait for a disk. It claims the name of its volume and holds no lock, so that a
//! hanging disk does not block changes of other volumes.

use forebay_api::{ErrorKind, Problem};
use std::collections::HashSet;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The claimed volume names.
pub(super) struct Claims {
    state: Mutex<ClaimsState>,
    freed: Condvar,
    /// How long a change waits for another one of the same volume.
    timeout: Duration,
}

#[derive(Default)]
struct ClaimsState {
    names: HashSet<String>,
    everything: bool,
}

/// A claim. Dropping it releases it.
#[must_use]
pub(super) struct Claim<'a> {
    claims: &'a Claims,
    /// `None` for everything.
    name: Option<String>,
}

impl Claims {
    pub(super) fn new(timeout: Duration) -> Self {
        Self { state: Mutex::default(), freed: Condvar::new(), timeout }
    }

    /// Claims a volume for a change.
    ///
    /// # Errors
    /// Fails if another change of the volume does not end in time, or if the daemon is stopping.
    pub(super) fn volume(&self, name: &str) -> Result<Claim<'_>, Problem> {
        let is_taken = |state: &mut ClaimsState| !state.everything && state.names.contains(name);
        let waited = self.freed.wait_timeout_while(self.lock(), self.timeout, is_taken);
        let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        if state.everything {
            let remedy = "repeat the command if the stop fails";
            return Err(Problem::new(ErrorKind::Stopping, "the server is stopping", remedy));
        }
        if !state.names.insert(name.to_owned()) {
            let message = format!("volume '{name}' is being changed by another command");
            return Err(Problem::new(
                ErrorKind::Busy,
                message,
                "repeat the command when the other one has finished",
            ));
        }
        Ok(Claim { claims: self, name: Some(name.to_owned()) })
    }

    /// Claims everything: refuses new changes, and waits until those in progress have ended.
    ///
    /// # Errors
    /// Fails if everything is already claimed.
    pub(super) fn everything(&self) -> Result<Claim<'_>, Problem> {
        let state = self.lock();
        if state.everything {
            let message = "the server is already being stopped";
            return Err(Problem::new(ErrorKind::Busy, message, "wait for that"));
        }
        Ok(self.claim_everything(state))
    }

    /// As [`Self::everything`], but first waits until another stop has failed. Never returns if it
    /// succeeds.
    pub(super) fn everything_after_another(&self) -> Claim<'_> {
        let waited = self.freed.wait_while(self.lock(), |state| state.everything);
        self.claim_everything(waited.unwrap_or_else(PoisonError::into_inner))
    }

    fn claim_everything<'a>(&'a self, mut state: MutexGuard<'a, ClaimsState>) -> Claim<'a> {
        state.everything = true;
        self.freed.notify_all();
        let waited = self.freed.wait_while(state, |state| !state.names.is_empty());
        drop(waited.unwrap_or_else(PoisonError::into_inner));
        Claim { claims: self, name: None }
    }

    /// Whether the daemon is stopping.
    pub(super) fn is_stopping(&self) -> bool {
        self.lock().everything
    }

    fn lock(&self) -> MutexGuard<'_, ClaimsState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Claim<'_> {
    /// Keeps the claim until the process exits.
    pub(super) fn keep(self) {
        std::mem::forget(self);
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
    use std::sync::atomic::{AtomicBool, Ordering};

    #[test]
    fn a_change_claims_its_volume_and_no_other() {
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
    fn no_change_begins_once_the_daemon_has_stopped() {
        let claims = Claims::new(Duration::ZERO);
        claims.everything().unwrap().keep();
        assert_eq!(claims.volume("a").err().unwrap().kind, ErrorKind::Stopping);
        assert_eq!(claims.everything().err().unwrap().kind, ErrorKind::Busy);
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
            // Once the stop waits, no other change is admitted.
            while claims.volume("b").is_ok() {
                std::thread::yield_now();
            }
            assert!(!stop.is_finished());
            drop(third);
            stop.join().unwrap().unwrap();
        });
    }

    #[test]
    fn a_stop_by_a_signal_waits_until_that_of_a_client_has_failed() {
        let claims = Claims::new(Duration::ZERO);
        let has_failed = AtomicBool::new(false);
        let client = claims.everything().unwrap();
        let (begun, begins) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            let signal = scope.spawn(|| {
                begun.send(()).unwrap();
                drop(claims.everything_after_another());
                assert!(has_failed.load(Ordering::SeqCst));
            });
            begins.recv().unwrap();
            has_failed.store(true, Ordering::SeqCst);
            drop(client);
            signal.join().unwrap();
        });
        drop(claims.everything().unwrap());
    }
}
