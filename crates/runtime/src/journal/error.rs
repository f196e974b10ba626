//! The errors of journals, with their remedies.

use forebay_backend::OpenError;
use forebay_format::journal::{JOURNAL_BYTES_MIN, JournalId, SuperblockInvalid};
use forebay_journal::identity::Evidence;
use forebay_journal::{LogError, RecoverError};
use forebay_types::{Action, Blame, Bytes, Fault, IoError, Remedy};
use std::io;

/// Why a journal cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JournalError {
    /// The device is too small.
    #[error(
        "journal {name} has {bytes} bytes, but it needs at least {} (33 MiB are enough)",
        JOURNAL_BYTES_MIN
    )]
    Small {
        /// The device.
        name: String,
        /// Its size.
        bytes: u64,
    },
    /// The device is read-only.
    #[error("journal {0} is read-only")]
    ReadOnly(String),
    /// The blocks of the device are larger than those of the log.
    #[error(
        "journal {name} has blocks of {}, which are too large for a journal",
        Bytes((*block_bytes).into())
    )]
    Blocks {
        /// The device.
        name: String,
        /// Its block size.
        block_bytes: u32,
    },
    /// The device holds other data.
    #[error("{0} is not empty, and does not hold a journal of forebay")]
    Foreign(String),
    /// The device cannot be read as a journal.
    #[error("journal {name} {error}")]
    Unusable {
        /// The device.
        name: String,
        /// The reason, as a predicate of the device.
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
        "journal {name} ({id}) failed, or was given up as lost, while its volumes were served: its \
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
        "the newest data of volume '{volume}' may be in journal {name}, which is not the \
         configured one or has been emptied; without it, acknowledged writes could be missing"
    )]
    Missing {
        /// The name of its device.
        name: String,
        /// The volume.
        volume: String,
    },
    /// One device of a mirrored journal is missing, and may have newer records.
    #[error("journal {name} has only one of its two devices, and the missing one may be newer")]
    MayBeStale {
        /// The present device.
        name: String,
    },
    /// The two devices do not belong to one journal.
    #[error("journal {name} {error}")]
    NoMirror {
        /// The devices.
        name: String,
        /// The reason, as a predicate of the devices.
        error: RecoverError,
    },
    /// The state directory has records of the journal, which cannot be read or written.
    #[error("journal {name}: cannot read or write its records in the state directory")]
    Record {
        /// The device.
        name: String,
        /// The system's error.
        #[source]
        error: io::Error,
    },
    /// The journal was abandoned for this volume, but holds the newest data of others.
    #[error(
        "volume '{volume}' was served without journal {name}, after the journal failed or was \
         given up as lost: its records of the volume are older than the disk"
    )]
    AbandonedFor {
        /// The device.
        name: String,
        /// The volume.
        volume: String,
        /// The volumes that still need it, separated by commas; may be empty.
        others: String,
    },
    /// The journal holds writes of this volume, and its disk is not recognised.
    #[error(
        "journal {name} holds {} of volume '{volume}', but {disk} is not recognised as \
         the volume's unchanged disk ({evidence}); the data is kept, and the volume is not served",
        Bytes(*bytes)
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
    /// The journal holds writes of a volume that is served without it.
    #[error(
        "journal {name} holds {} of volume '{volume}' from an earlier use",
        Bytes(*bytes)
    )]
    Holds {
        /// The device.
        name: String,
        /// The volume.
        volume: String,
        /// Bytes of the volume in the journal.
        bytes: u64,
    },
    /// An earlier move of the volume to or from the journal has not ended.
    #[error("journal {name} has not answered to an earlier move of volume '{volume}'")]
    Pending {
        /// The device.
        name: String,
        /// The volume.
        volume: String,
    },
    /// The vault holds data of the volume, too.
    #[error(
        "both journal {name} and the vault hold data of volume '{volume}' ({} in the \
         journal), and it is not known which is newer",
        Bytes(*bytes)
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
    #[error("I/O on journal {name} failed")]
    Io {
        /// The device.
        name: String,
        /// The error of the device.
        #[source]
        error: IoError,
    },
    /// The log refuses the operation.
    #[error("journal {name} cannot be used")]
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
                "name a larger file or device that nothing else uses, ideally of a tenth of the \
                 memory"
                    .into()
            }
            Self::ReadOnly(_) => Remedy::from("make it writable").or(NAME_ANOTHER),
            Self::Blocks { .. } => "name a device with blocks of at most 4096 bytes".into(),
            Self::Foreign(_) => Remedy::from(NAME_ANOTHER).or(ERASE_UNNEEDED),
            Self::Unusable { error, .. } => remedy_for_recovery(error),
            Self::Damaged { .. } => {
                "to serve what is left, start once with accept-loss=yes on its volumes".into()
            }
            Self::Abandoned { .. } => Remedy::from(NAME_ANOTHER).or(ERASE_FOR_NEW),
            Self::Pending { .. } => {
                Remedy::from("repeat the command when its device answers").or(NAME_ANOTHER)
            }
            Self::Holds { .. } => Remedy::from(NAME_ANOTHER).or(Action::RescueList),
            Self::Missing { volume, .. } => Remedy::from("name that journal for the volume again")
                .or(Action::RescueApply)
                .or(Action::AcceptLostJournal(volume.clone())),
            Self::MayBeStale { .. } => Remedy::from("attach the missing device")
                .or("if it is lost, start once with accept-loss=yes on the journal's volumes"),
            Self::NoMirror { .. } => {
                Remedy::from("name the two devices of one journal").or(ERASE_OTHER)
            }
            Self::Record { .. } => {
                "make the state directory readable and writable, with free space".into()
            }
            Self::AbandonedFor { volume, others, .. } => {
                let name_another = format!("name another journal for volume '{volume}'");
                if others.is_empty() {
                    return name_another.into();
                }
                Remedy::from(format!(
                    "{name_another}, and keep this one until its data of {others} is on disk"
                ))
            }
            Self::ChangedDisk { volume, .. } => Remedy::from("serve the volume from its own disk")
                .or(Action::RescueApply)
                .or(Action::RescueDiscard)
                .or(Action::AcceptChangedDisk(volume.clone())),
            Self::AlsoInVault { .. } => {
                Remedy::from(Action::RescueList).or(Action::RescueApply).or(Action::RescueDiscard)
            }
            Self::Io { error, .. } => Remedy::from(error.remedy()).or(NAME_ANOTHER),
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

