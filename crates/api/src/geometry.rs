//! How the disk of a volume would like to be read and written.

use serde::{Deserialize, Serialize};
use std::fmt;
use utoipa::ToSchema;

/// Who says a part of the geometry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum GeometrySource {
    /// The disk, or the system of it.
    Device,
    /// The settings of the volume.
    SetByHand,
    /// Nobody: it is not known.
    #[default]
    Unknown,
}

impl fmt::Display for GeometrySource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Device => "device",
            Self::SetByHand => "set by hand",
            Self::Unknown => "unknown",
        })
    }
}

/// What the geometry of a volume's disk is taken to be.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct GeometryStatus {
    /// Data in a full stripe, without parity and copies; zero where there are no stripes, or none
    /// are known.
    pub stripe_bytes: u64,
    /// Who says so.
    pub stripe_source: GeometrySource,
    /// What of a stripe lies on one disk; zero where it is not known.
    pub chunk_bytes: u64,
    /// Who says so.
    pub chunk_source: GeometrySource,
    /// Where the first whole stripe begins, from the first byte of the volume.
    pub stripe_offset_bytes: u64,
    /// Who says so; `unknown` where it is a guess.
    pub stripe_offset_source: GeometrySource,
    /// The size that I/O should have where there is a choice; zero where it is not known.
    pub optimal_bytes: u64,
    /// Whether seeks cost; null where it is not known.
    pub rotational: Option<bool>,
    /// Who says so.
    pub rotational_source: GeometrySource,
    /// What of it does not fit together, a sentence each.
    pub notes: Vec<String>,
}
