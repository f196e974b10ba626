//! CPU time of another process and its children, and the processors of its threads.
//!
//! The process clock counts nanoseconds and includes ended threads, unlike `/proc/PID/task`.
//! Children are included because some servers fork for each connection. A child that starts and
//! ends between two readings is missed.

use anyhow::{Context, Result, ensure};
use rustix::io::Errno;
use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use rustix::time::{ClockId, clock_gettime};
use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

/// How the names of the server's workers begin.
pub const WORKERS: &str = "worker-";

/// CPU time of the calling thread in nanoseconds: less disturbed by other load than wall time.
pub fn thread_ns() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// CPU time of a process and its descendants at one moment.
#[derive(Clone, Debug)]
pub struct CpuReading {
    pid: u32,
    ns_by_pid: HashMap<u32, u64>,
}

impl CpuReading {
    /// Reads the clocks of `pid` and of all that descend from it.
    pub fn of(pid: u32) -> Result<Self> {
        let mut ns_by_pid = HashMap::new();
        for member in family(pid) {
            // A descendant that ends between listing and reading is left out.
            if let Some(ns) = clock_ns(member) {
                ns_by_pid.insert(member, ns);
            }
        }
        ensure!(ns_by_pid.contains_key(&pid), "no process {pid}: check --server-pid");
        Ok(Self { pid, ns_by_pid })
    }

    /// Nanoseconds of CPU time used from this reading until now.
    pub fn elapsed_ns(&self) -> Result<u64> {
        let now = Self::of(self.pid)?;
        let before = |pid| self.ns_by_pid.get(pid).copied().unwrap_or(0);
        Ok(now.ns_by_pid.iter().map(|(pid, ns)| ns.saturating_sub(before(pid))).sum())
    }
}

/// CPU time that the threads of a process whose names begin with `prefix` have used so far, in
/// nanoseconds. Ended threads are not counted.
///
/// # Errors
/// If there is no such process, or no such thread.
pub fn threads_ns(pid: u32, prefix: &str) -> Result<u64> {
    let mut times = Vec::new();
    for (task, is_named) in threads(pid, prefix)? {
        if is_named {
            // The first field: time on a processor, in nanoseconds.
            let schedstat = fs::read_to_string(task.join("schedstat")).unwrap_or_default();
            times.extend(schedstat.split(' ').next().and_then(|ns| ns.parse::<u64>().ok()));
        }
    }
    ensure!(!times.is_empty(), "process {pid} has no threads named {prefix}*");
    Ok(times.iter().sum())
}

/// The directories of the threads of a process, each with whether its name begins with `prefix`.
fn threads(pid: u32, prefix: &str) -> Result<Vec<(PathBuf, bool)>> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task"));
    let tasks = tasks.with_context(|| format!("no process {pid}"))?.flatten();
    let is_named = |task: &Path| {
        fs::read_to_string(task.join("comm")).is_ok_and(|name| name.starts_with(prefix))
    };
    Ok(tasks.map(|task| (task.path(), is_named(&task.path()))).collect())
}

/// A processor for some threads alone, so that the others do not disturb its caches.
pub struct Apart {
    alone: CpuSet,
    others: CpuSet,
}

impl Apart {
    /// Divides the processors on which the calling thread may run: one, and all others. From now
    /// on, that thread and what it starts use the others.
    ///
    /// # Errors
    /// If there is only one.
    pub fn of_this_thread() -> Result<Self> {
        let mut others = sched_getaffinity(None)?;
        ensure!(others.count() > 1, "there is only one processor");
        let first = (0..CpuSet::MAX_CPU).find(|&cpu| others.is_set(cpu)).unwrap_or(0);
        let mut alone = CpuSet::new();
        alone.set(first);
        others.unset(first);
        sched_setaffinity(None, &others)?;
        Ok(Self { alone, others })
    }

    /// Moves the threads of a process whose names begin with `prefix` to the one processor, and
    /// its others to the others.
    ///
    /// # Errors
    /// If there is no such process, or no thread of that name.
    pub fn keep(&self, pid: u32, prefix: &str) -> Result<()> {
        let threads = threads(pid, prefix)?;
        let has_named = threads.iter().any(|(_, is_named)| *is_named);
        ensure!(has_named, "process {pid} has no threads named {prefix}*");
        for (task, is_named) in threads {
            let id = task.file_name().and_then(|name| name.to_str()?.parse().ok());
            let id = id.and_then(Pid::from_raw).context("a thread without a number")?;
            let processors = if is_named { &self.alone } else { &self.others };
            match sched_setaffinity(Some(id), processors) {
                // The thread has ended meanwhile.
                Ok(()) | Err(Errno::SRCH) => {}
                Err(error) => return Err(error).context("moving a thread to another processor"),
            }
        }
        Ok(())
    }
}

/// `pid` and its descendants.
fn family(pid: u32) -> Vec<u32> {
    let parents = parents();
    let mut family = vec![pid];
    let mut next = 0;
    while next < family.len() {
        let parent = family[next];
        family.extend(parents.iter().filter(|(_, of)| *of == parent).map(|(child, _)| *child));
        next += 1;
    }
    family
}

/// Every process with its parent.
fn parents() -> Vec<(u32, u32)> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter_map(|pid: u32| {
            let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
            Some((pid, parent_in_stat(&stat)?))
        })
        .collect()
}

/// The parent in a line of `/proc/PID/stat`. The name in parentheses may hold anything, so the
/// fields are counted from the last parenthesis.
fn parent_in_stat(stat: &str) -> Option<u32> {
    stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
}

fn clock_ns(pid: u32) -> Option<u64> {
    let mut clock: libc::clockid_t = 0;
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: both calls write one value each to the place given, which outlives them.
    let found = unsafe {
        libc::clock_getcpuclockid(libc::pid_t::try_from(pid).ok()?, &raw mut clock) == 0
            && libc::clock_gettime(clock, &raw mut time) == 0
    };
    found.then_some(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::hint::black_box;
    use std::process::Command;

    fn burn() {
        black_box((0..20_000_000u64).fold(0u64, |sum, i| sum.wrapping_mul(31) ^ black_box(i)));
    }

    #[test]
    fn the_time_of_an_ended_thread_is_counted() {
        let reading = CpuReading::of(std::process::id()).unwrap();
        std::thread::spawn(burn).join().unwrap();
        assert!(reading.elapsed_ns().unwrap() > 1_000_000);
    }

    #[test]
    fn only_the_named_threads_are_counted() {
        let (begin, end) = std::sync::mpsc::channel::<()>();
        let named = std::thread::Builder::new().name("burner-0".into());
        let thread = named.spawn(move || {
            burn();
            let _ = end.recv();
        });
        let pid = std::process::id();
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
        while threads_ns(pid, "burner-").unwrap_or(0) < 1_000_000 {
            assert!(std::time::Instant::now() < deadline, "no time is counted");
            std::thread::yield_now();
        }
        drop(begin);
        thread.unwrap().join().unwrap();
        assert!(threads_ns(pid, "burner-").is_err());
    }

    #[test]
    fn a_child_belongs_to_the_family() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let found = family(std::process::id()).contains(&child.id());
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(found);
    }

    #[test]
    fn a_name_with_parentheses_does_not_confuse() {
        assert_eq!(parent_in_stat("12 (a) b) c) S 7 12 12 0"), Some(7));
        assert_eq!(parent_in_stat("12"), None);
    }

    #[test]
    fn a_process_that_is_not_there_is_an_error() {
        let mut child = Command::new("true").spawn().unwrap();
        child.wait().unwrap();
        assert!(CpuReading::of(child.id()).is_err());
    }
}
