//! A regular file or a block device.
//!
//! [`open`](FileBackend::open) checks the path before it opens it, takes a lock, and detects the
//! capabilities of the file system; `store` does the I/O. Reads and writes bypass the page cache if
//! possible, so that data is cached only once, in the pool.
//!
//! Price: [`Backend::submit`] passes each I/O to a blocking thread, at two context switches each. A
//! driver with its own ring uses [`Backend::native_file`] instead, and a thread that waits for the
//! answer uses [`Backend::submit_here`].

mod ability;
mod alias;
mod byte_locks;
mod image;
mod medium;
mod open;
mod presence;
mod size_limit;
mod store;

#[cfg(test)]
mod tests;

pub use open::FileError;
pub use size_limit::{file_bytes_max, report_oversize_writes};

use crate::reservation::Reservation;
use crate::sync::lock;
use crate::thread_pool::ThreadPool;
use crate::trial::TrialBackend;
use crate::{
    Backend, Description, Displaced, Extent, Io, MeasureError, OpenOptions, StoreMedium, Tenure,
};
use forebay_threads::Thread;
use forebay_types::ByteRange;
pub(crate) use open::identity_at;
use presence::FilePresence;
use rustix::io::Errno;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::{Arc, Mutex};
use store::FileStore;

/// Threads that block on the disk: the queue depth of a disk with command queueing.
const THREAD_COUNT_MAX: usize = 32;

/// A disk in a file or on a block device.
pub struct FileBackend {
    store: Arc<FileStore>,
    pool: ThreadPool,
    presence: FilePresence,
    description: Description,
    medium: StoreMedium,
    /// What makes the disk refuse the writes of other hosts.
    reservation: Option<Mutex<Reservation>>,
    tenure: Option<Tenure>,
    /// Locks on the files below the store, held as long as it is open.
    _locks: Vec<OwnedFd>,
}

impl FileBackend {
    /// A stand-in for the regular file or block device at `path`, which is neither locked nor
    /// opened for writing.
    ///
    /// # Errors
    /// As for [`FileBackend::open`], except that it may be in use.
    pub(crate) fn ask(path: &Path, options: &OpenOptions) -> Result<TrialBackend, FileError> {
        let asked = open::ask(path, options)?;
        let (name, identity) = (path.display().to_string(), asked.identity);
        Ok(TrialBackend::new(&name, asked.size_bytes, identity, asked.medium))
    }

    /// The memory that a path leads to, such as `tmpfs` or `/dev/ram0`, which a reset or a power
    /// failure erases. `None` if it leads to a disk, or if nothing is known of it.
    pub fn memory_at(path: &Path) -> Option<String> {
        medium::memory_at(path)
    }

    /// Opens the regular file or block device at `path`, and locks it as long as it is open.
    ///
    /// # Errors
    /// If it cannot be opened, is in use, is neither file nor block device, or its size is not a
    /// multiple of 512 bytes.
    pub fn open(path: &Path, options: &OpenOptions) -> Result<Self, FileError> {
        let opened = open::open(path, options)?;
        let reservation = reservation(&opened.file, path, options)?;
        let store = Arc::new(FileStore::new(opened.file, opened.is_block, &opened.description));
        let presence = FilePresence::new(path, &store, !options.read_only);
        let worker = store.clone();
        let pool = ThreadPool::new(
            Thread::named("disk"),
            THREAD_COUNT_MAX,
            Box::new(move |io| worker.answer(io)),
        );
        let tenure = reservation.as_ref().and_then(|reservation| lock(reservation).tenure());
        let (description, locks) = (opened.description, opened.locks);
        let medium = opened.medium;
        Ok(Self { store, pool, presence, description, medium, reservation, tenure, _locks: locks })
    }
}

/// Reserves a disk, if it is to be.
fn reservation(
    file: &OwnedFd,
    path: &Path,
    options: &OpenOptions,
) -> Result<Option<Mutex<Reservation>>, FileError> {
    if !options.reserve {
        return Ok(None);
    }
    let file = file.try_clone().map_err(|error| FileError::System {
        path: path.into(),
        call: "dup",
        source: Errno::from_io_error(&error).unwrap_or(Errno::IO),
    })?;
    let acquired = Reservation::acquire(file, &path.display().to_string(), options.takes_over)?;
    Ok(Some(Mutex::new(acquired)))
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

    fn measure(&self, block_bytes: u32) -> Result<u64, MeasureError> {
        let block_bytes = block_bytes.max(self.description.alignment_bytes);
        let bytes = self.presence.measure(&self.store, &self.description)?;
        let (name, from) = (self.description.name.clone(), self.description.size_bytes());
        match bytes {
            to if to < from => Err(MeasureError::Shrunk { name, from, to }),
            size_bytes if !size_bytes.is_multiple_of(u64::from(block_bytes)) => {
                Err(MeasureError::Blocks { name, size_bytes, block_bytes })
            }
            _ => Ok(bytes),
        }
    }

    fn native_file(&self) -> Option<BorrowedFd<'_>> {
        Some(self.store.file.as_fd())
    }

    fn extents(&self, range: ByteRange) -> Vec<Extent> {
        self.store.extents(range)
    }

    fn medium(&self) -> StoreMedium {
        self.medium.clone()
    }

    /// Known from the next check of the presence on, or from the first I/O through this backend.
    fn is_taken_over(&self) -> bool {
        self.reservation.is_some() && self.store.has_conflict()
    }

    fn tenure(&self) -> Option<Tenure> {
        self.tenure.clone()
    }

    fn is_shared(&self) -> bool {
        self.reservation.is_some()
    }

    fn check_presence(&self) -> Result<(), Displaced> {
        if self.reservation.as_ref().is_some_and(|reservation| lock(reservation).is_lost()) {
            self.store.note_conflict();
            return Err(Displaced::TakenOver);
        }
        self.presence.check(&self.store)
    }
}
