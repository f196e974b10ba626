//! Shared by the tests of a running server: a client, raw protocol bytes, and a seeded random
//! source. This module does not use the server's internals, so that the tests of the built program
//! can use it, too.

#![allow(dead_code, reason = "each test program uses a part of it")]
#![allow(clippy::unwrap_used, reason = "a helper of a test may fail like the test")]

pub mod client;
pub mod random;
pub mod raw;

/// The interval at which a condition is polled.
const POLL: std::time::Duration = std::time::Duration::from_millis(5);

/// Waits until `condition` holds, and fails with `what` if it does not within `time`.
pub fn wait_until(what: &str, time: std::time::Duration, mut condition: impl FnMut() -> bool) {
    let deadline = std::time::Instant::now() + time;
    while !condition() {
        assert!(std::time::Instant::now() < deadline, "timed out after {time:?}: {what}");
        std::thread::sleep(POLL);
    }
}

/// Dirty lines younger than this are not destaged in the background if they are below the gather
/// threshold: `dirty_age_ms` of a shard.
pub const DIRTY_AGE: std::time::Duration = std::time::Duration::from_secs(5);
/// `gather_below` of a volume that gathers every write. Writes that are not gathered may be
/// destaged at once.
pub const GATHERS_ALL: Option<u64> = Some(32 << 20);

/// Runs a test that relies on lines staying dirty, on volumes that gather all writes. If it fails
/// after so long that lines may have been destaged by age, the machine is overloaded, and it is run
/// again.
pub fn before_lines_are_old(test: impl Fn()) {
    let started = std::time::Instant::now();
    loop {
        let begun = std::time::Instant::now();
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(&test));
        let Err(panic) = outcome else { return };
        if begun.elapsed() < DIRTY_AGE || started.elapsed() > client::PATIENCE {
            std::panic::resume_unwind(panic);
        }
    }
}
