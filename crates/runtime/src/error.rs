//! The errors of a runtime's start and of operations on volumes, with their remedies.

use crate::gather::CalibrationFailure;
use crate::pool::PoolError;
use crate::protect::journal::JournalError;
use crate::protect::vault::VaultError;
use crate::service::{CalibrateError, Stall};
use forebay_journal::identity::Evidence;
use forebay_types::limits::{VOLUME_NAME_BYTES_MAX, VOLUMES_MAX};
use forebay_types::{Action, Blame, Fault, IoError, Remedy};
use std::io;

/// Why a runtime does not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The pool cannot be opened.
    #[error(transparent)]
    Pool(#[from] PoolError),
    /// The kernel does not provide io_uring.
    #[error("io_uring can't be used here")]
    Ring(#[source] io::Error),
    /// The system refuses a thread or another resource of a worker.
    #[error("cannot start a worker")]
    Worker(#[from] io::Error),
}

/// The result of an operation on a volume.
pub(crate) type VolumeResult = Result<(), VolumeError>;

/// Why an operation on a volume fails.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VolumeError {
    /// Another volume has the name.
    #[error("a volume named '{0}' is served already")]
    NameInUse(String),
    /// An addition of this volume has failed and could not be undone.
    #[error("an earlier addition of volume '{0}' failed, and could not be undone")]
    HalfAdded(String),
    /// Another volume has the disk.
    #[error(
        "{backing} is already the backing store of volume '{volume}', and two caches of one disk \
         would be inconsistent"
    )]
    BackingInUse {
        /// The backing store.
        backing: String,
        /// The other volume.
        volume: String,
    },
    /// The name is invalid.
    #[error("'{0}' is not a valid name of a volume")]
    Name(String),
    /// The limit of volumes is reached.
    #[error("{VOLUMES_MAX} volumes are served already")]
    TooMany,
    /// No volume has this name.
    #[error("no volume '{0}'")]
    Unknown(String),
    /// The disk was opened read-only.
    #[error("the backing store of volume '{0}' can only be read")]
    BackingReadOnly(String),
    /// The disk fails to take dirty data.
    #[error(
        "volume '{name}' still has {dirty_bytes} bytes that its backing store does not take; it is \
         still served, and nothing is lost"
    )]
    Dirty {
        /// The volume.
        name: String,
        /// Bytes in dirty lines.
        dirty_bytes: u64,
        /// The error of the backing store.
        #[source]
        error: IoError,
    },
    /// The disk hangs.
    #[error(
        "the backing store of volume '{name}' has not answered for {seconds} s, and {dirty_bytes} \
         bytes are not on it; the volume is still served, and nothing is lost"
    )]
    Hanging {
        /// The volume.
        name: String,
        /// The timeout.
        seconds: u64,
        /// Bytes in dirty lines.
        dirty_bytes: u64,
    },
    /// The operation waits for something other than the disk.
    #[error(transparent)]
    Held(#[from] Stall),
    /// A flush of the disk has failed, now or earlier.
    #[error(
        "a flush of the backing store of volume '{name}' failed: data written before may be lost, \
         and a later flush would not report that"
    )]
    FlushFailed {
        /// The volume.
        name: String,
        /// The error of the backing store.
        #[source]
        error: IoError,
    },
    /// The pool holds dirty data of this volume's name for another disk.
    #[error(
        "the pool holds {dirty_bytes} bytes that {backing} lacks, the former backing store of \
         volume '{name}'"
    )]
    OtherDisk {
        /// The volume.
        name: String,
        /// The former backing store.
        backing: String,
        /// Bytes in dirty lines.
        dirty_bytes: u64,
    },
    /// The pool holds dirty data of the volume, and its disk has been changed since.
    #[error(
        "the pool holds {dirty_bytes} bytes of volume '{name}', and {disk} is not their disk as it \
         was left ({evidence}): they are kept, and the volume is not served"
    )]
    ChangedDisk {
        /// The volume.
        name: String,
        /// The disk.
        disk: String,
        /// Bytes in dirty lines.
        dirty_bytes: u64,
        /// The comparison of the disk with the pool.
        evidence: Evidence,
    },
    /// A stop would lose dirty data of a volume that is not served.
    #[error(
        "the pool holds {dirty_bytes} bytes of volume '{name}' that its disk does not have, and \
         the volume is not served"
    )]
    Unserved {
        /// The volume.
        name: String,
        /// Bytes in dirty lines.
        dirty_bytes: u64,
    },
    /// The journal cannot be used for the volume.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// The disk cannot be measured.
    #[error(transparent)]
    Calibrate(#[from] CalibrateError),
    /// The restore from the journal has failed.
    #[error(
        "volume '{name}' cannot be served: the restore of its data from the journal failed; \
         nothing is lost"
    )]
    Restore {
        /// The volume.
        name: String,
        /// The error of the disk or the journal.
        #[source]
        error: IoError,
    },
    /// The load from the vault has failed.
    #[error(
        "volume '{name}' cannot be served: the load of its data from the vault to its disk \
         failed; nothing is lost"
    )]
    Load {
        /// The volume.
        name: String,
        /// The error of the disk or the vault.
        #[source]
        error: IoError,
    },
    /// The vault cannot be used for the volume.
    #[error(transparent)]
    Vault(#[from] VaultError),
    /// The state directory cannot record that the data in other journals or vaults is void.
    #[error(
        "volume '{name}': cannot record in the state directory that it is served without a journal \
         or vault that it relied on"
    )]
    Record {
        /// The volume.
        name: String,
        /// The system's error.
        #[source]
        error: io::Error,
    },
    /// The volume is being added or removed.
    #[error("volume '{0}' is already being removed")]
    Leaving(String),
    /// The workers have ended: the process is about to end.
    #[error("the runtime is stopping")]
    Stopping,
}

