//! The status of journals.
//!
//! A manager fills in [`JournalFigures`]; [`JournalStatus`] is the form in the API. Only the
//! conversion between them decides the state.

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
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
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

/// The figures of a journal, from which a manager's [`JournalStatus`] is made.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct JournalFigures {
    /// See [`JournalStatus::name`].
    pub name: String,
    /// See [`JournalStatus::mirror`].
    pub mirror: Option<String>,
    /// See [`JournalStatus::id`].
    pub id: String,
    /// The error, if the journal has failed.
    pub failed: Option<String>,
    /// The error, if the journal runs on one device of two.
    pub degraded: Option<String>,
    /// See [`JournalStatus::capacity_bytes`].
    pub capacity_bytes: u64,
    /// See [`JournalStatus::used_bytes`].
    pub used_bytes: u64,
    /// See [`JournalStatus::records`].
    pub records: u64,
    /// See [`JournalStatus::batches`].
    pub batches: u64,
    /// See [`JournalStatus::written_bytes`].
    pub written_bytes: u64,
    /// See [`JournalStatus::payload_bytes`].
    pub payload_bytes: u64,
    /// See [`JournalStatus::checkpoints`].
    pub checkpoints: u64,
    /// See [`JournalStatus::kept_bytes`].
    pub kept_bytes: u64,
    /// See [`JournalStatus::walks`].
    pub walks: u64,
    /// See [`JournalStatus::walked_bytes`].
    pub walked_bytes: u64,
    /// See [`JournalStatus::damaged_places`].
    pub damaged_places: u64,
    /// See [`JournalStatus::healed_places`].
    pub healed_places: u64,
    /// Volumes that are not served, and the bytes of their writes.
    pub unserved: Vec<(String, u64)>,
}

impl From<JournalFigures> for JournalStatus {
    fn from(figures: JournalFigures) -> Self {
        let state = match (&figures.failed, &figures.degraded) {
            (Some(_), _) => JournalState::Failed,
            (None, Some(_)) => JournalState::Degraded,
            (None, None) => JournalState::Working,
        };
        let unserved = figures.unserved.into_iter();
        Self {
            name: figures.name,
            mirror: figures.mirror,
            id: figures.id,
            state,
            state_reason: figures.failed.or(figures.degraded),
            capacity_bytes: figures.capacity_bytes,
            used_bytes: figures.used_bytes,
            records: figures.records,
            batches: figures.batches,
            written_bytes: figures.written_bytes,
            payload_bytes: figures.payload_bytes,
            checkpoints: figures.checkpoints,
            kept_bytes: figures.kept_bytes,
            walks: figures.walks,
            walked_bytes: figures.walked_bytes,
            damaged_places: figures.damaged_places,
            healed_places: figures.healed_places,
            unserved: unserved.map(|(volume, bytes)| UnservedWrites { volume, bytes }).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn figures_are_converted_with_state_and_reason() {
        let figures = JournalFigures {
            name: "/j".into(),
            mirror: Some("/k".into()),
            degraded: None,
            id: "ab".into(),
            capacity_bytes: 8,
            used_bytes: 7,
            records: 6,
            batches: 5,
            written_bytes: 4,
            payload_bytes: 3,
            checkpoints: 2,
            kept_bytes: 9,
            walks: 10,
            walked_bytes: 11,
            damaged_places: 12,
            healed_places: 13,
            unserved: vec![("old".into(), 1)],
            failed: None,
        };
        let mut expected = json!({
            "name": "/j", "mirror": "/k", "id": "ab", "state": "working", "capacity_bytes": 8,
            "used_bytes": 7, "records": 6, "batches": 5, "written_bytes": 4, "payload_bytes": 3,
            "checkpoints": 2, "kept_bytes": 9, "walks": 10, "walked_bytes": 11,
            "damaged_places": 12, "healed_places": 13, "unserved": [{"volume": "old", "bytes": 1}],
        });
        let status = JournalStatus::from(figures.clone());
        assert_eq!(serde_json::to_value(&status).unwrap(), expected);
        let degraded = Some("/k is missing".to_owned());
        let status = JournalStatus::from(JournalFigures { degraded, ..figures.clone() });
        (expected["state"], expected["state_reason"]) = ("degraded".into(), "/k is missing".into());
        assert_eq!(serde_json::to_value(&status).unwrap(), expected);
        let failed = Some("I/O error".to_owned());
        let status = JournalStatus::from(JournalFigures { failed, ..figures });
        (expected["state"], expected["state_reason"]) = ("failed".into(), "I/O error".into());
        assert_eq!(serde_json::to_value(&status).unwrap(), expected);
        assert_eq!(serde_json::from_value::<JournalStatus>(expected).unwrap(), status);
    }

    #[test]
    fn a_volume_without_a_journal_has_null_fields() {
        let status = serde_json::to_value(crate::VolumeStatus::default()).unwrap();
        assert!(status["journal"].is_null() && status["durability"].is_null());
        assert!(status.as_object().unwrap().contains_key("journal"));
    }
}
