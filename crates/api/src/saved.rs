//! Volumes in memory.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The image of a volume in memory, from which it is loaded, and to which it is saved: on request,
/// at intervals if there is one, when it is removed, and when the server stops. A crash loses later
/// writes.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct SavedStatus {
    /// The file.
    pub file: String,
    /// Seconds since it was written; absent before the first save.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub age_seconds: Option<u64>,
    /// Whether the volume was changed since.
    pub changed: bool,
    /// Whether it is being saved now.
    #[serde(default)]
    pub saving: bool,
    /// How long the last save took, in milliseconds; none before the first one of this server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub took_ms: Option<u64>,
    /// Seconds from one save to the next, if it is saved at intervals.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub every_seconds: Option<u64>,
    /// Why the last save failed, if it did. It is tried again within a minute.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// What to do about that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remedy: Option<String>,
}
