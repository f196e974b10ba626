//! System calls on an open file.
//!
//! Each runs to completion on the calling thread: a short transfer is continued, an interrupted
//! call is repeated. An error is logged here, where its cause is known, and passed up as one of the
//! few errors that a client understands.

use crate::log::LogLimiter;
use crate::{AlignedBuffer, Buffer, Description, DiskSize, Extent, Io, IoKind};
use forebay_types::{ByteRange, IoError, IoResult};
use rustix::fs::{FallocateFlags, SeekFrom};
use rustix::io::{Errno, ReadWriteFlags, retry_on_intr};
use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

/// Maximum buffers per system call (`IOV_MAX`).
const BUFFERS_PER_CALL_MAX: usize = 1024;
/// Zeroes written at a time if the file system cannot zero a range, in bytes.
const ZEROES_BYTES: u64 = 1 << 20;

/// An open file.
pub(super) struct FileStore {
    pub(super) file: OwnedFd,
    pub(super) is_block: bool,
    name: String,
    /// The file must not shrink below it.
    pub(super) size: DiskSize,
    /// Whether holes, zeroed ranges and forced writes may be supported. Each flag is cleared when
    /// the file system refuses the call.
    can_punch: AtomicBool,
    can_zero_range: AtomicBool,
    can_force: AtomicBool,
    /// Whether the disk has refused a request because another host has reserved it.
    has_conflict: AtomicBool,
    error_limiter: LogLimiter,
}

impl FileStore {
    pub(super) fn new(file: OwnedFd, is_block: bool, description: &Description) -> Self {
        Self {
            file,
            is_block,
            name: description.name.clone(),
            size: description.size.clone(),
            can_punch: AtomicBool::new(true),
            can_zero_range: AtomicBool::new(true),
            can_force: AtomicBool::new(true),
            has_conflict: AtomicBool::new(false),
            error_limiter: LogLimiter::default(),
        }
    }

    /// Notes that another host has reserved the disk.
    pub(super) fn note_conflict(&self) {
        self.has_conflict.store(true, Ordering::Relaxed);
    }

    /// Whether another host has reserved the disk, as far as it is known.
    pub(super) fn has_conflict(&self) -> bool {
        self.has_conflict.load(Ordering::Relaxed)
    }

    /// Executes and answers one I/O.
    pub(super) fn answer(&self, io: Io) {
        let result = self.run(&io);
        io.done.complete(result);
    }

    fn run(&self, io: &Io) -> IoResult {
        let result = match io.kind {
            IoKind::Read => self.read(io.offset, &io.buffers),
            IoKind::Write { fua } => self.write(io, fua),
            IoKind::Flush => retry_on_intr(|| rustix::fs::fdatasync(&self.file)),
            IoKind::Discard => self.discard(io.range()),
            IoKind::Zero { unmap } => self.zero(io.range(), unmap),
        };
        result.map_err(|error| {
            if error == Errno::BADE {
                self.note_conflict();
            }
            if let Some(count) = self.error_limiter.admit() {
                tracing::warn!(
                    disk = self.name,
                    kind = ?io.kind,
                    offset = io.offset,
                    bytes = io.len,
                    %error,
                    count,
                    "disk I/O failed"
                );
            }
            IoError::from_errno(error.raw_os_error())
        })
    }