pub(crate) const NAME_ANOTHER: &str = "name another device";
pub(crate) const ERASE_UNNEEDED: &str =
    "overwrite its first 128 KiB with zeroes if its content is not needed";
pub(crate) const ERASE_FOR_NEW: &str =
    "if no other host uses it, overwrite its first 128 KiB with zeroes to begin a new one";
const ERASE_OTHER: &str =
    "overwrite the first 128 KiB of the device that is not needed with zeroes";

/// The remedy for a device that cannot be read as a journal or a vault.
pub(crate) fn remedy_for_recovery(error: &RecoverError) -> Remedy {
    match error {
        RecoverError::Io(error) => Remedy::from(error.remedy()).or(NAME_ANOTHER),
        RecoverError::Superblock(SuperblockInvalid::Version(_)) => {
            Remedy::from("start the version that wrote it").or(NAME_ANOTHER).or(ERASE_UNNEEDED)
        }
        RecoverError::Truncated { .. } => {
            Remedy::from("restore its size").or(NAME_ANOTHER).or(ERASE_UNNEEDED)
        }
        RecoverError::On { error, .. } => remedy_for_recovery(error),
        _ => Remedy::from(NAME_ANOTHER).or(ERASE_UNNEEDED),
    }
}

fn remedy_for_log(error: &LogError) -> Remedy {
    match error {
        LogError::TooManyVolumes => "name another journal for some of the volumes".into(),
        LogError::NoMoreNumbers => {
            "stop the server cleanly and start it again: an empty journal reuses the \
             numbers"
                .into()
        }
        LogError::DrainFirst => Action::RescueApply.into(),
        LogError::InUse => Action::Report.into(),
        LogError::ShortSegments { .. } => Remedy::from(Action::RescueApply).or(NAME_ANOTHER),
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

    #[test]
    fn a_device_that_is_not_usable_has_the_remedy_of_its_reason() {
        let remedy = |error: &RecoverError| remedy_for_recovery(error).to_string();
        assert!(remedy(&RecoverError::Io(IoError::Io)).starts_with("check the kernel log"));
        let version = RecoverError::Superblock(SuperblockInvalid::Version(9));
        assert!(remedy(&version).starts_with("start the version that wrote it"));
        let on = RecoverError::On { device: 1, error: Box::new(version) };
        assert!(remedy(&on).starts_with("start the version that wrote it"));
        let truncated = RecoverError::Truncated { expected: 2, found: 1 };
        assert!(remedy(&truncated).starts_with("restore its size"));
        let error = RecoverError::Superblock(SuperblockInvalid::Checksum);
        let unusable = JournalError::Unusable { name: "/j".into(), error };
        assert_eq!(unusable.with_causes(), "journal /j has a damaged superblock");
    }

    #[test]
    fn a_journal_is_kept_only_for_volumes_that_need_it() {
        let error = |others: &str| {
            let (name, volume) = ("/j".into(), "a".into());
            JournalError::AbandonedFor { name, volume, others: others.into() }
        };
        assert!(error("b, c").remedy().to_string().ends_with("its data of b, c is on disk"));
        assert_eq!(error("").remedy().to_string(), "name another journal for volume 'a'");
    }
}
