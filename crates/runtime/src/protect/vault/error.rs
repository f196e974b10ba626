//! The errors of the vault, with their remedies.

use super::VaultPhase;
use crate::journal::{ERASE_FOR_NEW, ERASE_UNNEEDED, NAME_ANOTHER, remedy_for_recovery};
use forebay_backend::Displaced;
use forebay_format::journal::{JournalId, VOLUMES_MAX};
use forebay_journal::RecoverError;
use forebay_journal::identity::Evidence;
use forebay_types::{Action, Bytes, Fault, IoError, Remedy, Size};
use std::io;

/// Why the vault cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VaultError {
    /// The device is too small.
    #[error(
        "vault {name} has {}, but it needs at least {} to hold all data that can be dirty",
        Size(*bytes), Size(*needed_bytes)
    )]
    Small {
        /// The device.
        name: String,
        /// Its size.
        bytes: u64,
        /// The required size.
        needed_bytes: u64,
    },
    /// The device is read-only.
    #[error("vault {0} is read-only")]
    ReadOnly(String),
    /// The blocks of the device are larger than those of a dump.
    #[error(
        "vault {name} has blocks of {}, which are too large for a vault",
        Bytes((*block_bytes).into())
    )]
    Blocks {
        /// The device.
        name: String,
        /// Its block size.
        block_bytes: u32,
    },
    /// The device holds other data.
    #[error("{0} is not empty, and does not hold a vault of forebay")]
    Foreign(String),
    /// The device cannot be read as a vault.
    #[error("vault {name} {error}")]
    Unusable {
        /// The device.
        name: String,
        /// The reason, as a predicate of the device.
        error: RecoverError,
    },
    /// The dump is void: the disks are newer.
    #[error(
        "vault {name} ({id}) holds a void dump, because it could not be emptied when power \
         returned: the disks are newer"
    )]
    Void {
        /// The device.
        name: String,
        /// The identity of the dump.
        id: JournalId,
    },
    /// The record of whether the dump is void cannot be read.
    #[error("vault {name}: cannot read in the state directory whether its dump is void")]
    Mark {
        /// The device.
        name: String,
        /// The system's error.
        #[source]
        error: io::Error,
    },
    /// The device is not where it was opened.
    #[error("vault {name}: {displaced}, so a start after a power failure would not find its dump")]
    Displaced {
        /// The device.
        name: String,
        /// How it is displaced.
        displaced: Displaced,
    },
    /// The superblocks were overwritten while the vault was in use.
    #[error("vault {0} has been overwritten by another program")]
    Overwritten(String),
    /// The dump holds data of a volume of this name on another disk.
    #[error(
        "vault {name} holds {} of volume '{volume}', but {disk} is not recognised as \
         the volume's unchanged disk ({evidence}); the data is kept, and the volume is not served",
        Bytes(*bytes)
    )]
    OtherDisk {
        /// The device.
        name: String,
        /// The volume.
        volume: String,
        /// The disk.
        disk: String,
        /// Bytes of the volume in the dump.
        bytes: u64,
        /// The comparison of the disk with the dump.
        evidence: Evidence,
    },
    /// The dump lacks dirty data of the volume.
    #[error(
        "vault {name} lacks dirty data of volume '{volume}': {reason}; acknowledged writes are lost"
    )]
    Incomplete {
        /// The device.
        name: String,
        /// The volume.
        volume: String,
        /// The missing data.
        reason: String,
    },
    /// The vault holds data of an earlier process's dump that is not on the disks; or a probe finds
    /// the vault in use.
    #[error("vault {0} holds data that is not yet on the disks of its volumes")]
    Occupied(String),
    /// A dump is in progress, or the vault holds a dump of this process.
    #[error("vault {0} is in use by a dump because power failed")]
    Dumping(String),
    /// A dump failed.
    #[error(
        "the dump to vault {name} failed ({reason}) after {}; dirty data is still \
         in memory, and is lost if power fails before it is on the disks",
        Bytes(*saved_bytes)
    )]
    Dump {
        /// The device.
        name: String,
        /// Bytes written before the failure.
        saved_bytes: u64,
        /// The reason.
        reason: String,
    },
    /// A measurement, drill or probe was cancelled.
    #[error("vault {0}: cancelled, because the machine runs on battery or the server stops")]
    CalledOff(String),
    /// The limit of volumes is reached.
    #[error("vault {0} has the maximum of {VOLUMES_MAX} volumes")]
    Volumes(String),
    /// The record of the volumes that rely on the vault cannot be read or written.
    #[error(
        "vault {name}: cannot read or write the record in the state directory of whether volume \
         '{volume}' relies on it"
    )]
    Record {
        /// The device.
        name: String,
        /// The volume.
        volume: String,
        /// The system's error.
        #[source]
        error: io::Error,
    },
    /// The disk is newer than the dump, because the volume was served without it.
    #[error(
        "vault {name} holds {} of volume '{volume}', but the volume was served without \
         the vault since: its disk is newer",
        Bytes(*bytes)
    )]
    Superseded {
        /// The device.
        name: String,
        /// The volume.
        volume: String,
        /// Bytes of the volume in the dump.
        bytes: u64,
    },
    /// A volume relies on a vault other than the open one.
    #[error(
        "the newest data of volume '{volume}' may be in vault {name}, which is not the configured \
         one or has been emptied; without it, acknowledged writes could be missing"
    )]
    Missing {
        /// The name of its device.
        name: String,
        /// The volume.
        volume: String,
    },
    /// The device fails.
    #[error("I/O on vault {name} failed")]
    Io {
        /// The device.
        name: String,
        /// The error of the device.
        #[source]
        error: IoError,
    },
}

