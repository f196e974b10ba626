//! What a handshake asks of its caller, and the reasons it gives for ending.

use super::{HANDSHAKE_OPTIONS_MAX, HANDSHAKE_SKIP_BYTES_MAX};
use crate::Negotiated;

/// What the caller must do next. Whatever the step, bytes that were appended to the output are to
/// be sent first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Receive more, and call again with what was not consumed and what came.
    NeedMore,
    /// Send the output, then call again with what was not consumed, even if nothing came.
    Flush,
    /// Send the output, start TLS, call [`super::Handshake::tls_established`], and go on with
    /// what comes through TLS. All input was consumed.
    StartTls,
    /// The handshake is over: what was not consumed is the start of the transmission phase.
    Enter(Negotiated),
    /// Send the output as far as the client takes it, then close.
    Close(CloseReason),
}

/// Why a handshake ended without entering an export.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CloseReason {
    /// The client said it is done; nothing is wrong.
    #[error("the client ended the session")]
    Aborted,
    /// The client's flags have a bit that answers nothing that was offered (H-03).
    #[error("client flags are {0:#x}: only 0x1 and 0x2 are known")]
    ClientFlags(u32),
    /// An option does not start like one (N-01).
    #[error("option magic is {0:#018x}: the client sends something other than options")]
    OptionMagic(u64),
    /// An export was named by an option that knows no error reply.
    #[error("export refused to a client that used EXPORT_NAME: {0}")]
    ExportRefused(Refusal),
    /// The client sent more bytes in refused options than any honest one does (N-07).
    #[error("option of {0} bytes is abusive: {HANDSHAKE_SKIP_BYTES_MAX} bytes are the limit")]
    OptionLength(u32),
    /// The client sent more options than any honest one does.
    #[error("too many options: {HANDSHAKE_OPTIONS_MAX} are the limit")]
    OptionCount,
    /// Plain text came where TLS must start (T-06).
    #[error("plain text behind STARTTLS: possibly an injection; the client must wait for the ACK")]
    PlainText,
    /// The handshake had ended before.
    #[error("the handshake is over")]
    Over,
}

/// Why an export is not given to a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// There is none of this name.
    #[error("no export of this name; LIST names those there are")]
    Unknown,
    /// The name is longer than a name can be, or no text.
    #[error("the name is no text of at most 4096 bytes")]
    Name,
    /// It is served over TLS only.
    #[error("only served over TLS; send STARTTLS first")]
    TlsRequired,
    /// The server is stopping.
    #[error("the server is stopping")]
    ShuttingDown,
    /// Its sizes can't be told to a client.
    #[error("the export has sizes that can't be served; see the server's log")]
    NotServable,
    /// The client uses extended headers, which need GO (XH-02).
    #[error("EXPORT_NAME can't follow EXTENDED_HEADERS; use GO")]
    ExtendedHeaders,
}
