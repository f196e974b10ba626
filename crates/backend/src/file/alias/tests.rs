//! Stacks of devices in a fake sysfs.

use super::*;
use std::cell::RefCell;
use std::fs;
use std::os::unix::fs::symlink;

/// A fake machine.
pub(in crate::file) struct Machine {
    pub(in crate::file) mounts: Vec<(DeviceNumbers, MountSource)>,
    root: tempfile::TempDir,
    attached: Vec<(DeviceNumbers, LoopBacking)>,
    claimed: Vec<DeviceNumbers>,
    locked: Vec<FileId>,
    lock_requests: RefCell<Vec<FileId>>,
}

pub(in crate::file) const IMAGE: FileId = FileId { device: (8, 1), inode: 77 };

impl Machine {
    pub(in crate::file) fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        for directory in ["block", "dev/block", "devices"] {
            fs::create_dir_all(root.path().join(directory)).unwrap();
        }
        let (claimed, locked, lock_requests) = (Vec::new(), Vec::new(), RefCell::default());
        let (mounts, attached) = (Vec::new(), Vec::new());
        Self { mounts, root, attached, claimed, locked, lock_requests }
    }

    pub(in crate::file) fn path(&self, name: &str) -> PathBuf {
        self.root.path().join("devices").join(name)
    }

    /// Adds a device; one with a slash in its name is a partition.
    pub(in crate::file) fn add(
        &mut self,
        name: &str,
        device: DeviceNumbers,
        sectors: u64,
    ) -> &mut Self {
        let directory = self.path(name);
        fs::create_dir_all(directory.join("slaves")).unwrap();
        fs::create_dir_all(directory.join("holders")).unwrap();
        let (major, minor) = device;
        fs::write(directory.join("dev"), format!("{major}:{minor}\n")).unwrap();
        fs::write(directory.join("size"), format!("{sectors}\n")).unwrap();
        let number = self.root.path().join(format!("dev/block/{major}:{minor}"));
        symlink(&directory, number).unwrap();
        if name.contains('/') {
            fs::write(directory.join("partition"), "1\n").unwrap();
        } else {
            symlink(&directory, self.root.path().join("block").join(name)).unwrap();
        }
        self
    }

    pub(in crate::file) fn add_loop(
        &mut self,
        name: &str,
        device: DeviceNumbers,
        to: StorageNode,
    ) -> &mut Self {
        self.add_part(name, device, LoopBacking { to, start: 0, end: u64::MAX })
    }

    pub(in crate::file) fn add_part(
        &mut self,
        name: &str,
        device: DeviceNumbers,
        attached: LoopBacking,
    ) -> &mut Self {
        self.add(name, device, 100);
        fs::create_dir(self.path(name).join("loop")).unwrap();
        fs::write(self.path(name).join("loop/backing_file"), "/images/disk (deleted)\n").unwrap();
        self.attached.push((device, attached));
        self
    }

    /// Adds a device-mapper volume over others.
    pub(in crate::file) fn add_mapped(
        &mut self,
        name: &str,
        device: DeviceNumbers,
        sectors: u64,
        on: &[&str],
    ) -> &mut Self {
        self.add(name, device, sectors);
        fs::create_dir(self.path(name).join("dm")).unwrap();
        for below in on {
            let last = below.rsplit('/').next().unwrap();
            symlink(self.path(below), self.path(name).join("slaves").join(last)).unwrap();
            symlink(self.path(name), self.path(below).join("holders").join(name)).unwrap();
        }
        self
    }

    pub(in crate::file) fn claim(&mut self, device: DeviceNumbers) -> &mut Self {
        self.claimed.push(device);
        self
    }

    pub(in crate::file) fn lock_file(&mut self, file: FileId) -> &mut Self {
        self.locked.push(file);
        self
    }

    /// The result of opening a device.
    pub(in crate::file) fn device(&self, device: DeviceNumbers) -> Result<(), String> {
        follow(self, StorageNode::Device(device), device).map(drop).map_err(|alias| alias.0)
    }

    /// The result of opening a file.
    pub(in crate::file) fn file(&self, file: FileId) -> Result<(), String> {
        follow(self, StorageNode::File(file), file.device).map(drop).map_err(|alias| alias.0)
    }
}

