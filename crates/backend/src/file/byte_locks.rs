//! Byte locks, by which QEMU and libvirt notice that an image is in use.
//!
//! QEMU takes locks of the open file description (`F_OFD_SETLK`), all of them shared, on single
//! bytes of an image: byte 100 + n says that the process uses the permission n, and byte 200 + n
//! that no other process may. It takes its own, then tests whether another process has locked the
//! counterpart of one. libvirt's lock daemon (virtlockd) locks byte 0, exclusively for a disk that
//! is written. A store takes and tests both, so that each program refuses what the other one has.

use rustix::io::Errno;
use std::os::fd::{AsRawFd, OwnedFd};

/// The permissions of QEMU: to rely on the content, to change it, to write without changing it, and
/// to change the size.
const READ: libc::off_t = 0;
const WRITE: libc::off_t = 1;
const WRITE_UNCHANGED: libc::off_t = 2;
const RESIZE: libc::off_t = 3;

/// The byte of the first permission in use.
const USED: libc::off_t = 100;
/// The byte of the first permission that no other process may use.
const DENIED: libc::off_t = 200;
/// The first byte after those of QEMU.
const AFTER: libc::off_t = 300;

/// How a file is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Use {
    /// Opened for reading.
    Reading,
    /// Opened for writing.
    Writing,
    /// Below a loop device that may write it. Several such devices may have parts of one file.
    Below,
}

impl Use {
    /// The permissions used, and those denied to other processes.
    const fn permissions(self) -> (&'static [libc::off_t], &'static [libc::off_t]) {
        match self {
            Self::Reading => (&[READ], &[WRITE, RESIZE]),
            // Readers are denied too: the newest data may not be on the disk yet.
            Self::Writing => {
                (&[READ, WRITE, WRITE_UNCHANGED], &[READ, WRITE, WRITE_UNCHANGED, RESIZE])
            }
            Self::Below => (&[READ, WRITE], &[]),
        }
    }
}

/// Why the locks cannot be taken.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum LockRefused {
    /// QEMU, or a program that locks images as it does, uses the file.
    ByQemu,
    /// Another program has locked the file or a part of it.
    ByAnother,
    /// The file system or the kernel has no such locks.
    Unsupported(Errno),
}

/// Takes the locks for this use, until the file is closed.
///
/// # Errors
/// Another process uses the file in a way that this use excludes, or there are no such locks. The
/// locks taken so far stay until the file is closed.
pub(super) fn take(file: &OwnedFd, usage: Use) -> Result<(), LockRefused> {
    if is_on_smb(file) {
        return Ok(());
    }
    let (used, denied) = usage.permissions();
    let exclusive = if usage == Use::Writing { libc::F_WRLCK } else { libc::F_RDLCK };
    lock(file, exclusive, 0, 1)?;
    for byte in used.iter().map(|n| USED + n).chain(denied.iter().map(|n| DENIED + n)) {
        lock(file, libc::F_RDLCK, byte, 1)?;
    }
    for byte in used.iter().map(|n| DENIED + n).chain(denied.iter().map(|n| USED + n)) {
        if is_locked(file, libc::F_WRLCK, byte, 1)? {
            return Err(LockRefused::ByQemu);
        }
    }
    // To the end of the file, however large it is.
    if is_locked(file, exclusive, 0, USED)? || is_locked(file, exclusive, AFTER, 0)? {
        return Err(LockRefused::ByAnother);
    }
    Ok(())
}

/// Whether the file is on an SMB server, whose locks are mandatory: a shared one would refuse our
/// own writes of these bytes.
fn is_on_smb(file: &OwnedFd) -> bool {
    const CIFS: u32 = 0xFF53_4D42;
    const SMB2: u32 = 0xFE53_4D42;
    rustix::fs::fstatfs(file).is_ok_and(|fs| [CIFS, SMB2].contains(&(fs.f_type as u32)))
}

fn lock(
    file: &OwnedFd,
    kind: libc::c_int,
    start: libc::off_t,
    len: libc::off_t,
) -> Result<(), LockRefused> {
    match call(file, libc::F_OFD_SETLK, kind, start, len) {
        Ok(_) => Ok(()),
        Err(Errno::AGAIN | Errno::ACCESS) => Err(LockRefused::ByAnother),
        Err(error) => Err(LockRefused::Unsupported(error)),
    }
}

/// Whether another open file has a lock that excludes this one.
fn is_locked(
    file: &OwnedFd,
    kind: libc::c_int,
    start: libc::off_t,
    len: libc::off_t,
) -> Result<bool, LockRefused> {
    let found =
        call(file, libc::F_OFD_GETLK, kind, start, len).map_err(LockRefused::Unsupported)?;
    Ok(libc::c_int::from(found) != libc::F_UNLCK)
}

