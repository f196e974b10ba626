//! What a volume would miss with less or more memory, and the advice that follows.

use serde::{Deserialize, Serialize};
use std::fmt;
use utoipa::ToSchema;

/// The share of a volume's accesses that miss now, and that would miss with other sizes of the
/// pool. An access is one line of a read or a write of a client. Counts fall by half in an hour,
/// so the figures describe about the last two hours.
#[derive(Clone, Debug, PartialEq, Default, Serialize, Deserialize, ToSchema)]
pub struct CurveStatus {
    /// Accesses, decayed.
    pub accesses: u64,
    /// The accesses to sampled lines among them: the basis of an estimate by LRU.
    pub sampled_accesses: u64,
    /// The miss ratios of sizes, in ascending order. With an outlook, these are half of the
    /// volume's share of the pool, all of it (measured), twice and four times the share, as the
    /// eviction policy in use would serve the volume beside all others. Without one, from an eighth
    /// of the pool to eight pools, as an LRU cache for this volume alone would serve it without
    /// read-ahead; the only estimate for a volume in bypass. Empty before the first access, and
    /// without memory for a curve.
    pub points: Vec<CurvePoint>,
    /// The effect of less or more memory; null while it is unknown: before a thousand sampled
    /// accesses, and while no data of the volume is in memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outlook: Option<MemoryOutlook>,
}

/// The miss ratio with one size.
#[derive(Clone, Copy, Debug, PartialEq, Default, Serialize, Deserialize, ToSchema)]
pub struct CurvePoint {
    /// The size: the volume's share of the pool.
    pub bytes: u64,
    /// The share of accesses that miss, from 0 to 1.
    pub miss_ratio: f64,
    /// The hits gained compared with the volume's present share of the pool, in decayed accesses;
    /// negative if hits are lost. Without an outlook, compared with an LRU cache of the whole pool.
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
    /// With 2 or 4 times the pool, at least five percentage points fewer accesses would miss for
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
    /// The volume's share of the pool: in proportion to its part of the data in memory.
    pub share_bytes: u64,
    /// The share of accesses that would miss with half the pool, from 0 to 1.
    pub miss_ratio_half: f64,
    /// The share of accesses that miss now, as measured. What read-ahead has brought in time does
    /// not miss, with any size of the pool.
    pub miss_ratio_now: f64,
    /// The share of accesses that would miss with twice the pool.
    pub miss_ratio_twice: f64,
    /// The advice that follows.
    pub advice: MemoryAdvice,
    /// Why, in one sentence.
    pub reason: String,
}
