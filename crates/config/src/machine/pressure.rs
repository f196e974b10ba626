//! Signs of a shortage of memory that the kernel counts: how long programs have waited for memory,
//! and how often a control group has reached a limit.

use super::parse::{self, HierarchyVersion};
use super::{EnclosingGroup, MemorySources, text_of};
use std::path::{Path, PathBuf};

/// Counters of the kernel, all of which only rise.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemoryPressure {
    /// The time in which at least one program waited for memory, in microseconds: on the machine,
    /// and in each control group.
    stalled_us: Vec<u64>,
    /// How often a control group reached or exceeded a limit.
    limit_events: u64,
}

impl MemoryPressure {
    /// The stalls since an earlier reading of the same sources, in microseconds: the largest of
    /// those of the machine and of all groups. A sum would count a stall once for each enclosing
    /// group.
    pub fn stalled_us_since(&self, earlier: &Self) -> u64 {
        let pairs = self.stalled_us.iter().zip(&earlier.stalled_us);
        pairs.map(|(now, then)| now.saturating_sub(*then)).max().unwrap_or(0)
    }

    /// How often a control group reached a limit since an earlier reading.
    pub const fn limit_events_since(&self, earlier: &Self) -> u64 {
        self.limit_events.saturating_sub(earlier.limit_events)
    }
}

impl MemorySources {
    /// Reads the counters. One that the kernel does not have counts as zero.
    pub fn read_pressure(&self) -> MemoryPressure {
        let text = |path: &Path| text_of(path).unwrap_or_default();
        let stalls = |path: PathBuf| parse::stalled_us(&text(&path)).unwrap_or(0);
        MemoryPressure {
            stalled_us: self.pressure_files().map(stalls).collect(),
            limit_events: self.groups.iter().map(events_of).sum(),
        }
    }

    /// The files with the stalls of the machine and of each control group, which the kernel may not
    /// have. A trigger can be set on them.
    pub fn pressure_files(&self) -> impl Iterator<Item = PathBuf> {
        let groups = self.groups.iter().filter(|group| group.version == HierarchyVersion::Two);
        let groups = groups.map(|group| group.directory.join("memory.pressure"));
        std::iter::once(self.pressure.clone()).chain(groups)
    }
}

/// How often a group, or one below it, exceeded `memory.high`, reached `memory.max`, ran out of
/// memory, or lost memory that `memory.low` protects. In version 1, how often it reached its limit.
fn events_of(group: &EnclosingGroup) -> u64 {
    let text = |file: &str| text_of(&group.directory.join(file)).unwrap_or_default();
    match group.version {
        HierarchyVersion::One => parse::limit(&text("memory.failcnt")).unwrap_or(0),
        HierarchyVersion::Two => {
            let events = text("memory.events");
            let kinds = ["low", "high", "max", "oom", "oom_kill"];
            kinds.iter().filter_map(|kind| parse::stat(&events, kind)).sum()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{sources, write};
    use super::*;

    const STALLS: &str = "\
        some avg10=0.00 avg60=0.10 avg300=0.00 total=189912451\n\
        full avg10=0.00 avg60=0.00 avg300=0.00 total=37836990\n";

    #[test]
    fn stalls_and_events_are_counted_since_an_earlier_reading() {
        let (root, sources) = sources(&[
            ("proc/self/cgroup", "4:memory:/a\n0::/b\n"),
            ("proc/pressure/memory", STALLS),
            ("sys/fs/cgroup/b/memory.pressure", "some avg10=0.00 total=7\n"),
            ("sys/fs/cgroup/b/memory.events", "low 1\nhigh 2\nmax 30\noom 4\noom_kill 5\n"),
            ("sys/fs/cgroup/memory/a/memory.failcnt", "100\n"),
        ]);
        let before = sources.read_pressure();
        assert_eq!(sources.read_pressure(), before);
        assert_eq!(before.stalled_us_since(&MemoryPressure::default()), 0, "other sources");
        assert_eq!(before.limit_events, 142);
        write(root.path(), "proc/pressure/memory", "some total=189912551\nfull total=1\n");
        write(root.path(), "sys/fs/cgroup/b/memory.pressure", "some total=207\n");
        write(root.path(), "sys/fs/cgroup/b/memory.events", "low 1\nhigh 2\nmax 33\noom 4\n");
        let after = sources.read_pressure();
        assert_eq!(after.stalled_us_since(&before), 200, "in the group");
        assert_eq!(before.stalled_us_since(&after), 0);
        assert_eq!(after.limit_events_since(&before), 0, "oom_kill is gone: 5 less, and 3 more");
        write(root.path(), "sys/fs/cgroup/memory/a/memory.failcnt", "109\n");
        assert_eq!(sources.read_pressure().limit_events_since(&before), 7);
    }

    #[test]
    fn a_kernel_without_pressure_has_none() {
        let (_root, sources) = sources(&[("proc/self/cgroup", "0::/b\n")]);
        let pressure = sources.read_pressure();
        assert_eq!(pressure.stalled_us_since(&pressure), 0);
        assert_eq!(pressure.limit_events, 0);
        for garbage in ["", "some", "some total=", "some total=x\n", "full total=3\n"] {
            assert_eq!(parse::stalled_us(garbage), None, "{garbage}");
        }
    }
}
