//! A regular file or a block device.
//!
//! [`open`](FileBackend::open) looks before it opens, locks what it opened, and finds out what
//! the file system can do; `store` does the I/O. Reads and writes bypass the page cache where the
//! file system allows it: the cache above keeps what is worth keeping, once.
//!
//! Price: [`Backend::submit`] hands each I/O to a blocking thread, two context switches apiece.
//! A driver with a ring of its own takes [`Backend::native_file`] instead, and a thread that waits
//! for the answer anyway [`Backend::submit_here`].

mod alias;
mod open;
mod presence;
mod store;

#[cfg(test)]
mod tests;

pub use open::FileError;

use crate::pool::Pool;
use crate::{Backend, Description, Displaced, Extent, Io, OpenOptions};
use forebay_types::ByteRange;
use presence::Presence;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use store::Store;

/// Threads that block in the disk at one time: the depth that a disk with command queueing takes.
const THREAD_COUNT_MAX: usize = 32;

/// A disk in a file or on a block device.
pub struct FileBackend {
    store: Arc<Store>,
    pool: Pool,
    presence: Presence,
    description: Description,
    /// Held, never read: they keep others from the files below it.
    _locks: Vec<OwnedFd>,
}

impl FileBackend {
    /// Looks whether a regular file or block device is at `path`, without opening it.
    ///
    /// # Errors
    /// There is none.
    pub fn look(path: &Path) -> Result<(), FileError> {
        open::look(path, false).map(drop)
    }

    /// Opens the regular file or block device at `path`, and locks it as long as it is open.
    ///
    /// # Errors
    /// When it can't be opened, is in use, is neither file nor block device, or its size is no
    /// multiple of 512 bytes.
    pub fn open(path: &Path, options: &OpenOptions) -> Result<Self, FileError> {
        let opened = open::open(path, options)?;
        let store = Arc::new(Store::new(opened.file, opened.is_block, &opened.description));
        let presence = Presence::new(path, &store, !options.read_only);
        let worker = store.clone();
        let pool = Pool::new("disk", THREAD_COUNT_MAX, Box::new(move |io| worker.answer(io)));
        let (description, locks) = (opened.description, opened.locks);
        Ok(Self { store, pool, presence, description, _locks: locks })
    }
}

impl Backend for FileBackend {
    fn description(&self) -> &Description {
        &self.description
    }

    fn submit(&self, io: Io) {
        if let Some(io) = io.admit(&self.description) {
            self.pool.submit(io);
        }
    }

    fn submit_here(&self, io: Io) {
        if let Some(io) = io.admit(&self.description) {
            self.store.answer(io);
        }
    }

    fn native_file(&self) -> Option<BorrowedFd<'_>> {
        Some(self.store.file.as_fd())
    }

    fn extents(&self, range: ByteRange) -> Vec<Extent> {
        self.store.extents(range)
    }

    fn check_presence(&self) -> Result<(), Displaced> {
        self.presence.check(&self.store)
    }
}
