//! Statistics of writeback and of gathering.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Statistics of writeback, and of gathered write-throughs, since the volume was added.
#[derive(Clone, Debug, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct WriteBackFigures {
    /// Writes to the disk.
    pub writes: u64,
    /// Bytes of these writes. Clean data that completed a stripe is among them.
    pub bytes: u64,
    /// Destages of a whole stripe, for which the array needs no read-modify-write.
    pub whole_stripes: u64,
    /// Destages of several separate runs of one stripe.
    pub scattered: u64,
    /// Write-throughs that waited for another write in flight to their stripe.
    pub held_back: u64,
    /// Held-back writes that went to the disk in one I/O with another.
    pub gathered: u64,
    /// Writes to the disk that contain gathered writes.
    pub gathered_into: u64,
    /// Destages for a FLUSH, a change of mode, throttled writers, or a write to the disk over dirty
    /// data. In an ordered volume: destages of the epochs that one of these waits for.
    pub urgent: u64,
    /// Destages because of age or the amount of dirty data. In an ordered volume, all others.
    pub normal: u64,
    /// Parts of writes that were throttled at the dirty limit.
    pub waits: u64,
    /// How long data was dirty on average, or has been if it still is, in milliseconds.
    pub mean_dirty_ms: u64,
    /// No dirty data is older than this, in milliseconds, to about a second: the time since the
    /// last moment without dirty data, since the pass by age before the last one, or since the
    /// start of the server. While passes by age do not run, it advances in steps of 30 seconds.
    pub dirty_for_ms: u64,
    /// Failed destages; their data is retried.
    pub errors: u64,
    /// The governor.
    pub governor: GovernorStatus,
}

/// The governor: limits the rate of writeback beside reads of the same disk.
#[derive(Clone, Debug, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct GovernorStatus {
    /// The p99 of reads to preserve, as set: `idle`, `off` or a time.
    pub read_latency: String,
    /// The p99 of reads that overlapped no writeback, in microseconds; null until there were
    /// enough.
    pub idle_p99_us: Option<u64>,
    /// The target p99, in microseconds; null if it is not yet known, or if there is none.
    pub target_p99_us: Option<u64>,
    /// The latest p99 of reads that overlapped writeback, in microseconds.
    pub beside_p99_us: Option<u64>,
    /// Bursts of 1 MiB or 8 I/Os per second beside reads, while little is dirty; null for no limit.
    /// The rate rises near the dirty limit.
    pub bursts_per_second: Option<f64>,
    /// How often the rate was raised.
    pub raised: u64,
    /// How often the rate was lowered.
    pub lowered: u64,
}
