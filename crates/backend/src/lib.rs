//! Backing stores: files, memory, modelled disks, NBD servers, and fault layers over them.
//!
//! [`Backend::submit`] starts one [`Io`], and never blocks its caller to wait for the store. The
//! backend answers each I/O exactly once, through its completion token.
//!
//! [`open()`] creates a backend from its name; the README of this crate has the grammar of names.

mod blocking;
mod buffer;
#[cfg(any(test, feature = "conformance"))]
pub mod conformance;
mod count;
mod file;
mod file_extents;
mod geometry;
mod hardware;
mod holder;
mod io;
pub mod layers;
mod log;
mod memory;
pub mod model;
mod nbd;
mod open;
mod options;
mod presence;
mod random;
mod rbd;
mod reservation;
mod size;
mod spec;
mod sync;
mod tenure;
mod thread_pool;
mod timer;
mod trial;
mod uses;

pub use blocking::{Blocking, IoWait, PendingRead};
pub use buffer::{AlignedBuffer, BUFFER_ALIGNMENT_BYTES};
pub use count::{IoCount, IoCounter};
pub use file::{FileBackend, FileError, file_bytes_max, report_oversize_writes};
pub use file_extents::{FileExtent, Placement, file_extents, is_on_realtime_device};
pub use forebay_types::Extent;
pub use hardware::hardware_name;
pub use holder::{Fate, Holder};
pub use io::{Buffer, CompletionSink, Io, IoKind, IoToken};
pub use log::LogLimiter;
pub use memory::{MemoryBackend, MemoryStoreError, saved_memory_bytes};
pub use nbd::{NbdAddress, NbdBackend, NbdError, NbdTls, NbdTlsError, NbdUrl};
pub use open::{
    AddedError, AddedScheme, OpenAdded, OpenError, add_scheme, allocated_bytes, can_be_shared,
    identity_of, open, plain_path, try_open,
};
pub use options::OpenOptions;
pub use presence::Displaced;
pub use rbd::{RbdBackend, RbdError};
pub use reservation::{ReservationError, ReservationKey};
pub use size::{DiskSize, MeasureError};
pub use spec::{Fields, SpecError, duration_ns, percent_decode, size_bytes, switch};
pub use tenure::Tenure;
pub use trial::{TrialBackend, UNKNOWN_BYTES};
pub use uses::{device_uses, names_in};

use forebay_types::{ByteRange, DiskGeometry};
use std::collections::BTreeSet;
use std::os::fd::BorrowedFd;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

forebay_types::faults! {
    AddedError, model::ArrayError, layers::BlocksError, FileError, MeasureError, MemoryStoreError,
    model::ModelError, NbdError, OpenError, RbdError, ReservationError, SpecError,
    layers::OwnedError,
    layers::TraceFileError,
    layers::VolatileError
}

/// Properties of a backend. While it is open, only its size may change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Description {
    /// The name that the operator gave, for messages.
    pub name: String,
    /// Its size.
    pub size: DiskSize,
    /// Identifies the storage independently of the path (device and inode of a file, address and
    /// export of a server), so that the same disk is not cached twice. `None` if each open creates
    /// a new store, as for memory.
    pub identity: Option<String>,
    /// Whether the store is read-only.
    pub read_only: bool,
    /// The geometry that the store reports: stripes, optimal I/O size, whether seeks cost time.
    pub geometry: DiskGeometry,
    /// Whether [`IoKind::Discard`] has an effect.
    pub can_discard: bool,
    /// Whether [`IoKind::Zero`] is faster than writing zeroes.
    pub can_zero_fast: bool,
    /// The block size, in bytes: a power of two from 512 to 64 KiB. Offsets and lengths of all I/O
    /// except a flush are multiples of it; the address and length of each buffer are multiples of
    /// it or of 4096, whichever is smaller. The driver ensures this (`blocks.rs` of the volume
    /// crate).
    pub alignment_bytes: u32,
}

impl Description {
    /// Its size in bytes, a multiple of 512.
    pub fn size_bytes(&self) -> u64 {
        self.size.bytes()
    }
}

/// The state of a store in memory that is saved to a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SaveState {
    /// The file.
    pub path: PathBuf,
    /// When the file was last written; `None` if it was never.
    pub last: Option<SystemTime>,
    /// Whether the file lacks data: the store was written since the last save began, or a save is
    /// in progress.
    pub is_changed: bool,
    /// Whether a save is in progress.
    pub is_saving: bool,
    /// How long the last save took, if there was one since the store was opened.
    pub took: Option<Duration>,
    /// Why the last save failed, if it did: the kind of the error, and the system's text.
    pub failed: Option<(std::io::ErrorKind, String)>,
    /// The interval of automatic saves; `None` without them.
    pub every: Option<Duration>,
}

