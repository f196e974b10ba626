//! Parses the kernel's texts about memory and control groups. Pure: accesses no file.

use std::path::{Component, Path, PathBuf};

/// The version of a control group hierarchy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HierarchyVersion {
    /// With `memory.limit_in_bytes`.
    One,
    /// With `memory.max`.
    Two,
}

/// A control group that encloses this process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct EnclosingGroup {
    pub version: HierarchyVersion,
    /// The path in the hierarchy.
    pub name: String,
    /// The directory of its files, which may not exist.
    pub directory: PathBuf,
}

/// A mount of a hierarchy.
#[derive(Clone, Debug, PartialEq, Eq)]
struct HierarchyMount {
    version: HierarchyVersion,
    /// The group at the mount point.
    root: PathBuf,
    point: PathBuf,
}

/// `MemTotal` and `MemAvailable` of `/proc/meminfo`, in bytes. `None` if one is missing.
pub(super) fn meminfo(text: &str) -> Option<(u64, u64)> {
    // The file says kB, but means units of 1024 bytes.
    let bytes = |key: &str| {
        let rest = text.lines().find_map(|line| line.strip_prefix(key))?;
        let number: u64 = rest.trim().strip_suffix("kB")?.trim().parse().ok()?;
        number.checked_mul(1024)
    };
    Some((bytes("MemTotal:")?, bytes("MemAvailable:")?))
}

/// The number in a file of a control group; `None` for `max` and for anything else.
pub(super) fn limit(text: &str) -> Option<u64> {
    text.trim().parse().ok()
}

/// The value of a key in `memory.stat`.
pub(super) fn stat(text: &str, key: &str) -> Option<u64> {
    let mut lines = text.lines();
    lines.find_map(|line| line.strip_prefix(key)?.strip_prefix(' ')?.trim().parse().ok())
}

/// The time since the boot in milliseconds, from `/proc/uptime`.
pub(super) fn uptime_ms(text: &str) -> Option<u64> {
    let (seconds, hundredths) = text.split(' ').next()?.trim().split_once('.')?;
    let (seconds, hundredths): (u64, u64) = (seconds.parse().ok()?, hundredths.parse().ok()?);
    seconds.checked_mul(1_000)?.checked_add(hundredths * 10).filter(|_| hundredths < 100)
}

/// The time in which at least one program waited for the resource of a pressure file, in
/// microseconds: the total in its line `some`.
pub(super) fn stalled_us(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("some "))?;
    line.split(' ').find_map(|field| field.strip_prefix("total="))?.trim().parse().ok()
}

/// The time in which processors of the machine had nothing to do, in microseconds and summed over
/// them, from `/proc/stat`. Waits for I/O count: another thread could run meanwhile.
pub(super) fn idle_us(text: &str) -> Option<u64> {
    // The kernel counts in hundredths of a second, whatever its clock does: user, nice, system,
    // idle, iowait.
    let mut ticks = text.lines().next()?.strip_prefix("cpu ")?.split_whitespace().skip(3);
    let (idle, iowait): (u64, u64) = (ticks.next()?.parse().ok()?, ticks.next()?.parse().ok()?);
    idle.checked_add(iowait)?.checked_mul(10_000)
}

/// Whether `cpu.max` of a control group limits the time on processors.
pub(super) fn has_quota(text: &str) -> bool {
    text.split_whitespace().next().is_some_and(|quota| quota != "max")
}

/// The number of runnable threads, from `/proc/loadavg`.
pub(super) fn runnable(text: &str) -> Option<u64> {
    text.split(' ').nth(3)?.split_once('/')?.0.parse().ok()
}

/// The control groups that enclose this process, from the innermost outward. `membership` is
/// `/proc/self/cgroup`, and `mountinfo` is `/proc/self/mountinfo`; without it, the usual mount
/// points are assumed.
pub(super) fn groups(membership: &str, mountinfo: &str) -> Vec<EnclosingGroup> {
    let mut mounts: Vec<_> = mountinfo.lines().filter_map(mount).collect();
    if mounts.is_empty() {
        let usual = |version, point: &str| HierarchyMount {
            version,
            root: "/".into(),
            point: point.into(),
        };
        mounts = vec![
            usual(HierarchyVersion::Two, "/sys/fs/cgroup"),
            usual(HierarchyVersion::Two, "/sys/fs/cgroup/unified"),
            usual(HierarchyVersion::One, "/sys/fs/cgroup/memory"),
        ];
    }
    let mut groups = Vec::new();
    for (version, path) in membership.lines().filter_map(member) {
        for mount in mounts.iter().filter(|mount| mount.version == version) {
            enclosing(mount, path, &mut groups);
        }
    }
    groups
}

