//! Something that is waited for now and then, and happens all the time.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, LockResult, MutexGuard, WaitTimeoutResult};
use std::time::Duration;

/// A condition variable that costs no system call where nobody waits. What is waited for changes
/// under the lock that waiters hold, so who is not counted yet will see the change.
#[derive(Default)]
pub(crate) struct Moment {
    condvar: Condvar,
    waiting: AtomicUsize,
}

impl Moment {
    /// Waits as [`Condvar::wait`] does.
    pub(crate) fn wait<'a, T>(&self, guard: MutexGuard<'a, T>) -> LockResult<MutexGuard<'a, T>> {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let waited = self.condvar.wait(guard);
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        waited
    }

    /// Waits as [`Condvar::wait_timeout`] does.
    pub(crate) fn wait_timeout<'a, T>(
        &self,
        guard: MutexGuard<'a, T>,
        patience: Duration,
    ) -> LockResult<(MutexGuard<'a, T>, WaitTimeoutResult)> {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let waited = self.condvar.wait_timeout(guard, patience);
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        waited
    }

    /// Wakes all who wait. The lock has been held since what they wait for changed, or still is.
    pub(crate) fn notify_all(&self) {
        if self.waiting.load(Ordering::Relaxed) > 0 {
            self.condvar.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Arc, Mutex};

    #[test]
    fn nobody_who_waits_is_missed() {
        let turn = Arc::new((Mutex::new(0_u32), Moment::default()));
        std::thread::scope(|scope| {
            for me in 0..4 {
                let turn = Arc::clone(&turn);
                scope.spawn(move || {
                    for round in 0..500 {
                        let mut now = turn.0.lock().unwrap();
                        while *now != round * 4 + me {
                            now = turn.1.wait(now).unwrap();
                        }
                        *now += 1;
                        drop(now);
                        turn.1.notify_all();
                    }
                });
            }
        });
        assert_eq!(*turn.0.lock().unwrap(), 2000);
        assert_eq!(turn.1.waiting.load(Ordering::Relaxed), 0);
    }
}
