//! Errors of reading a UPS.

use forebay_types::{Fault, Remedy};

/// The kind of error. The controller treats all kinds alike: the state is unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ReadErrorKind {
    /// The connection could not be established.
    Unreachable,
    /// The answer took too long.
    TimedOut,
    /// The connection was closed.
    Closed,
    /// The answer is malformed.
    Malformed,
    /// A setting cannot be sent to the server.
    Argument,
    /// The server answered `ERR`.
    Refused,
    /// TLS is not available, or the certificate is not trusted.
    Tls,
    /// The command failed.
    Command,
    /// The file cannot be read.
    File,
}

/// An error of reading a UPS.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct ReadError {
    kind: ReadErrorKind,
    message: String,
    remedy: Remedy,
}

impl ReadError {
    /// An error with its message, which says what failed and why.
    pub fn new(kind: ReadErrorKind, message: impl Into<String>, remedy: impl Into<Remedy>) -> Self {
        Self { kind, message: message.into(), remedy: remedy.into() }
    }

    /// The kind of error.
    pub const fn kind(&self) -> ReadErrorKind {
        self.kind
    }
}

impl Fault for ReadError {
    fn remedy(&self) -> Remedy {
        self.remedy.clone()
    }
}
