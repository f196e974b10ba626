//! Where the data lives: files, memory, modelled disks, NBD servers, and fault layers over them.
//!
//! A backend takes one [`Io`] at a time through [`Backend::submit`], returns at once, and answers
//! later through the token that travels with the I/O. It never blocks its caller and never
//! answers twice.
//!
//! [`open()`] makes one from its name; the grammar of names is in the README of this crate.

mod blocking;
mod buffer;
#[cfg(any(test, feature = "conformance"))]
pub mod conformance;
mod count;
mod file;
mod geometry;
mod hardware;
mod io;
pub mod layers;
mod log;
mod memory;
pub mod model;
mod nbd;
mod open;
mod pool;
mod random;
mod spec;
mod sync;
mod timer;

pub use blocking::{Blocking, Reading, Wait};
pub use buffer::{AlignedBuffer, BUFFER_ALIGNMENT_BYTES};
pub use count::IoCount;
pub use file::{FileBackend, FileError};
pub use hardware::hardware_name;
pub use io::{Buffer, Completion, CompletionSink, Extent, Io, IoKind};
pub use memory::{MemoryBackend, MemoryError};
pub use nbd::{NbdAddress, NbdBackend, NbdError, NbdUrl};
pub use open::{OpenError, OpenOptions, look, open};
pub use spec::SpecError;

use forebay_types::{ByteRange, DiskGeometry};
use std::os::fd::BorrowedFd;

/// What a backend is and can do. Fixed while it is open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Description {
    /// How it was named by the operator, for messages.
    pub name: String,
    /// Its size in bytes, a multiple of 512.
    pub size_bytes: u64,
    /// Names the storage itself, whatever path led to it (device and inode of a file, address and
    /// export of a server), so that the same disk is not cached twice. `None` where each opening
    /// is a new store, as for memory.
    pub identity: Option<String>,
    /// Whether it may only be read.
    pub read_only: bool,
    /// What it says of stripes, sizes and seeks, as far as it says anything.
    pub geometry: DiskGeometry,
    /// Whether [`IoKind::Discard`] does something.
    pub can_discard: bool,
    /// Whether [`IoKind::Zero`] is faster than writing zeroes.
    pub can_zero_fast: bool,
    /// Alignment that offsets, lengths and memory addresses must have, in bytes: 512 or 4096 for
    /// direct I/O. The cache reads and writes whole sectors from 4096-aligned memory, and widens
    /// a request to this where it is larger than a sector.
    pub alignment_bytes: u32,
}

/// A store of sectors.
pub trait Backend: Send + Sync {
    /// What it is and can do.
    fn description(&self) -> &Description;

    /// Starts an I/O. Its range is inside the size and aligned; the checks are made above.
    fn submit(&self, io: Io);

    /// The same from a thread that has nothing to do until the answer, and may block: where the
    /// store only knows calls that do, they are made right here, and the answer comes before the
    /// return.
    fn submit_here(&self, io: Io) {
        self.submit(io);
    }

    /// The open file, where reads, writes and flushes of that file are all there is to it. A
    /// driver with a ring of its own then submits them there instead of calling
    /// [`Backend::submit`].
    fn native_file(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// What is allocated in `range`, as consecutive extents that cover it. May block for as long
    /// as the store takes to say. The safe answer, and the default, is one allocated extent.
    fn extents(&self, range: ByteRange) -> Vec<Extent> {
        vec![Extent { len: range.len, hole: false, zero: false }]
    }
    /// What it has been given so far, where it counts. What a driver does past
    /// [`Backend::submit`] is in no count, so a backend with a native file has none.
    fn io_count(&self) -> Option<IoCount> {
        None
    }
}
