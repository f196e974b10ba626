//! The settings of a journal, and of its use by a volume.

use super::{Journal, MemberRecord, MissingDevice, VoidRecords};
use forebay_backend::Backend;
use forebay_format::journal::JournalId;
use forebay_types::{Durability, IoError};
use std::sync::Arc;
use std::time::Duration;

/// Records the failure of a journal durably, with the names of the volumes that continue without
/// it, in addition to those recorded before. Called before any of them continues, possibly by
/// several threads.
pub type OnFailure =
    Box<dyn Fn(JournalId, IoError, &[String]) -> std::io::Result<()> + Send + Sync>;

/// The settings that a journal is opened with.
pub struct JournalSettings {
    /// Its device, or the device of a mirrored journal that could be opened.
    pub backend: Arc<dyn Backend>,
    /// The second device of a mirrored journal.
    pub mirror: Option<Result<Arc<dyn Backend>, MissingDevice>>,
    /// Records the members of a mirrored journal.
    pub members: Box<dyn MemberRecord>,
    /// Open the journal although records in it are damaged.
    pub accept_loss: bool,
    /// Looks up which records of the journal are void because it failed.
    pub is_abandoned: Box<dyn Fn(JournalId) -> VoidRecords>,
    /// How often its superblock is written again, see [`super::beat_every`].
    pub beat_every: Option<Duration>,
    /// See [`OnFailure`].
    pub on_failure: OnFailure,
}

/// How a volume uses its journal.
pub struct VolumeJournal {
    /// The journal.
    pub journal: Arc<Journal>,
    /// When a write is acknowledged.
    pub durability: Durability,
    /// Identifies the volume's disk in the journal.
    pub identity: [u8; 32],
    /// Accept the disk although it differs from the recorded one.
    pub accept_disk: bool,
}
