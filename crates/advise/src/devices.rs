//! Block devices as sysfs shows them: their names, sizes, and how they are stacked.

use super::Roots;
use anyhow::anyhow;
use forebay_terminal::{misconfigured, with_remedy};
use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// The unit of sizes in sysfs.
const SECTOR_BYTES: u64 = 512;
/// Names of devices in memory, for which a cache is useless.
const MEMORY: [&str; 2] = ["ram", "zram"];
const REMOVABLE: [&str; 2] = ["sr", "fd"];

/// A block device, or a partition of one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct BlockDevice {
    /// Its name in `/sys/class/block`.
    pub(super) name: String,
    pub(super) size_bytes: u64,
    /// The device number under which the kernel reports its requests: for a partition, that of its
    /// disk.
    pub(super) traced: (u32, u32),
    /// Where it begins on that device, in bytes.
    pub(super) start_bytes: u64,
    pub(super) is_rotational: bool,
    /// The numbers of the device and its partitions, under which files on it are found.
    pub(super) numbers: Vec<(u32, u32)>,
    /// Devices that are stacked on it or on one of its partitions.
    pub(super) holders: Vec<String>,
    /// Loop devices whose file lies on it.
    pub(super) loops: Vec<String>,
    /// It is a device in memory.
    pub(super) is_memory: bool,
}

impl BlockDevice {
    /// The offset on this device of a traced range of `len` bytes at `offset`; `None` if the range
    /// is not on it.
    pub(super) fn place(&self, offset: u64, len: u64) -> Option<u64> {
        let offset = offset.checked_sub(self.start_bytes)?;
        (offset.checked_add(len)? <= self.size_bytes).then_some(offset)
    }
}

/// Finds the device of a path or name.
///
/// # Errors
/// There is no such device, or it is no block device.
pub(super) fn find(roots: &Roots, given: &Path) -> anyhow::Result<BlockDevice> {
    let shown = given.display();
    let path = match given.components().count() {
        1 if !given.is_absolute() && !given.exists() => roots.dev.join(given),
        _ => given.to_path_buf(),
    };
    let metadata = match fs::metadata(&path) {
        Ok(metadata) => metadata,
        Err(error) => {
            let is_missing = error.kind() == io::ErrorKind::NotFound;
            let error = match is_missing {
                true => anyhow!("there is no block device {shown}"),
                false => anyhow::Error::new(error).context(format!("cannot inspect {shown}")),
            };
            return Err(with_remedy(error, "see the names with `lsblk`"));
        }
    };
    if !metadata.file_type().is_block_device() {
        let error = anyhow!("{shown} is not a block device");
        let remedy = "name the device that it is on, as in `forebay advise /dev/sdb`; see the \
                      names with `lsblk`";
        return Err(misconfigured(error, remedy));
    }
    let number = number_of(metadata.rdev());
    let link = roots.sys.join(format!("dev/block/{}:{}", number.0, number.1));
    let directory = fs::canonicalize(&link);
    let device = directory.ok().and_then(|directory| read(roots, &directory));
    device.ok_or_else(|| {
        let error = anyhow!("the kernel does not know {shown} ({}:{})", number.0, number.1);
        with_remedy(error, "see the names with `lsblk`")
    })
}

/// All whole devices with a size that are neither memory nor removable, nor volumes themselves.
pub(super) fn all(roots: &Roots) -> io::Result<Vec<BlockDevice>> {
    let mut devices = Vec::new();
    let volumes = attached_volumes(roots);
    for entry in fs::read_dir(roots.sys.join("block"))? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if is_named(&name, &MEMORY) || is_named(&name, &REMOVABLE) || volumes.contains(&name) {
            continue;
        }
        // A device may have been removed in the meantime.
        let Ok(directory) = fs::canonicalize(entry.path()) else { continue };
        devices.extend(read(roots, &directory).filter(|device| device.size_bytes > 0));
    }
    devices.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(devices)
}

/// The devices that `forebay attach` has made of volumes.
fn attached_volumes(roots: &Roots) -> Vec<String> {
    let Ok(links) = fs::read_dir(roots.dev.join("forebay")) else { return Vec::new() };
    let targets = links.flatten().filter_map(|link| fs::read_link(link.path()).ok());
    targets.filter_map(|target| Some(target.file_name()?.to_str()?.to_owned())).collect()
}

/// Reads the directory of a device or partition.
fn read(roots: &Roots, directory: &Path) -> Option<BlockDevice> {
    let name = directory.file_name()?.to_str()?.to_owned();
    let whole = match directory.join("partition").exists() {
        true => directory.parent()?,
        false => directory,
    };
    let mut parts = vec![directory.to_path_buf()];
    if whole == directory {
        parts.extend(partitions(directory));
    }
    let numbers: Vec<_> =
        parts.iter().filter_map(|part| parse_number(&text(part, "dev")?)).collect();
    let holders = parts.iter().flat_map(|part| names(&part.join("holders"))).collect();
    let start = text(directory, "start").and_then(|start| start.parse().ok()).unwrap_or(0u64);
    let sectors: u64 = text(directory, "size")?.parse().ok()?;
    let is_memory = is_named(whole.file_name()?.to_str()?, &MEMORY);
    Some(BlockDevice {
        size_bytes: sectors.checked_mul(SECTOR_BYTES)?,
        traced: parse_number(&text(whole, "dev")?)?,
        start_bytes: start.checked_mul(SECTOR_BYTES)?,
        is_rotational: text(whole, "queue/rotational").as_deref() == Some("1"),
        holders,
        loops: loops_on(roots, &numbers),
        numbers,
        is_memory,
        name,
    })
}

