//! The load of the machine and of the control groups of this process: how long programs have waited
//! for a processor and for I/O, how many can run, and how long processors had nothing to do.

use super::parse::{self, HierarchyVersion};
use super::{groups_of, text_of};
use std::path::{Path, PathBuf};

/// The time in which at least one program waited, in microseconds: on the machine, and in each
/// control group. `None` where the kernel does not count it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stalls(Vec<Option<u64>>);

impl Stalls {
    fn read(files: &[PathBuf]) -> Self {
        let stalled_us = |path: &PathBuf| parse::stalled_us(&text_of(path).ok()?);
        files.iter().map(stalled_us).collect()
    }

    /// The stalls since an earlier reading of the same files, in microseconds: the largest of those
    /// of the machine and of all groups. `None` if the kernel counts none of them.
    pub fn us_since(&self, earlier: &Self) -> Option<u64> {
        let pairs = self.0.iter().zip(&earlier.0);
        pairs.filter_map(|(now, then)| Some((*now)?.saturating_sub((*then)?))).max()
    }
}

impl FromIterator<Option<u64>> for Stalls {
    /// Stalls of the machine and its groups, in microseconds.
    fn from_iter<I: IntoIterator<Item = Option<u64>>>(stalled_us: I) -> Self {
        Self(stalled_us.into_iter().collect())
    }
}

/// The load at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SystemLoad {
    /// Waits for a processor.
    pub processors: Stalls,
    /// Waits for I/O.
    pub disks: Stalls,
    /// Runnable threads, without the one that reads this figure; `None` if it is unknown.
    pub runnable: Option<u64>,
    /// The time in which processors had nothing to do, summed over them, in microseconds; `None` if
    /// it is unknown, or if a control group limits this process's time on them.
    pub idle_us: Option<u64>,
}

/// The files with the load.
#[derive(Clone, Debug)]
pub struct LoadSources {
    loadavg: PathBuf,
    stat: PathBuf,
    /// The limits of the groups for the time on processors.
    quotas: Vec<PathBuf>,
    processors: Vec<PathBuf>,
    disks: Vec<PathBuf>,
}

impl LoadSources {
    /// Finds the files below `root`, which is `/` except in tests. A group that a later change
    /// puts around this process is not found.
    pub fn find(root: &Path) -> Self {
        let groups =
            groups_of(root).into_iter().filter(|group| group.version == HierarchyVersion::Two);
        let groups: Vec<PathBuf> = groups.map(|group| group.directory).collect();
        let files = |machine: &str, group: &str| {
            let of_groups = groups.iter().map(|directory| directory.join(group));
            std::iter::once(root.join(machine)).chain(of_groups).collect()
        };
        Self {
            loadavg: root.join("proc/loadavg"),
            stat: root.join("proc/stat"),
            quotas: groups.iter().map(|directory| directory.join("cpu.max")).collect(),
            processors: files("proc/pressure/cpu", "cpu.pressure"),
            disks: files("proc/pressure/io", "io.pressure"),
        }
    }

    /// Reads the current figures.
    pub fn read(&self) -> SystemLoad {
        let loadavg = text_of(&self.loadavg).unwrap_or_default();
        SystemLoad {
            processors: Stalls::read(&self.processors),
            disks: Stalls::read(&self.disks),
            runnable: parse::runnable(&loadavg).map(|count| count.saturating_sub(1)),
            idle_us: self.idle_us(),
        }
    }

    fn idle_us(&self) -> Option<u64> {
        let mut quotas = self.quotas.iter().filter_map(|path| text_of(path).ok());
        if quotas.any(|text| parse::has_quota(&text)) {
            return None;
        }
        parse::idle_us(&text_of(&self.stat).ok()?)
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{folder, write};
    use super::*;

    #[test]
    fn stalls_are_the_most_of_the_machine_and_its_groups() {
        let root = folder(&[
            ("proc/self/cgroup", "4:memory:/a\n0::/b/c\n"),
            ("proc/loadavg", "0.70 1.19 1.64 4/105 29837\n"),
            ("proc/pressure/cpu", "some avg10=4.74 avg60=2.15 total=1000\nfull total=0\n"),
            ("sys/fs/cgroup/b/c/cpu.pressure", "some avg10=0.00 total=5\n"),
            ("sys/fs/cgroup/b/cpu.pressure", "some avg10=0.00 total=50\n"),
            ("sys/fs/cgroup/memory/a/cpu.pressure", "some avg10=0.00 total=500\n"),
            ("sys/fs/cgroup/b/io.pressure", "some avg10=0.00 total=7\n"),
        ]);
        let sources = LoadSources::find(root.path());
        let before = sources.read();
        assert_eq!(before.runnable, Some(3));
        assert_eq!(before.processors.us_since(&before.processors), Some(0));
        write(root.path(), "proc/pressure/cpu", "some total=1100\n");
        write(root.path(), "sys/fs/cgroup/b/c/cpu.pressure", "some total=205\n");
        write(root.path(), "sys/fs/cgroup/b/cpu.pressure", "some total=40\n");
        write(root.path(), "sys/fs/cgroup/memory/a/cpu.pressure", "some total=999999\n");
        write(root.path(), "sys/fs/cgroup/b/io.pressure", "some total=10\n");
        let after = sources.read();
        assert_eq!(after.processors.us_since(&before.processors), Some(200), "version 2 only");
        assert_eq!(after.disks.us_since(&before.disks), Some(3), "the machine has no figure");
    }

    #[test]
    fn idle_time_is_unknown_under_a_quota() {
        let stat = "cpu  95 1 20 300 4 0 0 7 0 0\ncpu0 95 1 20 300 4 0 0 7 0 0\nintr 5\n";
        let root = folder(&[
            ("proc/self/cgroup", "0::/b/c\n"),
            ("proc/stat", stat),
            ("sys/fs/cgroup/b/c/cpu.max", "max 100000\n"),
        ]);
        let sources = LoadSources::find(root.path());
        assert_eq!(sources.read().idle_us, Some(3_040_000));
        write(root.path(), "sys/fs/cgroup/b/cpu.max", "150000 100000\n");
        assert_eq!(sources.read().idle_us, None);
        write(root.path(), "sys/fs/cgroup/b/cpu.max", "max 100000\n");
        for text in ["", "cpu", "cpu 1 2 3 4", "cpu 1 2 3 x 5", "cpu0 1 2 3 4 5", "intr 5"] {
            write(root.path(), "proc/stat", text);
            assert_eq!(sources.read().idle_us, None, "{text}");
        }
    }

    #[test]
    fn a_kernel_without_figures_has_none() {
        let root = folder(&[("proc/loadavg", "0.70 1.19")]);
        let load = LoadSources::find(root.path()).read();
        assert_eq!(load.processors.us_since(&load.processors), None);
        assert_eq!((load.disks.us_since(&load.disks), load.runnable), (None, None));
        for text in ["", "0 0 0", "0 0 0 x/5 1", "0 0 0 5 1", "0 0 0 -1/5 1"] {
            assert_eq!(parse::runnable(text), None, "{text}");
        }
        assert_eq!(parse::runnable("0.00 0.00 0.00 0/0 1\n"), Some(0));
    }
}
