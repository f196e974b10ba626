//! Why a vault can't be used, or not for what was asked.

use forebay_backend::Displaced;
use forebay_format::journal::{JournalId, VOLUMES_MAX};
use forebay_journal::RecoverError;
use forebay_journal::identity::Evidence;
use forebay_types::{Action, Fault, IoError, Remedy, Size};
use std::io;

/// Why a vault can't be used.
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
        /// What would do.
        needed_bytes: u64,
    },
    /// It can't be written.
    #[error("vault {0} can only be read")]
    ReadOnly(String),
    /// Its blocks are too large.
    #[error("vault {name} takes nothing smaller than {block_bytes} bytes")]
    Blocks {
        /// The device.
        name: String,
        /// Its block size.
        block_bytes: u32,
    },
    /// There is something else on it.
    #[error("{0} holds something that is not a vault of this program")]
    Foreign(String),
    /// It can't be read as a vault.
    #[error("vault {name} can't be used")]
    Unusable {
        /// The device.
        name: String,
        /// What is wrong.
        #[source]
        error: RecoverError,
    },
    /// What it holds was taken back.
    #[error(
        "vault {name} ({id}) could not be emptied when its content was taken back: the disks are \
         newer"
    )]
    Void {
        /// The device.
        name: String,
        /// Which dump.
        id: JournalId,
    },
    /// It is not where it was opened.
    #[error(
        "vault {name}: {displaced}, so a start after a power failure would not find what is saved \
         in it"
    )]
    Displaced {
        /// The device.
        name: String,
        /// What has become of it.
        displaced: Displaced,
    },
    /// Its superblocks are gone while it is in use.
    #[error("vault {0} has been overwritten by another program")]
    Overwritten(String),
    /// It holds data of this volume's name for another disk.
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
        /// What is held.
        bytes: u64,
        /// What the disk says of itself.
        evidence: Evidence,
    },
    /// Not all that was dirty is in it.
    #[error(
        "vault {name} does not hold everything of volume '{volume}' that was dirty: {reason}; \
         acknowledged writes are lost"
    )]
    Incomplete {
        /// The device.
        name: String,
        /// The volume.
        volume: String,
        /// What is missing.
        reason: String,
    },
    /// It holds what is not on its disks.
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
        /// What was written.
        saved_bytes: u64,
        /// Why it failed.
        reason: String,
    },
    /// A measurement or a drill was called off.
    #[error("vault {0}: called off, because of the battery or a stop")]
    CalledOff(String),
    /// Too many volumes.
    #[error("vault {0} takes at most {VOLUMES_MAX} volumes")]
    Volumes(String),
    /// Who relies on it can't be put on record.
    #[error(
        "vault {name}: whether volume '{volume}' relies on it is on record in the state directory, \
         which fails"
    )]
    Record {
        /// The device.
        name: String,
        /// The volume.
        volume: String,
        /// Why not.
        #[source]
        error: io::Error,
    },
    /// What it holds of a volume is older than the disk.
    #[error(
        "vault {name} holds {bytes} bytes of volume '{volume}', which was served without them \
         later: its disk is newer"
    )]
    Superseded {
        /// The device.
        name: String,
        /// The volume.
        volume: String,
        /// What is held.
        bytes: u64,
    },
    /// The vault that may hold the newest of a volume is not there.
    #[error(
        "volume '{volume}' may have its newest data in vault {name}, which is not the one that is \
         open: it is not served older than what was acknowledged"
    )]
    Missing {
        /// What it was called.
        name: String,
        /// The volume.
        volume: String,
    },
    /// Its device fails.
    #[error("vault {name} fails")]
    Io {
        /// The device.
        name: String,
        /// What it answers.
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
            Self::Record { .. } => "mend that, and try again".into(),
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
