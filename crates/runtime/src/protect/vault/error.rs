//! Why a vault can't be used, or not for what was asked.

use forebay_backend::Displaced;
use forebay_format::journal::{JournalId, VOLUMES_MAX};
use forebay_journal::RecoverError;
use forebay_journal::identity::Evidence;
use forebay_types::{IoError, Size};

/// Why a vault can't be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VaultError {
    /// The device is too small.
    #[error(
        "vault {name} has {}, and it needs {} to take all that can be dirty; name a file or device \
         of its own that has them, or give the cache less memory",
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
    #[error("vault {0} can only be read; make it writable or name another one")]
    ReadOnly(String),
    /// Its blocks are too large.
    #[error(
        "vault {name} takes nothing smaller than {block_bytes} bytes; name a device with blocks \
         of 512 or 4096"
    )]
    Blocks {
        /// The device.
        name: String,
        /// Its block size.
        block_bytes: u32,
    },
    /// There is something else on it.
    #[error(
        "{0} holds something that is not a vault of this program; name another device, or \
         overwrite its first 128 KiB with zeroes if what is on it is not needed"
    )]
    Foreign(String),
    /// It can't be read as a vault.
    #[error(
        "vault {name} {error}; name another one, or overwrite its first 128 KiB with zeroes if \
         what is on it is not needed"
    )]
    Unusable {
        /// The device.
        name: String,
        /// What is wrong.
        error: RecoverError,
    },
    /// What it holds was taken back.
    #[error(
        "vault {name} ({id}) could not be emptied when its content was taken back: the disks are \
         newer. Replace it, or overwrite its first 128 KiB with zeroes to begin a new one"
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
         in it; move it back, or start the server anew with another one"
    )]
    Displaced {
        /// The device.
        name: String,
        /// What has become of it.
        displaced: Displaced,
    },
    /// Its superblocks are gone while it is in use.
    #[error(
        "vault {0} has been overwritten by somebody else; name another device, or start the server \
         anew to make this one a vault again"
    )]
    Overwritten(String),
    /// It holds data of this volume's name for another disk.
    #[error(
        "vault {name} holds {bytes} bytes of volume '{volume}', and {disk} is not known to be \
         their disk as it was left ({evidence}): they are kept, and the volume is not served; \
         serve it from the right disk, or write them to one with `forebay rescue apply`, or give \
         them up with `forebay rescue discard`, or, if this is the disk, start once with \
         --accept-changed-disk {volume}"
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
         acknowledged writes are lost. To serve what is left, start once with accept-loss=yes on \
         the volume"
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
    #[error(
        "vault {0} holds data that is not on its disks yet; serve the volumes that it is of, as \
         forebay status names them"
    )]
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
    #[error("vault {0}: called off, because of the battery or a stop; try again later")]
    CalledOff(String),
    /// Too many volumes.
    #[error("vault {0} takes at most {VOLUMES_MAX} volumes")]
    Volumes(String),
    /// Who relies on it can't be put on record.
    #[error(
        "vault {name}: whether volume '{volume}' relies on it is on record in the state directory, \
         which fails: {error}; mend that, and try again"
    )]
    Record {
        /// The device.
        name: String,
        /// The volume.
        volume: String,
        /// Why not.
        error: String,
    },
    /// What it holds of a volume is older than the disk.
    #[error(
        "vault {name} holds {bytes} bytes of volume '{volume}', which was served without them \
         later: its disk is newer. Give them up with `forebay rescue discard {name} --volume \
         {volume} --yes`, or name another vault"
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
         open: it is not served older than what was acknowledged; start the server with --vault \
         {name}, or, if that is lost, once with --accept-lost-vault {volume}"
    )]
    Missing {
        /// What it was called.
        name: String,
        /// The volume.
        volume: String,
    },
    /// Its device fails.
    #[error("vault {name}: {error}; see the kernel's log, and name another one")]
    Io {
        /// The device.
        name: String,
        /// What it answers.
        error: IoError,
    },
}

impl VaultError {
    pub(super) fn io(name: &str, error: IoError) -> Self {
        Self::Io { name: name.to_owned(), error }
    }
}
