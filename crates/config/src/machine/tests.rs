//! Reads folders with the files of machines and control groups.

use super::*;

const GIB: u64 = 1 << 30;
const MIB: u64 = 1 << 20;

/// The sources of a machine with 8 GiB, 6 GiB available, and these additional files.
pub(super) fn sources(files: &[(&str, &str)]) -> (tempfile::TempDir, MemorySources) {
    let meminfo = "MemTotal:        8388608 kB\nMemFree: 1 kB\nMemAvailable:    6291456 kB\n";
    let root = folder(&[&[("proc/meminfo", meminfo)], files].concat());
    let sources = MemorySources::find(root.path());
    (root, sources)
}

/// A folder with these files.
pub(super) fn folder(files: &[(&str, &str)]) -> tempfile::TempDir {
    let root = tempfile::tempdir().unwrap();
    files.iter().for_each(|(path, text)| write(root.path(), path, text));
    root
}

pub(super) fn write(root: &Path, path: &str, text: &str) {
    let path = root.join(path);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

fn machine(files: &[(&str, &str)]) -> MemInfo {
    sources(files).1.read().unwrap()
}

fn bound(bytes: u64, group: &str, limit_bytes: u64) -> Bound {
    Bound { bytes, group: Some(GroupLimit { name: group.into(), bytes: limit_bytes }) }
}

#[test]
fn this_machine_can_be_read() {
    let info = MemInfo::read().unwrap();
    assert!(info.total.bytes > 0 && info.available.bytes <= info.total.bytes, "{info:?}");
}

#[test]
fn without_limits_of_control_groups_the_machine_counts() {
    let info = MemInfo::of_machine(8 * GIB, 6 * GIB);
    assert_eq!(machine(&[]), info);
    let unlimited = [
        ("proc/self/cgroup", "0::/a\n"),
        ("sys/fs/cgroup/a/memory.max", "max\n"),
        ("sys/fs/cgroup/a/memory.high", "max\n"),
        ("sys/fs/cgroup/a/memory.current", "4096\n"),
    ];
    assert_eq!(machine(&unlimited), info);
    let garbage = [("proc/self/cgroup", "0::/a\n"), ("sys/fs/cgroup/a/memory.max", "much\n")];
    assert_eq!(machine(&garbage), info);
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
    let expected = MemInfo {
        total: bound(2 * GIB, "/vm", 2 * GIB),
        available: bound(3 * GIB / 2, "/vm", 2 * GIB),
        machine_available_bytes: 6 * GIB,
        excess_bytes: 0,
    };
    assert_eq!(info, expected);
}

#[test]
fn total_and_available_may_be_limited_by_different_groups() {
    let info = machine(&[
        ("proc/self/cgroup", "0::/outer/inner\n"),
        ("sys/fs/cgroup/outer/inner/memory.max", "1073741824\n"),
        ("sys/fs/cgroup/outer/inner/memory.current", "0\n"),
        ("sys/fs/cgroup/outer/memory.max", "2147483648\n"),
        ("sys/fs/cgroup/outer/memory.current", "2146435072\n"),
    ]);
    assert_eq!(info.total, bound(GIB, "/outer/inner", GIB));
    assert_eq!(info.available, bound(MIB, "/outer", 2 * GIB));
}

#[test]
fn memory_high_is_a_limit_and_an_unreadable_usage_is_none() {
    let info = machine(&[
        ("proc/self/cgroup", "0::/user.slice/x\n"),
        ("sys/fs/cgroup/user.slice/x/memory.max", "1073741824\n"),
        ("sys/fs/cgroup/user.slice/x/memory.high", "943718400\n"),
    ]);
    assert_eq!(info.total, bound(900 * MIB, "/user.slice/x", 900 * MIB));
    assert_eq!(info.available.bytes, 900 * MIB);
    let only_high = machine(&[
        ("proc/self/cgroup", "0::/x\n"),
        ("sys/fs/cgroup/x/memory.max", "max\n"),
        ("sys/fs/cgroup/x/memory.high", "943718400\n"),
        ("sys/fs/cgroup/x/memory.current", "1943718400\n"),
    ]);
    let found = (only_high.available.bytes, only_high.excess_bytes);
    assert_eq!(found, (0, 1_000_000_000), "it is over its limit");
}

#[test]
fn a_container_sees_its_own_group_at_the_root() {
    for membership in ["0::/\n", "0::/../outside\n"] {
        let info = machine(&[
            ("proc/self/cgroup", membership),
            ("proc/self/mountinfo", "9 8 0:7 / /sys/fs/cgroup ro - cgroup2 cgroup rw\n"),
            ("sys/fs/cgroup/memory.max", "1073741824\n"),
            ("sys/fs/cgroup/memory.current", "0\n"),
        ]);
        assert_eq!(info.available, bound(GIB, "/", GIB));
        let shown = info.available.group.unwrap().to_string();
        assert_eq!(shown, "the control group of this container");
    }
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
    assert_eq!(info.total, bound(3 * GIB, "/docker/1", 3 * GIB));
    assert_eq!(info.available.bytes, 2 * GIB);
}

#[test]
fn a_v1_container_knows_the_limit_of_groups_that_it_does_not_see() {
    let info = machine(&[
        ("proc/self/cgroup", "2:memory:/docker/1\n"),
        ("proc/self/mountinfo", "9 8 0:7 /docker/1 /cg/memory ro - cgroup cgroup rw,memory\n"),
        ("cg/memory/memory.limit_in_bytes", "9223372036854771712\n"),
        ("cg/memory/memory.usage_in_bytes", "1610612736\n"),
        (
            "cg/memory/memory.stat",
            "inactive_file 1\nhierarchical_memory_limit 1073741824\n\
             total_inactive_file 1073741824\n",
        ),
    ]);
    assert_eq!(info.total, bound(GIB, "/docker/1", GIB));
    assert_eq!(info.available.bytes, GIB / 2);
}

#[test]
fn in_a_hybrid_system_the_tighter_version_counts() {
    let hybrid = |v1: &str, v2: &str| {
        machine(&[
            ("proc/self/cgroup", "4:memory:/a\n0::/b\n"),
            (
                "proc/self/mountinfo",
                "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n\
                 41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n",
            ),
            ("sys/fs/cgroup/memory/a/memory.limit_in_bytes", v1),
            ("sys/fs/cgroup/unified/b/memory.max", v2),
        ])
    };
    assert_eq!(hybrid("1073741824\n", "max\n").total, bound(GIB, "/a", GIB));
    assert_eq!(hybrid("1073741824\n", "536870912\n").total, bound(GIB / 2, "/b", GIB / 2));
}

#[test]
fn each_read_returns_the_current_figures() {
    let (root, sources) = sources(&[
        ("proc/self/cgroup", "0::/x\n"),
        ("sys/fs/cgroup/x/memory.max", "1073741824\n"),
        ("sys/fs/cgroup/x/memory.current", "0\n"),
    ]);
    assert_eq!(sources.read().unwrap().available.bytes, GIB);
    write(root.path(), "sys/fs/cgroup/x/memory.max", "536870912\n");
    write(root.path(), "sys/fs/cgroup/x/memory.current", "4096\n");
    assert_eq!(sources.read().unwrap().available.bytes, GIB / 2 - 4096);
    fs::remove_dir_all(root.path().join("sys")).unwrap();
    assert_eq!(sources.read().unwrap(), MemInfo::of_machine(8 * GIB, 6 * GIB));
}

#[test]
fn an_unreadable_meminfo_is_an_error() {
    let (root, sources) = sources(&[("proc/meminfo", "MemTotal: many\n")]);
    let error = sources.read().unwrap_err();
    assert!(error.to_string().contains("no MemTotal"), "{error}");
    fs::remove_file(root.path().join("proc/meminfo")).unwrap();
    assert_eq!(sources.read().unwrap_err().kind(), io::ErrorKind::NotFound);
}

#[test]
fn a_limit_lowers_total_and_available() {
    let machine = MemInfo::of_machine(32 * GIB, 16 * GIB);
    let group = |bytes| GroupLimit { name: "/x".into(), bytes };
    let narrowed = machine.clone().limited(&group(4 * GIB), GIB);
    assert_eq!(narrowed.total, bound(4 * GIB, "/x", 4 * GIB));
    assert_eq!(narrowed.available, bound(3 * GIB, "/x", 4 * GIB));
    assert_eq!(machine.clone().limited(&group(u64::MAX), 5), machine);
    let exceeded = machine.limited(&group(5), 12).limited(&group(4), 10);
    assert_eq!((exceeded.available.bytes, exceeded.excess_bytes), (0, 7), "the most of both");
}
