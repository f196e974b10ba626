//! Geometry of block devices, read from sysfs alone, so that a hanging disk cannot block it.
//!
//! Partitions and loop devices shift the stripes of the device below. An MD array has its own
//! attributes; for other devices the queue limits apply, as for mkfs. Sysfs does not say where a
//! device-mapper volume begins on the disks below it: its limits are inherited from them, and the
//! start of the stripes may be a guess.

mod limits;
mod md;

#[cfg(test)]
mod tests;

use forebay_types::{DiskGeometry, SECTOR_BYTES};
use limits::QueueLimits;
use std::path::{Path, PathBuf};

/// Maximum depth of stacked devices; real stacks are smaller.
const DEPTH_MAX: usize = 16;

/// Alignment of LVM volumes, in bytes.
const MIB: u64 = 1 << 20;

/// Major and minor number of a block device.
type MajorMinor = (u32, u32);

/// A sysfs tree.
pub(crate) struct Sysfs {
    root: PathBuf,
    /// The device that a file is on, for loop devices over files.
    device_of_file: fn(&Path) -> Option<MajorMinor>,
}

impl Sysfs {
    /// The sysfs of the running system.
    pub(crate) fn system() -> Self {
        let device_of_file = |path: &Path| {
            let device = rustix::fs::stat(path).ok()?.st_dev;
            Some((rustix::fs::major(device), rustix::fs::minor(device)))
        };
        Self { root: "/sys".into(), device_of_file }
    }

    /// The geometry of a block device; unknown if the device does not exist.
    pub(crate) fn of_device(&self, major: u32, minor: u32) -> DiskGeometry {
        self.of_number((major, minor), DEPTH_MAX)
    }

    fn of_number(&self, (major, minor): MajorMinor, depth: usize) -> DiskGeometry {
        self.inspect(&self.root.join(format!("dev/block/{major}:{minor}")), depth)
    }

    /// The geometry of the device with this directory, following at most `depth` devices.
    fn inspect(&self, directory: &Path, depth: usize) -> DiskGeometry {
        let Some(depth) = depth.checked_sub(1) else { return DiskGeometry::default() };
        // A partition's directory is inside that of its disk; sysfs has a link to it.
        let Ok(directory) = directory.canonicalize() else { return DiskGeometry::default() };
        if let (Some(start), Some(disk)) = (number(&directory, "start"), directory.parent()) {
            return self.inspect(disk, depth).part_from(start.saturating_mul(SECTOR_BYTES));
        }
        let limits = QueueLimits::read(&directory);
        if let Some(geometry) = md::geometry(&directory, &limits) {
            return geometry;
        }
        if let Some(path) = attribute(&directory, "loop/backing_file") {
            return self.of_loop(&directory, &path, &limits, depth);
        }
        if directory.join("dm").is_dir() {
            return self.of_mapped(&directory, &limits, depth);
        }
        limits.geometry()
    }

    /// A loop device over another device inherits its stripes. Over a file it has none: the file
    /// system decides where the file is on the disk, and in how many pieces.
    fn of_loop(
        &self,
        directory: &Path,
        path: &str,
        limits: &QueueLimits,
        depth: usize,
    ) -> DiskGeometry {
        if let Some(name) = path.strip_prefix("/dev/") {
            let below = self.root.join("class/block").join(name.replace('/', "!"));
            if below.exists() {
                let start = number(directory, "loop/offset").unwrap_or(0);
                return self.inspect(&below, depth).part_from(start);
            }
        }
        let below = (self.device_of_file)(Path::new(path));
        let below = below.map(|numbers| self.of_number(numbers, depth).without_stripes());
        let own = limits.geometry();
        let rotational = below.and_then(|below| below.rotational).or(own.rotational);
        DiskGeometry { rotational, ..below.unwrap_or(own) }
    }

    /// A device-mapper volume has the geometry of its limits. But if each disk below it has the
    /// volume's size, as with multipath and encryption with a detached header, the volume maps the
    /// disk from the first sector on, and has the disk's geometry.
    fn of_mapped(&self, directory: &Path, limits: &QueueLimits, depth: usize) -> DiskGeometry {
        let own = limits.geometry();
        let below: Vec<PathBuf> = match std::fs::read_dir(directory.join("slaves")) {
            Ok(entries) => entries.flatten().map(|entry| entry.path()).collect(),
            Err(_) => Vec::new(),
        };
        let size = number(directory, "size");
        if let Some(first) = below.first()
            && size.is_some()
            && below.iter().all(|disk| number(disk, "size") == size)
        {
            let whole = self.inspect(first, depth);
            return DiskGeometry { rotational: own.rotational.or(whole.rotational), ..whole };
        }
        let below = below.iter().map(|disk| self.inspect(disk, depth));
        let is_inherited =
            |disk: &DiskGeometry| disk.has_stripes() && disk.stripe_bytes == own.stripe_bytes;
        let inherited = below.filter(is_inherited).map(|disk| disk.stripe_cache_bytes).max();
        // LVM volumes start at whole MiB: a stripe border, if the stripe divides 1 MiB.
        let is_aligned = !own.has_stripes() || MIB.is_multiple_of(own.stripe_bytes);
        let is_guess = !is_aligned && inherited.is_some();
        let offset_is_guess = own.offset_is_guess || is_guess;
        DiskGeometry { offset_is_guess, stripe_cache_bytes: inherited.unwrap_or(0), ..own }
    }
}

/// The content of an attribute in a device's directory; `None` if empty or missing.
pub(crate) fn attribute(directory: &Path, name: &str) -> Option<String> {
    let text = std::fs::read_to_string(directory.join(name)).ok()?;
    let text = text.trim();
    (!text.is_empty()).then(|| text.to_owned())
}

/// A numeric attribute.
fn number(directory: &Path, name: &str) -> Option<u64> {
    attribute(directory, name)?.parse().ok()
}
