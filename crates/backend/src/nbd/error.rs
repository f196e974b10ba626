//! Why an export of another server can't be used.

use crate::SpecError;
use forebay_nbd::client::Failure;
use std::io;

/// Why an export can't be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NbdError {
    /// The address is not well formed.
    #[error(
        "'{url}' is no address of an export: write nbd://HOST[:PORT]/EXPORT or \
         nbd+unix:///EXPORT?socket=PATH"
    )]
    Address {
        /// The address as typed.
        url: String,
    },
    /// The options of the address.
    #[error(transparent)]
    Spec(#[from] SpecError),
    /// Encryption was asked for.
    #[error(
        "'{url}' asks for TLS, which connections to other servers can't do yet: use nbd:// or \
         nbd+unix:// through a trusted network or a tunnel"
    )]
    Tls {
        /// The address as typed.
        url: String,
    },
    /// No one answers.
    #[error("the server of '{url}' can't be reached: check that it runs and listens there")]
    Connect {
        /// The address as typed.
        url: String,
        /// What the system said.
        source: io::Error,
    },
    /// The server has no such export, or does not speak the protocol.
    #[error(
        "the server does not open '{url}': check the name of the export, or list them with \
         `nbdinfo --list`"
    )]
    Handshake {
        /// The address as typed.
        url: String,
        /// What went wrong.
        source: Failure,
    },
    /// The export can't be written.
    #[error(
        "the server of '{url}' refuses writes: serve it read-only, or have the server allow them"
    )]
    ReadOnly {
        /// The address as typed.
        url: String,
    },
    /// Not made of whole sectors, or of none.
    #[error(
        "the export '{url}' is {size_bytes} bytes, no multiple of {multiple} above zero: have \
         the server round its size"
    )]
    Size {
        /// The address as typed.
        url: String,
        /// Its size.
        size_bytes: u64,
        /// What it should be a multiple of, in bytes.
        multiple: u32,
    },
    /// The export is no longer what it was when it was opened.
    #[error(
        "the export '{url}' came back with another size or other abilities: bring back the old \
         one, or open the volume anew"
    )]
    Changed {
        /// The address as typed.
        url: String,
    },
    /// No thread for the connection.
    #[error("no thread can be started for '{url}': raise the limit of processes or threads")]
    Thread {
        /// The address as typed.
        url: String,
        /// What the system said.
        source: io::Error,
    },
}
