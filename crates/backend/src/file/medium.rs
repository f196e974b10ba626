//! What a file or block device lies on: its disks, or memory that a reset or power failure erases.
//!
//! A file system names its device, sysfs the devices below another one. Where neither says more, as
//! for a file system with several devices of its own or one of a server, nothing is known.

use super::ability::unescaped;
use super::alias::{
    DeviceNumbers, StorageNode, SysfsAccess, System, directories_in, name, numbers,
};
use crate::StoreMedium;
use rustix::fs::{FileType, Stat, major, minor};
use std::collections::BTreeSet;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Maximum depth of stacked devices and file systems.
const DEPTH_MAX: usize = 16;

/// What a file system is on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum MountSource {
    /// Memory; the type of the file system.
    Memory(String),
    /// A device, or another file system.
    On(DeviceNumbers),
    Unknown,
}

/// The medium of an open file or block device.
pub(super) fn of(file: &OwnedFd, stat: &Stat, is_block: bool) -> StoreMedium {
    let type_of =
        |file| rustix::fs::fstatfs(file).ok().and_then(|fs| memory_type(fs.f_type as u32));
    // The kernel's own mounts, such as that of memory files, are not listed.
    if !is_block && let Some(kind) = type_of(file) {
        return StoreMedium { memory: Some(kind.to_owned()), ..StoreMedium::default() };
    }
    below(&System, device_of(stat))
}

/// The memory that a path leads to: the name of a device, or the type of a file system. `None` if
/// it leads to a disk, or to nothing that is known.
pub(super) fn memory_at(path: &Path) -> Option<String> {
    let stat = rustix::fs::stat(path).ok()?;
    let is_block = FileType::from_raw_mode(stat.st_mode) == FileType::BlockDevice;
    let fs = rustix::fs::statfs(path).ok().filter(|_| !is_block);
    let kind = fs.and_then(|fs| memory_type(fs.f_type as u32)).map(str::to_owned);
    kind.or_else(|| below(&System, device_of(&stat)).memory)
}

/// The name of a file system in memory, by its number.
pub(super) const fn memory_type(number: u32) -> Option<&'static str> {
    match number {
        0x0102_1994 => Some("tmpfs"),
        0x8584_58f6 => Some("ramfs"),
        0x9584_58f6 => Some("hugetlbfs"),
        _ => None,
    }
}

fn device_of(stat: &Stat) -> DeviceNumbers {
    let is_block = FileType::from_raw_mode(stat.st_mode) == FileType::BlockDevice;
    let device = if is_block { stat.st_rdev } else { stat.st_dev };
    (major(device), minor(device))
}

fn below(kernel: &dyn SysfsAccess, device: DeviceNumbers) -> StoreMedium {
    let mut walk = MediumWalk { kernel, disks: BTreeSet::new() };
    let memory = walk.follow(device, DEPTH_MAX);
    StoreMedium { memory, disks: walk.disks, ..StoreMedium::default() }
}

struct MediumWalk<'a> {
    kernel: &'a dyn SysfsAccess,
    /// The kernel's names of the devices without others below them.
    disks: BTreeSet<String>,
}

impl MediumWalk<'_> {
    /// Follows a device, or the device number of a file system, to its disks. Returns the memory
    /// without which it has lost data.
    fn follow(&mut self, device: DeviceNumbers, depth: usize) -> Option<String> {
        let depth = depth.checked_sub(1)?;
        let directory = self.kernel.sysfs().join(format!("dev/block/{}:{}", device.0, device.1));
        let Ok(directory) = directory.canonicalize() else {
            return match self.kernel.mount(device) {
                MountSource::Memory(kind) => Some(kind),
                MountSource::On(device) => self.follow(device, depth),
                MountSource::Unknown => None,
            };
        };
        if directory.join("partition").exists() {
            return self.follow(numbers(directory.parent()?)?, depth);
        }
        let name = name(&directory);
        if ["/dev/ram", "/dev/zram", "/dev/nullb"].iter().any(|memory| name.starts_with(memory)) {
            return Some(name);
        }
        if directory.join("loop").is_dir() {
            return match self.kernel.attached(device, &directory)?.to {
                StorageNode::File(file) => self.follow(file.device, depth),
                StorageNode::Device(below) => self.follow(below, depth),
            };
        }
        let below: Vec<_> = directories_in(&directory.join("slaves")).collect();
        if below.is_empty() {
            self.disks.insert(name);
            return None;
        }
        let memory = below.iter().map(|disk| self.follow(numbers(disk)?, depth));
        let memory: Vec<Option<String>> = memory.collect();
        // An array keeps its data if one of its drives is memory.
        match directory.join("md").is_dir() && memory.contains(&None) {
            true => None,
            false => memory.into_iter().flatten().next(),
        }
    }
}

