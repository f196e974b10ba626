//! How long clients and disks are waited for, and how long dirty lines may wait for their disk.

use forebay_engine::ShardConfig;
use forebay_frontend::ClientPatience;
use forebay_types::limits::HANDSHAKE_SECONDS_MAX;
use std::time::Duration;

/// How long clients, disks and dirty lines may take. The defaults are for people and networks;
/// tests choose what they need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// From connecting to the transmission phase, TLS included.
    pub handshake: Duration,
    /// Between two pieces of a payload. A whole payload may take this and a second for each 64 KiB
    /// of it.
    pub payload_pause: Duration,
    /// To fetch what one message holds while others wait for the room that it takes in the lane of
    /// huge requests.
    pub fetch: Duration,
    /// Without a single answer of a disk, until a command that waits for it gives up.
    pub disk: Duration,
    /// To fetch the last replies, once the server stops or the volume is removed.
    pub farewell: Duration,
    /// Until a dirty line is written back although nothing else asks for it: between one and two
    /// times this.
    pub dirty_age: Duration,
}

impl Default for Patience {
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

impl Patience {
    /// How long clients may take.
    pub(crate) const fn of_clients(&self) -> ClientPatience {
        let Self { handshake, payload_pause, fetch, .. } = *self;
        ClientPatience { handshake, payload_pause, fetch }
    }
}
