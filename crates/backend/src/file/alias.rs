//! Aliases of the same sectors: loop devices over a file or a device, and device-mapper volumes
//! that share a disk.
//!
//! The kernel excludes a second exclusive open of a block device, of a disk and its partitions, and
//! of a device and the RAID or device-mapper volume over it; a file lock excludes a second use of a
//! file. A loop device escapes both: it takes no lock, and no claim on its backing file or device.
//! So each open follows sysfs down to the files below the store and up to the loop devices over it,
//! and refuses the store if one of them is in use.
//!
//! A store is first opened and claimed, then checked for aliases. Of two processes that open
//! aliases at the same time, at least one detects the other. Later attaching or mounting of an
//! alias is not prevented, except that a file below a loop device stays locked.

mod kernel;

#[cfg(test)]
pub(super) mod tests;

pub(super) use kernel::System;

use super::medium::MountSource;
use std::collections::BTreeSet;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

/// Maximum depth of stacked devices; real stacks are smaller.
const DEPTH_MAX: usize = 16;

/// Major and minor number of a block device.
pub(super) type DeviceNumbers = (u32, u32);

/// A regular file, identified by device and inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FileId {
    pub(super) device: DeviceNumbers,
    pub(super) inode: u64,
}

/// A file or a block device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StorageNode {
    File(FileId),
    Device(DeviceNumbers),
}

/// The backing of a loop device: bytes `start` to `end` (exclusive) of `to`.
#[derive(Clone, Copy, Debug)]
pub(super) struct LoopBacking {
    pub(super) to: StorageNode,
    pub(super) start: u64,
    pub(super) end: u64,
}

impl LoopBacking {
    const fn overlaps(&self, other: &Self) -> bool {
        self.start < other.end && other.start < self.end
    }
}

/// Access to sysfs, and queries that sysfs does not answer.
pub(super) trait SysfsAccess {
    fn sysfs(&self) -> &Path;

    /// The backing of a loop device; `None` if unknown.
    fn attached(&self, device: DeviceNumbers, directory: &Path) -> Option<LoopBacking>;

    /// Whether a block device is mounted, or claimed by a process or by another device.
    fn is_claimed(&self, device: DeviceNumbers, directory: &Path) -> bool;

    /// What a file system is on, by its device number.
    fn mount(&self, device: DeviceNumbers) -> MountSource;

    /// Takes a shared lock on the file below a loop device, to exclude writers that open the file
    /// itself. `None` if the file cannot be reached.
    ///
    /// # Errors
    /// If another process has an exclusive lock on the file: it is open for writing elsewhere.
    fn lock(&self, file: FileId, directory: &Path) -> Result<Option<OwnedFd>, ()>;
}

/// The other name under which a store is in use, for messages.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Alias(pub(super) String);

/// Checks whether an opened device, or an opened file on the device `on`, is in use under another
/// name. Returns locks to hold as long as the store is open.
pub(super) fn follow(
    kernel: &dyn SysfsAccess,
    opened: StorageNode,
    on: DeviceNumbers,
) -> Result<Vec<OwnedFd>, Alias> {
    let mut walk =
        AliasWalk { kernel, loops: loops(kernel), locks: Vec::new(), seen: BTreeSet::new() };
    let whole = LoopBacking { to: opened, start: 0, end: u64::MAX };
    walk.check_above(&whole, DEPTH_MAX)?;
    walk.follow_below(on, DEPTH_MAX)?;
    Ok(walk.locks)
}

/// An attached loop device.
struct Loop {
    device: DeviceNumbers,
    directory: PathBuf,
    attached: LoopBacking,
}

fn loops(kernel: &dyn SysfsAccess) -> Vec<Loop> {
    let Ok(entries) = std::fs::read_dir(kernel.sysfs().join("block")) else { return Vec::new() };
    let attached = entries.flatten().filter_map(|entry| {
        let directory = entry.path();
        if !directory.join("loop").is_dir() {
            return None;
        }
        let device = numbers(&directory)?;
        let attached = kernel.attached(device, &directory)?;
        Some(Loop { device, directory, attached })
    });
    attached.collect()
}

struct AliasWalk<'a> {
    kernel: &'a dyn SysfsAccess,
    loops: Vec<Loop>,
    locks: Vec<OwnedFd>,
    /// The devices already followed downwards: the opened one, and those below it.
    seen: BTreeSet<DeviceNumbers>,
}

