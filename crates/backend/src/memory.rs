//! A store in anonymous memory, for tests, for trials, and as the storage of modelled disks.
//!
//! The whole size is mapped without reservation: the kernel allocates pages as they are written.
//! One bit per chunk of 64 KiB records whether it was ever written, so that unwritten chunks cost
//! nothing to read. The submitting thread performs the I/O.
//!
//! Invariant: a chunk whose bit is clear reads as zeroes. A chunk is copied under its lock (every
//! 64th chunk shares one), so no read returns a torn sector; an I/O over several chunks is not
//! atomic, as on any disk.

mod image;
mod saved;
mod snapshot;

pub use saved::saved_memory_bytes;

use crate::count::{IoCount, IoCounter};
use crate::spec::{Fields, SpecError, duration_ns};
use crate::sync::{read, write};
use crate::{Backend, Buffer, Description, DiskSize, Extent, Io, IoKind, OpenOptions};
use forebay_types::{Blame, ByteRange, Bytes, DiskGeometry, Fault, Remedy, SECTOR_BYTES, Size};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
use std::path::PathBuf;
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, RwLock};
use std::time::Duration;

/// The granularity of the written bits, in bytes.
const CHUNK_BYTES: u64 = 64 << 10;
/// The granularity in which memory is returned, in bytes.
const PAGE_BYTES: u64 = 4096;
/// The shortest time between two saves of a store.
const SAVE_INTERVAL_MIN: Duration = Duration::from_secs(1);
const SAVE_EXAMPLE: &str = "save=/var/lib/forebay/scratch.img";
/// The number of locks that the chunks share: more than the threads that copy at the same time.
const LOCK_COUNT: usize = 64;

/// Why a memory disk cannot be created.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MemoryStoreError {
    /// Zero, or not a multiple of the sector size.
    #[error("{size_bytes} bytes is not a valid size for a memory disk")]
    Size {
        /// The requested size.
        size_bytes: u64,
    },
    /// The size cannot be parsed.
    #[error("memory:{text} has no valid size")]
    NoSize {
        /// The text in place of the size.
        text: String,
    },
    /// The kernel refuses the mapping.
    #[error("cannot map {} of memory", Bytes(*size_bytes))]
    Map {
        /// The requested size.
        size_bytes: u64,
        /// The system's error.
        source: rustix::io::Errno,
    },
    /// The options are malformed.
    #[error(transparent)]
    Spec(#[from] SpecError),
    /// The image does not exist.
    #[error("the image {} of a volume in memory does not exist", path.display())]
    NoImage {
        /// The image.
        path: PathBuf,
    },
    /// The image cannot be opened.
    #[error("cannot open the image {} of a volume in memory", path.display())]
    OpenImage {
        /// The image.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// Another volume or process has the image.
    #[error("the image {} of a volume in memory is in use", path.display())]
    ImageInUse {
        /// The image.
        path: PathBuf,
    },
    /// Names that end with `.new` are reserved for saves that are in progress.
    #[error("the image {} has a name that ends with .new", path.display())]
    ImageName {
        /// The image, without symbolic links.
        path: PathBuf,
    },
    /// The image cannot be read.
    #[error("cannot read the image {} of a volume in memory", path.display())]
    ReadImage {
        /// The image.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// The file is not an image, or not a complete one.
    #[error("{} is not an image of a volume in memory, or is truncated", path.display())]
    ForeignImage {
        /// The file.
        path: PathBuf,
    },
    /// The image was written by another version.
    #[error("the image {} has the unknown format {version}", path.display())]
    ImageVersion {
        /// The image.
        path: PathBuf,
        /// The version of its format.
        version: u32,
    },
    /// The checksums of the image are of chunks of another size.
    #[error(
        "the image {} has a checksum for every {chunk_bytes} bytes, which this version cannot read",
        path.display()
    )]
    ImageChunk {
        /// The image.
        path: PathBuf,
        /// The data of a checksum, in bytes.
        chunk_bytes: u32,
    },
    /// The image is of another size.
    #[error(
        "the image {} holds a volume of {:#}, not {:#}",
        path.display(), Bytes(*image_bytes), Bytes(*size_bytes)
    )]
    ImageSize {
        /// The image.
        path: PathBuf,
        /// The size of the volume in it.
        image_bytes: u64,
        /// The configured size.
        size_bytes: u64,
    },
    /// The image has changed since it was written.
    #[error("the image {} is damaged at byte {offset}", path.display())]
    DamagedImage {
        /// The image.
        path: PathBuf,
        /// Where the damaged part begins.
        offset: u64,
    },
}

