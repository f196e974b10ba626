//! The block device that a file system is on, from sysfs.

use crate::report::with_remedy;
use anyhow::{Context, anyhow};
use forebay_types::SECTOR_BYTES;
use std::fs;
use std::path::{Path, PathBuf};

/// What to do with a file whose place in a volume cannot be found.
pub(super) const PIN_RANGES: &str = "pin ranges of the volume instead, as OFFSET+LENGTH";

/// A device, or a partition of one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct MountedDevice {
    /// The whole device: `nbd0`.
    pub(super) name: String,
    /// Size of the whole device, in bytes.
    pub(super) size_bytes: u64,
    /// Where the file system begins on it, in bytes.
    pub(super) start_bytes: u64,
    /// Size of the device that the file system is on, in bytes.
    pub(super) part_bytes: u64,
}

impl MountedDevice {
    /// The device with these numbers in the sysfs at `sys`.
    ///
    /// # Errors
    /// The device is made of other devices, where its data has other offsets, or it is not in
    /// sysfs.
    pub(super) fn find(sys: &Path, (major, minor): (u32, u32)) -> anyhow::Result<Self> {
        let entry = sys.join(format!("dev/block/{major}:{minor}"));
        let part = fs::canonicalize(&entry)
            .with_context(|| format!("cannot find the block device {major}:{minor}"))
            .map_err(|error| with_remedy(error, PIN_RANGES))?;
        let whole = match part.join("partition").exists() {
            true => part.parent().unwrap_or(&part).to_owned(),
            false => part.clone(),
        };
        let name = name_of(&whole);
        let below = names_in(&whole.join("slaves"));
        if !below.is_empty() {
            let title = fs::read_to_string(whole.join("dm/name"));
            let title = title.map(|title| format!(" ('{}')", title.trim_end())).unwrap_or_default();
            let error = anyhow!(
                "the file is on {name}{title}, which is made of other devices ({}), and its data \
                 is elsewhere on them",
                below.join(", ")
            );
            return Err(with_remedy(error, PIN_RANGES));
        }
        let bytes = |path: PathBuf| {
            let text = fs::read_to_string(&path);
            let sectors = text.ok().and_then(|text| text.trim().parse::<u64>().ok());
            let bytes = sectors.and_then(|sectors| sectors.checked_mul(SECTOR_BYTES));
            bytes.ok_or_else(|| {
                with_remedy(anyhow!("{} is not a number of sectors", path.display()), PIN_RANGES)
            })
        };
        let start_bytes = if whole == part { 0 } else { bytes(part.join("start"))? };
        let (size_bytes, part_bytes) = (bytes(whole.join("size"))?, bytes(part.join("size"))?);
        Ok(Self { name, size_bytes, start_bytes, part_bytes })
    }

    /// Whether it has the size of a volume. The kernel's NBD client rounds the size down to whole
    /// blocks of its own, of up to 4 KiB.
    pub(super) fn has_size_of(&self, volume_bytes: u64) -> bool {
        volume_bytes.checked_sub(self.size_bytes).is_some_and(|less| less < 4096)
    }

    /// Whether it is a device of a kind that a server provides.
    pub(super) fn is_served(&self) -> bool {
        ["nbd", "ublk"].iter().any(|kind| self.name.starts_with(kind))
    }
}

fn name_of(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

fn names_in(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries.map(|entry| name_of(&entry.path())).collect();
    names.sort_unstable();
    names
}

/// The name of a file system that is on no single block device, by the magic number of `statfs`.
pub(super) fn file_system_name(magic: u64) -> String {
    let name = match magic {
        0x9123_683e => "btrfs",
        0xca45_1a4e => "bcachefs",
        0x2fc1_2fc1 => "ZFS",
        0x794c_7630 => "overlay",
        0x0102_1994 => "tmpfs",
        0x8584_58f6 => "ramfs",
        0x6573_5546 => "FUSE",
        0x6969 => "NFS",
        0xff53_4d42 | 0xfe53_4d42 => "SMB",
        0x9fa0 => "proc",
        0x6265_6572 => "sysfs",
        _ => return format!("file system of type {magic:#x}"),
    };
    format!("{name} file system")
}

/// Whether a file system may use several devices although it names one.
pub(super) fn may_have_several_devices(magic: u64) -> bool {
    matches!(magic, 0x9123_683e | 0xca45_1a4e)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    /// A fake sysfs with `nbd0` and its partition, `dm-0` over `nbd1` and `sda`, and a damaged one.
    fn sysfs() -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        let file = |path: &str, text: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        file("devices/nbd0/size", "2097152\n");
        file("devices/nbd0/nbd0p2/partition", "2\n");
        file("devices/nbd0/nbd0p2/start", "2048\n");
        file("devices/nbd0/nbd0p2/size", "1024\n");
        file("devices/dm-0/size", "8\n");
        file("devices/dm-0/dm/name", "vg-root\n");
        file("devices/dm-0/slaves/sda", "");
        file("devices/dm-0/slaves/nbd1", "");
        file("devices/odd/size", "many\n");
        fs::create_dir_all(root.path().join("dev/block")).unwrap();
        for (numbers, device) in
            [("43:0", "nbd0"), ("43:2", "nbd0/nbd0p2"), ("253:0", "dm-0"), ("9:9", "odd")]
        {
            let target = format!("../../devices/{device}");
            symlink(target, root.path().join("dev/block").join(numbers)).unwrap();
        }
        root
    }

    #[test]
    fn whole_devices_and_partitions_are_found() {
        let sys = sysfs();
        let size_bytes = 1 << 30;
        let whole = MountedDevice::find(sys.path(), (43, 0)).unwrap();
        let name = "nbd0".to_owned();
        let expected = MountedDevice { name, size_bytes, start_bytes: 0, part_bytes: size_bytes };
        assert_eq!(whole, expected);
        let part = MountedDevice::find(sys.path(), (43, 2)).unwrap();
        assert_eq!(part, MountedDevice { start_bytes: 1 << 20, part_bytes: 512 << 10, ..expected });
    }

    #[test]
    fn devices_that_are_made_of_others_or_unknown_are_refused() {
        let sys = sysfs();
        let refused = |numbers| {
            crate::report::sentence(&MountedDevice::find(sys.path(), numbers).unwrap_err())
        };
        assert_eq!(
            refused((253, 0)),
            "the file is on dm-0 ('vg-root'), which is made of other devices (nbd1, sda), and its \
             data is elsewhere on them: pin ranges of the volume instead, as OFFSET+LENGTH"
        );
        assert!(refused((7, 7)).starts_with("cannot find the block device 7:7: No such file"));
        assert!(refused((9, 9)).contains("odd/size is not a number of sectors"));
    }

    #[test]
    fn a_device_may_lack_a_part_of_a_block_of_the_volume() {
        let device = |size_bytes| MountedDevice {
            name: "sda".into(),
            size_bytes,
            start_bytes: 0,
            part_bytes: 0,
        };
        assert!(device(1 << 20).has_size_of(1 << 20));
        assert!(device(1 << 20).has_size_of((1 << 20) + 3584));
        assert!(!device(1 << 20).has_size_of((1 << 20) + 4096));
        assert!(!device(1 << 20).has_size_of((1 << 20) - 512));
        assert!(!device(1).is_served());
        assert!(MountedDevice { name: "ublkb3".into(), ..device(1) }.is_served());
    }

    #[test]
    fn file_systems_without_one_device_have_names() {
        assert_eq!(file_system_name(0x9123_683e), "btrfs file system");
        assert_eq!(file_system_name(0x77), "file system of type 0x77");
    }
}
