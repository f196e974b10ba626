//! Every limit of the program, with its unit and its reason.

/// Longest name of a volume, in bytes. NBD allows 4096 and recommends no more than 256.
pub const VOLUME_NAME_BYTES_MAX: usize = 256;
/// Volumes served at once. Each costs a few hundred bytes per shard.
pub const VOLUMES_MAX: usize = 1024;
/// Largest payload of one read or write, in bytes. 32 MiB is what the NBD protocol says a client
/// may always ask for.
pub const REQUEST_BYTES_MAX: u64 = 32 << 20;
/// Bytes of payload one connection may have in flight before its socket is no longer read. Two of
/// the largest requests, so that one can arrive while the other is served.
pub const CONNECTION_BYTES_IN_FLIGHT_MAX: u64 = 2 * REQUEST_BYTES_MAX;
/// Requests one connection may have in flight before its socket is no longer read.
pub const CONNECTION_REQUESTS_MAX: usize = 1024;
/// Connections served at once. Each idle one costs about 2 KiB.
pub const CONNECTIONS_MAX: usize = 16_384;
/// How long a client may take from connecting to the transmission phase, in seconds.
pub const HANDSHAKE_SECONDS_MAX: u64 = 10;
/// Longest option payload that is read rather than skipped, in bytes: the longest legal name and
/// a generous number of queries.
pub const OPTION_BYTES_MAX: u32 = 64 << 10;
/// Smallest memory that can be given to the cache, in bytes.
pub const MEMORY_BYTES_MIN: u64 = 32 << 20;
/// Widest stripe of a disk that is taken for one, in bytes. Wide arrays have some tens of MiB.
pub const STRIPE_BYTES_MAX: u64 = 1 << 30;
/// Largest size below which writes may be gathered, in bytes: no single write is larger.
pub const GATHER_BELOW_BYTES_MAX: u64 = REQUEST_BYTES_MAX;
