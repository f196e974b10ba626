//! The runtime's locks, and the order in which they are taken.
//!
//! A thread that holds a lock may take only locks with a higher rank in [`order`], so threads
//! cannot deadlock. Debug builds check this at each acquisition and panic where it fails; release
//! builds carry no check and no extra state.

mod lazy_condvar;

pub(crate) use lazy_condvar::LazyCondvar;

use std::ops::{Deref, DerefMut};
use std::sync::{
    Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, TryLockError,
};

/// Lock ranks, in acquisition order. A lock ranked before [`FOUND`] may be held across a wait; all
/// others are held only briefly.
///
/// [`FOUND`]: order::FOUND
pub(crate) mod order {
    /// Serializes changes of the set of volumes and of their settings.
    pub(crate) const CHANGES: usize = 0;
    /// A thread's join handle, held while the thread is joined.
    pub(crate) const THREADS: usize = 1;
    /// A vault's work in progress, held for the length of a dump or a drill.
    pub(crate) const VAULT_WORK: usize = 2;
    /// The calibrator's queue.
    pub(crate) const CALIBRATIONS: usize = 3;
    /// The record of a journal's members, held while it is written.
    pub(crate) const MEMBERS: usize = 4;
    /// The records a journal held when it was opened.
    pub(crate) const FOUND: usize = 5;
    /// The allocation of the pool's memory, held while a slab is made a huge page or given back.
    pub(crate) const ALLOCATION: usize = 6;
    /// A shard of the cache. A thread never holds two.
    pub(crate) const SHARD: usize = 7;
    /// A journal. Records are appended in the order of the shard's decisions, so this lock is taken
    /// under the shard's lock.
    pub(crate) const JOURNAL: usize = 8;
    /// Every other lock. No lock is taken while one of these is held.
    pub(crate) const LEAF: usize = 9;
    /// Names of the ranks, for panic messages.
    #[cfg(debug_assertions)]
    pub(super) const NAMES: [&str; LEAF + 1] = [
        "changes",
        "threads",
        "vault work",
        "calibrations",
        "journal members",
        "journal contents found",
        "pool allocation",
        "shard",
        "journal",
        "leaf",
    ];
}

/// A mutex with a rank.
#[derive(Debug, Default)]
pub(crate) struct Lock<T, const RANK: usize = { order::LEAF }>(Mutex<T>);

impl<T, const RANK: usize> Lock<T, RANK> {
    pub(crate) const fn new(value: T) -> Self {
        Self(Mutex::new(value))
    }

    /// Acquires the lock, ignoring poison: for data without invariants that a panic could break.
    pub(crate) fn lock(&self) -> Locked<'_, T> {
        let held = Held::take(RANK);
        Locked { guard: self.0.lock().unwrap_or_else(PoisonError::into_inner), held }
    }

    /// Acquires the lock of data that a panic may have left inconsistent. `what` names it in the
    /// message.
    ///
    /// # Panics
    ///
    /// If another thread panicked while it held the lock.
    pub(crate) fn lock_unbroken(&self, what: &str) -> Locked<'_, T> {
        let held = Held::take(RANK);
        let Ok(guard) = self.0.lock() else { broken(what) };
        Locked { guard, held }
    }

    /// As [`Self::lock_unbroken`], if the lock is free.
    pub(crate) fn try_lock_unbroken(&self, what: &str) -> Option<Locked<'_, T>> {
        let held = Held::take(RANK);
        match self.0.try_lock() {
            Ok(guard) => Some(Locked { guard, held }),
            Err(TryLockError::Poisoned(_)) => broken(what),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Acquires the lock if it is free.
    pub(crate) fn try_lock(&self) -> Option<Locked<'_, T>> {
        let held = Held::take(RANK);
        let guard = match self.0.try_lock() {
            Ok(guard) => guard,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        Some(Locked { guard, held })
    }
}

/// Asserts, in debug builds, that this thread may wait for a device or for another thread now: it
/// holds no lock that others need meanwhile.
///
/// # Panics
/// If it holds a lock of rank [`order::FOUND`] or above.
pub(crate) fn assert_may_wait() {
    #[cfg(debug_assertions)]
    held::assert_none_held_but(None);
}

#[cold]
fn broken(what: &str) -> ! {
    panic!("{what} failed an assertion; see the log above");
}

/// Guard of a [`Lock`].
pub(crate) struct Locked<'a, T> {
    guard: MutexGuard<'a, T>,
    held: Held,
}

impl<T> Deref for Locked<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.guard
    }
}

impl<T> DerefMut for Locked<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.guard
    }
}

/// A reader-writer lock with a rank. A new reader queues behind a waiting writer, so a thread must
/// not take one twice, even for reading.
#[derive(Debug, Default)]
pub(crate) struct SharedLock<T, const RANK: usize = { order::LEAF }>(RwLock<T>);

