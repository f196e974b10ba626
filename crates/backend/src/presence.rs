//! Changes to the path of an open store.

use forebay_types::Size;

/// Why the path of an open store no longer leads to the store as it was opened. Writes may still
/// succeed, but the next process will not find them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Displaced {
    /// The path does not exist.
    #[error("it was deleted")]
    Deleted,
    /// The path does not exist, but the file or device does, under another name.
    #[error("it was renamed or moved")]
    Moved,
    /// The path leads to another file or device.
    #[error("another file or device has taken its place")]
    Replaced,
    /// The file is shorter than when it was opened.
    #[error("it was truncated to {}", Size(*.bytes))]
    Shrunk {
        /// Its present size.
        bytes: u64,
    },
    /// Another client has broken its lock, and may write it.
    #[error("another client has taken it over")]
    TakenOver,
    /// It was opened for writing, and is now read-only.
    #[error("it was made read-only")]
    ReadOnly,
}
