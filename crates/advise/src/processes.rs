//! Finds processes that bypass the page cache (O_DIRECT) and have much memory of their own: these
//! are databases, which cache data themselves. Also finds a Forebay that already serves a device.

use super::Roots;
use super::devices::{BlockDevice, number_of, parse_number};
use forebay_advice::SelfCaching;
use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// A process with less resident memory hardly caches data: 256 MiB.
const RESIDENT_BYTES_MIN: u64 = 256 << 20;
/// The name of the processes that serve volumes.
const SERVER: &str = "forebay";
/// Descriptors of one process that are examined.
const DESCRIPTORS_MAX: usize = 4_096;

/// A process that bypasses the page cache of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Opener {
    process: SelfCaching,
    /// The device, or the one below the file system of the file.
    device: (u32, u32),
    /// The process has the device itself open, and not only a file on it.
    is_whole: bool,
}

/// Such processes, found at one or more moments.
#[derive(Debug, Default)]
pub(super) struct Openers(Vec<Opener>);

impl Openers {
    /// Searches the processes that this user may see.
    pub(super) fn find(roots: &Roots) -> Self {
        let entries = fs::read_dir(&roots.proc).into_iter().flatten().flatten();
        let is_process = |path: &PathBuf| pid_of(path).is_some();
        let processes = entries.map(|entry| entry.path()).filter(is_process);
        Self(processes.flat_map(|process| openers_of(&process)).collect())
    }

    /// Adds those of another moment.
    pub(super) fn add(&mut self, other: Self) {
        for opener in other.0 {
            let key = |it: &Opener| (it.process.pid, it.device, it.is_whole);
            if !self.0.iter().any(|it| key(it) == key(&opener)) {
                self.0.push(opener);
            }
        }
    }

    /// The processes that cache data of a device themselves, those with most memory first.
    pub(super) fn self_caching(&self, device: &BlockDevice) -> Vec<SelfCaching> {
        let mut seen = BTreeSet::new();
        let mut found: Vec<_> = self
            .on(device)
            .map(|opener| &opener.process)
            .filter(|process| process.resident_bytes >= RESIDENT_BYTES_MIN)
            .filter(|process| process.name != SERVER && seen.insert(process.pid))
            .cloned()
            .collect();
        found.sort_by_key(|process| std::cmp::Reverse(process.resident_bytes));
        found
    }

    /// The process of a Forebay that serves a device. One that serves a file on it does not count:
    /// the rest of the device may be worth a cache.
    pub(super) fn server_of(&self, device: &BlockDevice) -> Option<u32> {
        let is_server = |it: &&Opener| it.is_whole && it.process.name == SERVER;
        self.on(device).find(is_server).map(|opener| opener.process.pid)
    }

    fn on<'a>(&'a self, device: &'a BlockDevice) -> impl Iterator<Item = &'a Opener> {
        self.0.iter().filter(|opener| device.numbers.contains(&opener.device))
    }
}

fn pid_of(process: &Path) -> Option<u32> {
    process.file_name()?.to_str()?.parse().ok()
}

/// The devices that a process has open with O_DIRECT, each once. Empty if the process has exited,
/// or this user may not inspect it.
fn openers_of(process: &Path) -> Vec<Opener> {
    let mut devices = BTreeSet::new();
    let mut mounts = None;
    let entries = fs::read_dir(process.join("fd")).into_iter().flatten().flatten();
    for entry in entries.take(DESCRIPTORS_MAX) {
        let info = process.join("fdinfo").join(entry.file_name());
        let Some(mount) = fs::read_to_string(info).ok().and_then(|info| direct_mount(&info)) else {
            continue;
        };
        let device = device_node(&entry.path()).map(|device| (device, true)).or_else(|| {
            let mounts = mounts.get_or_insert_with(|| mounts_of(process));
            mounts.get(&mount).map(|&device| (device, false))
        });
        devices.extend(device);
    }
    if devices.is_empty() {
        return Vec::new();
    }
    let Some(found) = self_caching(process) else { return Vec::new() };
    let opener = |(device, is_whole)| Opener { process: found.clone(), device, is_whole };
    devices.into_iter().map(opener).collect()
}

/// The number of the block device that a descriptor is open on. Only a target below `/dev` is
/// examined: a `stat` of a file could wait for a file server that does not answer.
fn device_node(descriptor: &Path) -> Option<(u32, u32)> {
    let target = fs::read_link(descriptor).ok()?;
    if !target.starts_with("/dev") {
        return None;
    }
    let metadata = fs::metadata(descriptor).ok()?;
    metadata.file_type().is_block_device().then(|| number_of(metadata.rdev()))
}

/// The mount of a descriptor with O_DIRECT, from its file in `fdinfo`.
fn direct_mount(info: &str) -> Option<u32> {
    let field = |name: &str| info.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
    let flags = u32::from_str_radix(field("flags:")?, 8).ok()?;
    let is_direct = flags & rustix::fs::OFlags::DIRECT.bits() != 0;
    if is_direct { field("mnt_id:")?.parse().ok() } else { None }
}

/// The device below each mount of a process. File systems over several devices have an anonymous
/// device number; for them it is the device that is the source of the mount.
fn mounts_of(process: &Path) -> HashMap<u32, (u32, u32)> {
    let text = fs::read_to_string(process.join("mountinfo")).unwrap_or_default();
    text.lines().filter_map(mount).collect()
}

