//! The geometry of a volume's disk.

use serde::{Deserialize, Serialize};
use std::fmt;
use utoipa::ToSchema;

/// The source of a part of the geometry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum GeometrySource {
    /// Reported by the disk.
    Device,
    /// The settings of the volume.
    SetByHand,
    /// Unknown.
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

/// The effective geometry of a volume's disk.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct GeometryStatus {
    /// Data per full stripe, without parity and copies; zero if there are no stripes or they are
    /// unknown.
    pub stripe_bytes: u64,
    /// Its source.
    pub stripe_source: GeometrySource,
    /// The part of a stripe on one drive; zero if unknown.
    pub chunk_bytes: u64,
    /// Its source.
    pub chunk_source: GeometrySource,
    /// The offset of the first whole stripe in the volume.
    pub stripe_offset_bytes: u64,
    /// Its source; `unknown` if the offset is a guess.
    pub stripe_offset_source: GeometrySource,
    /// The preferred size of I/O; zero if unknown.
    pub optimal_bytes: u64,
    /// Whether seeks cost time; null if unknown.
    pub rotational: Option<bool>,
    /// Its source.
    pub rotational_source: GeometrySource,
    /// Contradictions, a sentence each.
    pub notes: Vec<String>,
}
