//! Queries of the running kernel about devices and locks.

use super::{
    DeviceNumbers, FileId, LoopBacking, StorageNode, SysfsAccess, backing_name, directories_in,
    name,
};
use crate::file::byte_locks::{self, LockRefused, Use};
use crate::file::medium::{self, MountSource};
use rustix::fs::{FileType, FlockOperation, Mode, OFlags, fstat, major, minor};
use rustix::io::Errno;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;

/// The running system.
pub(in crate::file) struct System;

impl SysfsAccess for System {
    fn sysfs(&self) -> &Path {
        Path::new("/sys")
    }

    fn attached(&self, device: DeviceNumbers, directory: &Path) -> Option<LoopBacking> {
        match open_device(device, directory, OFlags::empty()) {
            Ok(file) => status(&file),
            // Without permission to open the device, find its file by name.
            Err(_) => {
                let found = rustix::fs::stat(backing_name(directory)).ok()?;
                let device = (major(found.st_dev), minor(found.st_dev));
                let to = match FileType::from_raw_mode(found.st_mode) {
                    FileType::BlockDevice => {
                        StorageNode::Device((major(found.st_rdev), minor(found.st_rdev)))
                    }
                    _ => StorageNode::File(FileId { device, inode: found.st_ino }),
                };
                Some(LoopBacking { to, start: 0, end: u64::MAX })
            }
        }
    }

    fn is_claimed(&self, device: DeviceNumbers, directory: &Path) -> bool {
        match open_device(device, directory, OFlags::EXCL) {
            Ok(_) => false,
            Err(Errno::BUSY) => true,
            Err(_) => {
                directories_in(&directory.join("holders")).next().is_some() || is_mounted(device)
            }
        }
    }

    fn mount(&self, device: DeviceNumbers) -> MountSource {
        medium::mount(device)
    }

    fn lock(&self, file: FileId, directory: &Path) -> Result<Option<OwnedFd>, ()> {
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let opened = rustix::fs::open(backing_name(directory), flags, Mode::empty());
        let is_same = |opened: &OwnedFd| fstat(opened).is_ok_and(|stat| file == FileId::of(&stat));
        let Some(opened) = opened.ok().filter(is_same) else {
            // The name was removed, or is in another mount namespace.
            return if is_locked(file) { Err(()) } else { Ok(None) };
        };
        match rustix::fs::flock(&opened, FlockOperation::NonBlockingLockShared) {
            Ok(()) => match byte_locks::take(&opened, Use::Below) {
                Err(LockRefused::ByQemu | LockRefused::ByAnother) => Err(()),
                Ok(()) | Err(LockRefused::Unsupported(_)) => Ok(Some(opened)),
            },
            Err(Errno::WOULDBLOCK) => Err(()),
            Err(_) => Ok(None),
        }
    }
}

impl FileId {
    /// The file described by `stat`.
    pub(in crate::file) fn of(stat: &rustix::fs::Stat) -> Self {
        Self { device: (major(stat.st_dev), minor(stat.st_dev)), inode: stat.st_ino }
    }
}

/// Opens a block device by the kernel's name for it.
fn open_device(device: DeviceNumbers, directory: &Path, more: OFlags) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC | more;
    let file = rustix::fs::open(name(directory), flags, Mode::empty())?;
    let number = fstat(&file)?.st_rdev;
    // In a container, the name may belong to another device.
    if (major(number), minor(number)) == device { Ok(file) } else { Err(Errno::NXIO) }
}

/// The backing of a loop device (`struct loop_info64` of `linux/loop.h`).
fn status(file: &OwnedFd) -> Option<LoopBacking> {
    const LOOP_GET_STATUS64: libc::Ioctl = 0x4c05;
    // 232 bytes; the first five fields are device, inode, the number of a backing device, offset
    // and size limit.
    let mut info = [0_u64; 29];
    // SAFETY: the request writes a `struct loop_info64` of 232 bytes, the size of `info`.
    let code = unsafe { libc::ioctl(file.as_raw_fd(), LOOP_GET_STATUS64, info.as_mut_ptr()) };
    if code != 0 {
        return None;
    }
    let [device, inode, own, start, limit, ..] = info;
    let numbers = |number| (major(number), minor(number));
    // For a regular file, the kernel repeats the number of the device that it is on.
    let to = if own == device || own == 0 {
        StorageNode::File(FileId { device: numbers(device), inode })
    } else {
        StorageNode::Device(numbers(own))
    };
    let end = if limit == 0 { u64::MAX } else { start.saturating_add(limit) };
    Some(LoopBacking { to, start, end })
}

fn is_mounted(device: DeviceNumbers) -> bool {
    let numbers = format!("{}:{}", device.0, device.1);
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    mounts.lines().any(|line| line.split(' ').nth(2) == Some(&numbers))
}

/// Whether the kernel lists an exclusive lock on a file.
fn is_locked(file: FileId) -> bool {
    let place = format!("{:02x}:{:02x}:{}", file.device.0, file.device.1, file.inode);
    let locks = std::fs::read_to_string("/proc/locks").unwrap_or_default();
    locks.lines().any(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        matches!(fields[..], [_, "FLOCK", _, "WRITE", _, at, ..] if at == place)
    })
}