fn partitions(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let mut found: Vec<_> =
        entries.map(|entry| entry.path()).filter(|path| path.join("partition").exists()).collect();
    found.sort();
    found
}

/// The names in a directory, sorted; none if there is no such directory.
fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let mut names: Vec<_> =
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

/// Loop devices whose file lies on a file system of one of these devices.
fn loops_on(roots: &Roots, numbers: &[(u32, u32)]) -> Vec<String> {
    let block = roots.sys.join("block");
    let is_on = |name: &String| {
        let file = text(&block.join(name), "loop/backing_file");
        let metadata = file.and_then(|file| fs::metadata(file).ok());
        metadata.is_some_and(|metadata| numbers.contains(&number_of(metadata.dev())))
    };
    names(&block).into_iter().filter(|name| name.starts_with("loop") && is_on(name)).collect()
}

/// Whether a name is one of these, followed by digits.
fn is_named(name: &str, stems: &[&str]) -> bool {
    stems.iter().any(|stem| {
        name.strip_prefix(stem)
            .is_some_and(|rest| !rest.is_empty() && rest.bytes().all(|byte| byte.is_ascii_digit()))
    })
}

fn text(directory: &Path, file: &str) -> Option<String> {
    fs::read_to_string(directory.join(file)).ok().map(|text| text.trim().to_owned())
}

/// Major and minor number of a device.
pub(super) fn number_of(dev: u64) -> (u32, u32) {
    (rustix::fs::major(dev), rustix::fs::minor(dev))
}

/// Parses `8:16`.
pub(super) fn parse_number(text: &str) -> Option<(u32, u32)> {
    let (major, minor) = text.split_once(':')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A machine with sda (two partitions, the second below dm-0), a memory disk, an empty loop and
    /// a volume as a device.
    fn machine() -> (tempfile::TempDir, Roots) {
        let directory = tempfile::tempdir().unwrap();
        let sys = directory.path().join("sys");
        let write = |path: &str, text: &str| {
            let path = sys.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        for (path, dev, size) in [
            ("devices/sda", "8:0", "8192"),
            ("devices/sda/sda1", "8:1", "2048"),
            ("devices/sda/sda2", "8:2", "4096"),
            ("devices/dm-0", "253:0", "4096"),
            ("devices/zram0", "250:0", "4096"),
            ("devices/loop0", "7:0", "0"),
            ("devices/ublkb0", "259:0", "4096"),
        ] {
            write(&format!("{path}/dev"), &format!("{dev}\n"));
            write(&format!("{path}/size"), &format!("{size}\n"));
        }
        write("devices/sda/queue/rotational", "1\n");
        for (partition, start) in [("sda1", "2048\n"), ("sda2", "4096\n")] {
            write(&format!("devices/sda/{partition}/partition"), "1\n");
            write(&format!("devices/sda/{partition}/start"), start);
        }
        write("devices/sda/sda2/holders/dm-0", "");
        fs::create_dir_all(sys.join("block")).unwrap();
        for name in ["sda", "dm-0", "zram0", "loop0", "ublkb0"] {
            let target = format!("../devices/{name}");
            std::os::unix::fs::symlink(target, sys.join("block").join(name)).unwrap();
        }
        let dev = directory.path().join("dev");
        fs::create_dir_all(dev.join("forebay")).unwrap();
        std::os::unix::fs::symlink("../ublkb0", dev.join("forebay/disk")).unwrap();
        let roots = Roots { sys, dev, ..Roots::default() };
        (directory, roots)
    }

    #[test]
    fn all_devices_are_those_with_data_that_are_neither_memory_nor_volumes() {
        let (_directory, roots) = machine();
        let devices = all(&roots).unwrap();
        let names: Vec<_> = devices.iter().map(|device| &*device.name).collect();
        assert_eq!(names, ["dm-0", "sda"]);
        let sda = &devices[1];
        assert_eq!(sda.numbers, [(8, 0), (8, 1), (8, 2)]);
        assert_eq!((sda.size_bytes, sda.is_rotational), (4 << 20, true));
        assert_eq!(sda.holders, ["dm-0"]);
        assert!(devices[0].holders.is_empty() && !devices[0].is_rotational);
    }

    #[test]
    fn a_partition_is_a_range_of_its_disk() {
        let (_directory, roots) = machine();
        let path = fs::canonicalize(roots.sys.join("devices/sda/sda1")).unwrap();
        let part = read(&roots, &path).unwrap();
        assert_eq!((part.traced, part.start_bytes, part.size_bytes), ((8, 0), 1 << 20, 1 << 20));
        assert_eq!((part.numbers.clone(), part.is_rotational), (vec![(8, 1)], true));
        assert!(part.holders.is_empty());
        let places = [(0, 1), (1 << 20, 4_096), (2 << 20, 1), ((2 << 20) - 512, 1_024)];
        let found = places.map(|(offset, len)| part.place(offset, len));
        assert_eq!(found, [None, Some(0), None, None]);
        assert_eq!(part.place(u64::MAX, u64::MAX), None);
    }

    #[test]
    fn what_is_no_block_device_is_refused() {
        let roots = Roots::default();
        let text = |name: &str| find(&roots, Path::new(name)).unwrap_err().to_string();
        assert_eq!(text("no-such-disk"), "there is no block device no-such-disk");
        assert_eq!(text("/dev/null"), "/dev/null is not a block device");
        assert_eq!(text("/proc"), "/proc is not a block device");
    }

    #[test]
    fn names_of_memory_are_told_from_similar_ones() {
        let names = ["zram0", "ram15", "ramdisk", "zram", "sr0", "sram0"];
        let found = names.map(|name| is_named(name, &MEMORY));
        assert_eq!(found, [true, true, false, false, false, false]);
    }
}
