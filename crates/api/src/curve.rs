//! The miss-ratio curve of a volume, and the advice that follows from it.

use serde::{Deserialize, Serialize};
use std::fmt;
use utoipa::ToSchema;

/// The estimated miss-ratio curve of a volume: the share of accesses that an LRU cache of each size
/// would miss. An access is one line of a read or a write of a client. Counts fall by half in an
/// hour, so the curve describes about the last two hours.
#[derive(Clone, Debug, PartialEq, Default, Serialize, Deserialize, ToSchema)]
pub struct CurveStatus {
    /// Accesses, decayed.
    pub accesses: u64,
    /// The accesses to sampled lines among them: the basis of the estimate.
    pub sampled_accesses: u64,
    /// The curve, in ascending order of sizes. Empty before the first access, and without memory
    /// for a curve.
    pub points: Vec<CurvePoint>,
    /// The effect of less or more memory; null while it is unknown: before a thousand sampled
    /// accesses, and while no data of the volume is in memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outlook: Option<MemoryOutlook>,
}

/// A point of a miss-ratio curve.
#[derive(Clone, Copy, Debug, PartialEq, Default, Serialize, Deserialize, ToSchema)]
pub struct CurvePoint {
    /// The size of the cache of this volume alone.
    pub bytes: u64,
    /// The share of accesses that miss, from 0 to 1.
    pub miss_ratio: f64,
    /// The hits gained compared with the volume's present share of the pool, in decayed accesses;
    /// negative if hits are lost. While that share is unknown, it is compared with the whole pool.
    pub hits_gained: f64,
}

/// Whether another size of the pool would serve a volume better.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum MemoryAdvice {
    /// Neither `less` nor `more` applies.
    #[default]
    Keep,
    /// With half the pool, less than one percentage point more accesses would miss.
    Less,
    /// With 2, 4 or 8 times the pool, at least five percentage points fewer accesses would miss for
    /// each doubling.
    More,
}

impl fmt::Display for MemoryAdvice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Keep => "keep",
            Self::Less => "less",
            Self::More => "more",
        })
    }
}

/// The effect of less or more memory on a volume.
#[derive(Clone, Debug, PartialEq, Default, Serialize, Deserialize, ToSchema)]
pub struct MemoryOutlook {
    /// The volume's share of the pool: in proportion to its part of the data in memory. It would
    /// have the same part of a smaller or larger pool.
    pub share_bytes: u64,
    /// The share of accesses that would miss with half the pool, from 0 to 1.
    pub miss_ratio_half: f64,
    /// The share of accesses that miss now, estimated from the curve.
    pub miss_ratio_now: f64,
    /// The share of accesses that would miss with twice the pool.
    pub miss_ratio_twice: f64,
    /// The advice that follows.
    pub advice: MemoryAdvice,
    /// Why, in one sentence.
    pub reason: String,
}
