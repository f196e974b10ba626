//! Why an export of another server can't be used.

use crate::SpecError;
use forebay_nbd::client::Failure;
use forebay_types::{Blame, Fault, Remedy};
use std::io;

/// Why an export can't be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NbdError {
    /// The address is not well formed.
    #[error("'{url}' is no address of an export")]
    Address {
        /// The address as typed.
        url: String,
    },
    /// The options of the address.
    #[error(transparent)]
    Spec(#[from] SpecError),
    /// Encryption was asked for.
    #[error("'{url}' asks for TLS, which connections to other servers can't do yet")]
    Tls {
        /// The address as typed.
        url: String,
    },
    /// No one answers.
    #[error("the server of '{url}' can't be reached")]
    Connect {
        /// The address as typed.
        url: String,
        /// What the system said.
        source: io::Error,
    },
    /// The server has no such export, or does not speak the protocol.
    #[error("the server does not open '{url}'")]
    Handshake {
        /// The address as typed.
        url: String,
        /// What went wrong.
        source: Failure,
    },
    /// The export can't be written.
    #[error("the server of '{url}' refuses writes")]
    ReadOnly {
        /// The address as typed.
        url: String,
    },
    /// Not made of whole sectors, or of none.
    #[error("the export '{url}' is {size_bytes} bytes, no multiple of {multiple} above zero")]
    Size {
        /// The address as typed.
        url: String,
        /// Its size.
        size_bytes: u64,
        /// What it should be a multiple of, in bytes.
        multiple: u32,
    },
    /// The export is no longer what it was when it was opened.
    #[error("the export '{url}' came back with another size or other abilities")]
    Changed {
        /// The address as typed.
        url: String,
    },
    /// No thread for the connection.
    #[error("no thread can be started for '{url}'")]
    Thread {
        /// The address as typed.
        url: String,
        /// What the system said.
        source: io::Error,
    },
}

impl Fault for NbdError {
    fn remedy(&self) -> Remedy {
        match self {
            Self::Address { .. } => {
                Remedy::from("write nbd://HOST[:PORT]/EXPORT").or("nbd+unix:///EXPORT?socket=PATH")
            }
            Self::Spec(error) => error.remedy(),
            Self::Tls { .. } => {
                "use nbd:// or nbd+unix:// through a trusted network or a tunnel".into()
            }
            Self::Connect { .. } => "check that it runs and listens there".into(),
            Self::Handshake { .. } => Remedy::from("check the name of the export")
                .or("list them with nbdinfo, which comes with libnbd"),
            Self::ReadOnly { .. } => {
                Remedy::from("serve it read-only").or("have the server allow them")
            }
            Self::Size { .. } => "have the server round its size".into(),
            Self::Changed { .. } => {
                Remedy::from("bring back the old one").or("open the volume anew")
            }
            Self::Thread { .. } => "raise the limit of processes or threads".into(),
        }
    }

    fn blame(&self) -> Blame {
        match self {
            Self::Address { .. } | Self::Spec(_) | Self::Tls { .. } => Blame::Operator,
            _ => Blame::Environment,
        }
    }
}
