//! Timeouts for clients and disks, and the intervals of periodic work.

use forebay_engine::ShardConfig;
use forebay_frontend::ClientTimeouts;
use forebay_types::limits::HANDSHAKE_SECONDS_MAX;
use std::time::Duration;

/// Timeouts. Tests override the defaults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// From connecting to the transmission phase, TLS included.
    pub handshake: Duration,
    /// Between two pieces of a payload. A whole payload may take this plus a second per 64 KiB.
    pub payload_pause: Duration,
    /// For a client to fetch a reply that occupies the lane of huge requests while other requests
    /// wait for it.
    pub fetch: Duration,
    /// How long an operation waits for a disk that completes no I/O.
    pub disk: Duration,
    /// How long a disk may leave an I/O unanswered before its volume counts as stalled.
    pub stall: Duration,
    /// For clients to fetch their last replies when the server stops or their volume is removed.
    pub farewell: Duration,
    /// The age at which a dirty line is destaged in any case. The actual age is between one and two
    /// times this.
    pub dirty_age: Duration,
    /// The interval at which the warm lists are written.
    pub warm_lists: Duration,
    /// The interval at which the local time is read.
    pub clock: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        let handshake = Duration::from_secs(HANDSHAKE_SECONDS_MAX);
        Self {
            handshake,
            payload_pause: Duration::from_secs(30),
            fetch: Duration::from_secs(60),
            disk: Duration::from_secs(30),
            stall: Duration::from_secs(5),
            farewell: Duration::from_secs(5),
            dirty_age: Duration::from_millis(ShardConfig::DIRTY_AGE_MS),
            warm_lists: Duration::from_secs(300),
            clock: Duration::from_secs(5),
        }
    }
}

impl Timeouts {
    pub(crate) const fn for_clients(&self) -> ClientTimeouts {
        let Self { handshake, payload_pause, fetch, .. } = *self;
        ClientTimeouts { handshake, payload_pause, fetch }
    }
}
