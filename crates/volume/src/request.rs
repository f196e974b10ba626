//! Requests to a volume.

use forebay_engine::PreloadKind;
use forebay_types::{ByteRange, VolumeId};

/// The verb of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestKind {
    /// Read the range.
    Read,
    /// Write the range.
    Write {
        /// Answer only when the data is on stable storage.
        fua: bool,
    },
    /// Make every answered write durable: on the disk's stable storage, or in the journal or under
    /// the UPS that protects the volume.
    Flush,
    /// Make every answered write durable on the disk itself. Internal.
    Destage,
    /// As [`RequestKind::Destage`], but does not wait for the journal, which needs the log space
    /// that this frees. After a crash, the journal may replay an older record over a destaged write
    /// whose own record was not durable. Internal.
    Checkpoint {
        /// Whether to destage at once; otherwise at the pace of background writeback.
        urgent: bool,
    },
    /// Flush the disk's cache; dirty data stays in the pool. Internal.
    Sync,
    /// Destage the closed epochs of an ordered volume, oldest first. Internal.
    Order,
    /// Write data recovered from the journal, without recording it again. Internal.
    Restore,
    /// Zero a range recovered from the journal, without recording it again. Internal.
    RestoreZero {
        /// Whether the disk may deallocate the range.
        unmap: bool,
    },
    /// Write data that the pool or the disk already has, so that the journal records it. Internal.
    Record,
    /// Discard the range.
    Trim {
        /// Answer only when the change is on stable storage.
        fua: bool,
    },
    /// Zero the range.
    Zero {
        /// Answer only when the zeroes are on stable storage.
        fua: bool,
        /// Whether the disk may deallocate the range.
        unmap: bool,
    },
    /// Read the range into the pool, as a hint.
    Prefetch,
    /// Read lines of one granule into the pool, for a warm-up, a forecast or because they are
    /// pinned, and answer once they are there. The range is the granule, as far as it is inside the
    /// volume. Internal.
    Preload {
        /// The lines, one bit for each line of the granule.
        lines: u32,
        /// Why they are read.
        kind: PreloadKind,
    },
}

/// A request, checked by the front end: aligned to sectors and inside its volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    pub volume: VolumeId,
    /// The verb.
    pub kind: RequestKind,
    /// The bytes; ignored for requests that concern the whole volume, such as a flush.
    pub range: ByteRange,
}
