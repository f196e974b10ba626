//! The errors of a runtime's start and of operations on volumes, with their remedies.

use crate::journal::JournalError;
use crate::pool::PoolError;
use crate::protect::vault::VaultError;
use crate::shared::{CalibrateError, PinError, UnknownVolume, WorkerEnded};
use forebay_backend::MeasureError;
use forebay_journal::identity::Evidence;
use forebay_types::limits::{VOLUME_NAME_BYTES_MAX, VOLUMES_MAX};
use forebay_types::{Action, Blame, Bytes, Fault, IoError, Remedy, ShareSum};
use std::io;

/// Why a runtime does not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The pool cannot be opened.
    #[error(transparent)]
    Pool(#[from] PoolError),
    /// The kernel does not provide io_uring.
    #[error("io_uring is not available")]
    Ring(#[source] io::Error),
    /// The system refuses a thread or another resource of a worker.
    #[error("cannot start a worker")]
    Worker(#[from] io::Error),
}

/// Why a flush, a removal or a stop does not complete, if the disk is not the cause.
#[derive(Debug, thiserror::Error)]
pub enum Stall {
    /// The journal does not respond.
    #[error(
        "volume '{name}' waits for its journal {journal}, which has not answered for {seconds} s; \
         the volume is still served, and nothing is lost"
    )]
    Journal {
        /// The volume.
        name: String,
        /// Its journal.
        journal: String,
        /// The timeout.
        seconds: u64,
    },
    /// The failure of the journal, or of one of its devices, cannot be recorded.
    #[error(
        "volume '{name}' waits for a record of the failure of its journal {journal}: {reason}; the \
         volume is still served, and nothing is lost"
    )]
    Record {
        /// The volume.
        name: String,
        /// Its journal.
        journal: String,
        /// The error, with the path.
        reason: String,
    },
    /// Requests or operations do not complete, although neither disk nor journal is waited for.
    #[error(
        "{requests} requests and {operations} operations of volume '{name}' have not completed \
         for {seconds} s, although its disk has answered everything; the volume is still served, \
         and nothing is lost"
    )]
    Nothing {
        /// The volume.
        name: String,
        /// The timeout.
        seconds: u64,
        /// Requests in flight.
        requests: usize,
        /// Operations of the cache in progress.
        operations: u64,
    },
}

/// Why a volume keeps its journal. It is served as before.
#[derive(Debug, thiserror::Error)]
pub enum MoveError {
    /// Data was lost in memory that the journal may hold.
    #[error("data of volume '{name}' was lost in memory, and its journal may hold it")]
    Lost { name: String },
    /// Requests did not end.
    #[error(
        "the requests of volume '{name}' have not all ended within {seconds} s, so its journal \
         stays the same"
    )]
    Busy { name: String, seconds: u64 },
    /// A journal does not answer.
    #[error(
        "journal {journal} has not answered for {seconds} s, so volume '{name}' stays with its \
         former one"
    )]
    Silent { journal: String, name: String, seconds: u64 },
    /// The vault's record depends on the journal.
    #[error(
        "volume '{name}' is under a UPS, so only a working journal can be exchanged for another one"
    )]
    Ups { name: String },
}

/// The dirty data that a disk does not take, if there is any.
fn and_unwritten(dirty_bytes: u64) -> String {
    match dirty_bytes {
        0 => String::new(),
        _ => format!(", and {} of dirty data is not written to it", Bytes(dirty_bytes)),
    }
}

/// The result of an operation on a volume.
pub(crate) type VolumeResult = Result<(), VolumeError>;

