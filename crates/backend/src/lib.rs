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
mod presence;
mod random;
mod spec;
mod sync;
mod timer;

pub use blocking::{Blocking, Reading, Wait};
pub use buffer::{AlignedBuffer, BUFFER_ALIGNMENT_BYTES};
pub use count::IoCount;
pub use file::{FileBackend, FileError};
pub use forebay_types::Extent;
pub use hardware::hardware_name;
pub use io::{Buffer, Completion, CompletionSink, Io, IoKind};
pub use memory::{MemoryBackend, MemoryError};
pub use nbd::{NbdAddress, NbdBackend, NbdError, NbdUrl};
pub use open::{OpenError, OpenOptions, look, open, plain_path};
pub use presence::Displaced;
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
    /// The block size, in bytes: a power of two from 512 to 64 KiB. Offsets and lengths of all I/O
    /// but a flush are multiples of it; so are the address and the length of each buffer, as far
    /// as 4096. The driver makes it so (`blocks.rs` of the volume crate).
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

    /// Whether whatever opens it by its name again finds it as it was. May block for as long as
    /// looking at a path can. A store without a name that could lead elsewhere is always there.
    ///
    /// # Errors
    /// What has become of it.
    fn check_presence(&self) -> Result<(), Displaced> {
        Ok(())
    }

    /// What it has been given so far, where it counts. What a driver does past
    /// [`Backend::submit`] is in no count, so a backend with a native file has none.
    fn io_count(&self) -> Option<IoCount> {
        None
    }
}
