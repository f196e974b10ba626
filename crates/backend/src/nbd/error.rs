//! Errors of opening an export of another server.

use crate::SpecError;
use forebay_nbd::client::Failure;
use forebay_types::{Blame, Fault, Remedy};
use std::io;

/// Why an export cannot be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NbdError {
    /// The address is malformed.
    #[error("'{url}' is not the address of an export")]
    Address {
        /// The address, as given.
        url: String,
    },
    /// The protocol has no names as long as that of the export.
    #[error("the name of the export has {bytes} bytes, and the NBD protocol allows {max}")]
    LongName {
        /// Bytes in the name.
        bytes: usize,
        /// The protocol's limit.
        max: usize,
    },
    /// The options of the address are invalid.
    #[error(transparent)]
    Spec(#[from] SpecError),
    /// The address requires encryption.
    #[error("'{url}' requires TLS, which connections to other servers do not support yet")]
    Tls {
        /// The address, as given.
        url: String,
    },
    /// The connection failed.
    #[error("cannot reach the server of '{url}'")]
    Connect {
        /// The address, as given.
        url: String,
        /// The system's error.
        source: io::Error,
    },
    /// The server has no such export, or does not speak the protocol.
    #[error("the server refuses to open '{url}'")]
    Handshake {
        /// The address, as given.
        url: String,
        /// The failure of the handshake.
        source: Failure,
    },
    /// The export is read-only.
    #[error("the server of '{url}' refuses writes")]
    ReadOnly {
        /// The address, as given.
        url: String,
    },
    /// The size is zero, or not a multiple of the block size.
    #[error("the export '{url}' is {size_bytes} bytes, not a multiple of {multiple} above zero")]
    Size {
        /// The address, as given.
        url: String,
        /// Its size.
        size_bytes: u64,
        /// The block size, in bytes.
        multiple: u32,
    },
    /// The export has changed since it was opened.
    #[error("the export '{url}' has another size or fewer capabilities after a reconnect")]
    Changed {
        /// The address, as given.
        url: String,
    },
    /// A thread of the connection cannot be started.
    #[error("cannot start a thread for '{url}'")]
    Thread {
        /// The address, as given.
        url: String,
        /// The system's error.
        source: io::Error,
    },
}

impl Fault for NbdError {
    fn remedy(&self) -> Remedy {
        match self {
            Self::Address { .. } => {
                Remedy::from("write nbd://HOST[:PORT]/EXPORT").or("nbd+unix:///EXPORT?socket=PATH")
            }
            Self::LongName { .. } => "give the export a shorter name on its server".into(),
            Self::Spec(error) => error.remedy(),
            Self::Tls { .. } => {
                "use nbd:// or nbd+unix:// through a trusted network or a tunnel".into()
            }
            Self::Connect { .. } => "check that it runs and listens there".into(),
            Self::Handshake { .. } => Remedy::from("check the name of the export")
                .or("list them with nbdinfo, which comes with libnbd"),
            Self::ReadOnly { .. } => {
                Remedy::from("serve it read-only").or("allow writes on the server")
            }
            Self::Size { .. } => "round the size on the server".into(),
            Self::Changed { .. } => {
                Remedy::from("restore the export").or("remove the volume and add it again")
            }
            Self::Thread { .. } => "raise the limit of processes or threads".into(),
        }
    }

    fn blame(&self) -> Blame {
        match self {
            Self::Address { .. } | Self::LongName { .. } | Self::Spec(_) | Self::Tls { .. } => {
                Blame::Operator
            }
            _ => Blame::Environment,
        }
    }
}