    fn read(&self, mut offset: u64, buffers: &[Buffer]) -> Result<(), Errno> {
        let mut slices: Vec<IoSliceMut<'_>> = buffers
            .iter()
            // SAFETY: the I/O is an unanswered read, and each buffer is used once.
            .map(|buffer| IoSliceMut::new(unsafe { buffer.as_mut_slice() }))
            .collect();
        let mut rest = slices.as_mut_slice();
        // Removes empty leading buffers, so that a transfer of 0 bytes always means the end.
        IoSliceMut::advance_slices(&mut rest, 0);
        let mut is_continued = false;
        while !rest.is_empty() {
            let batch = rest.len().min(BUFFERS_PER_CALL_MAX);
            let call = rustix::io::preadv2(
                &self.file,
                &mut rest[..batch],
                offset,
                ReadWriteFlags::empty(),
            );
            match call {
                // The file has been truncated since it was opened.
                Ok(0) => return Err(Errno::IO),
                Ok(count) => {
                    offset += count as u64;
                    IoSliceMut::advance_slices(&mut rest, count);
                    is_continued = true;
                }
                Err(Errno::INTR) => {}
                // Direct I/O cannot continue at the unaligned end of a truncated file.
                Err(Errno::INVAL) if is_continued => return Err(Errno::IO),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn write(&self, io: &Io, fua: bool) -> Result<(), Errno> {
        let mut slices: Vec<IoSlice<'_>> = io
            .buffers
            .iter()
            // SAFETY: the I/O is not answered yet.
            .map(|buffer| IoSlice::new(unsafe { buffer.as_slice() }))
            .collect();
        let is_forced = fua && self.can_force.load(Ordering::Relaxed);
        match self.write_slices(&mut slices, io.offset, is_forced) {
            Err(Errno::OPNOTSUPP | Errno::NOSYS) if is_forced => {
                self.can_force.store(false, Ordering::Relaxed);
                self.write(io, fua)
            }
            Ok(()) if fua && !is_forced => retry_on_intr(|| rustix::fs::fdatasync(&self.file)),
            result => result,
        }
    }

    /// Writes all of `slices`; if `is_forced`, each piece is on stable storage when its call
    /// returns.
    fn write_slices(
        &self,
        slices: &mut [IoSlice<'_>],
        mut offset: u64,
        is_forced: bool,
    ) -> Result<(), Errno> {
        let flags = if is_forced { ReadWriteFlags::DSYNC } else { ReadWriteFlags::empty() };
        let mut rest = slices;
        IoSlice::advance_slices(&mut rest, 0);
        while !rest.is_empty() {
            let batch = rest.len().min(BUFFERS_PER_CALL_MAX);
            match rustix::io::pwritev2(&self.file, &rest[..batch], offset, flags) {
                Ok(0) => return Err(Errno::NOSPC),
                Ok(count) => {
                    offset += count as u64;
                    IoSlice::advance_slices(&mut rest, count);
                }
                Err(Errno::INTR) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Discards a range. A discard is a hint, so an unsupported one succeeds.
    fn discard(&self, range: ByteRange) -> Result<(), Errno> {
        let result = if self.is_block { self.discard_blocks(range) } else { self.punch(range) };
        match result {
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(()),
            result => result,
        }
    }

    fn discard_blocks(&self, range: ByteRange) -> Result<(), Errno> {
        /// `_IO(0x12, 119)`, from the kernel's interface.
        const BLKDISCARD: libc::Ioctl = 0x1277;
        if range.len == 0 {
            return Ok(());
        }
        let argument = [range.offset, range.len];
        // SAFETY: the call reads two 64-bit numbers at the address, and keeps nothing.
        let code = unsafe { libc::ioctl(self.file.as_raw_fd(), BLKDISCARD, argument.as_ptr()) };
        if code == 0 {
            return Ok(());
        }
        let error = std::io::Error::last_os_error();
        Err(Errno::from_io_error(&error).unwrap_or(Errno::IO))
    }

    /// Zeroes by the best supported means: a hole if permitted, an unwritten extent, or written
    /// zeroes.
    fn zero(&self, range: ByteRange, unmap: bool) -> Result<(), Errno> {
        if unmap {
            match self.punch(range) {
                Err(Errno::OPNOTSUPP | Errno::NOSYS) => {}
                result => return result,
            }
        }
        let mode = FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE;
        match self.allocate(&self.can_zero_range, mode, range) {
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => self.write_zeroes(range),
            result => result,
        }
    }

    fn punch(&self, range: ByteRange) -> Result<(), Errno> {
        let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        self.allocate(&self.can_punch, mode, range)
    }

    /// Calls `fallocate`. Clears `is_supported` if the file system does not support the mode.
    fn allocate(
        &self,
        is_supported: &AtomicBool,
        mode: FallocateFlags,
        range: ByteRange,
    ) -> Result<(), Errno> {
        if range.len == 0 {
            return Ok(());
        }
        if !is_supported.load(Ordering::Relaxed) {
            return Err(Errno::OPNOTSUPP);
        }
        let result =
            retry_on_intr(|| rustix::fs::fallocate(&self.file, mode, range.offset, range.len));
        if matches!(result, Err(Errno::OPNOTSUPP | Errno::NOSYS)) {
            is_supported.store(false, Ordering::Relaxed);
        }
        result
    }

    fn write_zeroes(&self, range: ByteRange) -> Result<(), Errno> {
        let zeroes = AlignedBuffer::new(range.len.min(ZEROES_BYTES) as usize);
        let mut offset = range.offset;
        while offset < range.end() {
            let len = (range.end() - offset).min(ZEROES_BYTES);
            self.write_slices(&mut [IoSlice::new(&zeroes[..len as usize])], offset, false)?;
            offset += len;
        }
        Ok(())
    }

    /// The extents of a range, from alternating `SEEK_DATA` and `SEEK_HOLE`. If the file system
    /// does not support these, or the file was truncated, the rest counts as data.
    pub(super) fn extents(&self, range: ByteRange) -> Vec<Extent> {
        let data = |len| Extent { len, hole: false, zero: false };
        let hole = |len| Extent { len, hole: true, zero: true };
        let end = range.end().min(self.size.bytes());
        let mut extents = Vec::new();
        let mut offset = range.offset;
        while offset < end && !self.is_block {
            // The next data may start past the range.
            let data_start = match rustix::fs::seek(&self.file, SeekFrom::Data(offset)) {
                Ok(start) => start.clamp(offset, end),
                // No data up to the end of the file.
                Err(Errno::NXIO) => end,
                Err(_) => break,
            };
            if data_start > offset {
                extents.push(hole(data_start - offset));
                offset = data_start;
                continue;
            }
            let Ok(data_end) = rustix::fs::seek(&self.file, SeekFrom::Hole(offset)) else { break };
            let data_end = data_end.min(end);
            // A hole punched between the two calls is found in the next iteration.
            if data_end > offset {
                extents.push(data(data_end - offset));
                offset = data_end;
            }
        }
        if offset < range.end() {
            extents.push(data(range.end() - offset));
        }
        extents
    }
}
