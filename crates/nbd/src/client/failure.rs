//! Why an export was not opened.

use forebay_types::limits::OPTION_BYTES_MAX;

/// Maximum number of replies to one option before the final one. A server needs one per kind of
/// information.
pub(super) const REPLIES_MAX: u32 = 1024;

/// Why an export was not opened.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenFailure {
    /// The peer is not an NBD server.
    #[error("not an NBD server: its first bytes are {0:#018x} and {1:#018x}")]
    Greeting(u64, u64),
    /// The server supports the oldstyle handshake only.
    #[error("the server uses oldstyle NBD, which has no export names; use a newer server")]
    Oldstyle,
    /// TLS is required, but the server lacks the fixed newstyle handshake.
    #[error("the server cannot start TLS: it lacks the fixed newstyle handshake")]
    NoTls,
    /// An option reply starts with a wrong magic.
    #[error("invalid option reply magic {0:#018x}")]
    ReplyMagic(u64),
    /// A reply to an option that was not sent.
    #[error("the server answered option {echoed}, but option {sent} was sent")]
    ReplyToOther {
        /// The option that was sent.
        sent: u32,
        /// The option that was answered.
        echoed: u32,
    },
    /// A reply exceeds the length limit.
    #[error("option reply of {0} bytes exceeds the limit of {OPTION_BYTES_MAX} bytes")]
    ReplyLength(u32),
    /// Too many replies to one option.
    #[error("more than {REPLIES_MAX} replies to one option")]
    ReplyCount,
    /// A reply that is malformed, or not allowed for the option.
    #[error("reply {reply:#x} to option {option} is malformed or unexpected")]
    Reply {
        /// The option that was sent.
        option: u32,
        /// The kind of the reply.
        reply: u32,
    },
    /// The server rejected the option.
    #[error("the server rejected option {option} with {reply:#x}: {text}")]
    Refused {
        /// The option that was sent.
        option: u32,
        /// The kind of the reply, one of [`crate::proto::option_reply`].
        reply: u32,
        /// The server's text, made safe to print.
        text: String,
    },
    /// The size of the export is out of range.
    #[error("the server reports an export size of {0} bytes, which is 2^63 or more")]
    Size(u64),
    /// The block sizes violate the protocol.
    #[error("the server reports invalid block sizes {min}, {preferred} and {payload}")]
    BlockSizes {
        /// Minimum block in bytes.
        min: u32,
        /// Preferred block in bytes.
        preferred: u32,
        /// Maximum payload in bytes.
        payload: u32,
    },
    /// The server sent plain text after its reply to `STARTTLS`.
    #[error("plain text after the reply to STARTTLS, possibly injected")]
    PlainText,
    /// The handshake had already ended.
    #[error("handshake has already ended")]
    Ended,
}