/// A line of `/proc/self/cgroup`, `ID:CONTROLLERS:PATH`, if its hierarchy limits memory.
fn member(line: &str) -> Option<(HierarchyVersion, &str)> {
    let mut fields = line.splitn(3, ':').skip(1);
    let (controllers, path) = (fields.next()?, fields.next().filter(|path| path.starts_with('/'))?);
    match controllers {
        "" => Some((HierarchyVersion::Two, path)),
        _ if has_memory(controllers) => Some((HierarchyVersion::One, path)),
        _ => None,
    }
}

fn has_memory(list: &str) -> bool {
    list.split(',').any(|name| name == "memory")
}

/// A line of `/proc/self/mountinfo`, if it mounts a hierarchy that limits memory:
/// `ID PARENT DEVICE ROOT POINT OPTIONS [TAG...] - TYPE SOURCE SUPER_OPTIONS`.
fn mount(line: &str) -> Option<HierarchyMount> {
    let (place, kind) = line.split_once(" - ")?;
    let mut kind = kind.split(' ');
    let version = match (kind.next()?, kind.nth(1)) {
        ("cgroup2", _) => HierarchyVersion::Two,
        ("cgroup", Some(options)) if has_memory(options) => HierarchyVersion::One,
        _ => return None,
    };
    let mut place = place.split(' ').skip(3);
    let (root, point) = (unescaped(place.next()?), unescaped(place.next()?));
    Some(HierarchyMount { version, root: root.into(), point: point.into() })
}