/// Why an operation on a volume fails.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VolumeError {
    /// Another volume has the name.
    #[error("there is already a volume named '{0}'")]
    NameInUse(String),
    /// An addition of this volume has failed and could not be undone.
    #[error("an earlier addition of volume '{0}' failed, and could not be undone")]
    HalfAdded(String),
    /// Another host has taken over disk or journal while the volume was added.
    #[error("another host has taken over the disk or the journal of volume '{0}' meanwhile")]
    TakenOver(String),
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
    #[error("'{0}' is not a valid volume name")]
    Name(String),
    /// The limit of volumes is reached.
    #[error("the limit of {VOLUMES_MAX} volumes is reached")]
    TooMany,
    /// No volume has this name.
    #[error("no volume '{0}'")]
    Unknown(String),
    /// The disk was opened read-only.
    #[error("the backing store of volume '{0}' was opened read-only")]
    BackingReadOnly(String),
    /// The disk fails to take dirty data.
    #[error(
        "cannot write {} of dirty data of volume '{name}' to its backing store; the \
         volume is still served, and nothing is lost",
        Bytes(*dirty_bytes)
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
        "the backing store of volume '{name}' has not answered for {seconds} s{}; the volume is \
         still served, and nothing is lost",
        and_unwritten(*dirty_bytes)
    )]
    Hanging {
        /// The volume.
        name: String,
        /// The timeout.
        seconds: u64,
        /// Bytes in dirty lines.
        dirty_bytes: u64,
    },
    /// The dirty data cannot be copied to a file before it is given up.
    #[error(
        "cannot write the dirty data of volume '{name}' to {path}; nothing is given up, and the \
         volume is still served"
    )]
    Copy {
        /// The volume.
        name: String,
        /// The file.
        path: String,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// The volume was given up, and its disk hangs.
    #[error(
        "the dirty data of volume '{name}' is given up, and its clients are disconnected, but its \
         backing store has not answered for {seconds} s, and may still use the memory"
    )]
    GivenUp {
        /// The volume.
        name: String,
        /// The timeout.
        seconds: u64,
    },
    /// The operation waits for something other than the disk.
    #[error(transparent)]
    Stalled(#[from] Stall),
    /// The volume cannot leave its journal for another one.
    #[error(transparent)]
    Move(#[from] MoveError),
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
    /// The volume is in memory, and its image cannot be written.
    #[error("cannot save volume '{name}' to {path}; it is still served")]
    Save {
        /// The volume.
        name: String,
        /// Its image.
        path: String,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// The volume is not saved to an image.
    #[error("volume '{0}' has no image file to save to")]
    NoImage(String),
    /// The pool holds dirty data of a volume of this name on another disk.
    #[error(
        "the pool holds {} of dirty data of volume '{name}' for {backing}, its previous \
         backing store",
        Bytes(*dirty_bytes)
    )]
    OtherDisk {
        /// The volume.
        name: String,
        /// The previous backing store.
        backing: String,
        /// Bytes in dirty lines.
        dirty_bytes: u64,
    },
    /// The pool holds dirty data of the volume, and its disk has been changed since.
    #[error(
        "the pool holds {} of dirty data of volume '{name}', but {disk} is another disk \
         or has been changed since ({evidence}); the data is kept, and the volume is not served",
        Bytes(*dirty_bytes)
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
    /// It cannot be recorded that this host owns the disk.
    #[error("volume '{name}': cannot record that this host owns its disk")]
    Tenure {
        /// The volume.
        name: String,
        /// The cause.
        #[source]
        error: io::Error,
    },
    /// A stop would lose dirty data of a volume that is not served.
    #[error(
        "the pool holds {} of dirty data of volume '{name}', which is not served",
        Bytes(*dirty_bytes)
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
    /// Its disk cannot be measured again.
    #[error("volume '{name}' keeps its size")]
    Measure {
        /// The volume.
        name: String,
        /// The disk's answer.
        source: MeasureError,
    },
    /// The ranges cannot be pinned.
    #[error(transparent)]
    Pin(#[from] PinError),
    /// The guaranteed shares of the volumes leave no room.
    #[error("{0}")]
    Shares(ShareSum),
    /// The restore from the journal has failed.
    #[error(
        "volume '{name}' cannot be served: restoring its data from the journal failed; nothing is \
         lost"
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
        "volume '{name}' cannot be served: loading its data from the vault failed; nothing is lost"
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
        "volume '{name}': cannot record in the state directory that it no longer relies on its \
         previous journal or vault"
    )]
    Record {
        /// The volume.
        name: String,
        /// The system's error.
        #[source]
        error: io::Error,
    },
    /// The volume is being added, restored or removed.
    #[error("volume '{0}' is being added, restored or removed by another command")]
    Leaving(String),
    /// The workers have ended: the process is about to end.
    #[error("the server is stopping")]
    Stopping,
}

