//! Which writes of a volume are worth gathering.

use serde::{Deserialize, Serialize};
use std::fmt;
use utoipa::ToSchema;

/// Who says below which size writes are worth gathering.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum GatherSource {
    /// The disk, by how long reads of it took.
    Measured,
    /// The settings of the volume.
    SetByHand,
    /// Nobody.
    #[default]
    Default,
}

impl fmt::Display for GatherSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Measured => "measured",
            Self::SetByHand => "set by hand",
            Self::Default => "default",
        })
    }
}

/// Which writes of a volume are worth gathering, and what is known of that.
#[derive(Clone, Debug, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct GatherStatus {
    /// Those below this size; zero where none are.
    pub below_bytes: u64,
    /// Who says so.
    pub source: GatherSource,
    /// What was measured: of a smaller write, split, the disk takes a quarter of its time or more
    /// for nothing. Null where nothing was measured, as what follows here.
    pub measured_below_bytes: Option<u64>,
    /// The part of an I/O's time that its size has no say in, in microseconds.
    pub fixed_us: Option<f64>,
    /// How fast the rest is; null also where no size took longer than another.
    pub bytes_per_second: Option<u64>,
    /// Why it was not measured, or not again; null where it was.
    pub not_measured: Option<String>,
}
