//! The errors of journals, with their remedies.

use forebay_backend::OpenError;
use forebay_format::journal::{JOURNAL_BYTES_MIN, JournalId};
use forebay_journal::identity::Evidence;
use forebay_journal::{LogError, RecoverError};
use forebay_types::{Action, Blame, Fault, IoError, Remedy};
use std::io;

/// Why a journal cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JournalError {
    /// The device is too small.
    #[error("journal {name} has {bytes} bytes, and it needs {JOURNAL_BYTES_MIN}")]
    Small {
        /// The device.
        name: String,
        /// Its size.
        bytes: u64,
    },
    /// The device is read-only.
    #[error("journal {0} can only be read")]
    ReadOnly(String),
    /// The blocks of the device are larger than those of the log.
    #[error("journal {name} takes nothing smaller than {block_bytes} bytes")]
    Blocks {
        /// The device.
        name: String,
        /// Its block size.
        block_bytes: u32,
    },
    /// The device holds other data.
    #[error("{0} holds something that is not a journal of this program")]
    Foreign(String),
    /// The device cannot be read as a journal.
    #[error("journal {name} can't be used")]
    Unusable {
        /// The device.
        name: String,
        /// The reason.
        #[source]
        error: RecoverError,
    },
    /// Records of acknowledged writes can no longer be read.
    #[error("journal {name} is damaged: {damage}; acknowledged writes are lost")]
    Damaged {
        /// The device.
        name: String,
        /// The damage.
        damage: String,
    },
    /// The journal was abandoned, and all of its records are void.
    #[error(
        "journal {name} ({id}) failed earlier, or was left out as lost, and was given up: its \
         records are older than the disks"
    )]
    Abandoned {
        /// The device.
        name: String,
        /// Its identity.
        id: JournalId,
    },
    /// A volume relies on a journal other than the configured one.
    #[error(
        "volume '{volume}' may have its newest data in journal {name}, which is not the one that \
         is named, or has been emptied: it is not served older than what was acknowledged"
    )]
    Missing {
        /// The name of its device.
        name: String,
        /// The volume.
        volume: String,
    },
    /// One device of a mirrored journal is missing, and may have newer records.
    #[error(
        "journal {name} has one of its two devices, and nothing in the state directory says that \
         the missing one is not newer"
    )]
    MayBeStale {
        /// The present device.
        name: String,
    },
    /// The two devices do not belong to one journal.
    #[error("journal {name} can't be used")]
    NoMirror {
        /// The devices.
        name: String,
        /// The reason.
        #[source]
        error: RecoverError,
    },
    /// The state directory has records of the journal, which cannot be read or written.
    #[error("journal {name}: its records in the state directory can't be read or written")]
    Record {
        /// The device.
        name: String,
        /// The system's error.
        #[source]
        error: io::Error,
    },
    /// The journal was abandoned for this volume, but holds the newest data of others.
    #[error(
        "journal {name} failed earlier, or was left out as lost, and was given up for volume \
         '{volume}', and holds the newest there is of {others}"
    )]
    AbandonedFor {
        /// The device.
        name: String,
        /// The volume.
        volume: String,
        /// The volumes that still need it.
        others: String,
    },
    /// The journal holds writes of this volume, and its disk is not recognised.
    #[error(
        "journal {name} holds {bytes} bytes of volume '{volume}', and {disk} is not known to be \
         their disk as it was left ({evidence}): they are kept, and the volume is not served"
    )]
    ChangedDisk {
        /// The device.
        name: String,
        /// The volume.
        volume: String,
        /// The disk.
        disk: String,
        /// Bytes of the volume in the journal.
        bytes: u64,
        /// The comparison of the disk with the journal.
        evidence: Evidence,
    },
    /// The vault holds data of the volume, too.
    #[error(
        "journal {name} holds {bytes} bytes of volume '{volume}', and so does the vault: which of \
         them is newer is not known"
    )]
    AlsoInVault {
        /// The device.
        name: String,
        /// The volume.
        volume: String,
        /// Bytes of the volume in the journal.
        bytes: u64,
    },
    /// The device fails.
    #[error("journal {name} fails")]
    Io {
        /// The device.
        name: String,
        /// The error of the device.
        #[source]
        error: IoError,
    },
    /// The log refuses the operation.
    #[error("journal {name} can't be used")]
    Log {
        /// The device.
        name: String,
        /// The reason.
        #[source]
        error: LogError,
    },
}