impl Fault for StartError {
    fn remedy(&self) -> Remedy {
        match self {
            Self::Pool(error) => error.remedy(),
            Self::Ring(_) => Remedy::from(Action::set("io", "epoll")).or(Action::set("io", "auto")),
            Self::Worker(_) => {
                Remedy::from("raise the limits of the process").or(Action::set("workers", "1"))
            }
        }
    }
}

impl Fault for PoolError {
    fn remedy(&self) -> Remedy {
        match self {
            Self::Memory { .. } => Remedy::from("free some").or(Action::set("memory", "SIZE")),
            Self::Version => {
                "start the program that wrote it once more, stop that, and start again".into()
            }
            Self::Foreign(_) => "end the keeper, and start again".into(),
            Self::Damaged(_) => "to go on without it, end the keeper and start again".into(),
        }
    }
}

impl Fault for Stall {
    fn remedy(&self) -> Remedy {
        match self {
            Self::Journal { .. } => "see to the journal's device".into(),
            Self::Nothing { .. } => Action::Report.into(),
        }
    }

    fn blame(&self) -> Blame {
        match self {
            Self::Journal { .. } => Blame::Environment,
            Self::Nothing { .. } => Blame::Bug,
        }
    }
}

impl Fault for CalibrateError {
    fn remedy(&self) -> Remedy {
        match self {
            Self::Failed { failure: CalibrationFailure::Unclear(_), .. } => {
                Remedy::from("ask again when the disk is idle").or("set gather-below=SIZE")
            }
            Self::Failed { .. } => "see the kernel's log for its disk".into(),
            Self::Busy(_) => Remedy::from("ask again when they do").or("set gather-below=SIZE"),
        }
    }
}

impl Fault for VolumeError {
    fn remedy(&self) -> Remedy {
        match self {
            Self::NameInUse(_) => Remedy::from("choose another name").or("remove that one"),
            Self::HalfAdded(_) => "remove it once its disk works, and add it again".into(),
            Self::BackingInUse { .. } => {
                Remedy::from("name another disk").or("remove that volume first")
            }
            Self::Name(_) => format!("use 1 to {VOLUME_NAME_BYTES_MAX} bytes of text").into(),
            Self::TooMany => "remove one first".into(),
            Self::Unknown(_) => Action::ListVolumes.into(),
            Self::BackingReadOnly(_) => "remove it and add it again".into(),
            Self::Dirty { .. } | Self::Hanging { .. } => {
                "see the kernel's log for the disk, and try again when it is well".into()
            }
            Self::Held(error) => error.remedy(),
            Self::FlushFailed { name, .. } => Action::TrustVolume(name.clone()).into(),
            Self::OtherDisk { .. } => {
                Remedy::from("serve it once more as it was, flush it, and then change it")
                    .or("serve this one under another name")
            }
            Self::ChangedDisk { name, .. } => Remedy::from("put the disk back as it was")
                .or(Action::AcceptChangedDisk(name.clone())),
            Self::Unserved { .. } => Remedy::from("add it as it was").or(Action::RepeatStop),
            Self::Journal(error) => error.remedy(),
            Self::Calibrate(error) => error.remedy(),
            Self::Restore { .. } => "try again when disk and journal are well".into(),
            Self::Load { .. } => "try again when disk and vault are well".into(),
            Self::Vault(error) => error.remedy(),
            Self::Record { .. } => "make room in it".into(),
            Self::Leaving(_) => "wait for that".into(),
            Self::Stopping => "wait for its end, and start it again".into(),
        }
    }

    fn blame(&self) -> Blame {
        match self {
            Self::NameInUse(_)
            | Self::BackingInUse { .. }
            | Self::Name(_)
            | Self::TooMany
            | Self::Unknown(_)
            | Self::BackingReadOnly(_) => Blame::Operator,
            Self::Held(error) => error.blame(),
            Self::Journal(error) => error.blame(),
            _ => Blame::Environment,
        }
    }
}
