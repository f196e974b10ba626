//! What a client asks of a volume.

use forebay_types::{ByteRange, VolumeId};

/// The verb of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestKind {
    /// Bytes of the volume.
    Read,
    /// New bytes for the volume.
    Write {
        /// Answer from stable storage only.
        fua: bool,
    },
    /// Everything answered so far to stable storage: the disk's, or what stands in for it.
    Flush,
    /// Everything answered so far to the disk's own stable storage. Not for clients.
    Destage,
    /// The same for the sake of the journal, which waits for it to have room for its own records.
    /// What is recorded and not durable yet when it ends may be undone by a crash. Not for
    /// clients.
    Checkpoint,
    /// What the disk has been given to its own stable storage, and nothing of what is dirty. Not
    /// for clients.
    Sync,
    /// Epochs of an ordered volume to the disk, oldest first, as long as some are over. Not for
    /// clients.
    Order,
    /// Bytes that the journal holds for the volume: a write that it is not told of. Not for
    /// clients.
    Restore,
    /// Zeroes that the journal holds for the volume. Not for clients.
    RestoreZero {
        /// Whether a hole is acceptable.
        unmap: bool,
    },
    /// Bytes that the pool or the disk has already: a write for the journal to have them, too. Not
    /// for clients.
    Record,
    /// The content is no longer of interest.
    Trim {
        /// Answer from stable storage only.
        fua: bool,
    },
    /// Zeroes.
    Zero {
        /// Answer from stable storage only.
        fua: bool,
        /// Whether a hole is acceptable.
        unmap: bool,
    },
    /// The range will be read soon.
    Prefetch,
}

/// A request, checked by the front end: aligned to sectors and inside its volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// The volume.
    pub volume: VolumeId,
    /// What is to be done.
    pub kind: RequestKind,
    /// With what; without meaning for a flush.
    pub range: ByteRange,
}