impl Fault for JournalError {
    fn remedy(&self) -> Remedy {
        match self {
            Self::Small { .. } => {
                "name a file or device of its own that has them, better a tenth of the memory"
                    .into()
            }
            Self::ReadOnly(_) => Remedy::from("make it writable").or("name another one"),
            Self::Blocks { .. } => "name a device with blocks of 512 or 4096".into(),
            Self::Foreign(_) => Remedy::from("name another device").or(ERASE_UNNEEDED),
            Self::Unusable { .. } => {
                Remedy::from("replace it").or("bring back the program that wrote it")
            }
            Self::Damaged { .. } => {
                "to serve what is left, start once with accept-loss=yes on its volumes".into()
            }
            Self::Abandoned { .. } => Remedy::from("replace it").or(ERASE_FOR_NEW),
            Self::Missing { volume, .. } => Remedy::from("name that journal for it again")
                .or(Action::RescueApply)
                .or(Action::AcceptLostJournal(volume.clone())),
            Self::MayBeStale { .. } => Remedy::from("bring it back")
                .or("if it is lost, start once with accept-loss=yes on the journal's volumes"),
            Self::NoMirror { .. } => {
                Remedy::from("name the two devices of one journal").or(ERASE_OTHER)
            }
            Self::Record { .. } => "mend the directory, or make room in it".into(),
            Self::AbandonedFor { volume, .. } => {
                let keep = "keep this one until these are served again or what it holds is on \
                            their disks";
                Remedy::from(format!("name another journal for '{volume}', and {keep}"))
                    .or(Action::RescueApply)
            }
            Self::ChangedDisk { volume, .. } => Remedy::from("serve it from the right disk")
                .or(Action::RescueApply)
                .or(Action::RescueDiscard)
                .or(Action::AcceptChangedDisk(volume.clone())),
            Self::AlsoInVault { .. } => {
                Remedy::from(Action::RescueList).or(Action::RescueApply).or(Action::RescueDiscard)
            }
            Self::Io { .. } => {
                Remedy::from("see the kernel's log for the device").or("name another one")
            }
            Self::Log { error, .. } => remedy_for_log(error),
        }
    }

    fn blame(&self) -> Blame {
        match self {
            Self::Log { error: LogError::InUse, .. } => Blame::Bug,
            _ => Blame::Environment,
        }
    }
}

const ERASE_UNNEEDED: &str =
    "overwrite its first 128 KiB with zeroes if what is on it is not needed";
const ERASE_FOR_NEW: &str = "overwrite its first 128 KiB with zeroes to begin a new one";
const ERASE_OTHER: &str = "overwrite the first 128 KiB of the one that is not needed with zeroes";

fn remedy_for_log(error: &LogError) -> Remedy {
    match error {
        LogError::TooManyVolumes => "name another journal for some of the volumes".into(),
        LogError::NoMoreNumbers => {
            "stop the server and start it again, so that the journal begins anew".into()
        }
        LogError::DrainFirst => Action::RescueApply.into(),
        LogError::InUse => Action::Report.into(),
        LogError::ShortSegments { .. } => Remedy::from(Action::RescueApply).or("replace it"),
    }
}

/// A device of a mirrored journal that could not be opened.
#[derive(Debug, thiserror::Error)]
#[error("{name} cannot be opened")]
pub struct MissingDevice {
    /// Its name.
    pub name: String,
    /// The reason.
    #[source]
    pub error: OpenError,
}

impl Fault for MissingDevice {
    fn remedy(&self) -> Remedy {
        self.error.remedy()
    }

    fn blame(&self) -> Blame {
        self.error.blame()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_backend::FileError;

    #[test]
    fn a_missing_device_has_the_cause_and_the_remedy_of_its_open() {
        let open = || OpenError::from(FileError::NotFound { path: "/b".into() });
        let missing = MissingDevice { name: "/b".into(), error: open() };
        assert_eq!(missing.with_causes(), "/b cannot be opened: '/b' does not exist");
        assert_eq!(missing.remedy(), open().remedy());
    }
}
