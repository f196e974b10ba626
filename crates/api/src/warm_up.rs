//! The warm-up of a volume.

use serde::{Deserialize, Serialize};
use std::fmt;
use utoipa::ToSchema;

/// The state of a volume's warm-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum WarmUpState {
    /// There was none since the volume was added: there was no list, or the pool was kept.
    #[default]
    None,
    /// It is in progress.
    Loading,
    /// Everything was read.
    Loaded,
    /// It ended because memory was full.
    Full,
    /// It ended because the disk failed reads.
    Failing,
    /// It was ended by a change of settings.
    Cancelled,
    /// The list was damaged, too long, of another version, or of another disk; the log says which.
    Unusable,
}

impl fmt::Display for WarmUpState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::None => "none",
            Self::Loading => "loading",
            Self::Loaded => "loaded",
            Self::Full => "full",
            Self::Failing => "failing",
            Self::Cancelled => "cancelled",
            Self::Unusable => "unusable",
        })
    }
}

/// The warm-up of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct WarmUpStatus {
    /// Whether the list of what is valuable is kept, for the next start.
    pub enabled: bool,
    /// The state of the warm-up after this start.
    pub state: WarmUpState,
    /// Bytes on the list, as far as they fit the volume's part of memory.
    pub planned_bytes: u64,
    /// Bytes that the warm-up is done with: read, or in memory already.
    pub done_bytes: u64,
}
