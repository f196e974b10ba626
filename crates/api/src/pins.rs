//! Pinned ranges of a volume.

use serde::{Deserialize, Serialize};
use std::fmt;
use utoipa::ToSchema;

/// The state of a volume's pinned ranges.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum PinState {
    /// Nothing is pinned.
    #[default]
    None,
    /// Not everything is in memory yet: the rest is read in the background.
    Loading,
    /// Everything is in memory.
    Loaded,
    /// The disk fails reads of what is not in memory yet; they are repeated.
    Failing,
    /// The mode is bypass. The ranges are read again in another mode.
    Suspended,
    /// The ranges of the configuration are not pinned; see the reason.
    Refused,
}

impl fmt::Display for PinState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::None => "none",
            Self::Loading => "loading",
            Self::Loaded => "loaded",
            Self::Failing => "failing",
            Self::Suspended => "suspended",
            Self::Refused => "refused",
        })
    }
}

/// The pinned ranges of a volume. The setting `pin` lists them.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct PinStatus {
    /// Their state.
    pub state: PinState,
    /// Why they are not pinned, in one line.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state_reason: Option<String>,
    /// Their bytes, in whole lines.
    pub pinned_bytes: u64,
    /// Bytes of them in memory, in whole lines.
    pub loaded_bytes: u64,
}
