//! The memory that this process may use: the machine's, within the limits of its control groups.
//! The module `load` reads the load of processors and disks, and `pressure` that of memory.
//!
//! A control group limits the memory of the process together with all other processes in it and
//! below it, so the limits of all enclosing groups apply, and the lowest of them counts. Both
//! versions of control groups are read, also side by side (hybrid mounts). [`MemorySources::find`]
//! looks for the files once; [`MemorySources::read`] reads the current figures. The texts are
//! parsed in `parse`, which is pure.
//!
//! Inside a container with a control group namespace, the process's own group appears as `/`, and
//! the groups around the container are not visible. A container without a namespace sees the path
//! of the host, but mounts only a part of the tree; `/proc/self/mountinfo` says which.

mod load;
mod parse;
mod pressure;

pub use load::{LoadSources, Stalls, SystemLoad};
use parse::{EnclosingGroup, HierarchyVersion};
pub use pressure::MemoryPressure;
use std::{
    fmt, fs,
    io::{self, Read},
    path::{Path, PathBuf},
};

/// The size of most of the kernel's texts; a longer one takes more reads.
const TEXT_BYTES: usize = 4096;

/// A control group with a memory limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupLimit {
    /// Its path, as `/proc/self/cgroup` has it; `/` is the container's own group.
    pub name: String,
    /// The limit in bytes: the lower one of `memory.max` and `memory.high`; in version 1, of
    /// `memory.limit_in_bytes` and `hierarchical_memory_limit`.
    pub bytes: u64,
}

impl fmt::Display for GroupLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &*self.name {
            "/" => f.write_str("the control group of this container"),
            name => write!(f, "the control group {name}"),
        }
    }
}

/// An amount of memory, and the control group that limits it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bound {
    /// The amount, in bytes.
    pub bytes: u64,
    /// The control group whose limit determines the amount; `None` if the machine does.
    pub group: Option<GroupLimit>,
}

impl Bound {
    const fn of_machine(bytes: u64) -> Self {
        Self { bytes, group: None }
    }

    /// Lowers the amount to `bytes`, because of `group`.
    fn lower(&mut self, bytes: u64, group: &GroupLimit) {
        if bytes < self.bytes {
            *self = Self { bytes, group: Some(group.clone()) };
        }
    }
}

/// The memory that this process may use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemInfo {
    /// The machine's memory, or the lowest limit of a control group.
    pub total: Bound,
    /// The memory available without swapping: the machine's, or the least that a control group has
    /// left.
    pub available: Bound,
    /// The memory that the machine has available, in bytes, if no control group limits it.
    pub machine_available_bytes: u64,
    /// By how much a control group exceeds its limit, in bytes: the most of all groups.
    pub excess_bytes: u64,
}

impl MemInfo {
    /// The memory of a machine without control groups.
    pub const fn of_machine(total_bytes: u64, available_bytes: u64) -> Self {
        Self {
            total: Bound::of_machine(total_bytes),
            available: Bound::of_machine(available_bytes),
            machine_available_bytes: available_bytes,
            excess_bytes: 0,
        }
    }

    /// Reads the memory of this machine, limited by the control groups of this process.
    ///
    /// # Errors
    /// As [`MemorySources::read`].
    pub fn read() -> io::Result<Self> {
        MemorySources::find(Path::new("/")).read()
    }

    /// Applies the limit of a control group of which `used_bytes` are in use.
    #[must_use]
    pub fn limited(mut self, group: &GroupLimit, used_bytes: u64) -> Self {
        self.total.lower(group.bytes, group);
        self.available.lower(group.bytes.saturating_sub(used_bytes), group);
        self.excess_bytes = self.excess_bytes.max(used_bytes.saturating_sub(group.bytes));
        self
    }
}

/// The files with the figures of the machine and of the control groups of this process.
#[derive(Clone, Debug)]
pub struct MemorySources {
    meminfo: PathBuf,
    uptime: PathBuf,
    /// How long programs on the machine have waited for memory.
    pressure: PathBuf,
    /// Existing groups only, each hierarchy from the innermost group outward.
    groups: Vec<EnclosingGroup>,
}

