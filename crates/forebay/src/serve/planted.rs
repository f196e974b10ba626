//! A thread that panics when a test wants it to. Only builds with debug assertions have it. In
//! `scripts/panics.sh`, a debugger has each other thread panic in the same way.

use forebay_threads::Thread;
use std::fs::File;
use std::io::{self, Read};

/// Names a pipe. The thread panics when it has read a byte from it.
const PIPE: &str = "FOREBAY_PANIC_PIPE";

/// Starts the thread if a test has set the pipe.
///
/// # Errors
/// Fails if no thread can be started.
pub(super) fn start() -> io::Result<()> {
    let Some(path) = std::env::var_os(PIPE) else { return Ok(()) };
    let work = move || {
        if File::open(path).and_then(|mut pipe| pipe.read_exact(&mut [0])).is_ok() {
            panic_here();
        }
    };
    Thread::named("planted").spawn(work).map(drop)
}

/// The name is known to `scripts/panics.sh`.
#[inline(never)]
fn panic_here() {
    panic!("planted by a test");
}
