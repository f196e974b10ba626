//! What a server's replies come to: events, and breaches of the protocol.

use crate::Extent;
use forebay_types::{IoError, IoResult};

/// What the server sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// Receive more, and call again with what was not consumed and what came.
    NeedMore,
    /// The next `len` bytes of the stream are the data from `offset` of the export. The caller
    /// takes them, and calls again with what comes behind them. They count only when
    /// [`Event::Done`] says so.
    Data {
        /// The request it answers.
        cookie: u64,
        /// First byte of the export.
        offset: u64,
        /// Bytes that follow, not zero.
        len: u32,
    },
    /// `len` bytes from `offset` of the export are zeroes; nothing follows for them.
    Hole {
        /// The request it answers.
        cookie: u64,
        /// First byte of the export.
        offset: u64,
        /// Bytes, not zero.
        len: u32,
    },
    /// What is allocated, as consecutive extents from the request's offset. They may end before
    /// the request does, never behind it.
    Extents {
        /// The request it answers.
        cookie: u64,
        /// At least one, none of them empty.
        extents: Vec<Extent>,
    },
    /// The server says why the request fails; [`Event::Done`] follows.
    Error {
        /// The request it answers.
        cookie: u64,
        /// What went wrong.
        error: IoError,
        /// The server's text, made safe to print; may be empty.
        text: String,
    },
    /// The request is over, and its cookie free.
    Done {
        /// The request.
        cookie: u64,
        /// How it ended. `Ok` for a read means that all of its bytes were sent.
        result: IoResult,
    },
    /// The server broke the protocol: close, and fail what is in flight.
    Broken(Breach),
}

/// How a server broke the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Breach {
    /// A reply does not start like one of the form that was agreed on.
    #[error("reply magic is {0:#010x}: the server lost step")]
    Magic(u32),
    /// A reply to no request in flight.
    #[error("reply to request {0}, which is not in flight")]
    Cookie(u64),
    /// A reply of a form that its request can't have.
    #[error("reply to request {0} is of a form it can't have")]
    Form(u64),
    /// A chunk of a kind, or with flags, that are not known.
    #[error("chunk type {kind} with flags {flags:#x} is not known")]
    Chunk {
        /// The type.
        kind: u16,
        /// The flags.
        flags: u16,
    },
    /// A chunk's length contradicts its type or its request.
    #[error("chunk type {kind} has an impossible length of {len} bytes")]
    Length {
        /// The type.
        kind: u16,
        /// The length in bytes.
        len: u64,
    },
    /// Content outside of what was asked for, or sent twice.
    #[error("content at {offset} of {len} bytes is outside the request or sent twice")]
    Content {
        /// First byte of the export.
        offset: u64,
        /// Bytes.
        len: u64,
    },
    /// An error without a number, or more of them than make sense.
    #[error("error reply to request {0} is malformed")]
    Error(u64),
    /// Extents that are empty, or run past the request.
    #[error("block status of request {0} is malformed")]
    Extents(u64),
    /// A success that lacks part of its content.
    #[error("reply to request {0} says it succeeded, but is incomplete")]
    Incomplete(u64),
    /// The connection had been given up before.
    #[error("the connection was given up after an earlier breach")]
    Over,
}
