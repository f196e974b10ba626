//! The NBD protocol, both sides, without any input or output of its own.
//!
//! Bytes go in, bytes and decisions come out: there is no socket, thread, clock or random source
//! in this crate. The server's side is a [`Handshake`], whose outcome is a [`Negotiated`] that
//! reads requests and encodes replies; the client's side is in [`client`]. Both take the peer for
//! hostile: every length is checked before it is used, and none drives an allocation.
//!
//! Tests and comments cite the duties of a server by number, as `N-03`: a letter for the part of
//! the protocol, and a number within it.

mod block_status;
pub mod client;
mod export;
mod handshake;
mod negotiated;
pub mod proto;
mod reply;
mod request;
mod wire;

pub use block_status::EXTENTS_PER_REPLY_MAX;
pub use export::{ExportInfo, Exports};
pub use forebay_types::Extent;
pub use handshake::{
    CloseReason, HANDSHAKE_INPUT_BYTES_MAX, HANDSHAKE_OPTIONS_MAX, HANDSHAKE_SKIP_BYTES_MAX,
    Handshake, HandshakeConfig, Refusal, Step, Tls,
};
pub use negotiated::Negotiated;
pub use reply::{READ_HEADER_BYTES_MAX, simple_reply};
pub use request::{BrokenStream, Command, PAYLOAD_BYTES_ABUSIVE, Parse, ReplyTo, Request};

#[cfg(test)]
mod tests;
