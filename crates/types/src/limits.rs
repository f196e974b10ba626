//! The limits of the program, with their units and reasons.

/// The longest name of a volume, in bytes. NBD allows 4096 and recommends at most 256.
pub const VOLUME_NAME_BYTES_MAX: usize = 256;
/// Volumes served at once. Each takes up to 1,100 bytes per shard, besides its dirty lines.
pub const VOLUMES_MAX: usize = 1024;
/// The largest payload of a read or write, in bytes. The NBD protocol guarantees 32 MiB to every
/// client.
pub const REQUEST_BYTES_MAX: u64 = 32 << 20;
/// The payload in flight, in bytes, at which the server stops reading from a connection: two
/// requests of maximum size, so that one can arrive while the other is served.
pub const CONNECTION_BYTES_IN_FLIGHT_MAX: u64 = 2 * REQUEST_BYTES_MAX;
/// The requests in flight at which the server stops reading from a connection.
pub const CONNECTION_REQUESTS_MAX: usize = 1024;
/// Connections served at once. An idle one takes about 2 KiB.
pub const CONNECTIONS_MAX: usize = 16_384;
/// The timeout of the handshake, from the connection to the transmission phase, in seconds.
pub const HANDSHAKE_SECONDS_MAX: u64 = 10;
/// The longest option payload that is read instead of skipped, in bytes: enough for the longest
/// legal name and many queries.
pub const OPTION_BYTES_MAX: u32 = 64 << 10;
/// The smallest memory of the cache, in bytes.
pub const MEMORY_BYTES_MIN: u64 = 32 << 20;
/// The widest stripe that is accepted, in bytes. Wide arrays have tens of MiB.
pub const STRIPE_BYTES_MAX: u64 = 1 << 30;
/// The maximum number of pinned ranges of a volume. Each takes 16 bytes, and space in the API's
/// answers.
pub const PINNED_RANGES_MAX: usize = 1024;
/// The largest value of `gather-below`, in bytes: no write is larger.
pub const GATHER_BELOW_BYTES_MAX: u64 = REQUEST_BYTES_MAX;
/// The largest share of the pool for dirty lines, in percent. The parity of so many dirty lines
/// takes another 15 %; the rest is clean, so that a write finds a line to evict.
pub const WRITE_PERCENT_MAX: u8 = 75;
