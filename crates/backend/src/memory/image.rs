//! The image of a store in memory: a file from which it is loaded, and to which it is saved.
//!
//! ```text
//! data      the content, byte by byte; what was never written is a hole of the file
//! table     one CRC32C for each chunk of 64 KiB, little-endian
//! trailer   4096 bytes: magic, version, chunk size, size of the data, CRC32C of the table, and
//!           CRC32C of the bytes before
//! ```
//!
//! Data and table are padded to 4096 bytes. The data comes first and unchanged, so the image can be
//! mounted or copied like any disk image. A save writes a new file, syncs it, and renames it, so
//! the image is the former or the new one, whatever happens meanwhile. The file is locked as long
//! as the store exists.
//!
//! An empty file is the image of a store that was never saved: it reads as zeroes. A missing file
//! is an error, because its file system may not be mounted.

use super::{CHUNK_BYTES, MemoryStoreError};
use crate::{AlignedBuffer, Blocking, MemoryBackend};
use forebay_types::ByteRange;
use rustix::fs::{FlockOperation, flock};
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const MAGIC: [u8; 8] = *b"FBRAMIMG";
const VERSION: u32 = 1;
/// The size of the trailer, and what data and table are padded to.
const BLOCK_BYTES: u64 = 4096;
/// Time between two attempts to lock an image that is in use.
const IN_USE_POLL: Duration = Duration::from_millis(50);
/// What a save appends to the name of the image for the file that it writes.
const NEW: &str = ".new";
/// Bytes of the trailer before its checksum.
const TRAILER_BYTES: usize = 28;

/// The image of one store.
pub(super) struct StoreImage {
    path: PathBuf,
    size_bytes: u64,
    /// The current file, locked.
    file: File,
}

/// Where the parts of an image are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ImageLayout {
    chunks: u64,
    table: u64,
    trailer: u64,
}

impl ImageLayout {
    const fn of(size_bytes: u64) -> Self {
        let chunks = size_bytes.div_ceil(CHUNK_BYTES);
        let table = size_bytes.next_multiple_of(BLOCK_BYTES);
        Self { chunks, table, trailer: table + (chunks * 4).next_multiple_of(BLOCK_BYTES) }
    }

    const fn end(self) -> u64 {
        self.trailer + BLOCK_BYTES
    }
}

/// Changes the chunk size in the trailer of an image, and seals the trailer.
#[cfg(test)]
pub(super) fn with_chunk_size(image: &mut [u8], chunk_bytes: u32) {
    let at = image.len() - BLOCK_BYTES as usize;
    let trailer = &mut image[at..];
    trailer[12..16].copy_from_slice(&chunk_bytes.to_le_bytes());
    let sum = checksum(&trailer[..TRAILER_BYTES]).to_le_bytes();
    trailer[TRAILER_BYTES..TRAILER_BYTES + 4].copy_from_slice(&sum);
}

/// The trailer of an image with this data and table.
fn trailer(size_bytes: u64, table: &[u8]) -> [u8; BLOCK_BYTES as usize] {
    let mut bytes = [0; BLOCK_BYTES as usize];
    bytes[..8].copy_from_slice(&MAGIC);
    bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
    bytes[12..16].copy_from_slice(&(CHUNK_BYTES as u32).to_le_bytes());
    bytes[16..24].copy_from_slice(&size_bytes.to_le_bytes());
    bytes[24..TRAILER_BYTES].copy_from_slice(&checksum(table).to_le_bytes());
    let sum = checksum(&bytes[..TRAILER_BYTES]);
    bytes[TRAILER_BYTES..TRAILER_BYTES + 4].copy_from_slice(&sum.to_le_bytes());
    bytes
}

fn checksum(bytes: &[u8]) -> u32 {
    crc_fast::crc32_iscsi(bytes)
}

/// The chunk with this number, which may be shorter at the end.
const fn chunk(number: u64, size_bytes: u64) -> ByteRange {
    let offset = number * CHUNK_BYTES;
    let left = size_bytes - offset;
    ByteRange::new(offset, if left < CHUNK_BYTES { left } else { CHUNK_BYTES })
}

