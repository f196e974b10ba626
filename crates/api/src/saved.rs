//! Volumes in memory.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The image of a volume in memory, from which it is loaded, and to which it is saved when it is
/// removed and when the server stops. A crash loses later writes.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct SavedStatus {
    /// The file.
    pub file: String,
    /// Seconds since it was written; absent before the first save.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub age_seconds: Option<u64>,
    /// Whether the volume was changed since.
    pub changed: bool,
}