impl Fault for MemoryStoreError {
    fn remedy(&self) -> Remedy {
        match self {
            Self::Size { .. } => {
                "give a size above zero that is a multiple of 512, like memory:1GiB".into()
            }
            Self::NoSize { .. } => "write it like memory:1GiB".into(),
            Self::Map { .. } => "give a smaller size".into(),
            Self::Spec(error) => error.remedy(),
            Self::NoImage { path } => format!(
                "check that its file system is mounted; for a new volume of zeroes, create an \
                 empty file (`touch {}`)",
                path.display()
            )
            .into(),
            Self::OpenImage { .. } | Self::ReadImage { .. } => {
                "check the path, its permissions and the kernel log; the file was not changed"
                    .into()
            }
            Self::ImageInUse { .. } => "give each volume an image of its own".into(),
            Self::ImageName { .. } => {
                "rename it: a save of X writes X.new; the file was not changed".into()
            }
            Self::ForeignImage { .. } => {
                "name the file that forebay has written; this one was not changed".into()
            }
            Self::ImageVersion { .. } | Self::ImageChunk { .. } => {
                "use the Forebay version that wrote it".into()
            }
            Self::ImageSize { image_bytes, .. } => {
                format!("write memory:{}; the file was not changed", Size(*image_bytes)).into()
            }
            Self::DamagedImage { .. } => {
                "restore it from a copy; it was not changed, and its data is readable as a disk \
                 image"
                    .into()
            }
        }
    }

    fn blame(&self) -> Blame {
        match self {
            Self::Size { .. } | Self::NoSize { .. } => Blame::Operator,
            Self::Spec(error) => error.blame(),
            _ => Blame::Environment,
        }
    }
}

/// A disk in memory.
pub struct MemoryBackend {
    description: Description,
    map: Map,
    /// One bit per chunk; set before the chunk is written, under the chunk's lock.
    written: Vec<AtomicU64>,
    locks: [RwLock<()>; LOCK_COUNT],
    count: IoCounter,
    /// Whether all pages are allocated, and none is ever returned.
    is_allocated: bool,
}

/// The mapping. Threads access its bytes by address, and hold the lock of a chunk to copy it.
struct Map {
    start: NonNull<u8>,
    size_bytes: usize,
}

// SAFETY: the mapping belongs to no thread, and its bytes are accessed only under a lock.
unsafe impl Send for Map {}
// SAFETY: as above.
unsafe impl Sync for Map {}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: mapped in `new` with this size, and no reference remains.
        if let Err(error) = unsafe { munmap(self.start.as_ptr().cast(), self.size_bytes) } {
            tracing::error!(%error, size_bytes = self.size_bytes, "munmap of a memory disk failed");
        }
    }
}

impl Map {
    fn new(size_bytes: u64) -> Result<Self, MemoryStoreError> {
        let fail = |source| MemoryStoreError::Map { size_bytes, source };
        let size = usize::try_from(size_bytes).map_err(|_| fail(rustix::io::Errno::NOMEM))?;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice affects no existing memory.
        let start = unsafe { mmap_anonymous(null_mut(), size, protection, flags) }.map_err(fail)?;
        let start = NonNull::new(start.cast()).ok_or(fail(rustix::io::Errno::NOMEM))?;
        Ok(Self { start, size_bytes: size })
    }

    /// The address of a byte.
    fn at(&self, offset: u64, len: u64) -> *mut u8 {
        assert!(ByteRange::new(offset, len).fits(self.size_bytes as u64), "access past the end");
        // SAFETY: inside the mapping, as asserted.
        unsafe { self.start.as_ptr().add(offset as usize) }
    }
}

impl MemoryBackend {
    /// A disk of `size_bytes` zeroes.
    ///
    /// # Errors
    /// If the size is zero, not a multiple of 512, or more than can be mapped.
    pub fn new(size_bytes: u64) -> Result<Self, MemoryStoreError> {
        if size_bytes == 0 || !size_bytes.is_multiple_of(SECTOR_BYTES) {
            return Err(MemoryStoreError::Size { size_bytes });
        }
        let map = Map::new(size_bytes)?;
        let words = size_bytes.div_ceil(CHUNK_BYTES).div_ceil(64);
        let written = (0..words).map(|_| AtomicU64::new(0)).collect();
        let description = Description {
            name: format!("memory:{}", Size(size_bytes)),
            size: DiskSize::new(size_bytes),
            identity: None,
            read_only: false,
            geometry: DiskGeometry { rotational: Some(false), ..DiskGeometry::default() },
            can_discard: true,
            can_zero_fast: true,
            alignment_bytes: SECTOR_BYTES as u32,
        };
        let locks = std::array::from_fn(|_| RwLock::new(()));
        let count = IoCounter::default();
        Ok(Self { description, map, written, locks, count, is_allocated: false })
    }