impl StoreImage {
    /// Opens and locks the image of a store of this size. If it is in use, as it is for a moment
    /// after its process was killed, retries for up to `in_use_wait`.
    ///
    /// # Errors
    /// If the file is missing, not a regular file or in use, or cannot be opened.
    pub(super) fn open(
        path: &Path,
        size_bytes: u64,
        in_use_wait: Duration,
    ) -> Result<Self, MemoryStoreError> {
        let begin = Instant::now();
        loop {
            let opened = Self::open_now(path, size_bytes);
            let in_use = matches!(&opened, Err(MemoryStoreError::ImageInUse { .. }));
            if !in_use || begin.elapsed() >= in_use_wait {
                return opened;
            }
            std::thread::sleep(IN_USE_POLL);
        }
    }

    /// Checks that a file is an image for a store of this size, without locking it.
    ///
    /// # Errors
    /// As for [`StoreImage::open`] and [`StoreImage::load`], except that it may be in use or
    /// damaged.
    pub(super) fn ask(path: &Path, size_bytes: u64) -> Result<(), MemoryStoreError> {
        let image = Self::find(path, size_bytes)?;
        let fail = |source| MemoryStoreError::ReadImage { path: path.to_owned(), source };
        let len = image.file.metadata().map_err(fail)?.len();
        if len == 0 { Ok(()) } else { image.check(len).map(drop) }
    }

    fn open_now(path: &Path, size_bytes: u64) -> Result<Self, MemoryStoreError> {
        let image = Self::find(path, size_bytes)?;
        lock(&image.file).map_err(|source| match source.kind() {
            ErrorKind::WouldBlock => MemoryStoreError::ImageInUse { path: path.to_owned() },
            _ => MemoryStoreError::OpenImage { path: path.to_owned(), source },
        })?;
        Ok(image)
    }

