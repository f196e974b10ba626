//! The calls that move bytes in and out of an open file.
//!
//! Each runs to its end on the calling thread: a transfer that came back short is continued, an
//! interrupted call is made again. An error is named in the log here, where its cause is known,
//! and goes up as one of the few that a client understands.

use crate::log::Brake;
use crate::{AlignedBuffer, Buffer, Description, Extent, Io, IoKind};
use forebay_types::{ByteRange, IoError, IoResult};
use rustix::fs::{FallocateFlags, SeekFrom};
use rustix::io::{Errno, ReadWriteFlags, retry_on_intr};
use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

/// Buffers that one call of the kernel takes.
const BUFFERS_PER_CALL_MAX: usize = 1024;
/// Zeroes written at a time where the file system can't do it alone, in bytes.
const ZEROES_BYTES: u64 = 1 << 20;

/// An open file.
pub(super) struct Store {
    pub(super) file: OwnedFd,
    pub(super) is_block: bool,
    name: String,
    /// The size at the time of opening, in bytes; nothing may be missing of it later.
    pub(super) size_bytes: u64,
    /// Cleared when the file system turns out not to know the call.
    can_punch: AtomicBool,
    can_zero_range: AtomicBool,
    can_force: AtomicBool,
    error_brake: Brake,
}

impl Store {
    pub(super) fn new(file: OwnedFd, is_block: bool, description: &Description) -> Self {
        Self {
            file,
            is_block,
            name: description.name.clone(),
            size_bytes: description.size_bytes,
            can_punch: AtomicBool::new(true),
            can_zero_range: AtomicBool::new(true),
            can_force: AtomicBool::new(true),
            error_brake: Brake::default(),
        }
    }

    /// Does one I/O, and answers it.
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
            if let Some(count) = self.error_brake.pass() {
                tracing::warn!(
                    disk = self.name,
                    kind = ?io.kind,
                    offset = io.offset,
                    bytes = io.len,
                    %error,
                    count,
                    "the disk failed a request"
                );
            }
            IoError::from_errno(error.raw_os_error())
        })
    }

    fn read(&self, mut offset: u64, buffers: &[Buffer]) -> Result<(), Errno> {
        let mut slices: Vec<IoSliceMut<'_>> = buffers
            .iter()
            // SAFETY: the I/O is not answered yet, it is a read, and each buffer is taken once.
            .map(|buffer| IoSliceMut::new(unsafe { buffer.as_mut_slice() }))
            .collect();
        let mut rest = slices.as_mut_slice();
        // Takes empty buffers off the front, so that a transfer of nothing always means the end.
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
                // The file ends here, though it was longer when it was opened.
                Ok(0) => return Err(Errno::IO),
                Ok(count) => {
                    offset += count as u64;
                    IoSliceMut::advance_slices(&mut rest, count);
                    is_continued = true;
                }
                Err(Errno::INTR) => {}
                // The end of a file that was cut is no place where direct I/O can go on.
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
        let forced = fua && self.can_force.load(Ordering::Relaxed);
        match self.write_slices(&mut slices, io.offset, forced) {
            Err(Errno::OPNOTSUPP | Errno::NOSYS) if forced => {
                self.can_force.store(false, Ordering::Relaxed);
                self.write(io, fua)
            }
            Ok(()) if fua && !forced => retry_on_intr(|| rustix::fs::fdatasync(&self.file)),
            result => result,
        }
    }

    /// Writes all of `slices`, each piece on stable storage before the call returns if `forced`.
    fn write_slices(
        &self,
        slices: &mut [IoSlice<'_>],
        mut offset: u64,
        forced: bool,
    ) -> Result<(), Errno> {
        let flags = if forced { ReadWriteFlags::DSYNC } else { ReadWriteFlags::empty() };
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

    /// A hint: a store that knows no discard has done all it can.
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

    /// Zeroes by the best means there are: a hole if that is allowed, an unwritten extent, or
    /// zeroes written.
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

    /// One `fallocate`, remembered in `known` when the file system does not know it.
    fn allocate(
        &self,
        known: &AtomicBool,
        mode: FallocateFlags,
        range: ByteRange,
    ) -> Result<(), Errno> {
        if range.len == 0 {
            return Ok(());
        }
        if !known.load(Ordering::Relaxed) {
            return Err(Errno::OPNOTSUPP);
        }
        let result =
            retry_on_intr(|| rustix::fs::fallocate(&self.file, mode, range.offset, range.len));
        if matches!(result, Err(Errno::OPNOTSUPP | Errno::NOSYS)) {
            known.store(false, Ordering::Relaxed);
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

    /// The extents of a range, by asking for the next data and the next hole in turn. Where the
    /// file system does not know, or the file was cut, what is left counts as data.
    pub(super) fn extents(&self, range: ByteRange) -> Vec<Extent> {
        let data = |len| Extent { len, hole: false, zero: false };
        let hole = |len| Extent { len, hole: true, zero: true };
        let end = range.end().min(self.size_bytes);
        let mut extents = Vec::new();
        let mut offset = range.offset;
        while offset < end && !self.is_block {
            // Directly behind the last extent: what is asked for and found may be of length zero.
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
            // A hole punched between the two calls: the next turn finds it.
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
