//! Fake sysfs trees, each in a temporary directory.

use super::*;
use std::fs;
use std::os::unix::fs::symlink;
use tempfile::TempDir;

const KIB: u64 = 1 << 10;

/// A fake sysfs.
struct System(TempDir);

impl System {
    fn new() -> Self {
        let system = Self(tempfile::tempdir().unwrap());
        for directory in ["dev/block", "class/block"] {
            fs::create_dir_all(system.path(directory)).unwrap();
        }
        system
    }

    fn path(&self, below: &str) -> PathBuf {
        self.0.path().join(below)
    }

    /// Adds a device with this number and these files, in `devices/PATH`.
    fn device(&self, number: &str, path: &str, files: &[(&str, &str)]) -> &Self {
        let directory = self.path("devices").join(path);
        fs::create_dir_all(&directory).unwrap();
        for (name, content) in files {
            let file = directory.join(name);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, format!("{content}\n")).unwrap();
        }
        let name = directory.file_name().unwrap();
        symlink(&directory, self.path("dev/block").join(number)).unwrap();
        symlink(&directory, self.path("class/block").join(name)).unwrap();
        self
    }

    /// Puts the device in `devices/UPPER` over the one in `devices/LOWER`.
    fn over(&self, upper: &str, lower: &str) -> &Self {
        let slaves = self.path("devices").join(upper).join("slaves");
        fs::create_dir_all(&slaves).unwrap();
        let lower = self.path("devices").join(lower);
        symlink(&lower, slaves.join(lower.file_name().unwrap())).unwrap();
        self
    }

    fn of(&self, major: u32, minor: u32) -> DiskGeometry {
        // All files lie on device 8:1.
        let device_of_file = |_: &Path| Some((8, 1));
        Sysfs { root: self.0.path().into(), device_of_file }.of_device(major, minor)
    }

    /// The geometry of a disk with these limits: optimal and minimum I/O size, physical block.
    fn of_limits(optimal: u64, minimum: u64, physical: u64) -> DiskGeometry {
        let system = Self::new();
        let files = [
            ("queue/optimal_io_size", optimal.to_string()),
            ("queue/minimum_io_size", minimum.to_string()),
            ("queue/physical_block_size", physical.to_string()),
        ];
        let files: Vec<_> = files.iter().map(|(name, text)| (*name, &text[..])).collect();
        system.device("8:0", "sda", &files);
        system.of(8, 0)
    }

    /// The geometry of an MD array.
    fn of_array(level: &str, disks: &str, chunk: &str, layout: &str) -> DiskGeometry {
        let system = Self::new();
        let files = [
            ("md/level", level),
            ("md/raid_disks", disks),
            ("md/chunk_size", chunk),
            ("md/layout", layout),
        ];
        system.device("9:0", "md0", &files);
        system.of(9, 0)
    }

    /// A system with an array of eight disks in RAID 5 with chunks of 16 KiB, at 9:0.
    fn with_raid() -> Self {
        let system = Self::new();
        let files = [
            ("size", "2000000"),
            ("md/level", "raid5"),
            ("md/raid_disks", "8"),
            ("md/chunk_size", "16384"),
            ("md/layout", "2"),
            ("md/stripe_cache_size", "256"),
            ("queue/optimal_io_size", "114688"),
            ("queue/minimum_io_size", "16384"),
            ("queue/rotational", "1"),
        ];
        system.device("9:0", "md0", &files);
        system
    }
}

/// Stripes of 112 KiB from this offset, on rotational disks.
fn raid(offset_bytes: u64) -> DiskGeometry {
    DiskGeometry {
        stripe_bytes: 112 * KIB,
        chunk_bytes: 16 * KIB,
        offset_bytes,
        offset_is_guess: false,
        optimal_bytes: 112 * KIB,
        stripe_cache_bytes: 7 << 20,
        rotational: Some(true),
    }
}

#[test]
fn an_md_array_reports_its_geometry() {
    for (level, disks, layout, chunks) in [
        ("raid0", "4", "0", 4),
        ("raid4", "4", "0", 3),
        ("raid5", "3", "2", 2),
        ("raid6", "10", "2", 8),
        // Two near copies, two far copies, two offset copies.
        ("raid10", "4", "258", 2),
        ("raid10", "4", "513", 4),
        ("raid10", "4", "66049", 4),
        ("raid10", "3", "258", 3),
    ] {
        let geometry = System::of_array(level, disks, "524288", layout);
        let found = (geometry.stripe_bytes, geometry.chunk_bytes, geometry.offset_bytes);
        assert_eq!(found, (chunks * 512 * KIB, 512 * KIB, 0), "{level} of {disks}");
        assert_eq!(geometry.optimal_bytes, geometry.stripe_bytes);
    }
}