impl<T, const RANK: usize> SharedLock<T, RANK> {
    pub(crate) const fn new(value: T) -> Self {
        Self(RwLock::new(value))
    }

    pub(crate) fn read(&self) -> Reading<'_, T> {
        let held = Held::take(RANK);
        Reading { guard: self.0.read().unwrap_or_else(PoisonError::into_inner), _held: held }
    }

    pub(crate) fn write(&self) -> Writing<'_, T> {
        let held = Held::take(RANK);
        Writing { guard: self.0.write().unwrap_or_else(PoisonError::into_inner), _held: held }
    }
}

/// Read guard of a [`SharedLock`].
pub(crate) struct Reading<'a, T> {
    guard: RwLockReadGuard<'a, T>,
    _held: Held,
}

impl<T> Deref for Reading<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.guard
    }
}

/// Write guard of a [`SharedLock`].
pub(crate) struct Writing<'a, T> {
    guard: RwLockWriteGuard<'a, T>,
    _held: Held,
}

impl<T> Deref for Writing<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.guard
    }
}

impl<T> DerefMut for Writing<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.guard
    }
}

use held::Held;

#[cfg(debug_assertions)]
mod held {
    use super::order;
    use std::cell::RefCell;

    thread_local! {
        static HELD_RANKS: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
    }

    /// Marks that this thread holds, or waits for, a lock of this rank.
    pub(super) struct Held(usize);

    impl Held {
        /// Records that a lock is about to be acquired.
        ///
        /// # Panics
        ///
        /// If this thread holds a lock of the same or a higher rank.
        pub(super) fn take(rank: usize) -> Self {
            HELD_RANKS.with_borrow_mut(|here| {
                if let Some(&last) = here.iter().max().filter(|&&last| last >= rank) {
                    let [wanted, last] = [rank, last].map(|rank| order::NAMES[rank]);
                    panic!("lock order violated: {wanted} taken while {last} is held");
                }
                here.push(rank);
            });
            Self(rank)
        }

        /// Asserts that waiting on a condition variable of this lock holds up no other lock.
        ///
        /// # Panics
        ///
        /// If this thread holds another lock that must not be held across a wait.
        pub(super) fn assert_may_sleep(&self) {
            assert_none_held_but(Some(self.0));
        }
    }

    /// Asserts that this thread holds no lock that must not be held across a wait, except one of
    /// rank `own`.
    pub(super) fn assert_none_held_but(own: Option<usize>) {
        HELD_RANKS.with_borrow(|here| {
            let kept = here.iter().find(|&&rank| Some(rank) != own && rank >= order::FOUND);
            let kept = kept.map(|&rank| order::NAMES[rank]);
            assert_eq!(kept, None, "lock order violated: {kept:?} held across a wait");
        });
    }

    impl Drop for Held {
        fn drop(&mut self) {
            HELD_RANKS.with_borrow_mut(|here| {
                let at = here.iter().rposition(|&rank| rank == self.0);
                here.remove(at.expect("each guard records its rank once"));
            });
        }
    }
}

#[cfg(not(debug_assertions))]
mod held {
    pub(super) struct Held;

    impl Held {
        pub(super) const fn take(_: usize) -> Self {
            Self
        }

        pub(super) const fn assert_may_sleep(&self) {}
    }
}

#[cfg(all(test, debug_assertions))]
mod tests {
    use super::*;

    fn panics(work: impl FnOnce() + std::panic::UnwindSafe) -> String {
        let panic = std::panic::catch_unwind(work).expect_err("the order is violated");
        panic.downcast_ref::<String>().cloned().unwrap_or_default()
    }

    #[test]
    fn locks_are_taken_in_their_order_only() {
        let shard: Lock<u8, { order::SHARD }> = Lock::default();
        let journal: Lock<u8, { order::JOURNAL }> = Lock::default();
        let leaf: SharedLock<u8> = SharedLock::default();
        let (a, b, c) = (shard.lock(), journal.lock(), leaf.read());
        drop(a);
        drop((c, b));
        let wrong = panics(|| drop((journal.lock(), shard.lock())));
        assert_eq!(wrong, "lock order violated: shard taken while journal is held");
        let twice = panics(|| drop((leaf.read(), leaf.read())));
        assert_eq!(twice, "lock order violated: leaf taken while leaf is held");
        // Guards dropped by the unwinding have given up their ranks.
        drop((shard.lock(), leaf.write()));
    }

    #[test]
    fn no_other_lock_is_held_across_a_wait() {
        let (shard, leaf) = (Lock::<u8, { order::SHARD }>::default(), Lock::<u8>::default());
        let asleep = panics(|| {
            let _shard = shard.lock();
            let _woken = LazyCondvar::default().wait(leaf.lock());
        });
        assert!(asleep.contains("held across a wait"), "{asleep}");
    }
}
