//! How what was written got to the disk of a volume.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// What write-back, and gathering on the way through, have done. Counts from when the volume was
/// added.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
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
}
