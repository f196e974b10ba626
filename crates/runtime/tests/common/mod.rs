//! What the tests of a running server share: a client, raw bytes of the protocol, a random
//! source with a seed. It knows nothing of the server's inside, so that the tests of the built
//! program use it as well.

#![allow(dead_code, reason = "each test program uses a part of it")]
#![allow(clippy::unwrap_used, reason = "a helper of a test may fail like the test")]

pub mod client;
pub mod random;
pub mod raw;

/// How often a condition is looked at that a test waits for.
const POLL: std::time::Duration = std::time::Duration::from_millis(5);

/// Waits until `condition` holds, and fails with `what` if it does not within `time`.
pub fn wait_until(what: &str, time: std::time::Duration, mut condition: impl FnMut() -> bool) {
    let deadline = std::time::Instant::now() + time;
    while !condition() {
        assert!(std::time::Instant::now() < deadline, "waited {time:?} in vain: {what}");
        std::thread::sleep(POLL);
    }
}

/// The age below which a dirty line that is worth gathering is not written back in the background:
/// `dirty_age_ms` of a shard.
pub const DIRTY_AGE: std::time::Duration = std::time::Duration::from_secs(5);
/// `gather_below` of a volume on which every write is worth gathering. What is not may be written
/// back at once.
pub const GATHERS_ALL: Option<u64> = Some(32 << 20);

/// Runs a test in which lines must stay dirty until it says otherwise, on volumes that gather all
/// writes. If it fails and took so long
/// that they may have been written back, the machine is too loaded, and it is run again.
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
