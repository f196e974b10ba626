//! The steps a handshake returns to its caller, and the reasons for closing.

use super::{HANDSHAKE_OPTIONS_MAX, HANDSHAKE_SKIP_BYTES_MAX};
use crate::Negotiated;

/// What the caller must do next. For every step, send the appended output first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HandshakeStep {
    /// Receive more, and call again with the unconsumed and the new input.
    NeedMore,
    /// Send the output, then call again with the unconsumed input, even without new input.
    Flush,
    /// Send the output, start TLS, call [`super::Handshake::tls_established`], and continue with
    /// the decrypted input. All plain-text input was consumed.
    StartTls,
    /// The handshake succeeded: unconsumed input belongs to the transmission phase.
    Enter(Negotiated),
    /// Try to send the output, then close.
    Close(CloseReason),
}

/// Why a handshake ended without entering an export.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CloseReason {
    /// The client ended the session with `ABORT`; not an error.
    #[error("client ended the session")]
    Aborted,
    /// The client set a flag that the server did not offer (H-03).
    #[error("unknown client flags {0:#x}: only 0x1 and 0x2 are defined")]
    ClientFlags(u32),
    /// An option starts with a wrong magic (N-01).
    #[error("invalid option magic {0:#018x}")]
    OptionMagic(u64),
    /// The client asked for an export with `EXPORT_NAME`, which has no error reply.
    #[error("EXPORT_NAME rejected: {0}")]
    ExportRefused(ExportRefusal),
    /// The client exceeded the limit on bytes in rejected options (N-07).
    #[error("rejected options of more than {HANDSHAKE_SKIP_BYTES_MAX} bytes, the last one of {0}")]
    OptionLength(u32),
    /// The client exceeded the limit on options.
    #[error("more than {HANDSHAKE_OPTIONS_MAX} options")]
    OptionCount,
    /// The client sent plain text after `STARTTLS` (T-06).
    #[error("plain text after STARTTLS, possibly injected; the client must wait for the ACK")]
    PlainText,
    /// The handshake had already ended.
    #[error("handshake has already ended")]
    Ended,
}

/// Why a client may not enter an export.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ExportRefusal {
    /// No such export.
    #[error("no export of this name; LIST shows the available exports")]
    Unknown,
    /// The name is too long, not UTF-8, or contains NUL.
    #[error("export name is not UTF-8 text of at most 4096 bytes")]
    Name,
    /// The export is available over TLS only.
    #[error("TLS required; send STARTTLS first")]
    TlsRequired,
    /// The server is shutting down.
    #[error("the server is shutting down")]
    ShuttingDown,
    /// The export's sizes are out of the protocol's range.
    #[error("export has sizes that NBD cannot express; see the server's log")]
    NotServable,
    /// The client uses extended headers, which require `GO` (XH-02).
    #[error("EXPORT_NAME cannot follow EXTENDED_HEADERS; use GO")]
    ExtendedHeaders,
}
