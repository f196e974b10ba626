//! Why a driver could not read a supply.

use std::fmt;

/// What sort of trouble it is, for programs; people read the sentence. To the guard all are the
/// same: nothing is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TroubleKind {
    /// No one answers there.
    Unreachable,
    /// An answer took too long.
    TimedOut,
    /// The connection ended.
    Closed,
    /// What was said is not understood.
    Garbled,
    /// The server answers `ERR`.
    Refused,
    /// Encryption was asked for and can not be had, or the certificate is wrong.
    Tls,
    /// The command failed.
    Command,
    /// The file can't be read.
    File,
}

/// A reading that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trouble {
    /// What sort it is.
    pub kind: TroubleKind,
    /// The sentence: who, what, and what to do where that is known.
    pub sentence: String,
}

impl Trouble {
    /// Trouble of a kind, in a sentence.
    pub fn new(kind: TroubleKind, sentence: impl Into<String>) -> Self {
        Self { kind, sentence: sentence.into() }
    }
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.sentence)
    }
}

impl std::error::Error for Trouble {}