    /// Allocates all pages at once. They stay allocated.
    ///
    /// # Errors
    /// If the kernel refuses the memory.
    fn allocate(&mut self) -> Result<(), MemoryStoreError> {
        self.is_allocated = true;
        let (start, len) = (self.map.start.as_ptr(), self.map.size_bytes);
        // SAFETY: the whole mapping, of which no other thread knows yet; its content stays.
        match unsafe { madvise(start.cast(), len, Advice::LinuxPopulateWrite) } {
            Ok(()) => Ok(()),
            // Before Linux 5.14: by writing to each page.
            Err(rustix::io::Errno::INVAL) => {
                for offset in (0..len).step_by(PAGE_BYTES as usize) {
                    // SAFETY: inside the mapping, of which no other thread knows yet. The pages are
                    // zeroes already; the write is volatile, so that the compiler does not omit it.
                    unsafe { start.add(offset).write_volatile(0) }
                }
                Ok(())
            }
            Err(source) => {
                Err(MemoryStoreError::Map { size_bytes: self.description.size_bytes(), source })
            }
        }
    }

    /// Makes the disk read-only or writable.
    #[must_use]
    pub fn read_only(mut self, read_only: bool) -> Self {
        self.description.read_only = read_only;
        self
    }

    fn run(&self, io: &Io) {
        match io.kind {
            IoKind::Read => self.copy(io, |memory, chunk, buffer, len| {
                // SAFETY: the part of the buffer belongs to this read until it is answered.
                unsafe { memory.read_chunk(chunk, buffer, len) }
            }),
            IoKind::Write { .. } => self.copy(io, |memory, chunk, buffer, len| {
                // SAFETY: the part of the buffer is valid until this write is answered.
                unsafe { memory.write_chunk(chunk, buffer, len) }
            }),
            IoKind::Flush => {}
            IoKind::Discard | IoKind::Zero { .. } => {
                chunks(io.range()).for_each(|part| self.clear(part));
            }
        }
    }

    /// Iterates over buffers and chunks of an I/O together: calls `step` with an offset, an address
    /// and a length within one chunk and one buffer.
    fn copy(&self, io: &Io, step: impl Fn(&Self, u64, *mut u8, usize)) {
        let mut offset = io.offset;
        for buffer in &io.buffers {
            let start = offset;
            for part in chunks(ByteRange::new(offset, buffer.len() as u64)) {
                step(self, part.offset, part_of(buffer, part.offset - start), part.len as usize);
            }
            offset += buffer.len() as u64;
        }
    }

    /// Reads a part of one chunk. It is not counted as an I/O.
    fn read_part(&self, offset: u64, bytes: &mut [u8]) {
        // SAFETY: a slice may be written.
        unsafe { self.read_chunk(offset, bytes.as_mut_ptr(), bytes.len()) }
    }

    /// # Safety
    /// `buffer` must be `len` bytes that may be written.
    unsafe fn read_chunk(&self, offset: u64, buffer: *mut u8, len: usize) {
        let _guard = read(self.lock_of(offset));
        if self.is_written(offset) {
            let from = self.map.at(offset, len as u64);
            // SAFETY: both are `len` valid bytes, and the mapping overlaps no buffer.
            unsafe { buffer.copy_from_nonoverlapping(from, len) }
        } else {
            // SAFETY: guaranteed by the caller. A read of the mapping would make the kernel map
            // pages of zeroes.
            unsafe { buffer.write_bytes(0, len) }
        }
    }

    /// # Safety
    /// `buffer` must be `len` bytes that may be read.
    unsafe fn write_chunk(&self, offset: u64, buffer: *const u8, len: usize) {
        let _guard = write(self.lock_of(offset));
        let (word, bit) = written_bit(offset);
        self.written[word].fetch_or(bit, Ordering::Relaxed);
        let to = self.map.at(offset, len as u64);
        // SAFETY: both are `len` valid bytes, and the mapping overlaps no buffer.
        unsafe { to.copy_from_nonoverlapping(buffer, len) }
    }

