//! Independent runs on several threads.

use std::any::Any;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The number of the next run, and the results so far.
pub(crate) struct Runs<S> {
    next: AtomicU64,
    stopped: AtomicBool,
    summary: Mutex<S>,
}

impl<S: Send> Runs<S> {
    /// Calls `job` with successive numbers from `first` on, on `threads` threads (at least one),
    /// until it returns false or [`Runs::add`] has stopped the runs.
    pub(crate) fn execute(
        first: u64,
        threads: usize,
        summary: S,
        job: impl Fn(u64, &Self) -> bool + Sync,
    ) -> S {
        let (next, stopped) = (AtomicU64::new(first), AtomicBool::new(false));
        let runs = Self { next, stopped, summary: Mutex::new(summary) };
        let work =
            || while !runs.is_stopped() && job(runs.next.fetch_add(1, Ordering::Relaxed), &runs) {};
        std::thread::scope(|scope| {
            for _ in 1..threads {
                scope.spawn(work);
            }
            work();
        });
        runs.summary.into_inner().expect("no thread panics while it holds the lock")
    }

    /// Adds the result of a run; if `add` returns true, no further run begins.
    pub(crate) fn add(&self, add: impl FnOnce(&mut S) -> bool) {
        let mut summary = self.summary.lock().expect("no thread panics while it holds the lock");
        if add(&mut summary) {
            self.stopped.store(true, Ordering::Relaxed);
        }
    }

    /// Whether no further run may begin.
    pub(crate) fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Relaxed)
    }
}

pub(crate) fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
    format!("panic: {}", text.unwrap_or("without a message"))
}