impl VaultError {
    /// A vault in this phase can take no dump.
    pub(super) fn in_phase(name: &str, phase: VaultPhase) -> Self {
        let name = name.to_owned();
        match phase {
            VaultPhase::Failed(error) => Self::Io { name, error },
            VaultPhase::Dumping | VaultPhase::Dumped => Self::Dumping(name),
            VaultPhase::Holding | VaultPhase::Ready => Self::Occupied(name),
        }
    }

    pub(super) fn io(name: &str, error: IoError) -> Self {
        Self::Io { name: name.to_owned(), error }
    }
}

impl Fault for VaultError {
    fn remedy(&self) -> Remedy {
        match self {
            Self::Small { .. } => {
                Remedy::from("name a larger file or device that nothing else uses")
                    .or(Action::set("memory", "SIZE"))
            }
            Self::ReadOnly(_) => Remedy::from("make it writable").or(NAME_ANOTHER),
            Self::Blocks { .. } => "name a device with blocks of at most 4096 bytes".into(),
            Self::Foreign(_) => Remedy::from(NAME_ANOTHER).or(ERASE_UNNEEDED),
            Self::Unusable { error, .. } => remedy_for_recovery(error),
            Self::Void { .. } => Remedy::from(NAME_ANOTHER).or(ERASE_FOR_NEW),
            Self::Displaced { .. } => Remedy::from("move it back").or(Action::set("vault", "PATH")),
            // A start refuses it as foreign until it begins with zeroes.
            Self::Overwritten(_) => Remedy::from(Action::set("vault", "PATH"))
                .or("overwrite its first 128 KiB with zeroes, and restart the server"),
            Self::OtherDisk { volume, .. } => Remedy::from("serve the volume from its own disk")
                .or(Action::RescueApply)
                .or(Action::RescueDiscard)
                .or(Action::AcceptChangedDisk(volume.clone())),
            Self::Incomplete { .. } => {
                "to serve what is left, start once with accept-loss=yes on the volume".into()
            }
            Self::Occupied(_) => {
                "serve the volumes whose data it holds: the status names them".into()
            }
            Self::Dumping(_) => "repeat the command when power has returned".into(),
            Self::Dump { .. } => "flush the volumes to their disks while there is power".into(),
            Self::CalledOff(_) => "repeat it when the machine is on mains power".into(),
            // Each volume of a server takes part, whatever its protection.
            Self::Volumes(_) => Remedy::from("remove a volume first")
                .or("serve some of the volumes with another server"),
            Self::Mark { .. } | Self::Record { .. } => {
                "make the state directory readable and writable, with free space".into()
            }
            Self::Superseded { name, volume, .. } => {
                Remedy::from(Action::RescueDiscardOf { log: name.clone(), volume: volume.clone() })
                    .or(NAME_ANOTHER)
            }
            Self::Missing { name, volume } => Remedy::from(Action::set("vault", name.clone()))
                .or(Action::AcceptLostVault(volume.clone())),
            Self::Io { error, .. } => Remedy::from(error.remedy()).or(NAME_ANOTHER),
        }
    }
}
