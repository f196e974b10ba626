//! The client's side: what Forebay speaks to an NBD server it stands in front of.
//!
//! A [`Handshake`] opens an export and leaves an [`Opened`], which encodes requests; a
//! [`ReplyParser`] takes the server's replies apart. The server is taken for hostile or broken:
//! it may send any bytes, and what comes of them is an error, never wrong data, a panic, or
//! memory spent because a length said so. In particular a read succeeds only if every byte of it
//! was sent exactly once.

mod coverage;
mod event;
mod failure;
mod handshake;
mod option_reply;
mod pending;
mod reply;
mod request;

pub use event::{Breach, Event};
pub use failure::Failure;
pub use handshake::{CLIENT_HANDSHAKE_INPUT_BYTES_MAX, Config, Handshake, Step};
pub use reply::{CLIENT_INPUT_BYTES_MAX, ReplyParser};
pub use request::Request;

use crate::proto::export_flag;

/// An export that a handshake opened: its properties and the terms of the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opened {
    /// Size of the export in bytes, below 2^63.
    pub size_bytes: u64,
    /// The transmission flags, zero from a server that did not mark them valid.
    pub flags: u16,
    /// Whether the server answers in chunks. Also set where `extended` is.
    pub structured: bool,
    /// Whether headers are the extended ones in both directions.
    pub extended: bool,
    /// The number of the `base:allocation` context, where the server has it.
    pub base_allocation: Option<u32>,
    /// Whether the session is inside TLS.
    pub tls: bool,
    /// Alignment the server demands in bytes: a power of two from 1 to 65536.
    pub block_min: u32,
    /// Alignment the server likes best in bytes: a power of two, at least 512 and `block_min`.
    pub block_preferred: u32,
    /// Longest payload of one read or write in bytes, at least `block_preferred`, at most 32 MiB.
    pub payload_max: u32,
}

impl Opened {
    /// Whether the server refuses writes.
    pub const fn is_read_only(&self) -> bool {
        self.can(export_flag::READ_ONLY)
    }

    /// Whether the server set this transmission flag, one of [`export_flag`].
    pub const fn can(&self, flag: u16) -> bool {
        self.flags & flag != 0
    }
}
