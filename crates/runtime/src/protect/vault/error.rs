//! The errors of the vault, with their remedies.

use forebay_backend::Displaced;
use forebay_format::journal::{JournalId, VOLUMES_MAX};
use forebay_journal::RecoverError;
use forebay_journal::identity::Evidence;
use forebay_types::{Action, Fault, IoError, Remedy, Size};
use std::io;

/// Why the vault cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VaultError {
    /// The device is too small.
    #[error(
        "vault {name} has {}, and it needs {} to take all that can be dirty",
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
    #[error("vault {0} can only be read")]
    ReadOnly(String),
    /// The blocks of the device are larger than those of a dump.
    #[error("vault {name} takes nothing smaller than {block_bytes} bytes")]
    Blocks {
        /// The device.
        name: String,
        /// Its block size.
        block_bytes: u32,
    },
    /// The device holds other data.
    #[error("{0} holds something that is not a vault of this program")]
    Foreign(String),
    /// The device cannot be read as a vault.
    #[error("vault {name} can't be used")]
    Unusable {
        /// The device.
        name: String,
        /// The reason.
        #[source]
        error: RecoverError,
    },
    /// The dump is void: the disks are newer.
    #[error(
        "vault {name} ({id}) could not be emptied when its content was taken back: the disks are \
         newer"
    )]
    Void {
        /// The device.
        name: String,
        /// The identity of the dump.
        id: JournalId,
    },
    /// It cannot be found out whether the dump is void.
    #[error("vault {name}: the state directory, which may record that its dump is void, fails")]
    Mark {
        /// The device.
        name: String,
        /// The system's error.
        #[source]
        error: io::Error,
    },
    /// The device is not where it was opened.
    #[error(
        "vault {name}: {displaced}, so a start after a power failure would not find what is saved \
         in it"
    )]
    Displaced {
        /// The device.
        name: String,
        /// How it is displaced.
        displaced: Displaced,
    },
    /// The superblocks were overwritten while the vault was in use.
    #[error("vault {0} has been overwritten by another program")]
    Overwritten(String),
    /// The dump holds data of this volume's name for another disk.
    #[error(
        "vault {name} holds {bytes} bytes of volume '{volume}', and {disk} is not known to be \
         their disk as it was left ({evidence}): they are kept, and the volume is not served"
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
        "vault {name} does not hold everything of volume '{volume}' that was dirty: {reason}; \
         acknowledged writes are lost"
    )]
    Incomplete {
        /// The device.
        name: String,
        /// The volume.
        volume: String,
        /// The missing data.
        reason: String,
    },
    /// The vault holds data that is not on the disks.
    #[error("vault {0} holds data that is not on its disks yet")]
    Occupied(String),
    /// A dump failed.
    #[error(
        "vault {name}: the dump failed ({reason}) with {saved_bytes} bytes written; what is dirty \
         is still in memory, and is lost if the power goes before it is on the disks"
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
    #[error("vault {0}: called off, because of the battery or a stop")]
    CalledOff(String),
    /// The limit of volumes is reached.
    #[error("vault {0} takes at most {VOLUMES_MAX} volumes")]
    Volumes(String),
    /// The record of the volumes that rely on the vault cannot be read or written.
    #[error(
        "vault {name}: whether volume '{volume}' relies on it is on record in the state directory, \
         which fails"
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
        "vault {name} holds {bytes} bytes of volume '{volume}', which was served without them \
         later: its disk is newer"
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
        "volume '{volume}' may have its newest data in vault {name}, which is not the one that is \
         open: it is not served older than what was acknowledged"
    )]
    Missing {
        /// The name of its device.
        name: String,
        /// The volume.
        volume: String,
    },
    /// The device fails.
    #[error("vault {name} fails")]
    Io {
        /// The device.
        name: String,
        /// The error of the device.
        #[source]
        error: IoError,
    },
}

impl VaultError {
    pub(super) fn io(name: &str, error: IoError) -> Self {
        Self::Io { name: name.to_owned(), error }
    }
}

impl Fault for VaultError {
    fn remedy(&self) -> Remedy {
        match self {
            Self::Small { .. } => Remedy::from("name a file or device of its own that has them")
                .or("give the cache less memory"),
            Self::ReadOnly(_) => Remedy::from("make it writable").or("name another one"),
            Self::Blocks { .. } => "name a device with blocks of 512 or 4096".into(),
            Self::Foreign(_) => Remedy::from("name another device").or(ERASE_UNNEEDED),
            Self::Unusable { .. } => Remedy::from("name another one").or(ERASE_UNNEEDED),
            Self::Void { .. } => Remedy::from("replace it")
                .or("overwrite its first 128 KiB with zeroes to begin a new one"),
            Self::Displaced { .. } => {
                Remedy::from("move it back").or("start the server anew with another one")
            }
            Self::Overwritten(_) => Remedy::from("name another device")
                .or("start the server anew to make this one a vault again"),
            Self::OtherDisk { volume, .. } => Remedy::from("serve it from the right disk")
                .or(Action::RescueApply)
                .or(Action::RescueDiscard)
                .or(Action::AcceptChangedDisk(volume.clone())),
            Self::Incomplete { .. } => {
                "to serve what is left, start once with accept-loss=yes on the volume".into()
            }
            Self::Occupied(_) => "serve the volumes that it is of, as the status names them".into(),
            Self::Dump { .. } => "write what is dirty to the disks while there is power".into(),
            Self::CalledOff(_) => "try again later".into(),
            Self::Volumes(_) => "protect some of the volumes by a journal".into(),
            Self::Mark { .. } | Self::Record { .. } => "mend that, and try again".into(),
            Self::Superseded { name, volume, .. } => {
                Remedy::from(Action::RescueDiscardOf { log: name.clone(), volume: volume.clone() })
                    .or("name another vault")
            }
            Self::Missing { name, volume } => Remedy::from(Action::set("vault", name.clone()))
                .or(Action::AcceptLostVault(volume.clone())),
            Self::Io { .. } => {
                Remedy::from("see the kernel's log for the device").or("name another one")
            }
        }
    }
}

const ERASE_UNNEEDED: &str =
    "overwrite its first 128 KiB with zeroes if what is on it is not needed";
