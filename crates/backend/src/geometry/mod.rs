//! What the system says of the geometry of block devices. It is read from sysfs and from nowhere
//! else, so no disk is asked and none is waited for.
//!
//! Partitions and loop devices shift the stripes of what they lie on. An MD array says how it is
//! made; everything else is taken by its queue limits, as file systems are when they are made.
//! Where a device-mapper volume begins on the disks below it is in no file: what it says of stripes
//! is passed up from them, and where those begin may be a guess.

mod limits;
mod md;

#[cfg(test)]
mod tests;

use forebay_types::{DiskGeometry, SECTOR_BYTES};
use limits::Limits;
use std::path::{Path, PathBuf};

/// Devices over each other that are looked through: more than anybody stacks.
const DEPTH_MAX: usize = 16;

/// Where LVM begins and ends what it gives to volumes, in bytes.
const MIB: u64 = 1 << 20;

/// The numbers of a block device.
type Numbers = (u32, u32);

/// Where the system says what its devices are.
pub(crate) struct Sysfs {
    root: PathBuf,
    /// The device that a file lies on, for files that are disks themselves.
    device_of_file: fn(&Path) -> Option<Numbers>,
}

impl Sysfs {
    /// The one of the running system.
    pub(crate) fn system() -> Self {
        let device_of_file = |path: &Path| {
            let device = rustix::fs::stat(path).ok()?.st_dev;
            Some((rustix::fs::major(device), rustix::fs::minor(device)))
        };
        Self { root: "/sys".into(), device_of_file }
    }

    /// The geometry of a block device; unknown where there is no such device.
    pub(crate) fn of_device(&self, major: u32, minor: u32) -> DiskGeometry {
        self.of_number((major, minor), DEPTH_MAX)
    }

    fn of_number(&self, (major, minor): Numbers, depth: usize) -> DiskGeometry {
        self.look(&self.root.join(format!("dev/block/{major}:{minor}")), depth)
    }

    /// The geometry of the device with this directory, and of at most so many below it.
    fn look(&self, directory: &Path, depth: usize) -> DiskGeometry {
        let Some(depth) = depth.checked_sub(1) else { return DiskGeometry::default() };
        // A partition's directory lies in that of its disk; what leads to it is a link.
        let Ok(directory) = directory.canonicalize() else { return DiskGeometry::default() };
        if let (Some(start), Some(disk)) = (number(&directory, "start"), directory.parent()) {
            return self.look(disk, depth).part_from(start.saturating_mul(SECTOR_BYTES));
        }
        let limits = Limits::read(&directory);
        if let Some(geometry) = md::geometry(&directory, &limits) {
            return geometry;
        }
        if let Some(path) = text(&directory, "loop/backing_file") {
            return self.of_loop(&directory, &path, &limits, depth);
        }
        if directory.join("dm").is_dir() {
            return self.of_mapped(&directory, &limits, depth);
        }
        limits.geometry()
    }

    /// A loop device over another device has its stripes, and over a file none: where a file
    /// lies on its disk, and in how many pieces, is the file system's affair.
    fn of_loop(&self, directory: &Path, path: &str, limits: &Limits, depth: usize) -> DiskGeometry {
        if let Some(name) = path.strip_prefix("/dev/") {
            let below = self.root.join("class/block").join(name.replace('/', "!"));
            if below.exists() {
                let start = number(directory, "loop/offset").unwrap_or(0);
                return self.look(&below, depth).part_from(start);
            }
        }
        let below = (self.device_of_file)(Path::new(path));
        let below = below.map(|numbers| self.of_number(numbers, depth).without_stripes());
        let own = limits.geometry();
        let rotational = below.and_then(|below| below.rotational).or(own.rotational);
        DiskGeometry { rotational, ..below.unwrap_or(own) }
    }

    /// A volume of the device mapper has what its limits say. Where each disk below is as large
    /// as itself, as under multipath and encryption with its header elsewhere, it is those disks
    /// from their first sector on.
    fn of_mapped(&self, directory: &Path, limits: &Limits, depth: usize) -> DiskGeometry {
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
            let whole = self.look(first, depth);
            return DiskGeometry { rotational: own.rotational.or(whole.rotational), ..whole };
        }
        let below = below.iter().map(|disk| self.look(disk, depth));
        let is_passed_up =
            |disk: &DiskGeometry| disk.has_stripes() && disk.stripe_bytes == own.stripe_bytes;
        let passed_up = below.filter(is_passed_up).map(|disk| disk.held_bytes).max();
        // LVM begins its volumes at whole MiB, on a boundary of stripes that divide it.
        let is_aligned = !own.has_stripes() || MIB.is_multiple_of(own.stripe_bytes);
        let is_guess = !is_aligned && passed_up.is_some();
        let offset_is_guess = own.offset_is_guess || is_guess;
        DiskGeometry { offset_is_guess, held_bytes: passed_up.unwrap_or(0), ..own }
    }
}

/// What a file below the directory of a device says; `None` where it says nothing.
fn text(directory: &Path, name: &str) -> Option<String> {
    let text = std::fs::read_to_string(directory.join(name)).ok()?;
    let text = text.trim();
    (!text.is_empty()).then(|| text.to_owned())
}

/// The same as a number.
fn number(directory: &Path, name: &str) -> Option<u64> {
    text(directory, name)?.parse().ok()
}
