//! Clients that were refused, and how often that is said: one that tries again and again must not
//! fill the log.

use crate::descriptors::Descriptors;
use forebay_types::limits::CONNECTIONS_MAX;
use std::time::{Duration, Instant};

/// Least time between two lines in the log.
const PAUSE: Duration = Duration::from_secs(10);

/// See the module's description.
#[derive(Default)]
pub(super) struct Refusals {
    count: u64,
    said: Option<Instant>,
}

impl Refusals {
    /// One more was refused, for want of a descriptor or because there are too many.
    pub(super) fn count(&mut self, now: Instant, has_descriptor: bool, descriptors: Descriptors) {
        self.count += 1;
        if self.said.is_some_and(|said| now.saturating_duration_since(said) < PAUSE) {
            return;
        }
        self.said = Some(now);
        let refused = std::mem::take(&mut self.count);
        if has_descriptor {
            tracing::warn!(refused, "connections refused: {CONNECTIONS_MAX} clients are the limit");
            return;
        }
        let Descriptors { limit, reserved } = descriptors;
        tracing::warn!(
            refused,
            limit,
            reserved,
            "connections refused: the file descriptors are in use up to those kept for control and \
             disks; raise the limit (ulimit -n, or LimitNOFILE= of the service)"
        );
    }
}
