//! How the program starts its threads, and what a panic of one of them does.
//!
//! All threads of the product start here, with a name that is listed in `docs/threads.md`; `xtask
//! tidy` compares the two. Each of them is essential: if one panics, the process aborts, and its
//! keeper starts the next server on the same pool. Without this, a dead thread of a journal would
//! hang every write, and a dead power monitor would leave write-back on when mains fails.
//!
//! Two kinds of panics do not end the process: those inside [`contain`], and those of threads that
//! were not started here, which are the ones of tokio: a reload, a stop, or a request to the
//! control server.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook};
use std::sync::Once;
use std::sync::mpsc;
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};
use std::{io, process};

/// How long a stop waits for a thread that may wait for a device.
const JOIN_LIMIT: Duration = Duration::from_secs(30);
/// The interval at which it looks.
const POLL: Duration = Duration::from_millis(1);

thread_local! {
    static IS_ESSENTIAL: Cell<bool> = const { Cell::new(false) };
}

/// A thread to be started, with a name of at most 15 bytes, the most that Linux shows.
#[derive(Clone, Copy, Debug)]
pub struct Thread {
    name: &'static str,
    number: Option<usize>,
}

impl Thread {
    /// A thread with this name, which is a literal, because `xtask tidy` reads it in the source.
    pub const fn named(name: &'static str) -> Self {
        assert!(name.len() <= 15, "a longer name is cut off");
        Self { name, number: None }
    }

    /// One of several threads, with `-number` behind its name.
    #[must_use]
    pub const fn numbered(self, number: usize) -> Self {
        Self { number: Some(number), ..self }
    }

    /// The name, without a number.
    pub const fn name(self) -> &'static str {
        self.name
    }

    /// Starts the thread. If `work` panics, the process aborts.
    ///
    /// # Errors
    /// Fails if the system cannot start another thread.
    pub fn spawn<T: Send + 'static>(
        self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> io::Result<JoinHandle<T>> {
        abort_on_panic();
        let name = match self.number {
            Some(number) => format!("{}-{number}", self.name),
            None => self.name.to_owned(),
        };
        Builder::new().name(name).spawn(move || {
            IS_ESSENTIAL.set(true);
            work()
        })
    }

    /// Runs work that may never end on the thread. Returns its result if it ends within `timeout`;
    /// otherwise `None`, and the thread goes on by itself.
    pub fn within<T: Send + 'static>(
        self,
        timeout: Duration,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        let (sender, result) = mpsc::channel();
        self.spawn(move || drop(sender.send(work()))).ok()?;
        result.recv_timeout(timeout).ok()
    }
}

/// Waits until a thread has ended, but only for as long as a device may take to answer: 30 seconds.
/// Returns whether it has.
pub fn join_within_limit(thread: JoinHandle<()>) -> bool {
    join_within(thread, JOIN_LIMIT)
}

fn join_within(thread: JoinHandle<()>, limit: Duration) -> bool {
    let until = Instant::now() + limit;
    while !thread.is_finished() {
        if Instant::now() >= until {
            return false;
        }
        std::thread::sleep(POLL);
    }
    let _ = thread.join();
    true
}

/// Makes the calling thread essential, for the main thread.
pub fn make_essential() {
    abort_on_panic();
    IS_ESSENTIAL.set(true);
}

/// Whether a panic of the calling thread aborts the process at once.
pub fn is_essential() -> bool {
    IS_ESSENTIAL.get()
}

/// Calls `work`, whose panics do not abort the process.
///
/// # Errors
/// Fails if `work` panicked. The message has been printed.
pub fn contain<T>(work: impl FnOnce() -> T) -> Result<T, Panicked> {
    let was_essential = IS_ESSENTIAL.replace(false);
    let outcome = catch_unwind(AssertUnwindSafe(work));
    IS_ESSENTIAL.set(was_essential);
    outcome.map_err(|_| Panicked)
}

/// The work of a [`contain`] panicked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Panicked;

/// Adds the abort to the panic hook. An abort in the hook comes before the stack is unwound: what
/// is dropped there could wait for another thread, or answer a request.
fn abort_on_panic() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let print = take_hook();
        set_hook(Box::new(move |panic| {
            print(panic);
            if is_essential() {
                process::abort();
            }
        }));
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_contained_panic_ends_neither_thread_nor_process() {
        let thread = Thread::named("test").numbered(3).spawn(|| {
            assert_eq!(std::thread::current().name(), Some("test-3"));
            assert!(is_essential());
            assert_eq!(contain(|| panic!("planted in a test")), Err::<(), _>(Panicked));
            assert!(is_essential());
            contain(|| u8::from(is_essential()))
        });
        assert_eq!(thread.unwrap().join().unwrap(), Ok(0));
        assert!(!is_essential(), "threads of tests and of tokio are not essential");
    }

    #[test]
    fn a_thread_that_does_not_end_is_not_waited_for() {
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let hangs = Thread::named("hangs").spawn(move || {
            let _ = ended.recv();
        });
        let hangs = hangs.unwrap();
        assert!(!join_within(hangs, Duration::from_millis(5)));
        drop(end);
        let ends = Thread::named("ends").spawn(|| ()).unwrap();
        assert!(join_within_limit(ends));
    }
}