impl AliasWalk<'_> {
    /// Checks the loop devices over a part of a node, except those through which it was reached.
    fn check_above(&self, part: &LoopBacking, depth: usize) -> Result<(), Alias> {
        let Some(depth) = depth.checked_sub(1) else { return Ok(()) };
        let is_over = |other: &&Loop| {
            other.attached.to == part.to
                && other.attached.overlaps(part)
                && !self.seen.contains(&other.device)
        };
        for over in self.loops.iter().filter(is_over) {
            if self.kernel.is_claimed(over.device, &over.directory) {
                let name = name(&over.directory);
                return Err(Alias(format!("{name}, a loop device over the same data, is in use")));
            }
            self.check_above_device(over.device, &over.directory, depth)?;
        }
        Ok(())
    }

    /// Checks the loop devices over a device and its partitions.
    fn check_above_device(
        &self,
        device: DeviceNumbers,
        at: &Path,
        depth: usize,
    ) -> Result<(), Alias> {
        let whole =
            |device| LoopBacking { to: StorageNode::Device(device), start: 0, end: u64::MAX };
        self.check_above(&whole(device), depth)?;
        for partition in directories_in(at).filter(|entry| entry.join("partition").exists()) {
            if let Some(device) = numbers(&partition) {
                self.check_above(&whole(device), depth)?;
            }
        }
        Ok(())
    }

    /// Follows a device to the ones below it.
    fn follow_below(&mut self, device: DeviceNumbers, depth: usize) -> Result<(), Alias> {
        let Some(depth) = depth.checked_sub(1) else { return Ok(()) };
        let directory = self.kernel.sysfs().join(format!("dev/block/{}:{}", device.0, device.1));
        // A partition's directory is inside that of its disk; sysfs has a link to it.
        let Ok(directory) = directory.canonicalize() else { return Ok(()) };
        if !self.seen.insert(device) {
            return Ok(());
        }
        self.check_above_device(device, &directory, depth)?;
        if directory.join("partition").exists() {
            let disk = directory.parent().and_then(numbers);
            return disk.map_or(Ok(()), |disk| self.follow_below(disk, depth));
        }
        let attached = self.loops.iter().find(|found| found.device == device);
        if let Some(attached) = attached.map(|found| found.attached) {
            return self.follow_loop(&directory, &attached, depth);
        }
        let below: Vec<PathBuf> = directories_in(&directory.join("slaves")).collect();
        if let [disk] = &below[..] {
            self.check_sharing(&directory, disk)?;
        }
        for numbers in below.iter().filter_map(|disk| numbers(disk)) {
            self.follow_below(numbers, depth)?;
        }
        Ok(())
    }

    /// Locks or checks the backing of a loop device, and follows it.
    fn follow_loop(
        &mut self,
        directory: &Path,
        attached: &LoopBacking,
        depth: usize,
    ) -> Result<(), Alias> {
        match attached.to {
            StorageNode::File(file) => match self.kernel.lock(file, directory) {
                Ok(lock) => self.locks.extend(lock),
                Err(()) => {
                    let path = backing_name(directory);
                    return Err(Alias(format!("{path}, the file below it, is in use")));
                }
            },
            StorageNode::Device(below) => {
                let at = self.kernel.sysfs().join(format!("dev/block/{}:{}", below.0, below.1));
                if self.kernel.is_claimed(below, &at) {
                    let path = backing_name(directory);
                    return Err(Alias(format!("{path}, the device below it, is in use")));
                }
            }
        }
        self.check_above(attached, depth)?;
        match attached.to {
            StorageNode::File(file) => self.follow_below(file.device, depth),
            StorageNode::Device(below) => self.follow_below(below, depth),
        }
    }

    /// Device-mapper volumes may share a disk, like those of LVM. Sysfs does not say which part
    /// each one has, but two that are together larger than the disk must overlap. This does not
    /// hold if the disk is itself mapped, as below thin volumes and snapshots.
    fn check_sharing(&self, directory: &Path, disk: &Path) -> Result<(), Alias> {
        if !directory.join("dm").is_dir() || disk.join("dm").is_dir() {
            return Ok(());
        }
        let (Some(own), Some(all)) = (sectors(directory), sectors(disk)) else { return Ok(()) };
        for other in directories_in(&disk.join("holders")) {
            let Some(device) = numbers(&other) else { continue };
            let is_itself = numbers(directory) == Some(device);
            let has_one_disk = directories_in(&other.join("slaves")).count() == 1;
            if is_itself || !has_one_disk || !other.join("dm").is_dir() {
                continue;
            }
            if sectors(&other).is_some_and(|size| own.saturating_add(size) > all)
                && self.kernel.is_claimed(device, &other)
            {
                let (name, disk) = (name(&other), name(disk));
                return Err(Alias(format!("{name}, which overlaps it on {disk}, is in use")));
            }
        }
        Ok(())
    }
}

/// The subdirectories of a directory, sorted; none if it cannot be read.
pub(super) fn directories_in(directory: &Path) -> impl Iterator<Item = PathBuf> + use<> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let mut found: Vec<PathBuf> =
        entries.map(|entry| entry.path()).filter(|path| path.is_dir()).collect();
    found.sort();
    found.into_iter()
}

fn text(directory: &Path, name: &str) -> Option<String> {
    let text = std::fs::read_to_string(directory.join(name)).ok()?;
    Some(text.trim_end_matches('\n').to_owned())
}

pub(super) fn numbers(directory: &Path) -> Option<DeviceNumbers> {
    let text = text(directory, "dev")?;
    let (major, minor) = text.split_once(':')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

fn sectors(directory: &Path) -> Option<u64> {
    text(directory, "size")?.parse().ok()
}

/// The kernel's name of the device under `/dev`.
pub(super) fn name(directory: &Path) -> String {
    let directory = directory.canonicalize().unwrap_or_else(|_| directory.to_owned());
    let name = directory.file_name().unwrap_or_default().to_string_lossy();
    format!("/dev/{}", name.replace('!', "/"))
}

/// The backing file of a loop device, as sysfs shows it.
fn backing_name(directory: &Path) -> String {
    text(directory, "loop/backing_file").unwrap_or_default()
}