    /// Zeroes a part of one chunk: returns whole pages to the kernel, and overwrites the rest.
    fn clear(&self, part: ByteRange) {
        let _guard = write(self.lock_of(part.offset));
        if !self.is_written(part.offset) {
            return;
        }
        let first_page = part.offset.next_multiple_of(PAGE_BYTES).min(part.end());
        let last_page = (part.end() / PAGE_BYTES * PAGE_BYTES).max(first_page);
        for (from, to) in [(part.offset, first_page), (last_page, part.end())] {
            let start = self.map.at(from, to - from);
            // SAFETY: inside the mapping, under the lock of the chunk.
            unsafe { start.write_bytes(0, (to - from) as usize) }
        }
        if first_page < last_page {
            let start = self.map.at(first_page, last_page - first_page);
            let len = (last_page - first_page) as usize;
            // SAFETY: whole pages of this private mapping, which read as zeroes afterwards.
            let return_pages = || unsafe { madvise(start.cast(), len, Advice::LinuxDontNeed) };
            if self.is_allocated || return_pages().is_err() {
                // SAFETY: as for the edges. Locked memory cannot be returned, only cleared.
                unsafe { start.write_bytes(0, len) }
            }
        }
        if part.len == CHUNK_BYTES {
            let (word, bit) = written_bit(part.offset);
            self.written[word].fetch_and(!bit, Ordering::Relaxed);
        }
    }

    fn lock_of(&self, offset: u64) -> &RwLock<()> {
        &self.locks[(offset / CHUNK_BYTES) as usize % LOCK_COUNT]
    }

    fn is_written(&self, offset: u64) -> bool {
        let (word, bit) = written_bit(offset);
        self.written[word].load(Ordering::Relaxed) & bit != 0
    }
}

/// The word and mask of the written bit for `offset`.
const fn written_bit(offset: u64) -> (usize, u64) {
    let chunk = offset / CHUNK_BYTES;
    ((chunk / 64) as usize, 1 << (chunk % 64))
}

/// The address `skip` bytes into a buffer.
fn part_of(buffer: &Buffer, skip: u64) -> *mut u8 {
    assert!(skip < buffer.len() as u64, "a part starts inside its buffer");
    // SAFETY: inside the buffer, as asserted.
    unsafe { buffer.as_ptr().add(skip as usize) }
}

/// Splits a range at chunk borders.
fn chunks(range: ByteRange) -> impl Iterator<Item = ByteRange> {
    let mut offset = range.offset;
    std::iter::from_fn(move || {
        let len = (CHUNK_BYTES - offset % CHUNK_BYTES).min(range.end() - offset);
        let part = ByteRange::new(offset, len);
        offset += len;
        (len > 0).then_some(part)
    })
}

impl Backend for MemoryBackend {
    fn description(&self) -> &Description {
        &self.description
    }

    fn submit(&self, io: Io) {
        let Some(io) = io.admit(&self.description) else { return };
        self.count.add(&io);
        self.run(&io);
        io.done.complete(Ok(()));
    }

    fn extents(&self, range: ByteRange) -> Vec<Extent> {
        let mut extents: Vec<Extent> = Vec::new();
        for part in chunks(range) {
            let is_hole = !self.is_written(part.offset);
            match extents.last_mut() {
                Some(last) if last.hole == is_hole => last.len += part.len,
                _ => extents.push(Extent { len: part.len, hole: is_hole, zero: is_hole }),
            }
        }
        extents
    }

    fn io_count(&self) -> Option<IoCount> {
        Some(self.count.get())
    }
}

/// Opens `memory:SIZE` or `memory:SIZE?save=PATH&every=TIME`, for the text after the colon.
pub(crate) fn open(
    text: &str,
    options: &OpenOptions,
) -> Result<Arc<dyn Backend>, MemoryStoreError> {
    let (size, fields) = text.split_once('?').unwrap_or((text, ""));
    let bytes = size_of(size).ok_or_else(|| MemoryStoreError::NoSize { text: size.to_owned() })?;
    let fields = Fields::parse("memory", fields, '&', &["save", "every"])?;
    // A relative path would depend on the directory in which the server starts.
    let absolute = |path: &str| path.starts_with('/').then(|| PathBuf::from(path));
    let path = fields.get("save", SAVE_EXAMPLE, absolute)?;
    let interval = |text: &str| {
        let interval = Duration::from_nanos(duration_ns(text)?);
        (interval >= SAVE_INTERVAL_MIN).then_some(interval)
    };
    let every = fields.get("every", "every=5m (at least 1s, at most 24h)", interval)?;
    Ok(match path {
        None if every.is_some() => {
            return Err(fields.missing("save", "/var/lib/forebay/scratch.img").into());
        }
        None => Arc::new(MemoryBackend::new(bytes)?.read_only(options.read_only)),
        Some(path) if options.is_trial => {
            image::StoreImage::ask(&path, bytes)?;
            Arc::new(MemoryBackend::new(bytes)?)
        }
        Some(path) => Arc::new(saved::SavedMemory::open(bytes, &path, every, options)?),
    })
}