#[test]
fn implausible_array_parameters_give_no_stripe() {
    for (level, disks, chunk) in [
        ("raid1", "2", "0"),
        ("linear", "3", "65536"),
        ("raid5", "1", "65536"),
        ("raid6", "1", "65536"),
        ("raid5", "3", "0"),
        ("raid5", "3", "1000"),
        ("raid5", "18446744073709551615", "65536"),
        ("raid0", "4096", "1073741824"),
        // During a reshape: two numbers.
        ("raid5", "5 (4)", "65536"),
        ("raid5", "5", "65536 (131072)"),
        ("", "5", "65536"),
    ] {
        let geometry = System::of_array(level, disks, chunk, "2");
        assert_eq!(geometry, DiskGeometry::default(), "{level} of {disks}, {chunk}");
    }
}

#[test]
fn a_partition_of_an_array_begins_inside_a_stripe() {
    let system = System::with_raid();
    // At 1 MiB: 9 stripes and 16 KiB.
    system.device("259:0", "md0/md0p1", &[("partition", "1"), ("start", "2048")]);
    system.device("259:1", "md0/md0p2", &[("partition", "2"), ("start", "224")]);
    assert_eq!(system.of(9, 0), raid(0));
    assert_eq!(system.of(259, 0), raid(96 * KIB));
    assert_eq!(system.of(259, 1), raid(0));
}

#[test]
fn a_loop_device_over_a_partition_has_its_stripes_shifted() {
    let system = System::with_raid();
    system.device("259:0", "md0/md0p1", &[("start", "2048")]);
    let files = [("loop/backing_file", "/dev/md0p1"), ("loop/offset", "98304")];
    system.device("7:0", "loop0", &files);
    assert_eq!(system.of(7, 0), raid(0));
    // A partition of the loop device.
    system.device("259:2", "loop0/loop0p1", &[("start", "1")]);
    assert_eq!(system.of(259, 2), raid(112 * KIB - 512));
    // A controller's device has a slash in its name.
    system.device("72:0", "cciss!c0d0", &[("queue/rotational", "1")]);
    system.device("7:1", "loop1", &[("loop/backing_file", "/dev/cciss/c0d0")]);
    assert_eq!(system.of(7, 1).rotational, Some(true));
}

#[test]
fn a_loop_device_over_a_file_has_no_stripes() {
    let system = System::new();
    let array = [
        ("queue/optimal_io_size", "196608"),
        ("queue/minimum_io_size", "65536"),
        ("queue/rotational", "1"),
    ];
    system.device("8:0", "sda", &array).device("8:1", "sda/sda1", &[("start", "2048")]);
    assert_eq!(system.of(8, 1).stripe_bytes, 192 * KIB);
    let files = [("loop/backing_file", "/disks/a.img"), ("queue/rotational", "0")];
    system.device("7:0", "loop0", &files);
    let plain = DiskGeometry {
        optimal_bytes: 192 * KIB,
        rotational: Some(true),
        ..DiskGeometry::default()
    };
    assert_eq!(system.of(7, 0), plain);
    let below = system.path("dev/block/8:1");
    fs::remove_file(below).unwrap();
    let own = DiskGeometry { rotational: Some(false), ..DiskGeometry::default() };
    assert_eq!(system.of(7, 0), own, "the loop device's own attribute, if the disk is unknown");
}

#[test]
fn a_logical_volume_uses_its_queue_limits_and_may_guess_its_offset() {
    let system = System::with_raid();
    let lv = |alignment, optimal, minimum| {
        [
            ("size", "8192"),
            ("dm/uuid", "LVM-x"),
            ("alignment_offset", alignment),
            ("queue/optimal_io_size", optimal),
            ("queue/minimum_io_size", minimum),
            ("queue/rotational", "1"),
        ]
    };
    system.device("252:0", "dm-0", &lv("4096", "114688", "16384")).over("dm-0", "md0");
    let inherited = DiskGeometry { offset_is_guess: true, ..raid(4096) };
    assert_eq!(system.of(252, 0), inherited);
    // A striped volume over two plain disks starts with a stripe.
    system.device("8:0", "sda", &[("size", "9000")]).device("8:16", "sdb", &[("size", "9000")]);
    system.device("252:1", "dm-1", &lv("0", "196608", "65536"));
    system.over("dm-1", "sda").over("dm-1", "sdb");
    let striped = system.of(252, 1);
    assert_eq!((striped.stripe_bytes, striped.chunk_bytes), (192 * KIB, 64 * KIB));
    assert!(!striped.offset_is_guess);
    // Inherited stripes that divide every offset that LVM chooses.
    system.device("8:32", "sdc", &lv("0", "131072", "65536"));
    system.device("252:2", "dm-2", &lv("0", "131072", "65536"));
    fs::write(system.path("devices/dm-2/size"), "4096").unwrap();
    system.over("dm-2", "sdc");
    let aligned = system.of(252, 2);
    assert_eq!((aligned.stripe_bytes, aligned.offset_is_guess), (128 * KIB, false));
}

