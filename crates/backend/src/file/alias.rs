//! Other ways to the same sectors: loop devices over a file or a device, and device-mapper volumes
//! that share a disk.
//!
//! The kernel keeps apart two uses of a block device, of a disk and its partitions, and of a
//! device and the RAID or device-mapper volume over it; a file lock keeps apart two uses of a file.
//! Neither knows of a loop device: it takes no lock, and no claim on what is below it. So whatever
//! is opened is followed through sysfs, down to the files below it and up to the loop devices over
//! it, and refused where one of them is in use.
//!
//! A store is opened and claimed first and followed then. Of two processes that open aliases at the
//! same time, at least one finds the other. What attaches or mounts an alias later is not kept
//! away, but finds the lock of a file below a loop device if it asks for one.

mod kernel;

#[cfg(test)]
mod tests;

pub(super) use kernel::System;

use std::collections::BTreeSet;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

/// Devices over each other that are followed: more than anybody stacks.
const DEPTH_MAX: usize = 16;

/// The numbers of a block device.
pub(super) type Numbers = (u32, u32);

/// A regular file, by the device and the inode that `stat` says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FileId {
    pub(super) device: Numbers,
    pub(super) inode: u64,
}

/// What a store is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Node {
    File(FileId),
    Device(Numbers),
}

/// What a loop device is attached to, in bytes from `start` to before `end`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Attached {
    pub(super) to: Node,
    pub(super) start: u64,
    pub(super) end: u64,
}

impl Attached {
    const fn overlaps(&self, other: &Self) -> bool {
        self.start < other.end && other.start < self.end
    }
}

/// What is asked of the kernel beside sysfs.
pub(super) trait Kernel {
    /// Where sysfs is.
    fn sysfs(&self) -> &Path;

    /// What a loop device is attached to; `None` where that can't be found out.
    fn attached(&self, device: Numbers, directory: &Path) -> Option<Attached>;

    /// Whether a block device is mounted, or claimed by a process or by another device.
    fn is_claimed(&self, device: Numbers, directory: &Path) -> bool;

    /// Takes a lock that admits other readers on the file below a loop device. It keeps away those
    /// that open the file itself. `None` if the file can't be reached.
    ///
    /// # Errors
    /// Another opening has the file for writing.
    fn lock(&self, file: FileId, directory: &Path) -> Result<Option<OwnedFd>, ()>;
}

/// The name under which a store is in use already, for messages.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Alias(pub(super) String);

/// Follows what was opened, a device or a file on the device `on`. Gives locks to be held as long
/// as the store is open.
///
/// # Errors
/// It is in use under another name.
pub(super) fn follow(
    kernel: &dyn Kernel,
    opened: Node,
    on: Numbers,
) -> Result<Vec<OwnedFd>, Alias> {
    let mut walk = Walk { kernel, loops: loops(kernel), locks: Vec::new(), seen: BTreeSet::new() };
    let whole = Attached { to: opened, start: 0, end: u64::MAX };
    walk.up(&whole, DEPTH_MAX)?;
    walk.down(on, DEPTH_MAX)?;
    Ok(walk.locks)
}

/// An attached loop device.
struct Loop {
    device: Numbers,
    directory: PathBuf,
    attached: Attached,
}

fn loops(kernel: &dyn Kernel) -> Vec<Loop> {
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

struct Walk<'a> {
    kernel: &'a dyn Kernel,
    loops: Vec<Loop>,
    locks: Vec<OwnedFd>,
    /// The devices that were followed down already: the one that was opened, and those below it.
    seen: BTreeSet<Numbers>,
}

impl Walk<'_> {
    /// Looks at the loop devices over a part of a node, but for those it was reached through.
    fn up(&self, part: &Attached, depth: usize) -> Result<(), Alias> {
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
            self.up_from_device(over.device, &over.directory, depth)?;
        }
        Ok(())
    }

    /// Looks at the loop devices over a device and over its partitions.
    fn up_from_device(&self, device: Numbers, at: &Path, depth: usize) -> Result<(), Alias> {
        let whole = |device| Attached { to: Node::Device(device), start: 0, end: u64::MAX };
        self.up(&whole(device), depth)?;
        for partition in directories_in(at).filter(|entry| entry.join("partition").exists()) {
            if let Some(device) = numbers(&partition) {
                self.up(&whole(device), depth)?;
            }
        }
        Ok(())
    }

    /// Follows a device to what it lies on.
    fn down(&mut self, device: Numbers, depth: usize) -> Result<(), Alias> {
        let Some(depth) = depth.checked_sub(1) else { return Ok(()) };
        let directory = self.kernel.sysfs().join(format!("dev/block/{}:{}", device.0, device.1));
        // A partition's directory lies in that of its disk; what leads to it is a link.
        let Ok(directory) = directory.canonicalize() else { return Ok(()) };
        if !self.seen.insert(device) {
            return Ok(());
        }
        self.up_from_device(device, &directory, depth)?;
        if directory.join("partition").exists() {
            let disk = directory.parent().and_then(numbers);
            return disk.map_or(Ok(()), |disk| self.down(disk, depth));
        }
        let attached = self.loops.iter().find(|found| found.device == device);
        if let Some(attached) = attached.map(|found| found.attached) {
            return self.below_loop(&directory, &attached, depth);
        }
        let below: Vec<PathBuf> = directories_in(&directory.join("slaves")).collect();
        if let [disk] = &below[..] {
            self.check_sharing(&directory, disk)?;
        }
        for numbers in below.iter().filter_map(|disk| numbers(disk)) {
            self.down(numbers, depth)?;
        }
        Ok(())
    }

    fn below_loop(
        &mut self,
        directory: &Path,
        attached: &Attached,
        depth: usize,
    ) -> Result<(), Alias> {
        match attached.to {
            Node::File(file) => match self.kernel.lock(file, directory) {
                Ok(lock) => self.locks.extend(lock),
                Err(()) => {
                    let path = backing_name(directory);
                    return Err(Alias(format!("{path}, the file below it, is in use")));
                }
            },
            Node::Device(below) => {
                let at = self.kernel.sysfs().join(format!("dev/block/{}:{}", below.0, below.1));
                if self.kernel.is_claimed(below, &at) {
                    let path = backing_name(directory);
                    return Err(Alias(format!("{path}, the device below it, is in use")));
                }
            }
        }
        self.up(attached, depth)?;
        match attached.to {
            Node::File(file) => self.down(file.device, depth),
            Node::Device(below) => self.down(below, depth),
        }
    }

    /// Device-mapper volumes may share a disk, as those of LVM do. Which part of it each of them
    /// has is in no file, but where two of them are together larger than the disk they overlap.
    /// This does not hold where the disk is mapped itself, as below thin volumes and snapshots.
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

/// The directories in a directory, by their names; none where it can't be read.
fn directories_in(directory: &Path) -> impl Iterator<Item = PathBuf> + use<> {
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

fn numbers(directory: &Path) -> Option<Numbers> {
    let text = text(directory, "dev")?;
    let (major, minor) = text.split_once(':')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

fn sectors(directory: &Path) -> Option<u64> {
    text(directory, "size")?.parse().ok()
}

/// The device's name under `/dev`, as the kernel gives it.
fn name(directory: &Path) -> String {
    let directory = directory.canonicalize().unwrap_or_else(|_| directory.to_owned());
    let name = directory.file_name().unwrap_or_default().to_string_lossy();
    format!("/dev/{}", name.replace('!', "/"))
}

/// What a loop device is attached to, as the kernel shows it.
fn backing_name(directory: &Path) -> String {
    text(directory, "loop/backing_file").unwrap_or_default()
}
