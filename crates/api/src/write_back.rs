//! How what was written got to the disk of a volume.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// What write-back, and gathering on the way through, have done. Counts from when the volume was
/// added.
#[derive(Clone, Debug, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct WriteBackFigures {
    /// Writes to the disk.
    pub writes: u64,
    /// Bytes of these writes. Clean data that completed a stripe is among them.
    pub bytes: u64,
    /// Operations that wrote a whole stripe, so that the array had nothing to read first. Each
    /// stands for at least one read-modify-write that was avoided.
    pub whole_stripes: u64,
    /// Operations that wrote several runs of one stripe at once.
    pub scattered: u64,
    /// Writes through the cache that waited for another one to their stripe.
    pub held_back: u64,
    /// Of those, the ones that went to the disk together with another.
    pub gathered: u64,
    /// The writes to the disk that these went with.
    pub gathered_into: u64,
    /// Operations because of a FLUSH, a change of mode, or writers that waited.
    pub urgent: u64,
    /// Operations because of age, or the amount of dirty data.
    pub normal: u64,
    /// Times that a write waited because too much was dirty.
    pub waits: u64,
    /// How long what was written back had been dirty on average, in milliseconds.
    pub mean_dirty_ms: u64,
    /// Operations that failed; their data is tried again.
    pub errors: u64,
    /// What reads of the same disk let it do.
    pub governor: GovernorStatus,
}

/// How fast write-back may go while clients wait for reads of the same disk, and why.
#[derive(Clone, Debug, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct GovernorStatus {
    /// Which p99 of reads is to be kept, as it was set: `idle`, `off` or a time.
    pub read_latency: String,
    /// The p99 of reads that met no write-back, in microseconds; null until there were enough.
    pub idle_p99_us: Option<u64>,
    /// The p99 that is kept, in microseconds; null where there is none yet, or none is wanted.
    pub target_p99_us: Option<u64>,
    /// The p99 of reads beside write-back, the last time that there were enough, in microseconds.
    pub beside_p99_us: Option<u64>,
    /// Bursts of 1 MiB or 8 I/Os that may go in a second beside reads, while little is dirty; null
    /// for no limit. Near the dirty limit it is more.
    pub bursts_per_second: Option<f64>,
    /// How often that was raised.
    pub raised: u64,
    /// How often it was lowered.
    pub lowered: u64,
}
