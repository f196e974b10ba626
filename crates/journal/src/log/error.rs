//! Errors of opening or changing a log.

use forebay_format::journal::VOLUMES_MAX;
use std::fmt;

/// Why a log cannot be opened or changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogError {
    /// The journal has the maximum number of volumes.
    TooManyVolumes,
    /// The journal has used up its volume numbers. They start over when a process resumes the log
    /// while it has no records.
    NoMoreNumbers,
    /// The log is full, or holds too many generations: its records must be written to the disks
    /// first.
    DrainFirst,
    /// The volume to remove still has records.
    InUse,
    /// The segments are too short for the longest batch. Forebay never creates such a journal.
    ShortSegments {
        /// Length of a segment in bytes.
        segment_bytes: u64,
    },
}

impl fmt::Display for LogError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooManyVolumes => write!(f, "it has the maximum of {VOLUMES_MAX} volumes"),
            Self::NoMoreNumbers => {
                write!(f, "it has used up its {} volume numbers", u16::MAX)
            }
            Self::DrainFirst => f.write_str(
                "it has no space to continue before its records are written to the disks",
            ),
            Self::InUse => f.write_str("it still holds records of the volume"),
            Self::ShortSegments { segment_bytes } => {
                write!(f, "its segments of {segment_bytes} bytes are too short for a batch")
            }
        }
    }
}

impl std::error::Error for LogError {}
