//! Why a log cannot be read.

use forebay_format::journal::{JournalId, LogKind, MEMBERS_MAX, SuperblockInvalid};
use forebay_types::IoError;
use std::fmt;

/// Why a log cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RecoverError {
    /// The superblock cannot be read.
    Io(IoError),
    /// The device has no valid superblock.
    Superblock(SuperblockInvalid),
    /// The device holds a log of another kind.
    Kind(LogKind),
    /// The device is smaller than when the journal was created; sizes in bytes.
    Truncated {
        /// The size at creation.
        expected: u64,
        /// The current size.
        found: u64,
    },
    /// One device of a mirrored journal cannot be used.
    On {
        /// The index of the device.
        device: usize,
        /// The reason.
        error: Box<RecoverError>,
    },
    /// One device of a mirrored journal is missing, and the other holds nothing.
    Missing,
    /// One device of a mirrored journal is missing, and the other one may be stale.
    MayBeStale {
        journal: JournalId,
        /// The index of the present device.
        device: usize,
    },
    /// The devices belong to different journals.
    TwoJournals {
        /// The two journals.
        journals: [JournalId; MEMBERS_MAX],
    },
    /// Both devices continued without each other (split brain).
    Split { journal: JournalId },
}

impl fmt::Display for RecoverError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io(error) => write!(f, "has an unreadable superblock: {error}"),
            Self::Superblock(error) => error.fmt(f),
            Self::Kind(LogKind::Journal) => f.write_str("holds a journal, not a vault"),
            Self::Kind(LogKind::Vault { .. }) => f.write_str("holds a vault, not a journal"),
            Self::Truncated { expected, found } => {
                write!(f, "had {expected} bytes when it was created, and has {found}")
            }
            Self::On { error, .. } => error.fmt(f),
            Self::Missing => f.write_str("has only one of its two devices, which holds no journal"),
            Self::MayBeStale { .. } => {
                f.write_str("has only one of its two devices, and the missing one may be newer")
            }
            Self::TwoJournals { journals: [a, b] } => {
                write!(f, "has devices of different journals, {a} and {b}")
            }
            Self::Split { .. } => {
                f.write_str("has two devices, each of which continued without the other")
            }
        }
    }
}

impl std::error::Error for RecoverError {}