impl From<WorkerEnded> for VolumeError {
    fn from(WorkerEnded: WorkerEnded) -> Self {
        Self::Stopping
    }
}

impl From<UnknownVolume> for VolumeError {
    fn from(UnknownVolume(name): UnknownVolume) -> Self {
        Self::Unknown(name)
    }
}

impl Fault for StartError {
    fn remedy(&self) -> Remedy {
        match self {
            Self::Pool(error) => error.remedy(),
            Self::Ring(_) => Remedy::from(Action::set("io", "epoll")).or(Action::set("io", "auto")),
            Self::Worker(_) => {
                Remedy::from("raise the process's limits of threads, open files and memory")
                    .or(Action::set("workers", "1"))
            }
        }
    }
}

impl Fault for Stall {
    fn remedy(&self) -> Remedy {
        match self {
            Self::Journal { .. } => "check the journal's device and the kernel log".into(),
            Self::Record { .. } => {
                "free space in the state directory, or make it writable, and try again".into()
            }
            Self::Nothing { .. } => Action::Report.into(),
        }
    }

    fn blame(&self) -> Blame {
        match self {
            Self::Journal { .. } | Self::Record { .. } => Blame::Environment,
            Self::Nothing { .. } => Blame::Bug,
        }
    }
}

impl Fault for MoveError {
    fn remedy(&self) -> Remedy {
        match self {
            Self::Lost { name } => Action::TrustVolume(name.clone()).into(),
            Self::Busy { .. } => "repeat the reload when its disk and its journal answer".into(),
            Self::Silent { .. } => "check the journal's device and the kernel log".into(),
            Self::Ups { .. } => "restart the server to change that".into(),
        }
    }

    fn blame(&self) -> Blame {
        match self {
            Self::Ups { .. } => Blame::Operator,
            _ => Blame::Environment,
        }
    }
}

/// What to do after a save of a volume in memory that failed with an error of this kind.
pub const fn remedy_for_save(kind: io::ErrorKind) -> &'static str {
    use io::ErrorKind::{NotADirectory, NotFound, PermissionDenied, ReadOnlyFilesystem, TimedOut};
    match kind {
        NotFound | NotADirectory => "restore the directory of the image, or mount its file system",
        PermissionDenied | ReadOnlyFilesystem => "make the directory of the image writable",
        TimedOut => "check the file system of the image",
        _ => "make room for a second image in its directory",
    }
}

/// What to do after dirty data could not be copied to a file.
const fn remedy_for_copy(kind: io::ErrorKind) -> &'static str {
    use io::ErrorKind::{
        AlreadyExists, FileTooLarge, NotADirectory, NotFound, PermissionDenied, ReadOnlyFilesystem,
    };
    match kind {
        AlreadyExists => "name a file that does not exist",
        NotFound | NotADirectory => "create its directory, or name another file",
        PermissionDenied | ReadOnlyFilesystem => "name a file in a directory that is writable",
        FileTooLarge => "raise the server's limit on the size of files (ulimit -f)",
        _ => "make room there, or name a file on another file system",
    }
}

