//! The threshold below which writes of a volume are gathered.

use serde::{Deserialize, Serialize};
use std::fmt;
use utoipa::ToSchema;

/// The source of the threshold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum GatherSource {
    /// Measured by reads of the disk.
    Measured,
    /// The settings of the volume.
    SetByHand,
    /// The default.
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

/// The threshold below which writes of a volume are gathered, and its measurement.
#[derive(Clone, Debug, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct GatherStatus {
    /// Smaller writes are gathered; zero if none are.
    pub below_bytes: u64,
    /// The source of this threshold.
    pub source: GatherSource,
    /// The measured threshold: below it, the fixed cost of an I/O is more than a quarter of its
    /// time. This field and the next two are null without a measurement.
    pub measured_below_bytes: Option<u64>,
    /// The fixed cost of an I/O, in microseconds.
    pub fixed_us: Option<f64>,
    /// The transfer rate; null also if larger I/Os took no longer than smaller ones.
    pub bytes_per_second: Option<u64>,
    /// Why the last measurement was not made; null if it was.
    pub not_measured: Option<String>,
}
