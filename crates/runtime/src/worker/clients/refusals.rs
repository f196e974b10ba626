//! Logs refused connections, at a limited rate: a client that retries must not fill the log.

use crate::platform::descriptors::Descriptors;
use forebay_types::limits::CONNECTIONS_MAX;
use std::time::{Duration, Instant};

/// The minimum interval between two log lines.
const LOG_INTERVAL: Duration = Duration::from_secs(10);

/// Counts refused connections since the last log line.
#[derive(Default)]
pub(super) struct Refusals {
    count: u64,
    logged: Option<Instant>,
}

impl Refusals {
    /// Counts a refused connection. Without `has_descriptor`, the file descriptors are exhausted;
    /// otherwise the limit of connections is reached.
    pub(super) fn count(&mut self, now: Instant, has_descriptor: bool, descriptors: Descriptors) {
        self.count += 1;
        let is_recent = |logged| now.saturating_duration_since(logged) < LOG_INTERVAL;
        if self.logged.is_some_and(is_recent) {
            return;
        }
        self.logged = Some(now);
        let refused = std::mem::take(&mut self.count);
        if has_descriptor {
            tracing::warn!(
                refused,
                "connections refused: limit of {CONNECTIONS_MAX} clients reached"
            );
            return;
        }
        let Descriptors { limit, reserved } = descriptors;
        tracing::warn!(
            refused,
            limit,
            reserved,
            "connections refused: all file descriptors except those reserved for control and disks \
             are in use; raise the limit (ulimit -n, or LimitNOFILE= of the service)"
        );
    }
}