/// Finds a file system in a list like `/proc/self/mountinfo` by its device number. `number_of`
/// returns the number of a device, or of the file system of a directory.
pub(super) fn mount_in(
    list: &[u8],
    device: DeviceNumbers,
    number_of: impl Fn(&Path) -> Option<DeviceNumbers>,
) -> MountSource {
    let place = format!("{}:{}", device.0, device.1);
    let lines = list.split(|&byte| byte == b'\n').map(String::from_utf8_lossy);
    for line in lines {
        let Some((mount, file_system)) = line.split_once(" - ") else { continue };
        if mount.split(' ').nth(2) != Some(&*place) {
            continue;
        }
        let mut fields = file_system.split(' ');
        let (kind, source) = (fields.next().unwrap_or_default(), fields.next().unwrap_or_default());
        if ["tmpfs", "ramfs", "rootfs", "devtmpfs", "hugetlbfs"].contains(&kind) {
            return MountSource::Memory(kind.to_owned());
        }
        let options = fields.next().unwrap_or_default().split(',');
        let upper = options.filter_map(|option| option.strip_prefix("upperdir=")).next();
        let on = upper.or(Some(source).filter(|source| source.starts_with("/dev/")));
        let on = on.and_then(|on| number_of(&unescaped(on.as_bytes())));
        return on.filter(|&on| on != device).map_or(MountSource::Unknown, MountSource::On);
    }
    MountSource::Unknown
}

/// As [`mount_in`], of the running system.
pub(super) fn mount(device: DeviceNumbers) -> MountSource {
    let list = std::fs::read("/proc/self/mountinfo").unwrap_or_default();
    mount_in(&list, device, |path| {
        // A relative name is that of a directory in another mount namespace.
        let is_absolute = path.as_os_str().as_bytes().starts_with(b"/");
        is_absolute.then(|| rustix::fs::stat(path).ok()).flatten().map(|stat| device_of(&stat))
    })
}

#[cfg(test)]
mod tests {
    use super::super::alias::tests::{IMAGE, Machine};
    use super::*;

    fn on(machine: &Machine, device: DeviceNumbers) -> (Option<String>, Vec<String>) {
        let medium = below(machine, device);
        (medium.memory, medium.disks.into_iter().collect())
    }

    #[test]
    fn a_device_is_followed_to_its_disks() {
        let mut machine = Machine::new();
        machine.add("sda", (8, 0), 100).add("sda/sda1", (8, 1), 50).add("sdb", (8, 16), 100);
        machine.add_mapped("dm-0", (253, 0), 50, &["sda/sda1", "sdb"]);
        machine.add_loop("loop0", (7, 0), StorageNode::File(IMAGE));
        assert_eq!(on(&machine, (8, 1)), (None, vec!["/dev/sda".into()]));
        assert_eq!(on(&machine, (253, 0)), (None, vec!["/dev/sda".into(), "/dev/sdb".into()]));
        assert_eq!(on(&machine, (7, 0)), (None, vec!["/dev/sda".into()]), "its file is on sda1");
        assert_eq!(on(&machine, (0, 55)), (None, vec![]), "an unknown file system");
    }

    #[test]
    fn memory_is_found_below_whatever_is_stacked_on_it() {
        let mut machine = Machine::new();
        machine.add("ram0", (1, 0), 100).add("zram0", (252, 0), 100).add("sda", (8, 0), 100);
        machine.add_mapped("dm-0", (253, 0), 50, &["sda", "ram0"]);
        machine.add_mapped("md0", (9, 0), 50, &["sda", "ram0"]);
        std::fs::create_dir(machine.path("md0").join("md")).unwrap();
        machine.mounts.push(((0, 40), MountSource::Memory("tmpfs".into())));
        machine.mounts.push(((0, 41), MountSource::On((0, 40))));
        let file = super::super::alias::FileId { device: (0, 41), inode: 1 };
        machine.add_loop("loop0", (7, 0), StorageNode::File(file));
        for (device, memory) in [
            ((1, 0), Some("/dev/ram0")),
            ((252, 0), Some("/dev/zram0")),
            ((253, 0), Some("/dev/ram0")),
            ((9, 0), None),
            ((0, 40), Some("tmpfs")),
            ((0, 41), Some("tmpfs")),
            ((7, 0), Some("tmpfs")),
        ] {
            assert_eq!(on(&machine, device).0.as_deref(), memory, "{device:?}");
        }
    }

    #[test]
    fn a_file_system_names_what_it_is_on() {
        let list = b"22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw\n\
            23 22 0:40 / /tmp rw - tmpfs tmpfs rw\n\
            24 22 0:41 / / rw - overlay overlay rw,lowerdir=/l,upperdir=/u\\040x/up,workdir=/w\n\
            25 22 0:42 /sub /home rw - btrfs /dev/sdb rw,subvol=/sub\n\
            26 22 0:43 / /net rw - nfs4 server:/x rw\n";
        let find = |minor| {
            mount_in(list, (0, minor), |path| match path.to_str() {
                Some("/u x/up") => Some((0, 40)),
                Some("/dev/sdb") => Some((8, 16)),
                _ => None,
            })
        };
        assert_eq!(find(40), MountSource::Memory("tmpfs".into()));
        assert_eq!(find(41), MountSource::On((0, 40)));
        assert_eq!(find(42), MountSource::On((8, 16)));
        assert_eq!([find(43), find(44)], [MountSource::Unknown, MountSource::Unknown]);
    }

    #[test]
    fn files_in_memory_are_found() {
        let memory = rustix::fs::memfd_create("x", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        let stat = rustix::fs::fstat(&memory).unwrap();
        assert_eq!(of(&memory, &stat, false).memory.as_deref(), Some("tmpfs"));
        if Path::new("/dev/shm").is_dir() {
            assert_eq!(memory_at(Path::new("/dev/shm")).as_deref(), Some("tmpfs"));
        }
        assert_eq!(memory_at(Path::new("/no/such")), None);
    }
}
