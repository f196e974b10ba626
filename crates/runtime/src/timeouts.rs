//! Timeouts for clients and disks, and the maximum age of dirty lines.

use forebay_engine::ShardConfig;
use forebay_types::limits::HANDSHAKE_SECONDS_MAX;
use std::time::{Duration, Instant};

/// The minimum average rate of a payload. Without it, a client that sends a byte now and then would
/// keep the memory of the largest payload forever.
const PAYLOAD_BYTES_PER_SECOND_MIN: u64 = 64 << 10;

/// Timeouts. Tests override the defaults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// From connecting to the transmission phase, TLS included.
    pub handshake: Duration,
    /// Between two pieces of a payload. A whole payload may take this, and a second per 64 KiB.
    pub payload_pause: Duration,
    /// For a client to fetch a reply that occupies the lane of huge requests while other requests
    /// wait for it.
    pub fetch: Duration,
    /// Without any completion of a disk, until an operation that waits for it fails.
    pub disk: Duration,
    /// For clients to fetch their last replies when the server stops or the volume is removed.
    pub farewell: Duration,
    /// The age at which a dirty line is destaged in any case. The actual age is between one and two
    /// times this.
    pub dirty_age: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        let handshake = Duration::from_secs(HANDSHAKE_SECONDS_MAX);
        Self {
            handshake,
            payload_pause: Duration::from_secs(30),
            fetch: Duration::from_secs(60),
            disk: Duration::from_secs(30),
            farewell: Duration::from_secs(5),
            dirty_age: Duration::from_millis(ShardConfig::DIRTY_AGE_MS),
        }
    }
}

impl Timeouts {
    /// The deadline of a payload of `len` bytes that begins `now`.
    pub(crate) fn payload_end(&self, now: Instant, len: u64) -> Instant {
        now + self.payload_pause + Duration::from_secs(len / PAYLOAD_BYTES_PER_SECOND_MIN)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_payload_has_minutes_not_hours() {
        let now = Instant::now();
        let end = Timeouts::default().payload_end(now, 32 << 20);
        assert_eq!(end - now, Duration::from_secs(30 + 512));
    }
}