fn size_of(text: &str) -> Option<u64> {
    text.parse().ok().map(Size::bytes)
}

/// The memory that the store allocates when it is opened, for the text after the colon.
pub(crate) fn allocated_bytes(text: &str) -> Option<u64> {
    let (size, options) = text.split_once('?')?;
    if options.is_empty() { None } else { size_of(size) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Blocking, conformance};
    use forebay_types::IoError;
    use std::sync::Arc;

    #[test]
    fn it_passes_the_suite() {
        conformance::check(&(Arc::new(MemoryBackend::new(16 << 20).unwrap()) as Arc<dyn Backend>));
        // The last chunk and the last page are partial.
        let odd = MemoryBackend::new((9 << 20) + 512).unwrap();
        conformance::check(&(Arc::new(odd) as Arc<dyn Backend>));
    }

    #[test]
    fn unwritten_memory_is_a_hole() {
        let memory = MemoryBackend::new(1 << 40).unwrap();
        let blocking = Blocking::new(&memory);
        blocking.write((1 << 39) + 4096, &[1; 512], false).unwrap();
        let hole = |len| Extent { len, hole: true, zero: true };
        let data = Extent { len: CHUNK_BYTES, hole: false, zero: false };
        let range = ByteRange::new((1 << 39) - CHUNK_BYTES, 4 * CHUNK_BYTES);
        assert_eq!(memory.extents(range), [hole(CHUNK_BYTES), data, hole(2 * CHUNK_BYTES)]);
        blocking.discard(1 << 39, CHUNK_BYTES).unwrap();
        assert_eq!(memory.extents(range), [hole(4 * CHUNK_BYTES)]);
        let mut bytes = [9; 512];
        blocking.read((1 << 39) + 4096, &mut bytes).unwrap();
        assert_eq!(bytes, [0; 512]);
    }

    #[test]
    fn invalid_requests_are_refused() {
        let memory = MemoryBackend::new(1 << 20).unwrap();
        let blocking = Blocking::new(&memory);
        let mut bytes = vec![0; 1024];
        assert_eq!(blocking.read((1 << 20) - 512, &mut bytes), Err(IoError::Invalid));
        assert_eq!(blocking.read(u64::MAX - 511, &mut bytes), Err(IoError::Invalid));
        assert_eq!(blocking.read(1, &mut bytes), Err(IoError::Invalid));
        assert_eq!(blocking.discard(0, 2 << 20), Err(IoError::Invalid));
        assert_eq!(memory.io_count(), Some(IoCount::default()));

        let memory = memory.read_only(true);
        let blocking = Blocking::new(&memory);
        assert_eq!(blocking.write(0, &bytes, false), Err(IoError::NotPermitted));
        assert_eq!(blocking.zero(0, 512, true), Err(IoError::NotPermitted));
        assert_eq!(blocking.read(0, &mut bytes), Ok(()));
        assert_eq!(memory.io_count().unwrap().read_bytes, 1024);
    }

    #[test]
    fn invalid_sizes_are_refused() {
        for (text, message) in [
            ("", "memory: has no valid size: write it like memory:1GiB"),
            (
                "1000",
                "1000 bytes is not a valid size for a memory disk: give a size above zero that is \
                 a multiple of 512, like memory:1GiB",
            ),
            (
                "0",
                "0 bytes is not a valid size for a memory disk: give a size above zero that is a \
                 multiple of 512, like memory:1GiB",
            ),
            ("8191PiB", "memory:8191PiB has no valid size: write it like memory:1GiB"),
            (
                "8388607TiB",
                "cannot map 8.0 EiB of memory: Cannot allocate memory (os error 12): give a \
                 smaller size",
            ),
        ] {
            assert_eq!(open(text, &OpenOptions::default()).err().unwrap().explained(), message);
        }
    }
}
