//! Why a runtime can't start, or a volume can't be added, changed or removed, and what to do.

use crate::calibrate::CalibrateError;
use crate::drain::HeldUp;
use crate::pool::PoolError;
use crate::protect::journal::JournalError;
use crate::protect::vault::VaultError;
use forebay_journal::identity::Evidence;
use forebay_types::limits::{VOLUME_NAME_BYTES_MAX, VOLUMES_MAX};
use forebay_types::{Action, Blame, Fault, IoError, Remedy};
use std::io;

/// Why a runtime does not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The pool can't be had.
    #[error(transparent)]
    Pool(#[from] PoolError),
    /// The kernel gives no ring.
    #[error("io_uring can't be used here")]
    Ring(#[source] io::Error),
    /// Something else the kernel refuses.
    #[error("a worker can't start")]
    Worker(#[from] io::Error),
}

/// Why a volume can't be added, changed or removed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VolumeError {
    /// Another one has the name.
    #[error("a volume named '{0}' is served already")]
    NameInUse(String),
    /// Another one has the disk.
    #[error(
        "{backing} is the backing store of volume '{volume}' already, and a disk that is cached \
         twice would not agree with itself"
    )]
    BackingInUse {
        /// The backing store.
        backing: String,
        /// The volume that has it.
        volume: String,
    },
    /// The name can't be one.
    #[error("'{0}' can't be the name of a volume")]
    Name(String),
    /// There are too many.
    #[error("{VOLUMES_MAX} volumes are served already")]
    TooMany,
    /// There is none of this name.
    #[error("no volume '{0}'")]
    Unknown(String),
    /// The disk was opened for reading.
    #[error("the backing store of volume '{0}' can only be read")]
    BackingReadOnly(String),
    /// Dirty data does not reach the disk.
    #[error(
        "volume '{name}' still has {dirty_bytes} bytes that its backing store does not take; it \
         goes on being served, so that nothing is lost"
    )]
    Dirty {
        /// The volume.
        name: String,
        /// What is left.
        dirty_bytes: u64,
        /// What the backing store says.
        #[source]
        error: IoError,
    },
    /// The disk does not answer.
    #[error(
        "the backing store of volume '{name}' has not answered for {seconds} s, and {dirty_bytes} \
         bytes are not on it; the volume goes on being served, so that nothing is lost"
    )]
    Hanging {
        /// The volume.
        name: String,
        /// How long was waited.
        seconds: u64,
        /// What is left.
        dirty_bytes: u64,
    },
    /// Not the disk, but something else does not end.
    #[error(transparent)]
    Held(#[from] HeldUp),
    /// A flush of the disk has failed, now or earlier.
    #[error(
        "a flush of the backing store of volume '{name}' failed, so what was written before may \
         be lost, and no later flush could tell"
    )]
    FlushFailed {
        /// The volume.
        name: String,
        /// What the backing store said.
        #[source]
        error: IoError,
    },
    /// Another disk had its name when the pool was filled.
    #[error(
        "the pool holds {dirty_bytes} bytes that {backing} does not have, which was volume \
         '{name}' before"
    )]
    OtherDisk {
        /// The volume.
        name: String,
        /// The backing store it had.
        backing: String,
        /// What is held.
        dirty_bytes: u64,
    },
    /// Its disk was changed while nobody served it, and the pool holds writes for it.
    #[error(
        "the pool holds {dirty_bytes} bytes of volume '{name}', and {disk} is not their disk as it \
         was left ({evidence}): they are kept, and the volume is not served"
    )]
    ChangedDisk {
        /// The volume.
        name: String,
        /// The disk.
        disk: String,
        /// What is held.
        dirty_bytes: u64,
        /// What the disk says of itself.
        evidence: Evidence,
    },
    /// A stop would lose what was found of it.
    #[error(
        "the pool holds {dirty_bytes} bytes of volume '{name}' that its disk does not have, and \
         the volume is not served"
    )]
    Unserved {
        /// The volume.
        name: String,
        /// What is held.
        dirty_bytes: u64,
    },
    /// Its journal can't serve it.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// Its disk can't be measured.
    #[error(transparent)]
    Calibrate(#[from] CalibrateError),
    /// What its journal holds of it does not come back.
    #[error(
        "volume '{name}' can't be served: what its journal holds of it can't be restored; nothing \
         is lost"
    )]
    Restore {
        /// The volume.
        name: String,
        /// What the disk or the journal says.
        #[source]
        error: IoError,
    },
    /// What the vault holds of it does not come back.
    #[error(
        "volume '{name}' can't be served: what the vault holds of it can't be brought to its \
         disk; nothing is lost"
    )]
    Load {
        /// The volume.
        name: String,
        /// What the disk or the vault says.
        #[source]
        error: IoError,
    },
    /// The vault can't serve it.
    #[error(transparent)]
    Vault(#[from] VaultError),
    /// That others hold nothing more of it can't be put on record.
    #[error(
        "volume '{name}': that it is served without a journal or vault it relied on can't be put \
         on record in the state directory"
    )]
    Record {
        /// The volume.
        name: String,
        /// Why not.
        #[source]
        error: io::Error,
    },
    /// It is on its way out already.
    #[error("volume '{0}' is being removed already")]
    Leaving(String),
    /// A worker is gone: the process is about to end.
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

impl Fault for HeldUp {
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
            Self::Failed { .. } => "see the kernel's log for its disk".into(),
            Self::Busy(_) => Remedy::from("ask again when they do").or("set gather-below=SIZE"),
        }
    }
}

impl Fault for VolumeError {
    fn remedy(&self) -> Remedy {
        match self {
            Self::NameInUse(_) => Remedy::from("choose another name").or("remove that one"),
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
            Self::Unserved { .. } => {
                Remedy::from("add it as it was").or("stop once more to lose them")
            }
            Self::Journal(error) => error.remedy(),
            Self::Calibrate(error) => error.remedy(),
            Self::Restore { .. } => "start again when disk and journal are well".into(),
            Self::Load { .. } => "start again when disk and vault are well".into(),
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