impl Fault for VolumeError {
    fn remedy(&self) -> Remedy {
        match self {
            Self::NameInUse(_) => {
                Remedy::from("choose another name").or("remove that volume first")
            }
            Self::TakenOver(_) => "take it over again, if it is to be served here".into(),
            Self::HalfAdded(_) => "remove it once its disk works, and add it again".into(),
            Self::BackingInUse { .. } => {
                Remedy::from("name another disk").or("remove that volume first")
            }
            Self::Name(_) => format!(
                "use 1 to {VOLUME_NAME_BYTES_MAX} bytes of UTF-8 text without control characters"
            )
            .into(),
            Self::TooMany => "remove a volume first".into(),
            Self::Unknown(_) => Action::ListVolumes.into(),
            Self::BackingReadOnly(_) => {
                "remove the volume, and add it again with read-only=no".into()
            }
            Self::Dirty { name, error, .. } => {
                Remedy::from(format!("{}, and repeat the command", error.remedy()))
                    .or(Action::DiscardVolume(name.clone()))
            }
            Self::Hanging { name, .. } => Remedy::from(
                "check the kernel log for the disk, and repeat the command when the disk works",
            )
            .or(Action::DiscardVolume(name.clone())),
            Self::Copy { source, .. } => remedy_for_copy(source.kind()).into(),
            Self::GivenUp { name, .. } => {
                Remedy::from("stop the server, which does not wait for it")
                    .or(Action::RemoveVolume(name.clone()))
            }
            Self::Save { source, .. } => {
                format!("{}, and repeat the command", remedy_for_save(source.kind())).into()
            }
            Self::NoImage(_) => "save volumes with the backing memory:SIZE?save=PATH only".into(),
            Self::Stalled(error) => error.remedy(),
            Self::Move(error) => error.remedy(),
            Self::FlushFailed { name, .. } => Remedy::from(Action::TrustVolume(name.clone()))
                .or(Action::DiscardVolume(name.clone())),
            Self::OtherDisk { .. } => {
                let remedy = "add the volume with its previous backing store, remove it, then add \
                              it with the new one";
                Remedy::from(remedy).or("add the new one under another volume name")
            }
            Self::ChangedDisk { name, .. } => Remedy::from("serve the volume from its own disk")
                .or(Action::AcceptChangedDisk(name.clone())),
            Self::Unserved { .. } => {
                Remedy::from("add it again with the same backing").or(Action::RepeatStop)
            }
            Self::Journal(error) => error.remedy(),
            Self::Calibrate(error) => error.remedy(),
            Self::Measure { source, .. } => source.remedy(),
            Self::Pin(error) => error.remedy(),
            Self::Shares(sum) => sum.remedy().into(),
            Self::Restore { .. } => "try again when its disk and the journal work".into(),
            Self::Load { .. } => "try again when its disk and the vault work".into(),
            Self::Vault(error) => error.remedy(),
            Self::Record { .. } | Self::Tenure { .. } => {
                "make the state directory readable and writable, with free space".into()
            }
            Self::Leaving(_) => "repeat the command when the other one has finished".into(),
            Self::Stopping => "wait until it has stopped, and start it again".into(),
        }
    }

    fn blame(&self) -> Blame {
        match self {
            Self::NameInUse(_)
            | Self::BackingInUse { .. }
            | Self::Name(_)
            | Self::TooMany
            | Self::Unknown(_)
            | Self::NoImage(_)
            | Self::BackingReadOnly(_) => Blame::Operator,
            Self::Stalled(error) => error.blame(),
            Self::Move(error) => error.blame(),
            Self::Journal(error) => error.blame(),
            Self::Pin(error) => error.blame(),
            _ => Blame::Environment,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_that_hangs_without_dirty_data_leaves_none_unwritten() {
        let text = |dirty_bytes| {
            VolumeError::Hanging { name: "v".to_owned(), seconds: 30, dirty_bytes }.to_string()
        };
        let begin = "the backing store of volume 'v' has not answered for 30 s";
        let end = "; the volume is still served, and nothing is lost";
        assert_eq!(text(0), format!("{begin}{end}"));
        let unwritten = ", and 1.5 MiB of dirty data is not written to it";
        assert_eq!(text(3 << 19), format!("{begin}{unwritten}{end}"));
    }
}