/// A path of mountinfo, in which `\040` is a space. Other bytes are written as octal numbers, too.
fn unescaped(text: &str) -> String {
    let mut parts = text.split('\\');
    let mut bytes = parts.next().unwrap_or_default().as_bytes().to_vec();
    for part in parts {
        match part.get(..3).and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) => {
                bytes.push(byte);
                bytes.extend_from_slice(&part.as_bytes()[3..]);
            }
            None => {
                bytes.push(b'\\');
                bytes.extend_from_slice(part.as_bytes());
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Adds the groups from the one at `path` to the one at the mount point. A `path` outside of the
/// mount, such as `/../x`, is of another namespace: of its groups, only the one at the mount point
/// is visible.
fn enclosing(mount: &HierarchyMount, path: &str, groups: &mut Vec<EnclosingGroup>) {
    let inside = Path::new(path).strip_prefix(&mount.root).ok();
    let is_plain =
        |path: &&Path| path.components().all(|part| matches!(part, Component::Normal(_)));
    let inside = inside.filter(is_plain).unwrap_or(Path::new(""));
    groups.extend(inside.ancestors().map(|part| {
        let name = mount.root.join(part).display().to_string();
        let name = match name.trim_end_matches('/') {
            "" => "/",
            name => name,
        };
        let directory = mount.point.join(part);
        EnclosingGroup { version: mount.version, name: name.to_owned(), directory }
    }));
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Name and directory of each group, separated by a space.
    fn found(membership: &str, mountinfo: &str) -> Vec<String> {
        let groups = groups(membership, mountinfo);
        groups.iter().map(|it| format!("{} {}", it.name, it.directory.display())).collect()
    }

    /// Debian 12: version 2 alone.
    const UNIFIED: &str = "\
        22 28 0:21 / /proc rw,nosuid,nodev,noexec,relatime shared:12 - proc proc rw\n\
        25 28 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw,errors=remount-ro\n\
        30 23 0:26 / /sys/fs/cgroup rw,nosuid,nodev,noexec,relatime shared:9 - cgroup2 cgroup2 \
        rw,nsdelegate,memory_recursiveprot\n";
    /// systemd in hybrid mode: the controllers are in version 1.
    const HYBRID: &str = "\
        31 23 0:28 / /sys/fs/cgroup ro,nosuid,nodev,noexec - tmpfs tmpfs ro,mode=755\n\
        34 31 0:31 / /sys/fs/cgroup/cpuset rw,relatime - cgroup cgroup rw,cpuset\n\
        35 31 0:32 / /sys/fs/cgroup/memory rw,relatime shared:4 - cgroup cgroup rw,memory\n\
        40 31 0:37 / /sys/fs/cgroup/systemd rw,relatime - cgroup cgroup rw,name=systemd\n\
        41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n";

    #[test]
    fn version_2_encloses_the_process_in_its_group_and_all_ancestors() {
        assert_eq!(
            found("0::/user.slice/user-0.slice/x.service\n", UNIFIED),
            [
                "/user.slice/user-0.slice/x.service \
                 /sys/fs/cgroup/user.slice/user-0.slice/x.service",
                "/user.slice/user-0.slice /sys/fs/cgroup/user.slice/user-0.slice",
                "/user.slice /sys/fs/cgroup/user.slice",
                "/ /sys/fs/cgroup/",
            ]
        );
    }

    #[test]
    fn a_hybrid_system_has_groups_of_both_versions() {
        let membership = "9:name=systemd:/a\n4:hugetlb,memory:/process/b\n1:cpu:/c\n0::/d\n";
        assert_eq!(
            found(membership, HYBRID),
            [
                "/process/b /sys/fs/cgroup/memory/process/b",
                "/process /sys/fs/cgroup/memory/process",
                "/ /sys/fs/cgroup/memory/",
                "/d /sys/fs/cgroup/unified/d",
                "/ /sys/fs/cgroup/unified/",
            ]
        );
    }

    #[test]
    fn a_container_with_a_namespace_is_its_own_root() {
        assert_eq!(found("0::/\n", UNIFIED), ["/ /sys/fs/cgroup/"]);
        assert_eq!(found("0::/../outside\n", UNIFIED), ["/ /sys/fs/cgroup/"]);
    }

    #[test]
    fn a_container_without_a_namespace_mounts_its_part_of_the_tree() {
        let mounts = "640 630 0:32 /docker/1f /sys/fs/cgroup/memory ro,relatime master:19 - \
                      cgroup cgroup rw,memory\n";
        assert_eq!(found("2:memory:/docker/1f\n", mounts), ["/docker/1f /sys/fs/cgroup/memory/"]);
        assert_eq!(
            found("2:memory:/docker/1f/inner\n", mounts),
            ["/docker/1f/inner /sys/fs/cgroup/memory/inner", "/docker/1f /sys/fs/cgroup/memory/",]
        );
        // The process was moved to a group outside of the mount.
        assert_eq!(found("2:memory:/other\n", mounts), ["/docker/1f /sys/fs/cgroup/memory/"]);
    }

    #[test]
    fn without_mountinfo_the_usual_mount_points_are_assumed() {
        assert_eq!(
            found("2:memory:/a\n0::/\n", ""),
            [
                "/a /sys/fs/cgroup/memory/a",
                "/ /sys/fs/cgroup/memory/",
                "/ /sys/fs/cgroup/",
                "/ /sys/fs/cgroup/unified/",
            ]
        );
    }

    #[test]
    fn escaped_mount_points_are_decoded() {
        let mounts = "1 2 0:3 / /my\\040groups\\134x\\9 rw - cgroup2 none rw\n";
        assert_eq!(found("0::/a\n", mounts), ["/a /my groups\\x\\9/a", "/ /my groups\\x\\9/"]);
    }

    #[test]
    fn garbage_has_no_groups_and_no_figures() {
        for text in ["", "\n", "::::", "x", "0:", "1:memory", "- - -", "1 2 - cgroup2", "\u{0}:\\"]
        {
            assert_eq!(found(text, text), [""; 0], "{text:?}");
            assert_eq!((meminfo(text), limit(text), stat(text, "a")), (None, None, None), "{text}");
        }
        for text in ["max\n", "-1", "1.5", "1 2", "99999999999999999999", "0x10", "many"] {
            assert_eq!(limit(text), None, "{text}");
        }
        assert_eq!(meminfo("MemTotal: 5 kB\nMemAvailable: many kB\n"), None);
        assert_eq!(meminfo("MemTotal: 5 kB\nMemAvailable: 18446744073709551615 kB\n"), None);
        assert_eq!(meminfo("MemTotal: 5 MB\nMemAvailable: 5 MB\n"), None);
    }

    #[test]
    fn figures_are_read_from_their_lines() {
        let text = "MemTotal:       24684084 kB\nMemFree:        20022872 kB\n\
                    MemAvailable:   23906576 kB\nBuffers:           18644 kB\n";
        assert_eq!(meminfo(text), Some((24_684_084 << 10, 23_906_576 << 10)));
        assert_eq!(limit("943718400\n"), Some(943_718_400));
        assert_eq!(uptime_ms("27345.07 50113.66\n"), Some(27_345_070));
        for text in ["", "1", "x.00 1.00", "1.100 1.00", "1.-1 1", "99999999999999999.00 1"] {
            assert_eq!(uptime_ms(text), None, "{text}");
        }
        let text = "anon 7\ninactive_file_x 1\ninactive_file 4096\ntotal_inactive_file 8192\n";
        assert_eq!(stat(text, "inactive_file"), Some(4096));
        assert_eq!(stat(text, "total_inactive_file"), Some(8192));
        assert_eq!(stat(text, "file"), None);
    }
}
