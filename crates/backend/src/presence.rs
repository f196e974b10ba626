//! What can become of a store while it is open.

use forebay_types::Size;

/// The name of a store does not lead to it any more, or not to all of it. What is written to it
/// still goes well, and is not there for the next process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Displaced {
    /// Nothing is there.
    #[error("it was deleted")]
    Deleted,
    /// Something else is there.
    #[error("another file or device has taken its place")]
    Replaced,
    /// It was longer.
    #[error("it was cut to {}", Size(*.bytes))]
    Shrunk {
        /// Its size now.
        bytes: u64,
    },
    /// It was opened for writing, and could not be again.
    #[error("it was made read-only")]
    ReadOnly,
}
