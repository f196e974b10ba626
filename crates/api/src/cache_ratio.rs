//! How the cache is divided between reads and writes.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The division of the cache between reads and writes. Writes use at most their share. Reads use
/// their own share, and what writes leave unused of theirs.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct CacheRatio {
    /// The setting `cache-ratio`, as configured or set since.
    pub setting: String,
    /// The effective share for reads, in percent of the memory for data.
    pub read_percent: u8,
    /// The effective share for writes that are not on the disk yet, in percent.
    pub write_percent: u8,
    /// The same in bytes: the dirty limit. More may be dirty for a while after it was lowered.
    pub write_bytes: u64,
    /// Why the shares are what they are, in one sentence.
    pub reason: String,
}
