//! What the server tells about its journals.
//!
//! [`JournalFigures`] is what a daemon has at hand; [`JournalStatus`] is how it goes over the
//! socket. So what `failed` and `working` are called is decided here, and not by each manager.

use serde::{Deserialize, Serialize};
use std::fmt;
use utoipa::ToSchema;

/// What a journal is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum JournalState {
    /// It records writes.
    #[default]
    Working,
    /// It records writes on one of its two devices: the other one has failed, or is missing.
    Degraded,
    /// It was given up: its volumes write through from then on.
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

/// One journal. What it has done counts from the start of the server, or from when the first
/// volume that names it was added; what was recorded by processes before is not in it.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct JournalStatus {
    /// Where it lies, in the words of the volumes that name it.
    pub name: String,
    /// Where its mirror lies; null without one.
    pub mirror: Option<String>,
    /// Which journal it is, in hexadecimal. Another one on the same device has another number.
    pub id: String,
    /// What it is doing.
    pub state: JournalState,
    /// Why it has failed or is degraded, in one line.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state_reason: Option<String>,
    /// Bytes that records can take, their headers included.
    pub capacity_bytes: u64,
    /// Bytes of those that can't be used anew yet, in whole segments.
    pub used_bytes: u64,
    /// Records made stable: a write, a zeroing or a trim of one part of a request each.
    pub records: u64,
    /// Batches made stable; records that come together share one.
    pub batches: u64,
    /// Bytes written to the device for those batches.
    pub written_bytes: u64,
    /// Bytes of clients' data in them.
    pub payload_bytes: u64,
    /// Checkpoints begun. Each brings what was recorded before to the disks and makes room.
    pub checkpoints: u64,
    /// Bytes recorded once more because a disk did not take them, so that the rest of the journal
    /// could be used anew.
    pub kept_bytes: u64,
    /// Times that the journal was read back from its beginning to its end.
    pub walks: u64,
    /// Bytes that were found good then.
    pub walked_bytes: u64,
    /// Places that were not as they had been written. What they held is brought to the disks.
    pub damaged_places: u64,
    /// Of those, places that were written anew from the other device.
    pub healed_places: u64,
    /// Volumes that it holds writes of and that are not served. They are kept until such a volume
    /// is served again.
    pub unserved: Vec<UnservedWrites>,
}

/// What a journal holds of a volume that is not served.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct UnservedWrites {
    /// The volume's name.
    pub volume: String,
    /// Bytes of writes that its disk may not have.
    pub bytes: u64,
}

/// A journal in the plain words of whoever runs it; the units are those of [`JournalStatus`].
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct JournalFigures {
    /// Where it lies, in the words of the volumes that name it.
    pub name: String,
    /// Where its mirror lies.
    pub mirror: Option<String>,
    /// Which journal it is.
    pub id: String,
    /// Why it takes nothing more, if so.
    pub failed: Option<String>,
    /// Why it has one device where it should have two, if so.
    pub degraded: Option<String>,
    /// Bytes that records can take.
    pub capacity_bytes: u64,
    /// Bytes of those that can't be used anew yet.
    pub used_bytes: u64,
    /// Records made stable.
    pub records: u64,
    /// Batches made stable.
    pub batches: u64,
    /// Bytes written for them.
    pub written_bytes: u64,
    /// Bytes of clients' data in them.
    pub payload_bytes: u64,
    /// Checkpoints begun.
    pub checkpoints: u64,
    /// Bytes recorded once more because a disk did not take them.
    pub kept_bytes: u64,
    /// Times that it was read back.
    pub walks: u64,
    /// Bytes found good then.
    pub walked_bytes: u64,
    /// Places that were not as they had been written.
    pub damaged_places: u64,
    /// Of those, places written anew from the other device.
    pub healed_places: u64,
    /// Volumes with writes that are not served, and the bytes of those writes.
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
    fn figures_are_told_with_state_and_reason() {
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
        let mut told = json!({
            "name": "/j", "mirror": "/k", "id": "ab", "state": "working", "capacity_bytes": 8,
            "used_bytes": 7, "records": 6, "batches": 5, "written_bytes": 4, "payload_bytes": 3,
            "checkpoints": 2, "kept_bytes": 9, "walks": 10, "walked_bytes": 11,
            "damaged_places": 12, "healed_places": 13, "unserved": [{"volume": "old", "bytes": 1}],
        });
        let status = JournalStatus::from(figures.clone());
        assert_eq!(serde_json::to_value(&status).unwrap(), told);
        let degraded = Some("/k is missing".to_owned());
        let status = JournalStatus::from(JournalFigures { degraded, ..figures.clone() });
        (told["state"], told["state_reason"]) = ("degraded".into(), "/k is missing".into());
        assert_eq!(serde_json::to_value(&status).unwrap(), told);
        let failed = Some("I/O error".to_owned());
        let status = JournalStatus::from(JournalFigures { failed, ..figures });
        (told["state"], told["state_reason"]) = ("failed".into(), "I/O error".into());
        assert_eq!(serde_json::to_value(&status).unwrap(), told);
        assert_eq!(serde_json::from_value::<JournalStatus>(told).unwrap(), status);
    }

    #[test]
    fn a_volume_without_a_journal_says_so() {
        let told = serde_json::to_value(crate::VolumeStatus::default()).unwrap();
        assert!(told["journal"].is_null() && told["durability"].is_null());
        assert!(told.as_object().unwrap().contains_key("journal"));
    }
}
