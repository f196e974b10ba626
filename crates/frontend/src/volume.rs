//! The properties of volumes that clients see, and the time limits for clients.

use forebay_types::VolumeId;
use std::time::{Duration, Instant};

/// The lowest average rate of a payload, in bytes per second. Without it, a client that sends
/// single bytes could occupy the memory of the largest payload forever.
const PAYLOAD_BYTES_PER_SECOND_MIN: u64 = 64 << 10;

/// A volume as clients see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeInfo {
    /// Its number.
    pub id: VolumeId,
    pub name: String,
    /// A checksum of its name and its backing, which tells it from another volume of the same name.
    pub identity: [u8; 32],
    /// A description for people; may be empty.
    pub description: String,
    /// Its size in bytes.
    pub size_bytes: u64,
    /// Whether writes are refused.
    pub read_only: bool,
    /// Whether its disk is rotational.
    pub rotational: bool,
    /// The block size of its disk in bytes. Clients may address single sectors, but whole blocks
    /// are cheapest.
    pub block_bytes: u32,
    /// Whether the disk supports discard.
    pub can_trim: bool,
    /// Whether its disk writes zeroes faster than other data.
    pub can_fast_zero: bool,
    /// Whether it is served over encrypted connections only.
    pub tls_only: bool,
}

/// The time limits for clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientTimeouts {
    /// From connecting to entering a volume.
    pub handshake: Duration,
    /// Between two pieces of a payload. A whole payload may take this plus a second per 64 KiB.
    pub payload_pause: Duration,
    /// To fetch a reply while other clients wait for its memory.
    pub fetch: Duration,
}

impl ClientTimeouts {
    /// The deadline of a payload of `len` bytes that begins `now`.
    pub fn payload_end(&self, now: Instant, len: u64) -> Instant {
        now + self.payload_pause + Duration::from_secs(len / PAYLOAD_BYTES_PER_SECOND_MIN)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_payload_may_take_minutes_not_hours() {
        let now = Instant::now();
        let [handshake, fetch] = [Duration::from_secs(60); 2];
        let timeouts = ClientTimeouts { handshake, payload_pause: Duration::from_secs(30), fetch };
        assert_eq!(timeouts.payload_end(now, 32 << 20) - now, Duration::from_secs(30 + 512));
    }
}
