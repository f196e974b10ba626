//! Moves data between memory and the pages of a request, which the driver offers as positions of
//! the character device.

use std::io;
use std::os::fd::RawFd;

/// Buffers of one system call; the kernel takes 1024.
const IOVECS_MAX: usize = 64;

/// The direction of a copy.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum CopyDirection {
    /// From memory to the request: the data of a read.
    ToRequest,
    /// From the request to memory: the data of a write.
    FromRequest,
}

/// A copy that is done in pieces, in their order.
pub(crate) struct RequestCopy {
    fd: RawFd,
    position: u64,
    direction: CopyDirection,
    iovecs: [libc::iovec; IOVECS_MAX],
    count: usize,
    copied: u64,
}

impl RequestCopy {
    pub(crate) fn new(fd: RawFd, position: u64, direction: CopyDirection) -> Self {
        let none = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };
        Self { fd, position, direction, iovecs: [none; IOVECS_MAX], count: 0, copied: 0 }
    }

    /// Adds memory.
    ///
    /// # Errors
    /// As [`RequestCopy::finish`].
    ///
    /// # Safety
    /// The memory must be valid until [`RequestCopy::finish`], and, for a copy to it, not otherwise
    /// in use.
    pub(crate) unsafe fn add(&mut self, memory: *mut u8, len: usize) -> io::Result<()> {
        if len == 0 {
            return Ok(());
        }
        if let Some(last) = self.count.checked_sub(1) {
            let last = &mut self.iovecs[last];
            if last.iov_base.wrapping_byte_add(last.iov_len) == memory.cast() {
                last.iov_len += len;
                return Ok(());
            }
        }
        if self.count == IOVECS_MAX {
            self.flush()?;
        }
        self.iovecs[self.count] = libc::iovec { iov_base: memory.cast(), iov_len: len };
        self.count += 1;
        Ok(())
    }

    /// Copies what has been added. Returns the bytes of the whole copy.
    ///
    /// # Errors
    /// When the driver does not take or give a byte: it has withdrawn the request.
    pub(crate) fn finish(mut self) -> io::Result<u64> {
        self.flush()?;
        Ok(self.copied)
    }

    fn flush(&mut self) -> io::Result<()> {
        let mut from = 0;
        while from < self.count {
            let (iovecs, count) = (self.iovecs[from..].as_ptr(), (self.count - from) as i32);
            let position = (self.position + self.copied) as libc::off_t;
            // SAFETY: guaranteed by the callers of `add`.
            let done = unsafe {
                match self.direction {
                    CopyDirection::ToRequest => libc::pwritev(self.fd, iovecs, count, position),
                    CopyDirection::FromRequest => libc::preadv(self.fd, iovecs, count, position),
                }
            };
            let mut done = match done {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                done if done < 0 => {
                    let error = io::Error::last_os_error();
                    if error.kind() == io::ErrorKind::Interrupted {
                        continue;
                    }
                    return Err(error);
                }
                done => done as usize,
            };
            self.copied += done as u64;
            while done > 0 {
                let next = &mut self.iovecs[from];
                if done < next.iov_len {
                    next.iov_base = next.iov_base.wrapping_byte_add(done);
                    next.iov_len -= done;
                    break;
                }
                done -= next.iov_len;
                from += 1;
            }
        }
        self.count = 0;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;

    #[test]
    fn pieces_are_copied_in_order_in_both_directions() {
        let file = tempfile();
        let mut from: Vec<u8> = (0..200 * 512).map(|at| (at / 512) as u8).collect();
        let mut copy = RequestCopy::new(file.as_raw_fd(), 1 << 20, CopyDirection::ToRequest);
        // Every other piece, so that they are not joined, and more than one call takes.
        let start = from.as_mut_ptr();
        for piece in (0..200).step_by(2) {
            // SAFETY: within the vector, which outlives the copy.
            unsafe { copy.add(start.add(piece * 512), 512) }.expect("a file takes it");
        }
        assert_eq!(copy.finish().expect("a file takes it"), 100 * 512);
        let mut to = vec![0u8; 100 * 512];
        let mut copy = RequestCopy::new(file.as_raw_fd(), 1 << 20, CopyDirection::FromRequest);
        // SAFETY: the vector outlives the copy.
        unsafe { copy.add(to.as_mut_ptr(), to.len()) }.expect("a file gives it");
        assert_eq!(copy.finish().expect("a file gives it"), 100 * 512);
        for (at, piece) in to.chunks(512).enumerate() {
            assert!(piece.iter().all(|&byte| byte == 2 * at as u8), "piece {at}");
        }
    }

    #[test]
    fn a_request_that_gives_too_little_is_an_error() {
        let file = tempfile();
        let mut to = [0u8; 16];
        let mut copy = RequestCopy::new(file.as_raw_fd(), 0, CopyDirection::FromRequest);
        // SAFETY: the array outlives the copy.
        unsafe { copy.add(to.as_mut_ptr(), to.len()) }.expect("nothing is copied yet");
        assert!(copy.finish().is_err());
    }

    fn tempfile() -> rustix::fd::OwnedFd {
        rustix::fs::memfd_create("test", rustix::fs::MemfdFlags::CLOEXEC).expect("a memory file")
    }
}