/// Sets or tests a lock. Returns the kind of the lock in the answer.
fn call(
    file: &OwnedFd,
    command: libc::c_int,
    kind: libc::c_int,
    start: libc::off_t,
    len: libc::off_t,
) -> Result<libc::c_short, Errno> {
    let mut lock = libc::flock {
        l_type: kind as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: start,
        l_len: len,
        l_pid: 0,
    };
    // SAFETY: both commands read and write one `struct flock`, and keep nothing.
    let code = unsafe { libc::fcntl(file.as_raw_fd(), command, &raw mut lock) };
    if code == 0 {
        return Ok(lock.l_type);
    }
    let error = std::io::Error::last_os_error();
    Err(Errno::from_io_error(&error).unwrap_or(Errno::IO))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;

    fn open(path: &std::path::Path) -> OwnedFd {
        File::options().read(true).write(true).open(path).unwrap().into()
    }

    /// Locks a file as QEMU does.
    fn as_qemu(path: &std::path::Path, bytes: &[libc::off_t]) -> OwnedFd {
        let file = open(path);
        bytes.iter().for_each(|&byte| lock(&file, libc::F_RDLCK, byte, 1).unwrap());
        file
    }

    #[test]
    fn each_use_excludes_those_that_it_would_disturb() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let path = file.path();
        // A virtual machine with a writable disk, one with a read-only disk, and a program that
        // reads and shares everything.
        let (writer, reader, sharing) =
            (&[100, 101, 103, 201, 203][..], &[100, 201, 203][..], &[100][..]);
        let (by_qemu, fine) = (Err(LockRefused::ByQemu), Ok(()));
        for (other, writing, reading, below) in [
            (writer, &by_qemu, &by_qemu, &by_qemu),
            (reader, &by_qemu, &fine, &by_qemu),
            (sharing, &by_qemu, &fine, &fine),
        ] {
            let held = as_qemu(path, other);
            assert_eq!(take(&open(path), Use::Writing), *writing, "{other:?}");
            assert_eq!(take(&open(path), Use::Reading), *reading, "{other:?}");
            assert_eq!(take(&open(path), Use::Below), *below, "{other:?}");
            drop(held);
        }
        for (ours, excluded, admitted) in [
            (Use::Writing, &[Use::Writing, Use::Reading, Use::Below][..], &[][..]),
            (Use::Reading, &[Use::Writing, Use::Below], &[Use::Reading]),
            (Use::Below, &[Use::Writing, Use::Reading], &[Use::Below]),
        ] {
            let held = open(path);
            take(&held, ours).unwrap();
            for other in excluded {
                assert!(take(&open(path), *other).is_err(), "{ours:?} {other:?}");
            }
            for other in admitted {
                take(&open(path), *other).unwrap();
            }
        }
    }

    #[test]
    fn qemu_finds_that_a_store_is_in_use() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let is_refused = |used: &[libc::off_t], denied: &[libc::off_t]| {
            let other = open(file.path());
            let tested = used.iter().map(|n| DENIED + n).chain(denied.iter().map(|n| USED + n));
            tested.into_iter().any(|byte| is_locked(&other, libc::F_WRLCK, byte, 1).unwrap())
        };
        for (usage, to_write, to_read) in
            [(Use::Writing, true, true), (Use::Below, true, true), (Use::Reading, true, false)]
        {
            let held = open(file.path());
            take(&held, usage).unwrap();
            assert_eq!(is_refused(&[READ, WRITE, RESIZE], &[WRITE, RESIZE]), to_write, "{usage:?}");
            assert_eq!(is_refused(&[READ], &[WRITE, RESIZE]), to_read, "{usage:?}");
        }
    }

    #[test]
    fn the_locks_of_other_programs_are_honoured() {
        let file = tempfile::NamedTempFile::new().unwrap();
        // libvirt's lock daemon, and a program that locks all of the file.
        for len in [1, 0] {
            let other = open(file.path());
            lock(&other, libc::F_WRLCK, 0, len).unwrap();
            for usage in [Use::Writing, Use::Reading] {
                assert_eq!(take(&open(file.path()), usage), Err(LockRefused::ByAnother), "{len}");
            }
            drop(other);
        }
        let other = open(file.path());
        lock(&other, libc::F_RDLCK, 1 << 20, 4096).unwrap();
        assert_eq!(take(&open(file.path()), Use::Writing), Err(LockRefused::ByAnother));
        take(&open(file.path()), Use::Reading).unwrap();
    }
}
