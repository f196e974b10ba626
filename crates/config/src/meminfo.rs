//! Reads the memory of the machine from `/proc/meminfo` and the control groups.

use crate::MemInfo;
use std::{
    fs, io,
    path::{Path, PathBuf},
};

impl MemInfo {
    /// Reads the memory of this machine, limited by the control groups of this process.
    ///
    /// # Errors
    /// `/proc/meminfo` cannot be read or parsed. A control group that cannot be read is ignored.
    pub fn read() -> io::Result<Self> {
        Self::read_under(Path::new("/"))
    }

    /// As [`MemInfo::read`], with `root` for `/`.
    fn read_under(root: &Path) -> io::Result<Self> {
        let text = fs::read_to_string(root.join("proc/meminfo"))?;
        let machine = parse_meminfo(&text).ok_or_else(|| {
            io::Error::new(
                io::ErrorKind::InvalidData,
                "/proc/meminfo has no MemTotal and MemAvailable",
            )
        })?;
        let groups = fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
        Ok(group_directories(root, &groups)
            .iter()
            .filter_map(|directory| group_limit(directory))
            .fold(machine, |info, (limit, used)| info.limited(limit, used)))
    }
}

/// `MemTotal` and `MemAvailable`, in units of 1024 bytes in the file.
fn parse_meminfo(text: &str) -> Option<MemInfo> {
    let bytes = |key: &str| {
        let rest = text.lines().find_map(|line| line.strip_prefix(key))?;
        let number: u64 = rest.trim().strip_suffix("kB")?.trim().parse().ok()?;
        number.checked_mul(1024)
    };
    Some(MemInfo { total_bytes: bytes("MemTotal:")?, available_bytes: bytes("MemAvailable:")? })
}

/// The directories of the control groups of this process, innermost first. Each may have a limit,
/// and the lowest applies. A directory missing in this mount (as in a container) is skipped by the
/// caller.
fn group_directories(root: &Path, groups: &str) -> Vec<PathBuf> {
    let mut directories = Vec::new();
    for line in groups.lines() {
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else { continue };
        let mount = match controllers {
            "" => root.join("sys/fs/cgroup"),
            _ if controllers.split(',').any(|name| name == "memory") => {
                root.join("sys/fs/cgroup/memory")
            }
            _ => continue,
        };
        let path = Path::new(path.trim_start_matches('/'));
        // A path with `..` points outside the process's cgroup namespace, which is not visible
        // here.
        if path.components().all(|part| matches!(part, std::path::Component::Normal(_))) {
            directories.extend(path.ancestors().map(|part| mount.join(part)));
        } else {
            directories.push(mount);
        }
    }
    directories
}

/// The limit and the usage of one control group in bytes, if it has a limit. Inactive file pages do
/// not count as used, because the kernel reclaims them before an allocation fails.
fn group_limit(directory: &Path) -> Option<(u64, u64)> {
    let number = |file: &str| -> Option<u64> {
        fs::read_to_string(directory.join(file)).ok()?.trim().parse().ok()
    };
    let (limit, used) = match number("memory.max") {
        Some(limit) => (limit, number("memory.current")?),
        None => (number("memory.limit_in_bytes")?, number("memory.usage_in_bytes")?),
    };
    let stat = fs::read_to_string(directory.join("memory.stat")).unwrap_or_default();
    let stat_number = |key: &str| -> Option<u64> {
        stat.lines().find_map(|line| line.strip_prefix(key)?.trim().parse().ok())
    };
    let inactive = stat_number("total_inactive_file ").or_else(|| stat_number("inactive_file "));
    Some((limit, used.saturating_sub(inactive.unwrap_or(0))))
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    /// A machine with 8 GiB, 6 GiB available, and these additional files.
    fn machine(files: &[(&str, &str)]) -> MemInfo {
        let root = tempfile::tempdir().unwrap();
        let meminfo = "MemTotal:        8388608 kB\nMemFree: 1 kB\nMemAvailable:    6291456 kB\n";
        for (path, text) in [("proc/meminfo", meminfo)].iter().chain(files) {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        MemInfo::read_under(root.path()).unwrap()
    }

    #[test]
    fn this_machine_can_be_read() {
        let info = MemInfo::read().unwrap();
        assert!(info.total_bytes > 0 && info.available_bytes <= info.total_bytes, "{info:?}");
    }

    #[test]
    fn without_limits_of_control_groups_the_machine_counts() {
        let info = MemInfo { total_bytes: 8 * GIB, available_bytes: 6 * GIB };
        assert_eq!(machine(&[]), info);
        let unlimited = [("proc/self/cgroup", "0::/a\n"), ("sys/fs/cgroup/a/memory.max", "max\n")];
        assert_eq!(machine(&unlimited), info);
    }

    #[test]
    fn the_lowest_limit_of_the_enclosing_groups_counts() {
        let info = machine(&[
            ("proc/self/cgroup", "0::/vm/one\n"),
            ("sys/fs/cgroup/vm/one/memory.max", "max\n"),
            ("sys/fs/cgroup/vm/memory.max", "2147483648\n"),
            ("sys/fs/cgroup/vm/memory.current", "1610612736\n"),
            ("sys/fs/cgroup/vm/memory.stat", "anon 7\ninactive_file 1073741824\n"),
        ]);
        assert_eq!(info, MemInfo { total_bytes: 2 * GIB, available_bytes: 3 * GIB / 2 });
    }

    #[test]
    fn a_container_sees_its_own_group_at_the_root() {
        let info = machine(&[
            ("proc/self/cgroup", "0::/../outside\n"),
            ("sys/fs/cgroup/memory.max", "1073741824\n"),
            ("sys/fs/cgroup/memory.current", "0\n"),
        ]);
        assert_eq!(info, MemInfo { total_bytes: GIB, available_bytes: GIB });
    }

    #[test]
    fn limits_of_cgroup_v1_count_too() {
        let info = machine(&[
            ("proc/self/cgroup", "3:cpu:/x\n2:hugetlb,memory:/docker/1\n"),
            ("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"),
            ("sys/fs/cgroup/memory/memory.usage_in_bytes", "5\n"),
            ("sys/fs/cgroup/memory/docker/1/memory.limit_in_bytes", "3221225472\n"),
            ("sys/fs/cgroup/memory/docker/1/memory.usage_in_bytes", "1073741824\n"),
        ]);
        assert_eq!(info, MemInfo { total_bytes: 3 * GIB, available_bytes: 2 * GIB });
    }

    #[test]
    fn an_unreadable_meminfo_is_an_error() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir(root.path().join("proc")).unwrap();
        fs::write(root.path().join("proc/meminfo"), "MemTotal: many\n").unwrap();
        let error = MemInfo::read_under(root.path()).unwrap_err();
        assert!(error.to_string().contains("no MemTotal"), "{error}");
    }
}
