//! The status of journals.

use crate::LatencySummary;
use serde::{Deserialize, Serialize};
use std::fmt;
use utoipa::ToSchema;

/// The state of a journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum JournalState {
    /// It records writes.
    #[default]
    Working,
    /// It records writes on one of its two devices: the other one has failed or is missing.
    Degraded,
    /// It records nothing more: its volumes write through.
    Failed,
}

impl fmt::Display for JournalState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Working => "working",
            Self::Degraded => "degraded",
            Self::Failed => "failed",
        })
    }
}

/// One journal. Counters start with the server, or when the first volume that uses the journal was
/// added; records of earlier processes are not counted.
#[derive(Clone, Debug, PartialEq, Default, Serialize, Deserialize, ToSchema)]
pub struct JournalStatus {
    /// Its device or file, as in the settings of its volumes.
    pub name: String,
    /// Its mirror; null without one.
    pub mirror: Option<String>,
    /// Its identity, in hexadecimal. A new journal on the same device has another one.
    pub id: String,
    /// Its state.
    pub state: JournalState,
    /// Why it has failed or is degraded, in one line.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state_reason: Option<String>,
    /// What its writes wait for, with the path and the system's error: the record of its failure,
    /// or of the loss of one of its devices, cannot be written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waits_for: Option<String>,
    /// The size of the log, for records with their headers.
    pub capacity_bytes: u64,
    /// The used part of the log, in whole segments.
    pub used_bytes: u64,
    /// Records made durable. A record is a write, a zeroing or a trim of one part of a request.
    pub records: u64,
    /// Batches made durable.
    pub batches: u64,
    /// Bytes written to the device for the batches.
    pub written_bytes: u64,
    /// Payload of the batches: bytes of clients' data.
    pub payload_bytes: u64,
    /// Checkpoints begun. A checkpoint destages recorded writes to free log space.
    pub checkpoints: u64,
    /// Bytes recorded again because a disk refused them, so that their log space could be freed.
    pub kept_bytes: u64,
    /// Completed verifications of the whole log.
    pub walks: u64,
    /// Bytes verified as intact.
    pub walked_bytes: u64,
    /// Places in the log found damaged. Their data is destaged.
    pub damaged_places: u64,
    /// Damaged places rewritten from the other device.
    pub healed_places: u64,
    /// Latencies of writes to the log, from the start of a batch's write until it is durable.
    #[serde(default)]
    pub commit: LatencySummary,
    /// Volumes that are not served, but have writes in the journal. The writes are kept until the
    /// volume is served again.
    pub unserved: Vec<UnservedWrites>,
}

/// The writes in a journal of a volume that is not served.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct UnservedWrites {
    /// The volume's name.
    pub volume: String,
    /// Bytes of writes that its disk may not have.
    pub bytes: u64,
}

impl JournalStatus {
    /// Sets the state, with the error as its reason, if the journal has failed or runs on one
    /// device of two.
    #[must_use]
    pub fn with_errors(self, failed: Option<String>, degraded: Option<String>) -> Self {
        let state = match (&failed, &degraded) {
            (Some(_), _) => JournalState::Failed,
            (None, Some(_)) => JournalState::Degraded,
            (None, None) => JournalState::Working,
        };
        Self { state, state_reason: failed.or(degraded), ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_or_degraded_journal_shows_the_error() {
        let state = |failed: Option<&str>, degraded: Option<&str>| {
            let texts = (failed.map(str::to_owned), degraded.map(str::to_owned));
            let status = JournalStatus::default().with_errors(texts.0, texts.1);
            let json = serde_json::to_value(&status).unwrap();
            assert_eq!(serde_json::from_value::<JournalStatus>(json.clone()).unwrap(), status);
            (json["state"].clone(), json.get("state_reason").cloned())
        };
        assert_eq!(state(None, None), ("working".into(), None));
        assert_eq!(state(None, Some("missing")), ("degraded".into(), Some("missing".into())));
        let failed = ("failed".into(), Some("I/O error".into()));
        assert_eq!(state(Some("I/O error"), Some("missing")), failed);
    }

    #[test]
    fn a_volume_without_a_journal_has_null_fields() {
        let status = serde_json::to_value(crate::VolumeStatus::default()).unwrap();
        assert!(status["journal"].is_null() && status["durability"].is_null());
        assert!(status.as_object().unwrap().contains_key("journal"));
    }
}