fn mount(line: &str) -> Option<(u32, (u32, u32))> {
    let (fields, source) = line.split_once(" - ")?;
    let mut fields = fields.split(' ');
    let id = fields.next()?.parse().ok()?;
    let number = parse_number(fields.nth(1)?)?;
    let source = Path::new(source.split(' ').nth(1)?);
    // Anonymous device numbers have the major number zero.
    if number.0 != 0 || !source.starts_with("/dev") {
        return Some((id, number));
    }
    let metadata = fs::metadata(source).ok().filter(|it| it.file_type().is_block_device());
    Some((id, metadata.map_or(number, |metadata| number_of(metadata.rdev()))))
}

fn self_caching(process: &Path) -> Option<SelfCaching> {
    let status = fs::read_to_string(process.join("status")).ok()?;
    let name = status.lines().find_map(|line| line.strip_prefix("Name:"))?.trim().to_owned();
    let bytes = |field| kib_of(&status, field).unwrap_or(0);
    let resident_bytes = bytes("VmRSS:").saturating_add(bytes("HugetlbPages:"));
    Some(SelfCaching { name, pid: pid_of(process)?, resident_bytes })
}

/// The value of a field that the kernel reports in KiB, in bytes.
pub(super) fn kib_of(text: &str, field: &str) -> Option<u64> {
    let value = text.lines().find_map(|line| line.strip_prefix(field))?;
    value.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1 << 10)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    fn device(numbers: &[(u32, u32)]) -> BlockDevice {
        BlockDevice {
            name: "sda".into(),
            size_bytes: 1 << 30,
            traced: numbers[0],
            start_bytes: 0,
            is_rotational: false,
            numbers: numbers.to_vec(),
            holders: Vec::new(),
            loops: Vec::new(),
            is_memory: false,
        }
    }

    /// A `/proc` with processes, each with a name, its memory in KiB, and the flags of a file on
    /// the mount of 8:1.
    fn processes(processes: &[(u32, &str, u64, &str)]) -> tempfile::TempDir {
        let directory = tempfile::tempdir().unwrap();
        for (pid, name, kib, flags) in processes {
            let process = directory.path().join(pid.to_string());
            fs::create_dir_all(process.join("fd")).unwrap();
            fs::create_dir_all(process.join("fdinfo")).unwrap();
            symlink("/srv/data", process.join("fd/3")).unwrap();
            let info = format!("pos:\t0\nflags:\t{flags}\nmnt_id:\t29\n");
            fs::write(process.join("fdinfo/3"), info).unwrap();
            let status = format!("Name:\t{name}\nVmRSS:\t{kib} kB\nHugetlbPages:\t 1024 kB\n");
            fs::write(process.join("status"), status).unwrap();
            let mounts = "29 1 8:1 / /srv rw - ext4 /dev/sda1 rw\n";
            fs::write(process.join("mountinfo"), mounts).unwrap();
        }
        fs::create_dir(directory.path().join("self")).unwrap();
        directory
    }

    /// The flags of a file that is open for reading and writing with O_DIRECT.
    fn direct() -> String {
        format!("0{:o}", rustix::fs::OFlags::DIRECT.bits() | 2)
    }

    #[test]
    fn databases_with_much_memory_are_found() {
        let flags = direct();
        let proc = processes(&[
            (10, "mysqld", 900 << 10, &flags),
            (11, "oracle", 2 << 20, &flags),
            (12, "postgres", 900 << 10, "0100002"),
            (13, "fio", 9 << 10, &flags),
            (14, "forebay", 900 << 10, &flags),
        ]);
        let roots = Roots { proc: proc.path().into(), ..Roots::default() };
        let openers = Openers::find(&roots);
        let found = openers.self_caching(&device(&[(8, 0), (8, 1)]));
        let names: Vec<_> = found.iter().map(|process| (&*process.name, process.pid)).collect();
        assert_eq!(names, [("oracle", 11), ("mysqld", 10)]);
        assert_eq!(found[1].resident_bytes, (901 << 20) as u64);
        assert_eq!(openers.self_caching(&device(&[(8, 16)])), []);
        assert_eq!(openers.server_of(&device(&[(8, 1)])), None, "it serves a file");
    }

    #[test]
    fn a_server_of_the_device_is_told_from_one_of_a_file_on_it() {
        let process = SelfCaching { name: "forebay".into(), pid: 7, resident_bytes: 1 << 30 };
        let opener = |is_whole| Opener { process: process.clone(), device: (8, 1), is_whole };
        let server = |openers, numbers: &[_]| Openers(openers).server_of(&device(numbers));
        assert_eq!(server(vec![opener(false), opener(true)], &[(8, 0), (8, 1)]), Some(7));
        assert_eq!(server(vec![opener(false)], &[(8, 0), (8, 1)]), None);
        assert_eq!(server(vec![opener(true)], &[(8, 16)]), None);
    }

    #[test]
    fn a_process_counts_once() {
        let proc = processes(&[(10, "mysqld", 900 << 10, &direct())]);
        let roots = Roots { proc: proc.path().into(), ..Roots::default() };
        let mut openers = Openers::find(&roots);
        openers.add(Openers::find(&roots));
        assert_eq!(openers.self_caching(&device(&[(8, 1)])).len(), 1);
    }

    #[test]
    fn fields_of_the_kernel_in_other_forms_are_ignored() {
        assert_eq!(kib_of("MemTotal:       8 kB\n", "MemTotal:"), Some(8_192));
        for text in ["", "MemTotal: 8 MB", "MemTotal: x kB", "MemTotal: 99999999999999999999 kB"] {
            assert_eq!(kib_of(text, "MemTotal:"), None, "{text}");
        }
        for line in ["", "29", "29 1 8:1", "29 1 8:1 / /srv rw - ext4", "x 1 8:1 / / rw - a b c"] {
            assert_eq!(mount(line), None, "{line}");
        }
    }
}
