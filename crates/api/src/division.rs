//! How the pool is divided between the volumes.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The parts of the pool that volumes have, and what a division by their miss-ratio curves would
/// bring. The parts result from one eviction policy over the lines of all volumes.
#[derive(Clone, Debug, PartialEq, Default, Serialize, Deserialize, ToSchema)]
pub struct PoolDivision {
    /// The additional share of all accesses that a division by the curves would serve from memory,
    /// from 0 to 1, as the curves estimate it; null while too few accesses are known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gain: Option<f64>,
    /// What shares by the curves would gain, in one sentence.
    pub reason: String,
    /// The volumes, in the order of their addition.
    pub volumes: Vec<VolumePart>,
}

/// The part of the pool that a volume has.
#[derive(Clone, Debug, PartialEq, Default, Serialize, Deserialize, ToSchema)]
pub struct VolumePart {
    /// The volume.
    pub name: String,
    /// Its lines in the pool, of 4 KiB each.
    pub lines: u64,
    /// Their part of the pool, from 0 to 1.
    pub part: f64,
    /// The part that it would have by the curves, from 0 to 1; null while that is unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub part_by_curves: Option<f64>,
}
