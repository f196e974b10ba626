//! Independent runs on several threads.

use std::any::Any;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The number of the next run, and the results so far.
pub(crate) struct Runs<S> {
    next: AtomicU64,
    enough: AtomicBool,
    summary: Mutex<S>,
}

impl<S: Send> Runs<S> {
    /// Calls `job` with successive numbers from `first` on, on `threads` threads (at least one),
    /// until it returns false or [`Runs::add`] has stopped the runs.
    pub(crate) fn make(
        first: u64,
        threads: usize,
        summary: S,
        job: impl Fn(u64, &Self) -> bool + Sync,
    ) -> S {
        let (next, enough) = (AtomicU64::new(first), AtomicBool::new(false));
        let runs = Self { next, enough, summary: Mutex::new(summary) };
        let work =
            || while !runs.is_enough() && job(runs.next.fetch_add(1, Ordering::Relaxed), &runs) {};
        std::thread::scope(|scope| {
            for _ in 1..threads {
                scope.spawn(work);
            }
            work();
        });
        runs.summary.into_inner().expect("no thread panics with the summary")
    }

    /// Adds the result of a run; if `add` returns true, no further run begins.
    pub(crate) fn add(&self, add: impl FnOnce(&mut S) -> bool) {
        let mut summary = self.summary.lock().expect("no thread panics with the summary");
        if add(&mut summary) {
            self.enough.store(true, Ordering::Relaxed);
        }
    }

    /// Whether no further run may begin.
    pub(crate) fn is_enough(&self) -> bool {
        self.enough.load(Ordering::Relaxed)
    }
}

/// The message of a panic.
pub(crate) fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
    format!("panic: {}", text.unwrap_or("without a message"))
}
