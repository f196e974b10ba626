//! The NBD protocol, server and client side, sans I/O.
//!
//! The crate has no socket, thread, clock or random source. Callers pass in received bytes and get
//! back bytes to send and decisions. On the server side, a [`Handshake`] produces a [`Negotiated`],
//! which parses requests and encodes replies; [`client`] is the client side. Both treat the peer
//! as hostile: they check every length before using it, and no length drives an allocation.
//!
//! Tests and comments cite protocol requirements by number, for example `N-03`: one or two letters
//! for the part of the protocol, and a number within it. The numbers are this project's own, not
//! those of the NBD specification; the code around a number says what it requires.

#![deny(missing_docs)]

mod block_status;
pub mod client;
mod export;
mod handshake;
mod negotiated;
pub mod proto;
mod reply;
mod request;
mod session;
mod wire;

pub use block_status::EXTENTS_PER_REPLY_MAX;
pub use export::{ExportInfo, Exports};
pub use forebay_types::Extent;
pub use handshake::{
    CloseReason, ExportRefusal, HANDSHAKE_INPUT_BYTES_MAX, HANDSHAKE_OPTIONS_MAX,
    HANDSHAKE_SKIP_BYTES_MAX, Handshake, HandshakeConfig, HandshakeStep, Tls,
};
pub use negotiated::Negotiated;
pub use reply::{READ_HEADER_BYTES_MAX, simple_reply};
pub use request::{BrokenStream, NbdCommand, NbdRequest, PAYLOAD_DRAIN_BYTES_MAX, Parse, ReplyTo};
pub use session::{
    SESSION_INPUT_BYTES_MAX, SESSION_RECORD_BYTES_MAX, SESSION_VERSION, SessionError, SessionRecord,
};

#[cfg(test)]
mod tests;
