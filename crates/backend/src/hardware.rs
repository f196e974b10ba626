//! Hardware names of disks, independent of the path.

use crate::Description;
use crate::geometry::attribute;
use std::path::Path;

/// Block devices in sysfs.
const SYSFS: &str = "/sys/dev/block";

/// Files in a disk's directory that name it, in order of preference: World Wide Names are the same
/// under every controller; device-mapper and MD have UUIDs; serial numbers are unique per vendor.
const NAMES: [&str; 6] = ["wwid", "device/wwid", "dm/uuid", "md/uuid", "serial", "device/serial"];

/// The hardware name of a backend: a World Wide Name, UUID or serial number, with the number and
/// the first sector of a partition. `None` for files, memory and servers: a file restored from a
/// backup has another inode.
pub fn hardware_name(description: &Description) -> Option<String> {
    let device = description.identity.as_ref()?.strip_prefix("block:")?;
    name_in(&Path::new(SYSFS).join(device))
}

/// The hardware name of the disk or partition with this directory in sysfs.
fn name_in(directory: &Path) -> Option<String> {
    let Some(partition) = attribute(directory, "partition") else {
        return NAMES.iter().find_map(|name| attribute(directory, name));
    };
    // A partition's directory is inside that of its disk; sysfs has a link to it.
    let disk = directory.canonicalize().ok()?.parent()?.to_owned();
    let name = NAMES.iter().find_map(|name| attribute(&disk, name))?;
    let start = attribute(directory, "start")?;
    Some(format!("{name} partition {partition} at {start}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn a_disk_is_named_by_its_hardware_and_a_partition_by_its_disk() {
        let directory = tempfile::tempdir().unwrap();
        let disk = directory.path().join("devices/sda");
        fs::create_dir_all(disk.join("sda2")).unwrap();
        fs::create_dir_all(disk.join("device")).unwrap();
        fs::write(disk.join("device/serial"), " S123 \n").unwrap();
        assert_eq!(name_in(&disk).as_deref(), Some("S123"));
        fs::write(disk.join("device/wwid"), "naa.5000c500a0b1c2d3\n").unwrap();
        fs::write(disk.join("serial"), "\n").unwrap();
        assert_eq!(name_in(&disk).as_deref(), Some("naa.5000c500a0b1c2d3"));
        fs::write(disk.join("sda2/partition"), "2\n").unwrap();
        fs::write(disk.join("sda2/start"), "2048\n").unwrap();
        let link = directory.path().join("8:2");
        std::os::unix::fs::symlink(disk.join("sda2"), &link).unwrap();
        let name = "naa.5000c500a0b1c2d3 partition 2 at 2048";
        assert_eq!(name_in(&link).as_deref(), Some(name));
        assert_eq!(name_in(directory.path()), None);
    }

    #[test]
    fn only_block_devices_have_a_hardware_name() {
        let memory = crate::MemoryBackend::new(1 << 20).unwrap();
        assert_eq!(hardware_name(crate::Backend::description(&memory)), None);
    }
}