    /// Opens the file, without a lock.
    fn find(path: &Path, size_bytes: u64) -> Result<Self, MemoryStoreError> {
        let fail = |source| MemoryStoreError::OpenImage { path: path.to_owned(), source };
        let real = std::fs::canonicalize(path).map_err(|error| match error.kind() {
            ErrorKind::NotFound => MemoryStoreError::NoImage { path: path.to_owned() },
            _ => fail(error),
        })?;
        if real.as_os_str().as_bytes().ends_with(NEW.as_bytes()) {
            return Err(MemoryStoreError::ImageName { path: real });
        }
        let mut options = File::options();
        // A named pipe must not block.
        let file = options.read(true).custom_flags(libc::O_NONBLOCK).open(&real).map_err(fail)?;
        if !file.metadata().map_err(fail)?.is_file() {
            return Err(fail(io::Error::new(ErrorKind::InvalidInput, "not a regular file")));
        }
        Ok(Self { path: real, size_bytes, file })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Loads the image into a store of zeroes. Returns when the file was written, or `None` if it
    /// was never.
    ///
    /// # Errors
    /// If the file is not an image, is one of another size, is damaged, or cannot be read.
    pub(super) fn load(
        &self,
        memory: &MemoryBackend,
    ) -> Result<Option<std::time::SystemTime>, MemoryStoreError> {
        let fail = |source| MemoryStoreError::ReadImage { path: self.path.clone(), source };
        let damaged = |offset| MemoryStoreError::DamagedImage { path: self.path.clone(), offset };
        let metadata = self.file.metadata().map_err(fail)?;
        if metadata.len() == 0 {
            return Ok(None);
        }
        let table = self.check(metadata.len())?;
        let blocking = Blocking::new(memory);
        let mut buffer = AlignedBuffer::new(CHUNK_BYTES as usize);
        for (number, sum) in (0..).zip(table.chunks_exact(4)) {
            let part = chunk(number, self.size_bytes);
            let bytes = &mut buffer[..part.len as usize];
            self.file.read_exact_at(bytes, part.offset).map_err(fail)?;
            if checksum(bytes).to_le_bytes() != sum {
                return Err(damaged(part.offset));
            }
            if bytes.iter().any(|byte| *byte != 0) {
                let written = blocking.write(part.offset, bytes, false);
                written.map_err(|error| fail(io::Error::other(error.to_string())))?;
            }
        }
        metadata.modified().map(Some).map_err(fail)
    }

    /// Checks the trailer of a file of this length. Returns the table.
    fn check(&self, len: u64) -> Result<Vec<u8>, MemoryStoreError> {
        let fail = |source| MemoryStoreError::ReadImage { path: self.path.clone(), source };
        let foreign = || MemoryStoreError::ForeignImage { path: self.path.clone() };
        let mut found = [0; BLOCK_BYTES as usize];
        let at = len.checked_sub(BLOCK_BYTES).ok_or_else(foreign)?;
        self.file.read_exact_at(&mut found, at).map_err(fail)?;
        if found[..8] != MAGIC {
            return Err(foreign());
        }
        let damaged = |offset| MemoryStoreError::DamagedImage { path: self.path.clone(), offset };
        let sum = checksum(&found[..TRAILER_BYTES]).to_le_bytes();
        if sum != found[TRAILER_BYTES..TRAILER_BYTES + 4] {
            return Err(damaged(at));
        }
        let number =
            |from: usize| u32::from_le_bytes(found[from..from + 4].try_into().expect("four bytes"));
        if number(8) != VERSION {
            return Err(MemoryStoreError::ImageVersion {
                path: self.path.clone(),
                version: number(8),
            });
        }
        if u64::from(number(12)) != CHUNK_BYTES {
            let (path, chunk_bytes) = (self.path.clone(), number(12));
            return Err(MemoryStoreError::ImageChunk { path, chunk_bytes });
        }
        let image_bytes = u64::from(number(16)) | u64::from(number(20)) << 32;
        if image_bytes != self.size_bytes {
            let (path, size_bytes) = (self.path.clone(), self.size_bytes);
            return Err(MemoryStoreError::ImageSize { path, image_bytes, size_bytes });
        }
        let layout = ImageLayout::of(self.size_bytes);
        if len != layout.end() {
            return Err(damaged(layout.end().min(len)));
        }
        let mut table = vec![0; layout.chunks as usize * 4];
        self.file.read_exact_at(&mut table, layout.table).map_err(fail)?;
        if checksum(&table).to_le_bytes() != found[24..TRAILER_BYTES] {
            return Err(damaged(layout.table));
        }
        Ok(table)
    }

    /// Saves a store. `next` puts the next chunk into the buffer and returns its number, in any
    /// order, and `None` after the last one.
    ///
    /// # Errors
    /// If the new file cannot be written, synced or renamed, or `next` fails: then the former image
    /// is unchanged. Also if the directory cannot be synced after the rename: then the new image is
    /// in place, but may not survive a power failure.
    pub(super) fn save(
        &mut self,
        mut next: impl FnMut(&mut [u8]) -> io::Result<Option<u64>>,
    ) -> io::Result<()> {
        let mut name = OsString::from(&self.path);
        name.push(NEW);
        let new = PathBuf::from(name);
        let mut options = File::options();
        // Emptied below, when the lock has shown that no other process uses the file.
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        let file = options.open(&new)?;
        lock(&file)?;
        let written = file.set_len(0).and_then(|()| {
            self.write(&file, &mut next)?;
            file.sync_all()?;
            std::fs::rename(&new, &self.path)?;
            Ok(file)
        });
        match written {
            Ok(file) => self.file = file,
            Err(error) => {
                // The incomplete file would take space that the next attempt needs.
                let _ = std::fs::remove_file(&new);
                return Err(error);
            }
        }
        File::open(self.path.parent().unwrap_or(Path::new("/")))?.sync_all()
    }

    fn write(
        &self,
        file: &File,
        next: &mut dyn FnMut(&mut [u8]) -> io::Result<Option<u64>>,
    ) -> io::Result<()> {
        let layout = ImageLayout::of(self.size_bytes);
        file.set_len(layout.end())?;
        let mut buffer = AlignedBuffer::new(CHUNK_BYTES as usize);
        let mut table = vec![0; layout.chunks as usize * 4];
        while let Some(number) = next(&mut buffer)? {
            let part = chunk(number, self.size_bytes);
            let bytes = &buffer[..part.len as usize];
            let at = number as usize * 4;
            table[at..at + 4].copy_from_slice(&checksum(bytes).to_le_bytes());
            if bytes.iter().any(|byte| *byte != 0) {
                file.write_all_at(bytes, part.offset)?;
            }
        }
        file.write_all_at(&table, layout.table)?;
        file.write_all_at(&trailer(self.size_bytes, &table), layout.trailer)
    }
}

fn lock(file: &File) -> io::Result<()> {
    match flock(file, FlockOperation::NonBlockingLockExclusive) {
        // A file system without locks.
        Err(rustix::io::Errno::NOLCK | rustix::io::Errno::OPNOTSUPP) => Ok(()),
        locked => Ok(locked?),
    }
}
