//! Events parsed from a server's replies, and protocol violations.

use crate::Extent;
use forebay_types::{IoError, IoResult};

/// The result of one call to the parser.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClientEvent {
    /// Receive more, and call again with the unconsumed and the new input.
    NeedMore,
    /// The next `len` bytes of the stream are the data at `offset` of the export. The caller
    /// consumes them, and calls again with the input that follows. The data is valid only after a
    /// successful [`ClientEvent::Done`].
    Data {
        /// The request it answers.
        cookie: u64,
        /// First byte of the export.
        offset: u64,
        /// Bytes that follow, not zero.
        len: u32,
    },
    /// `len` bytes at `offset` of the export are zeroes.
    Hole {
        /// The request it answers.
        cookie: u64,
        /// First byte of the export.
        offset: u64,
        /// Bytes, not zero.
        len: u32,
    },
    /// The allocation state, as consecutive extents from the request's offset. They may end before
    /// the request does, never after it.
    Extents {
        /// The request it answers.
        cookie: u64,
        /// At least one, none of them empty.
        extents: Vec<Extent>,
    },
    /// An error chunk; [`ClientEvent::Done`] follows, possibly after other chunks. A simple reply
    /// with an error causes [`ClientEvent::Done`] only.
    Error {
        /// The request it answers.
        cookie: u64,
        /// The error.
        error: IoError,
        /// The server's text, made safe to print; may be empty.
        text: String,
    },
    /// The request is complete, and its cookie is free.
    Done {
        /// The request.
        cookie: u64,
        /// Its result. `Ok` for a read means that all of its bytes were received.
        result: IoResult,
    },
    /// The server violated the protocol: close, and fail the requests in flight.
    Broken(ServerViolation),
}

/// How a server violated the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ServerViolation {
    /// A reply starts with a wrong magic for the negotiated form.
    #[error("invalid reply magic {0:#010x}")]
    Magic(u32),
    /// A reply to no request in flight.
    #[error("reply to request {0}, which is not in flight")]
    Cookie(u64),
    /// A reply form that the request does not allow.
    #[error("reply to request {0} has a form that the request does not allow")]
    Form(u64),
    /// An unknown chunk type or flag.
    #[error("unknown chunk type {kind} or flags {flags:#x}")]
    Chunk {
        /// The type.
        kind: u16,
        /// The flags.
        flags: u16,
    },
    /// A chunk's length contradicts its type or its request.
    #[error("chunk type {kind} has an invalid length of {len} bytes")]
    Length {
        /// The type.
        kind: u16,
        /// The length in bytes.
        len: u64,
    },
    /// Content outside the requested range, or sent twice.
    #[error("{len} bytes at offset {offset} are outside the request or were sent twice")]
    Content {
        /// First byte of the export.
        offset: u64,
        /// Bytes.
        len: u64,
    },
    /// An error chunk without an error number, or too many of them.
    #[error("malformed error reply to request {0}")]
    Error(u64),
    /// Extents that are empty, start past the end of the request, belong to no selected context, or
    /// are of the wrong number; or a second block status chunk. With `REQ_ONE`, also an extent that
    /// runs past the end.
    #[error("malformed block status of request {0}")]
    Extents(u64),
    /// A success without all of its content.
    #[error("incomplete reply to request {0} reports success")]
    Incomplete(u64),
    /// An earlier violation ended the connection.
    #[error("connection ended by an earlier protocol violation")]
    Ended,
}