impl SysfsAccess for Machine {
    fn sysfs(&self) -> &Path {
        self.root.path()
    }

    fn attached(&self, device: DeviceNumbers, _: &Path) -> Option<LoopBacking> {
        self.attached.iter().find(|(found, _)| *found == device).map(|(_, attached)| *attached)
    }

    fn is_claimed(&self, device: DeviceNumbers, _: &Path) -> bool {
        self.claimed.contains(&device)
    }

    fn mount(&self, device: DeviceNumbers) -> MountSource {
        let found = self.mounts.iter().find(|(found, _)| *found == device);
        found.map_or(MountSource::Unknown, |(_, mount)| mount.clone())
    }

    fn lock(&self, file: FileId, _: &Path) -> Result<Option<OwnedFd>, ()> {
        self.lock_requests.borrow_mut().push(file);
        if self.locked.contains(&file) { Err(()) } else { Ok(None) }
    }
}

fn assert_refused(result: Result<(), String>, by: &str) {
    let text = result.unwrap_err();
    assert!(text.contains(by), "{text}");
}

#[test]
fn a_file_and_a_loop_device_over_it_are_one_store() {
    let mut machine = Machine::new();
    machine.add_loop("loop0", (7, 0), StorageNode::File(IMAGE));
    assert_eq!(machine.file(IMAGE), Ok(()), "attached, and used by nothing");
    assert_eq!(machine.device((7, 0)), Ok(()));
    assert_eq!(machine.lock_requests.take(), [IMAGE], "it is locked");
    machine.claim((7, 0));
    assert_refused(machine.file(IMAGE), "/dev/loop0, a loop device over the same data");
    assert_eq!(machine.file(FileId { inode: 78, ..IMAGE }), Ok(()));
    machine.claimed.clear();
    machine.lock_file(IMAGE);
    assert_refused(machine.device((7, 0)), "/images/disk (deleted), the file below it");
}

#[test]
fn two_loop_devices_over_one_file_are_one_store_where_they_overlap() {
    let mut machine = Machine::new();
    let part = |start, end| LoopBacking { to: StorageNode::File(IMAGE), start, end };
    machine.add_part("loop0", (7, 0), part(0, 4096));
    machine.add_part("loop1", (7, 1), part(4096, 8192));
    machine.add_part("loop2", (7, 2), part(0, u64::MAX));
    machine.claim((7, 1));
    assert_eq!(machine.device((7, 0)), Ok(()), "beside it");
    assert_refused(machine.device((7, 2)), "/dev/loop1");
    machine.claimed = vec![(7, 2)];
    assert_refused(machine.device((7, 0)), "/dev/loop2");
    assert_refused(machine.device((7, 1)), "/dev/loop2");
}

#[test]
fn loop_devices_over_loop_devices_are_followed_both_ways() {
    let mut machine = Machine::new();
    machine.add_loop("loop0", (7, 0), StorageNode::File(IMAGE));
    machine.add_loop("loop1", (7, 1), StorageNode::Device((7, 0)));
    machine.claim((7, 1));
    assert_refused(machine.file(IMAGE), "/dev/loop1");
    assert_refused(machine.device((7, 0)), "/dev/loop1");
    assert_eq!(machine.device((7, 1)), Ok(()), "the claim is its own");
    machine.claimed = vec![(7, 0)];
    assert_refused(machine.device((7, 1)), "the device below it");
    machine.claimed.clear();
    machine.lock_file(IMAGE);
    assert_refused(machine.device((7, 1)), "the file below it");
}

