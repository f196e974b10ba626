//! The client side, for NBD servers as backing stores.
//!
//! A [`ClientHandshake`] opens an export and returns an [`OpenExport`], which encodes requests; a
//! [`ReplyParser`] parses the server's replies. The server is treated as hostile: invalid input
//! results in an error, never in wrong data, a panic, or an allocation of a size that the server
//! chose. In particular, a read succeeds only if the server sent every byte of it exactly once.

mod coverage;
mod event;
mod failure;
mod handshake;
mod option_reply;
mod pending;
mod reply;
mod request;

pub use event::{ClientEvent, ServerViolation};
pub use failure::OpenFailure;
pub use handshake::{CLIENT_HANDSHAKE_INPUT_BYTES_MAX, ClientHandshake, ClientStep, ExportConfig};
pub use reply::{CLIENT_INPUT_BYTES_MAX, ReplyParser};
pub use request::ExportRequest;

use crate::proto::export_flag;

/// An open export: its properties and the terms of the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenExport {
    /// Size of the export in bytes, below 2^63.
    pub size_bytes: u64,
    /// The transmission flags; zero if the server did not mark them valid.
    pub flags: u16,
    /// Whether replies are chunked. Always set if `extended` is.
    pub structured: bool,
    /// Whether both directions use extended headers.
    pub extended: bool,
    /// The id of the `base:allocation` context, if the server supports it.
    pub base_allocation: Option<u32>,
    /// Whether the session runs over TLS.
    pub tls: bool,
    /// Required request alignment in bytes: a power of two from 1 to 65536.
    pub block_min: u32,
    /// Preferred request alignment in bytes: a power of two, at least 512 and `block_min`.
    pub block_preferred: u32,
    /// Longest payload of one read or write in bytes, at least `block_preferred`, at most 32 MiB.
    pub payload_max: u32,
}

impl OpenExport {
    /// Whether the server rejects writes.
    pub const fn is_read_only(&self) -> bool {
        self.can(export_flag::READ_ONLY)
    }

    /// Whether the server set this transmission flag, one of [`export_flag`].
    pub const fn can(&self, flag: u16) -> bool {
        self.flags & flag != 0
    }
}
