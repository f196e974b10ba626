//! What was counted in the past, interval by interval.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The figures of the past, the oldest first. An interval in which the server did not run, or in
/// which the volume was not served, has no point.
#[derive(Clone, Debug, PartialEq, Default, Serialize, Deserialize, ToSchema)]
pub struct History {
    /// The server's clock: the time of this answer, in seconds since 1970, UTC.
    pub now: u64,
    /// Intervals of five seconds, of the last hour, if the query asked for them. A server keeps
    /// them of the first 64 volumes, and of all together if there are no more.
    #[serde(default)]
    pub five_seconds: Vec<HistoryPoint>,
    /// Intervals of five minutes, of the last day.
    pub five_minutes: Vec<HistoryPoint>,
    /// Intervals of an hour, of the last ten days.
    pub hours: Vec<HistoryPoint>,
}

/// An interval. Latencies are means in microseconds, and zero if there were none.
#[derive(Clone, Debug, PartialEq, Default, Serialize, Deserialize, ToSchema)]
pub struct HistoryPoint {
    /// Its end, in seconds since 1970, UTC.
    pub ended_at: u64,
    /// Its length in seconds: about five seconds, five minutes or an hour, or less.
    pub seconds: u64,
    /// Reads by clients.
    pub reads: u64,
    /// Writes by clients.
    pub writes: u64,
    /// Reads served completely from memory.
    pub read_hits: u64,
    /// Writes acknowledged from memory.
    pub deferred_writes: u64,
    /// Bytes of the reads.
    pub read_bytes: u64,
    /// Bytes of the writes.
    pub write_bytes: u64,
    /// Flushes, trims and writes of zeroes by clients.
    pub other_requests: u64,
    /// Requests answered with an error.
    pub errors: u64,
    /// Reads from the disk.
    pub backend_reads: u64,
    /// Writes to the disk.
    pub backend_writes: u64,
    /// Bytes read from the disk.
    pub backend_read_bytes: u64,
    /// Bytes written to the disk.
    pub backend_write_bytes: u64,
    /// I/Os of clients minus I/Os of the disk; negative if the disk had more.
    pub saved_ios: i64,
    /// The latency of reads served from memory.
    pub read_hit_us: f64,
    /// The latency of other reads.
    pub read_miss_us: f64,
    /// The latency of writes acknowledged from memory.
    pub write_memory_us: f64,
    /// The latency of other writes.
    pub write_disk_us: f64,
    /// The latency of the disk's reads.
    pub disk_read_us: f64,
    /// The latency of the disk's writes.
    pub disk_write_us: f64,
    /// The time in which the disk had I/Os, in seconds; of several volumes, the sum.
    pub disk_busy_seconds: f64,
    /// Dirty data at the end.
    pub dirty_bytes: u64,
    /// Data in memory at the end.
    pub cached_bytes: u64,
}