/// What a store lies on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoreMedium {
    /// Bytes at the end of a block device that are less than one of its blocks. They can be neither
    /// read nor written, and are not part of the store.
    pub hidden_bytes: u64,
    /// The block devices below it that have no others below them, by their paths under `/dev`. None
    /// if they are not known.
    pub disks: BTreeSet<String>,
    /// The memory that it lies on, such as `tmpfs` or `/dev/ram0`: a reset or a power failure
    /// erases it. `None` if it lies on disks, or if nothing is known of it.
    pub memory: Option<String>,
}

/// A store of sectors.
pub trait Backend: Send + Sync {
    /// The properties of the store.
    fn description(&self) -> &Description;

    /// Starts an I/O. The caller checks that its range is aligned and within the size; others are
    /// answered with an error.
    fn submit(&self, io: Io);

    /// Like [`Backend::submit`], but may block until the answer. A store with blocking calls makes
    /// them on the calling thread and answers before it returns.
    fn submit_here(&self, io: Io) {
        self.submit(io);
    }

    /// The open file, if the backend only forwards reads, writes and flushes to it. A driver with
    /// its own ring then submits them there instead of calling [`Backend::submit`].
    fn native_file(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// The backend below a layer. The default implementations of the following methods forward to
    /// it.
    fn below(&self) -> Option<&dyn Backend> {
        None
    }

    /// The allocation of `range`, as consecutive extents that cover it. May block. The safe answer,
    /// and the default, is one allocated extent.
    fn extents(&self, range: ByteRange) -> Vec<Extent> {
        match self.below() {
            Some(below) => below.extents(range),
            None => vec![Extent { len: range.len, hole: false, zero: false }],
        }
    }

    /// What the store lies on. The default is nothing that is known.
    fn medium(&self) -> StoreMedium {
        self.below().map(|below| below.medium()).unwrap_or_default()
    }

    /// Checks that the store's name still leads to it, unchanged. May block on a path lookup. A
    /// store without a path is always present.
    ///
    /// # Errors
    /// If the name no longer leads to the store: how it was displaced.
    fn check_presence(&self) -> Result<(), Displaced> {
        self.below().map_or(Ok(()), |below| below.check_presence())
    }

    /// As [`Backend::check_presence`], and asks the servers of a store that knows its owner whether
    /// that is still this client, which otherwise notices later. May block for as long as they do
    /// not answer.
    ///
    /// # Errors
    /// As [`Backend::check_presence`]. If the servers answer with an error, the owner is as it was.
    fn ask_presence(&self) -> Result<(), Displaced> {
        self.check_presence()?;
        self.below().map_or(Ok(()), |below| below.ask_presence())
    }

    /// Whether another client has taken over the store: nothing is read from it or written to it
    /// any more, and what is known of its content may be out of date. Stays so. Never blocks.
    fn is_taken_over(&self) -> bool {
        self.below().is_some_and(|below| below.is_taken_over())
    }

    /// Since when this process owns the store, and whether the last owner was another one. `None`
    /// for a store that does not remember its owners. Stays the same while the store is open.
    fn tenure(&self) -> Option<Tenure> {
        self.below().and_then(|below| below.tenure())
    }

    /// Has the store forget the tenures before this one: its user has what the former owners left,
    /// and is about to write. May block. Succeeds at once if that was done, or is not needed.
    ///
    /// # Errors
    /// When the store does not take it.
    fn settle_tenure(&self) -> std::io::Result<()> {
        self.below().map_or(Ok(()), |below| below.settle_tenure())
    }

    /// Whether another host can take over the store: what this host alone records about the content
    /// says nothing to that. Never blocks.
    fn is_shared(&self) -> bool {
        self.below().is_some_and(|below| below.is_shared())
    }

    /// Reads the size of the store again, in bytes, which consists of whole blocks of the store and
    /// of `block_bytes`, a power of two. I/O can reach a part that is new once it is made known by
    /// [`DiskSize::grow`], in the description of this store or of a layer over it. May block.
    ///
    /// # Errors
    /// When the store has shrunk or does not consist of whole blocks, or for a kind of store whose
    /// size is read only when it is opened, which is the default.
    fn measure(&self, block_bytes: u32) -> Result<u64, MeasureError> {
        match self.below() {
            Some(below) => below.measure(block_bytes),
            None => Err(MeasureError::Fixed { name: self.description().name.clone() }),
        }
    }

    /// The I/Os submitted so far, if the backend counts them. I/Os that bypass [`Backend::submit`]
    /// are not counted, so a backend with a native file has no counts.
    fn io_count(&self) -> Option<IoCount> {
        self.below().and_then(|below| below.io_count())
    }

    /// Saves a snapshot of a store in memory to its file, while writes continue. Does nothing if
    /// the store has no file, or was not written since the last save. Blocks until a save in
    /// progress and this one are complete.
    ///
    /// # Errors
    /// If the file cannot be written, or if writes had to wait too long because the save made no
    /// progress. The former file is then unchanged, unless only its directory cannot be synced.
    fn save(&self) -> std::io::Result<()> {
        self.below().map_or(Ok(()), |below| below.save())
    }

    /// The state of a store in memory that is saved to a file; `None` for others.
    fn saved(&self) -> Option<SaveState> {
        self.below().and_then(|below| below.saved())
    }
}