impl MemorySources {
    /// Finds the files below `root`, which is `/` except in tests. A group that a later change
    /// puts around this process is not found.
    pub fn find(root: &Path) -> Self {
        Self {
            meminfo: root.join("proc/meminfo"),
            uptime: root.join("proc/uptime"),
            pressure: root.join("proc/pressure/memory"),
            groups: groups_of(root),
        }
    }

    /// Reads the current figures.
    ///
    /// # Errors
    /// `/proc/meminfo` cannot be read or parsed. A control group that cannot be read is ignored.
    pub fn read(&self) -> io::Result<MemInfo> {
        let text = text_of(&self.meminfo)?;
        let (total_bytes, available_bytes) = parse::meminfo(&text).ok_or_else(|| {
            io::Error::new(
                io::ErrorKind::InvalidData,
                "/proc/meminfo has no MemTotal and MemAvailable",
            )
        })?;
        let machine = MemInfo::of_machine(total_bytes, available_bytes);
        let limits = self.groups.iter().filter_map(limit_of);
        Ok(limits.fold(machine, |info, (limit, used_bytes)| info.limited(&limit, used_bytes)))
    }
}

impl MemorySources {
    /// The time since the machine's boot, in milliseconds, from `/proc/uptime`; `None` if it cannot
    /// be read.
    pub fn uptime_ms(&self) -> Option<u64> {
        parse::uptime_ms(&text_of(&self.uptime).ok()?)
    }
}

/// The text of a file of the kernel. The string has room for it, because the standard library reads
/// into an empty one in small pieces.
fn text_of(path: &Path) -> io::Result<String> {
    let mut text = String::with_capacity(TEXT_BYTES);
    fs::File::open(path)?.read_to_string(&mut text)?;
    Ok(text)
}

/// The control groups that enclose this process and have a directory below `root`.
fn groups_of(root: &Path) -> Vec<EnclosingGroup> {
    let text = |path: &str| fs::read_to_string(root.join(path)).unwrap_or_default();
    let groups = parse::groups(&text("proc/self/cgroup"), &text("proc/self/mountinfo"));
    let groups = groups.into_iter().map(|group| EnclosingGroup {
        directory: root.join(group.directory.strip_prefix("/").unwrap_or(&group.directory)),
        ..group
    });
    groups.filter(|group| group.directory.is_dir()).collect()
}

/// The limit of a control group, if it has one, and the bytes in use. A group whose usage cannot be
/// read counts as empty: its limit still applies.
fn limit_of(group: &EnclosingGroup) -> Option<(GroupLimit, u64)> {
    let text = |file: &str| text_of(&group.directory.join(file)).unwrap_or_default();
    let number = |file: &str| parse::limit(&text(file));
    let least = |limits: [Option<u64>; 2]| limits.into_iter().flatten().min();
    let (bytes, stat, used_bytes) = match group.version {
        // Above memory.high, the kernel slows the processes down until enough is reclaimed. The
        // statistics are read only if there is a limit: the kernel adds them up for that.
        HierarchyVersion::Two => {
            let bytes = least([number("memory.max"), number("memory.high")])?;
            (bytes, text("memory.stat"), number("memory.current"))
        }
        // The statistics of version 1 also have the lowest limit of the enclosing groups, which a
        // container may not see.
        HierarchyVersion::One => {
            let stat = text("memory.stat");
            let enclosing = parse::stat(&stat, "hierarchical_memory_limit");
            let bytes = least([number("memory.limit_in_bytes"), enclosing])?;
            (bytes, stat, number("memory.usage_in_bytes"))
        }
    };
    // Inactive file pages do not count as used: the kernel reclaims them before an allocation
    // fails.
    let reclaimable = parse::stat(&stat, "total_inactive_file")
        .or_else(|| parse::stat(&stat, "inactive_file"))
        .unwrap_or(0);
    let used_bytes = used_bytes.unwrap_or(0).saturating_sub(reclaimable);
    Some((GroupLimit { name: group.name.clone(), bytes }, used_bytes))
}

#[cfg(test)]
mod tests;