#[test]
fn a_mapped_device_over_a_whole_disk_inherits_its_geometry() {
    let system = System::with_raid();
    let files = [
        ("size", "2000000"),
        ("dm/uuid", "CRYPT-PLAIN-x"),
        ("queue/optimal_io_size", "0"),
        ("queue/rotational", "1"),
    ];
    system.device("252:0", "dm-0", &files).over("dm-0", "md0");
    assert_eq!(system.of(252, 0), raid(0));
}

#[test]
fn a_hardware_array_is_known_by_its_limits() {
    let geometry = System::of_limits(458_752, 65_536, 512);
    assert_eq!((geometry.stripe_bytes, geometry.chunk_bytes), (448 * KIB, 64 * KIB));
    assert_eq!((geometry.optimal_bytes, geometry.offset_is_guess), (448 * KIB, false));
    let system = System::new();
    let array = |alignment| {
        [
            ("alignment_offset", alignment),
            ("queue/optimal_io_size", "458752"),
            ("queue/minimum_io_size", "65536"),
            ("queue/physical_block_size", "4096"),
        ]
    };
    system.device("8:0", "sda", &array("3584")).device("8:16", "sdb", &array("-1"));
    system.device("8:1", "sda/sda1", &[("start", "63"), ("alignment_offset", "0")]);
    assert_eq!((system.of(8, 0).offset_bytes, system.of(8, 1).offset_bytes), (3584, 430_080));
    let misaligned = system.of(8, 16);
    assert_eq!((misaligned.offset_bytes, misaligned.offset_is_guess), (0, true));
}

#[test]
fn implausible_optimal_sizes_are_ignored() {
    for (optimal, minimum, physical) in [
        // Field maximums: SATA behind some controllers, bridges, SAS.
        (4_294_966_784, 512, 512),
        (4_294_966_784, 4096, 4096),
        (33_553_920, 4096, 4096),
        (33_553_920, 512, 512),
        (16_773_120, 4096, 4096),
        // The least common multiple of several disks, a size that is no multiple of the block, and
        // none.
        (3 << 30, 512, 512),
        (10_000, 512, 512),
        (0, 4096, 4096),
    ] {
        let geometry = System::of_limits(optimal, minimum, physical);
        assert_eq!(geometry, DiskGeometry::default(), "{optimal}");
    }
    for (optimal, minimum) in
        [(131_072, 4096), (131_072, 131_072), (65_536, 131_072), (131_072, 0), (200_704, 16_384)]
    {
        let geometry = System::of_limits(optimal, minimum, 4096);
        let plain = DiskGeometry { optimal_bytes: optimal, ..DiskGeometry::default() };
        assert_eq!(geometry, plain, "an optimal size that is not a stripe of {minimum}");
    }
}

#[test]
fn missing_devices_have_unknown_geometry() {
    let system = System::new();
    assert_eq!(system.of(8, 0), DiskGeometry::default());
    system.device("8:0", "sda", &[]);
    assert_eq!(system.of(8, 0), DiskGeometry::default());
    system.device("8:16", "sdb", &[("queue/rotational", "yes"), ("queue/optimal_io_size", "-1")]);
    assert_eq!(system.of(8, 16), DiskGeometry::default());
    system.device("252:0", "dm-0", &[("dm/uuid", "x"), ("queue/rotational", "0")]);
    assert_eq!(system.of(252, 0).rotational, Some(false));
    // A partition without its disk, and a loop device over itself.
    system.device("8:33", "sdc/sdc1", &[("start", "18446744073709551615")]);
    assert_eq!(system.of(8, 33), DiskGeometry::default());
    system.device("7:0", "loop0", &[("loop/backing_file", "/dev/loop0")]);
    assert_eq!(system.of(7, 0), DiskGeometry::default());
}

#[test]
fn a_file_inherits_seeks_and_sizes_but_no_stripes() {
    let directory = tempfile::tempdir_in(".").unwrap();
    let path = directory.path().join("disk");
    fs::File::create(&path).unwrap().set_len(1 << 20).unwrap();
    let backend = crate::FileBackend::open(&path, &crate::OpenOptions::default()).unwrap();
    let found = crate::Backend::description(&backend).geometry;
    let device = rustix::fs::stat(&path).unwrap().st_dev;
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    assert_eq!(found, Sysfs::system().of_device(major, minor).without_stripes());
}