#[test]
fn a_partition_of_a_loop_device_is_a_part_of_its_file() {
    let mut machine = Machine::new();
    machine.add_loop("loop0", (7, 0), StorageNode::File(IMAGE));
    machine.add("loop0/loop0p1", (259, 1), 50).add("loop0/loop0p2", (259, 2), 50);
    assert_eq!(machine.device((259, 1)), Ok(()));
    assert_eq!(machine.lock_requests.take(), [IMAGE]);
    // Once its partition is claimed, the kernel refuses an exclusive open of the disk.
    machine.claim((259, 1)).claim((7, 0));
    assert_refused(machine.file(IMAGE), "/dev/loop0");
    assert_eq!(machine.device((259, 2)), Ok(()), "beside it");
    machine.lock_file(IMAGE);
    assert_refused(machine.device((259, 2)), "the file below it");
}

#[test]
fn a_loop_device_over_a_partition_or_its_disk_is_found() {
    let mut machine = Machine::new();
    machine.add("sda", (8, 0), 100).add("sda/sda1", (8, 1), 50);
    machine.add_loop("loop0", (7, 0), StorageNode::Device((8, 1)));
    machine.add_loop("loop1", (7, 1), StorageNode::Device((8, 0)));
    machine.claim((7, 0));
    assert_refused(machine.device((8, 0)), "/dev/loop0");
    assert_refused(machine.device((8, 1)), "/dev/loop0");
    machine.claimed = vec![(7, 1)];
    assert_refused(machine.device((8, 0)), "/dev/loop1");
    assert_refused(machine.device((8, 1)), "/dev/loop1");
}

#[test]
fn a_mapped_volume_is_followed_to_the_file_below_it() {
    let mut machine = Machine::new();
    machine.add_loop("loop0", (7, 0), StorageNode::File(IMAGE));
    machine.add("loop0/loop0p1", (259, 1), 100);
    machine.add("sda", (8, 0), 100);
    machine.add_mapped("dm-0", (253, 0), 150, &["sda", "loop0/loop0p1"]);
    machine.add_mapped("dm-1", (253, 1), 150, &["dm-0"]);
    assert_eq!(machine.device((253, 1)), Ok(()));
    assert_eq!(machine.lock_requests.take(), [IMAGE]);
    machine.lock_file(IMAGE);
    assert_refused(machine.device((253, 1)), "the file below it");
    assert_refused(machine.device((253, 0)), "the file below it");
}

#[test]
fn mapped_volumes_share_a_disk_as_long_as_both_fit_on_it() {
    let mut machine = Machine::new();
    machine.add("sda", (8, 0), 100);
    machine.add_mapped("dm-0", (253, 0), 50, &["sda"]);
    machine.add_mapped("dm-1", (253, 1), 50, &["sda"]);
    machine.add_mapped("dm-2", (253, 2), 100, &["sda"]);
    machine.claim((253, 1));
    assert_eq!(machine.device((253, 0)), Ok(()));
    assert_refused(machine.device((253, 2)), "/dev/dm-1, which overlaps it on /dev/sda");
    // Thin volumes are on a mapped pool, and may be larger than it in total.
    machine.add_mapped("dm-3", (253, 3), 90, &["dm-2"]);
    machine.add_mapped("dm-4", (253, 4), 90, &["dm-2"]);
    machine.claimed = vec![(253, 4)];
    assert_eq!(machine.device((253, 3)), Ok(()));
}

#[test]
fn a_file_in_a_file_system_on_a_loop_device_is_on_the_file_below_it() {
    let mut machine = Machine::new();
    machine.add_loop("loop0", (7, 0), StorageNode::File(IMAGE)).claim((7, 0));
    let inside = FileId { device: (7, 0), inode: 12 };
    assert_eq!(machine.file(inside), Ok(()));
    machine.lock_file(IMAGE);
    assert_refused(machine.file(inside), "the file below it");
}

#[test]
fn a_cycle_of_devices_is_followed_once() {
    let mut machine = Machine::new();
    machine.add_loop("loop0", (7, 0), StorageNode::Device((7, 1)));
    machine.add_loop("loop1", (7, 1), StorageNode::Device((7, 0)));
    assert_eq!(machine.device((7, 0)), Ok(()));
    assert_eq!(machine.device((9, 9)), Ok(()), "a device that sysfs does not know");
}
