//! Tells the keeper, or else systemd, that the server lives, if the unit has `WatchdogSec=`: as
//! long as each worker gets to a task in time. A server that does not is killed and started again,
//! on the same pool.

use super::periodic::Periodic;
use crate::keeper::{KeeperLink, systemd};
use anyhow::Context;
use forebay_runtime::Runtime;
use forebay_threads::Thread;
use std::sync::Arc;

/// Starts the thread that asks the workers, if systemd wants to know. Dropping the result ends it.
///
/// # Errors
/// The system refuses a descriptor or a thread.
pub(super) fn start(link: &KeeperLink, runtime: Arc<Runtime>) -> anyhow::Result<Option<Periodic>> {
    let Some(timeout) = systemd::watchdog_timeout() else { return Ok(None) };
    let failed = "cannot start the thread that tells systemd that the server lives";
    let notify = link.alive().context(failed)?;
    let third = timeout / 3;
    let thread = Periodic::start(Thread::named("watchdog"), third, move || {
        if runtime.answers_within(third) {
            notify();
        } else {
            tracing::error!(
                ?timeout,
                "a worker hangs: the server will be killed and started again"
            );
        }
    });
    Ok(Some(thread.context(failed)?))
}
