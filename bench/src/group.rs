//! A control group with a memory limit, for a server and the programs beside it. Needs root.

use anyhow::{Context, Result};
use std::fs;
use std::path::{Path, PathBuf};
use std::process;
use std::time::Duration;

/// A control group of this machine, at the top of its hierarchy. Removed when dropped, if its
/// processes have ended.
pub struct ControlGroup {
    directory: PathBuf,
    /// The group that this process was in, which it returns to.
    home: PathBuf,
    usage: &'static str,
    is_v1: bool,
}

impl ControlGroup {
    /// Creates a group of at most `limit_bytes` of memory.
    ///
    /// # Errors
    /// Without root, or without a memory controller.
    pub fn new(limit_bytes: u64) -> Result<Self> {
        let (v1, v2) = (Path::new("/sys/fs/cgroup/memory"), Path::new("/sys/fs/cgroup"));
        let is_v1 = v1.is_dir();
        let (root, controller, limit, usage) = match is_v1 {
            true => (v1, "memory", "memory.limit_in_bytes", "memory.usage_in_bytes"),
            false => (v2, "", "memory.max", "memory.current"),
        };
        let groups = fs::read_to_string("/proc/self/cgroup")?;
        // Each line is a number, the controllers, and the path of the group.
        let home =
            groups.lines().find_map(|line| match line.splitn(3, ':').collect::<Vec<_>>()[..] {
                [_, controllers, path] if controllers.split(',').any(|one| one == controller) => {
                    Some(root.join(path.trim_start_matches('/')))
                }
                _ => None,
            });
        let home = home.context("this process is in no control group for memory")?;
        let directory = root.join(format!("forebay-bench-{}", process::id()));
        fs::create_dir(&directory).with_context(|| {
            format!("cannot create the control group {}: run as root", directory.display())
        })?;
        let group = Self { directory, home, usage, is_v1 };
        let limit = group.directory.join(limit);
        fs::write(&limit, limit_bytes.to_string())
            .with_context(|| format!("cannot set {}", limit.display()))?;
        Ok(group)
    }

    /// Calls `start` while this process is in the group, so that a program that it starts is, too.
    ///
    /// # Errors
    /// If the process cannot enter or leave the group, or those of `start`.
    pub fn inside<T>(&self, start: impl FnOnce() -> Result<T>) -> Result<T> {
        enter(&self.directory)?;
        let started = start();
        enter(&self.home)?;
        started
    }

    /// The memory that its processes use, in bytes.
    ///
    /// # Errors
    /// If the figure cannot be read.
    pub fn usage_bytes(&self) -> Result<u64> {
        Ok(fs::read_to_string(self.directory.join(self.usage))?.trim().parse()?)
    }

    /// The memory of its processes that is swapped out, in bytes.
    ///
    /// # Errors
    /// If the figure cannot be read, or the kernel does not count it.
    pub fn swapped_bytes(&self) -> Result<u64> {
        let file = if self.is_v1 { "memory.stat" } else { "memory.swap.current" };
        let text = fs::read_to_string(self.directory.join(file))?;
        let number = match self.is_v1 {
            true => text.lines().find_map(|line| line.strip_prefix("swap ")),
            false => Some(text.trim()),
        };
        Ok(number.context("the kernel does not count what a control group swaps out")?.parse()?)
    }
}

impl Drop for ControlGroup {
    fn drop(&mut self) {
        // The kernel removes ended processes from the group in the background.
        for _ in 0..200 {
            if fs::remove_dir(&self.directory).is_ok() {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        eprintln!("the control group {} is left", self.directory.display());
    }
}

fn enter(group: &Path) -> Result<()> {
    fs::write(group.join("cgroup.procs"), process::id().to_string())
        .with_context(|| format!("cannot enter the control group {}", group.display()))
}
