//! The error of a request: one of the eight that the NBD protocol defines.

use std::fmt;

/// The outcome of one I/O.
pub type IoResult = Result<(), IoError>;

/// Why a request failed. Any other error is mapped to one of these, and logged, where it occurs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum IoError {
    /// The volume is read-only.
    NotPermitted,
    /// The backing store failed to read or write.
    Io,
    /// There is no memory for the request.
    NoMemory,
    /// The request is invalid: misaligned, with an unknown flag, or past the end of the volume. A
    /// client's write past the end fails with [`Self::NoSpace`].
    Invalid,
    /// The backing store is full, or a write goes past the end of the volume.
    NoSpace,
    /// The request is larger than the server accepts.
    Overflow,
    /// The operation is not supported in this form.
    NotSupported,
    /// The server is stopping, or the volume is being removed.
    Shutdown,
}

impl IoError {
    /// The Linux error number of this error.
    pub const fn errno(self) -> u32 {
        match self {
            Self::NotPermitted => 1,
            Self::Io => 5,
            Self::NoMemory => 12,
            Self::Invalid => 22,
            Self::NoSpace => 28,
            Self::Overflow => 75,
            Self::NotSupported => 95,
            Self::Shutdown => 108,
        }
    }

    /// What to do about a disk, a file or a device that answers with this error.
    pub const fn remedy(self) -> &'static str {
        match self {
            Self::NoSpace => "free space in its file system, or in the pool that its space is from",
            Self::NotPermitted => "make it writable",
            Self::NoMemory => "free some memory",
            Self::Io | Self::Invalid | Self::Overflow | Self::NotSupported | Self::Shutdown => {
                "check the kernel log (`dmesg`) for its errors"
            }
        }
    }

    /// The error for a Linux error number. Quota and file size limits count as a full disk; a
    /// number without a counterpart is an input/output error.
    pub const fn from_errno(errno: i32) -> Self {
        match errno {
            1 | 13 | 30 => Self::NotPermitted,
            12 => Self::NoMemory,
            22 => Self::Invalid,
            27 | 28 | 122 => Self::NoSpace,
            75 => Self::Overflow,
            38 | 95 => Self::NotSupported,
            108 => Self::Shutdown,
            _ => Self::Io,
        }
    }
}

impl fmt::Display for IoError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotPermitted => "not permitted",
            Self::Io => "input/output error",
            Self::NoMemory => "out of memory",
            Self::Invalid => "invalid request",
            Self::NoSpace => "no space left",
            Self::Overflow => "request too large",
            Self::NotSupported => "not supported",
            Self::Shutdown => "shutting down",
        })
    }
}

impl std::error::Error for IoError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errno_round_trips() {
        for error in [
            IoError::NotPermitted,
            IoError::Io,
            IoError::NoMemory,
            IoError::Invalid,
            IoError::NoSpace,
            IoError::Overflow,
            IoError::NotSupported,
            IoError::Shutdown,
        ] {
            assert_eq!(IoError::from_errno(error.errno() as i32), error);
        }
        assert_eq!(IoError::from_errno(122), IoError::NoSpace);
        assert_eq!(IoError::from_errno(4242), IoError::Io);
    }
}
