//! What an opened file or block device accepts, asked before it is offered.
//!
//! The kernel opens a read-only device and an active swap file for writing, and refuses each write.
//! The last blocks of a device may be shorter than the blocks that it reads and writes. So an open
//! asks for all of this: if it succeeds for writing, writes are accepted, up to the end.

use super::open::{FileError, queue_text};
use super::size_limit::file_bytes_max;
use rustix::fs::{FileType, OFlags, Stat};
use rustix::io::Errno;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// Checks that the opened file can be used, and written unless it is opened for reading.
pub(super) fn check(
    path: &Path,
    file: &OwnedFd,
    stat: &Stat,
    size_bytes: u64,
    read_only: bool,
) -> Result<(), FileError> {
    let path_of = || path.to_owned();
    // The kernel claims a swap partition exclusively, but not a swap file.
    if is_swap(stat) {
        return Err(FileError::Swap { path: path_of() });
    }
    if read_only {
        return Ok(());
    }
    let (major, minor) = (rustix::fs::major(stat.st_rdev), rustix::fs::minor(stat.st_rdev));
    if is_read_only(file) {
        return Err(FileError::ReadOnly { path: path_of() });
    }
    if stat.st_rdev != 0 && queue_text(major, minor, "zoned").as_deref() == Some("host-managed") {
        return Err(FileError::Zoned { path: path_of() });
    }
    let is_file = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
    if let Some(limit_bytes) = file_bytes_max().filter(|&limit| is_file && limit < size_bytes) {
        return Err(FileError::Limit { path: path_of(), size_bytes, limit_bytes });
    }
    // Asked without opening it for writing.
    if rustix::fs::fcntl_getfl(file).is_ok_and(|flags| !flags.contains(OFlags::RDWR)) {
        return Ok(());
    }
    // A write of nothing changes nothing, but is refused where any write would be.
    match rustix::io::retry_on_intr(|| rustix::io::pwrite(file, &[], 0)) {
        Ok(_) => Ok(()),
        Err(Errno::TXTBSY) => Err(FileError::Swap { path: path_of() }),
        Err(Errno::PERM | Errno::ROFS) => Err(FileError::ReadOnly { path: path_of() }),
        Err(source) => Err(FileError::System { path: path_of(), call: "write", source }),
    }
}

/// Whether the kernel refuses writes to the block device. False for a file.
fn is_read_only(file: &OwnedFd) -> bool {
    /// `_IO(0x12, 94)`, from the kernel's interface.
    const BLKROGET: libc::Ioctl = 0x125e;
    let mut is_read_only: libc::c_int = 0;
    // SAFETY: the request writes one `int`, and fails on anything but a block device.
    let code = unsafe { libc::ioctl(file.as_raw_fd(), BLKROGET, &raw mut is_read_only) };
    code == 0 && is_read_only != 0
}

/// Whether the system swaps to this file or device.
fn is_swap(stat: &Stat) -> bool {
    let list = std::fs::read("/proc/swaps").unwrap_or_default();
    swaps(&list).any(|path| {
        rustix::fs::stat(&path)
            .is_ok_and(|swap| (swap.st_dev, swap.st_ino) == (stat.st_dev, stat.st_ino))
    })
}

/// The paths in `/proc/swaps`: the first column of each line after the header.
fn swaps(list: &[u8]) -> impl Iterator<Item = PathBuf> {
    let lines = list.split(|&byte| byte == b'\n').skip(1).filter(|line| !line.is_empty());
    lines.map(|line| {
        let name = line.split(|&byte| byte == b' ' || byte == b'\t').next();
        unescaped(name.unwrap_or_default())
    })
}

/// A path as the files of `/proc` show it: some characters are a backslash and three octal digits.
pub(super) fn unescaped(name: &[u8]) -> PathBuf {
    let mut path = Vec::new();
    let mut rest = name;
    while let Some((&byte, after)) = rest.split_first() {
        let code = after.get(..3).and_then(|digits| std::str::from_utf8(digits).ok());
        let code = code.and_then(|digits| u8::from_str_radix(digits, 8).ok());
        let code = code.filter(|_| byte == b'\\');
        path.push(code.unwrap_or(byte));
        rest = if code.is_some() { &after[3..] } else { after };
    }
    PathBuf::from(std::ffi::OsString::from_vec(path))
}

/// The bytes at the end of a block device that are less than one of its blocks. They can be neither
/// read nor written.
pub(super) fn bytes_beyond_blocks(
    path: &Path,
    file: &OwnedFd,
    is_block: bool,
    size_bytes: u64,
) -> u64 {
    let block_bytes = if is_block { rustix::fs::ioctl_blksszget(file).unwrap_or(1) } else { 1 };
    let beyond_bytes = size_bytes % u64::from(block_bytes.max(1));
    if beyond_bytes == 0 || beyond_bytes == size_bytes {
        return 0;
    }
    tracing::warn!(
        path = %path.display(),
        size_bytes,
        block_bytes,
        beyond_bytes,
        "the size is not a multiple of the block size, the bytes after the last block are not used"
    );
    beyond_bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_list_of_swaps_is_read() {
        let list = b"Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n\
            /dev/sda3                               partition\t1000\t0\t-2\n\
            /swap\\040file\\134x                    file\t\t1000\t0\t-3\n";
        let found: Vec<_> = swaps(list).collect();
        assert_eq!(found, [Path::new("/dev/sda3"), Path::new("/swap file\\x")]);
        assert_eq!(swaps(b"").count(), 0);
    }
}
