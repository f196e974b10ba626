//! What front ends are told of volumes, and how long they wait for clients.

use forebay_types::VolumeId;
use std::time::{Duration, Instant};

/// Slowest rate at which a payload may come as a whole, in bytes a second. A client that sends a
/// byte now and then would otherwise keep the memory of the largest payload for ever.
const PAYLOAD_BYTES_PER_SECOND_MIN: u64 = 64 << 10;

/// A volume as clients see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeInfo {
    /// Its number.
    pub id: VolumeId,
    /// Its name.
    pub name: String,
    /// A line about it for people; may be empty.
    pub description: String,
    /// Its size in bytes.
    pub size_bytes: u64,
    /// Whether writes are refused.
    pub read_only: bool,
    /// Whether its disk turns.
    pub rotational: bool,
    /// The block size of its disk in bytes. Any sectors are taken; whole blocks cost least.
    pub block_bytes: u32,
    /// Whether a trim frees anything.
    pub can_trim: bool,
    /// Whether its disk writes zeroes faster than other data.
    pub can_fast_zero: bool,
    /// Whether it is served over encrypted connections only.
    pub tls_only: bool,
}

/// How long clients may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientTimeouts {
    /// From connecting to the first request.
    pub handshake: Duration,
    /// Between two pieces of a payload. A whole payload may take this and a second for each 64 KiB
    /// of it.
    pub payload_pause: Duration,
    /// To fetch an answer while others wait for the room that it takes.
    pub fetch: Duration,
}

impl ClientTimeouts {
    /// When a payload of `len` bytes that begins `now` must have come.
    pub fn payload_end(&self, now: Instant, len: u64) -> Instant {
        now + self.payload_pause + Duration::from_secs(len / PAYLOAD_BYTES_PER_SECOND_MIN)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_payload_has_minutes_and_not_hours() {
        let now = Instant::now();
        let [handshake, fetch] = [Duration::from_secs(60); 2];
        let patience = ClientTimeouts { handshake, payload_pause: Duration::from_secs(30), fetch };
        assert_eq!(patience.payload_end(now, 32 << 20) - now, Duration::from_secs(30 + 512));
    }
}
