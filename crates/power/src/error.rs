//! Errors of reading a UPS.

use std::fmt;

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
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadError {
    /// The kind of error.
    pub kind: ReadErrorKind,
    /// What failed, why, and what to do.
    pub message: String,
}

impl ReadError {
    /// An error with a message.
    pub fn new(kind: ReadErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into() }
    }
}

impl fmt::Display for ReadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for ReadError {}
