//! Why a journal can't be used, or not for what was asked.

use forebay_format::journal::{JOURNAL_BYTES_MIN, JournalId};
use forebay_journal::identity::Evidence;
use forebay_journal::{LogError, RecoverError};
use forebay_types::IoError;

/// Why a journal can't be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JournalError {
    /// The device is too small.
    #[error(
        "journal {name} has {bytes} bytes, and it needs {JOURNAL_BYTES_MIN}; name a file or device \
         of its own that has them, better a tenth of the memory"
    )]
    Small {
        /// The device.
        name: String,
        /// Its size.
        bytes: u64,
    },
    /// It can't be written.
    #[error("journal {0} can only be read; make it writable or name another one")]
    ReadOnly(String),
    /// Its blocks are too large.
    #[error(
        "journal {name} takes nothing smaller than {block_bytes} bytes; name a device with blocks \
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
        "{0} holds something that is not a journal of this program; name another device, or \
         overwrite its first 128 KiB with zeroes if what is on it is not needed"
    )]
    Foreign(String),
    /// It can't be read as a journal.
    #[error("journal {name} {error}; replace it, or bring back the program that wrote it")]
    Unusable {
        /// The device.
        name: String,
        /// What is wrong.
        error: RecoverError,
    },
    /// Something that was acknowledged can't be read any more.
    #[error(
        "journal {name} is damaged: {damage}; acknowledged writes are lost. To serve what is \
         left, start once with accept-loss=yes on its volumes"
    )]
    Damaged {
        /// The device.
        name: String,
        /// What is damaged.
        damage: String,
    },
    /// It was given up.
    #[error(
        "journal {name} ({id}) failed earlier, or was left out as lost, and was given up: its \
         records are older than the disks. Replace it, or overwrite its first 128 KiB with zeroes \
         to begin a new one"
    )]
    Abandoned {
        /// The device.
        name: String,
        /// Which journal.
        id: JournalId,
    },
    /// A volume relies on a journal that is not there.
    #[error(
        "volume '{volume}' may have its newest data in journal {name}, which is not the one that \
         is named, or has been emptied: it is not served older than what was acknowledged; name \
         that journal for it again, or write what it holds to the disk with `forebay rescue \
         apply`, or, if it is lost, start once with --accept-lost-journal {volume}"
    )]
    Missing {
        /// What it was called.
        name: String,
        /// The volume.
        volume: String,
    },
    /// It is half of a mirrored one, and the other half may be newer.
    #[error(
        "journal {name} has one of its two devices, and nothing in the state directory says that \
         the missing one is not newer; bring it back, or, if it is lost, start once with \
         accept-loss=yes on the journal's volumes"
    )]
    MayBeStale {
        /// The device that is there.
        name: String,
    },
    /// Its devices do not belong together.
    #[error(
        "journal {name} {error}; name the two devices of one journal, or overwrite the first 128 \
         KiB of the one that is not needed with zeroes"
    )]
    NoMirror {
        /// The devices.
        name: String,
        /// What is wrong.
        error: RecoverError,
    },
    /// Who holds all of it can't be put on record.
    #[error("journal {name}: the state directory can't be written: {error}; make room in it")]
    Record {
        /// The device.
        name: String,
        /// Why not.
        error: String,
    },
    /// It was given up by this volume, and holds the newest data of others.
    #[error(
        "journal {name} failed earlier, or was left out as lost, and was given up for volume \
         '{volume}', and holds the newest there is of {others}; name another journal for \
         '{volume}', and keep this one until these are served again, or `forebay rescue apply` has \
         brought it to their disks"
    )]
    AbandonedFor {
        /// The device.
        name: String,
        /// The volume.
        volume: String,
        /// Those that it is still needed for.
        others: String,
    },
    /// It holds writes of this volume, and the disk is not known to be theirs.
    #[error(
        "journal {name} holds {bytes} bytes of volume '{volume}', and {disk} is not known to be \
         their disk as it was left ({evidence}): they are kept, and the volume is not served; \
         serve it from the right disk, or write them to one with `forebay rescue apply`, or give \
         them up with `forebay rescue discard`, or, if this is the disk, start once with \
         --accept-changed-disk {volume}"
    )]
    ChangedDisk {
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
    /// The vault holds something of the volume as well.
    #[error(
        "journal {name} holds {bytes} bytes of volume '{volume}', and so does the vault: which of \
         them is newer is not known. Look into both with `forebay rescue list`, bring them to the \
         disk in the right order with `forebay rescue apply`, or give one up with `forebay rescue \
         discard`"
    )]
    AlsoInVault {
        /// The device.
        name: String,
        /// The volume.
        volume: String,
        /// What the journal holds.
        bytes: u64,
    },
    /// Its device fails.
    #[error("journal {name}: {error}")]
    Io {
        /// The device.
        name: String,
        /// What it answers.
        error: IoError,
    },
    /// Its limits.
    #[error("journal {name}: {error}")]
    Log {
        /// The device.
        name: String,
        /// Which limit.
        error: LogError,
    },
}
