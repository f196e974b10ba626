//! Why an export was not opened.

use forebay_types::limits::OPTION_BYTES_MAX;

/// Most replies before the final one to an option. A server needs one per kind of information.
pub(super) const REPLIES_MAX: u32 = 1024;

/// Why an export was not opened.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// The greeting is not that of an NBD server.
    #[error("no NBD server: its first bytes are {0:#018x}")]
    Greeting(u64),
    /// The server speaks the oldstyle handshake only.
    #[error("the server speaks oldstyle NBD, which names no exports; use a newer server")]
    Oldstyle,
    /// TLS was demanded of a server that can't be asked for it.
    #[error("the server has no TLS: it lacks the fixed newstyle handshake")]
    NoTls,
    /// A reply does not start like one.
    #[error("option reply magic is {0:#018x}: the server lost step")]
    ReplyMagic(u64),
    /// A reply to something that was not sent.
    #[error("the server answered option {echoed} where option {sent} was sent")]
    ReplyToOther {
        /// The option that was sent.
        sent: u32,
        /// The option that was answered.
        echoed: u32,
    },
    /// A reply is longer than any reply needs to be.
    #[error("option reply of {0} bytes: {OPTION_BYTES_MAX} are the limit")]
    ReplyLength(u32),
    /// There is no end of replies to one option.
    #[error("more than {REPLIES_MAX} replies to one option")]
    ReplyCount,
    /// A reply that makes no sense for the option, or is malformed.
    #[error("reply {reply:#x} to option {option} is malformed or out of place")]
    Reply {
        /// The option that was sent.
        option: u32,
        /// The kind of the reply.
        reply: u32,
    },
    /// The server refused, and said why.
    #[error("the server refused option {option} with {reply:#x}: {text}")]
    Refused {
        /// The option that was sent.
        option: u32,
        /// The kind of the reply, one of [`crate::proto::option_reply`].
        reply: u32,
        /// The server's text, made safe to print.
        text: String,
    },
    /// The size is not one an export can have.
    #[error("the server reports a size of {0} bytes, which is 2^63 or more")]
    Size(u64),
    /// The block sizes contradict the protocol.
    #[error("the server reports impossible block sizes {min}, {preferred} and {payload}")]
    BlockSizes {
        /// Minimum block in bytes.
        min: u32,
        /// Preferred block in bytes.
        preferred: u32,
        /// Maximum payload in bytes.
        payload: u32,
    },
    /// Plain text came where TLS must start.
    #[error("plain text behind the answer to STARTTLS: possibly an injection")]
    PlainText,
    /// The handshake had ended before.
    #[error("the handshake is over")]
    Over,
}
