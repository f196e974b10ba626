//! A condition variable that is notified often and waited for rarely.

use super::Locked;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, PoisonError};
use std::time::Duration;

/// A condition variable whose notification makes no system call while no thread waits. The
/// condition must change under the waiters' lock, so that a thread that is not yet counted as
/// waiting sees the change.
#[derive(Debug, Default)]
pub(crate) struct LazyCondvar {
    condvar: Condvar,
    waiting: AtomicUsize,
}

impl LazyCondvar {
    /// Releases the lock, waits for a notification, and acquires the lock again.
    pub(crate) fn wait<'a, T>(&self, locked: Locked<'a, T>) -> Locked<'a, T> {
        let Locked { guard, held } = locked;
        held.assert_may_sleep();
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let guard = self.condvar.wait(guard).unwrap_or_else(PoisonError::into_inner);
        let before = self.waiting.fetch_sub(1, Ordering::Relaxed);
        debug_assert!(before > 0, "this thread was counted as waiting");
        Locked { guard, held }
    }

    /// As [`Self::wait`], for at most `timeout`.
    pub(crate) fn wait_timeout<'a, T>(
        &self,
        locked: Locked<'a, T>,
        timeout: Duration,
    ) -> Locked<'a, T> {
        let Locked { guard, held } = locked;
        held.assert_may_sleep();
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let waited = self.condvar.wait_timeout(guard, timeout);
        let before = self.waiting.fetch_sub(1, Ordering::Relaxed);
        debug_assert!(before > 0, "this thread was counted as waiting");
        let (guard, _) = waited.unwrap_or_else(PoisonError::into_inner);
        Locked { guard, held }
    }

    /// Wakes all waiting threads. The caller has changed the condition under the lock, and may
    /// still hold it.
    pub(crate) fn notify_all(&self) {
        if self.waiting.load(Ordering::Relaxed) > 0 {
            self.condvar.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::platform::locks::Lock;
    use std::sync::Arc;

    #[test]
    fn no_waiting_thread_is_missed() {
        let turn = Arc::new((Lock::<u32>::default(), LazyCondvar::default()));
        std::thread::scope(|scope| {
            for me in 0..4 {
                let turn = Arc::clone(&turn);
                scope.spawn(move || {
                    for round in 0..500 {
                        let mut now = turn.0.lock();
                        while *now != round * 4 + me {
                            now = turn.1.wait(now);
                        }
                        *now += 1;
                        drop(now);
                        turn.1.notify_all();
                    }
                });
            }
        });
        assert_eq!(*turn.0.lock(), 2000);
        assert_eq!(turn.1.waiting.load(Ordering::Relaxed), 0);
    }
}
