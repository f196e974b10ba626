//! Waits until the daemon has exited, so that `forebay stop && forebay serve` finds its sockets and
//! its state directory free.

use anyhow::Context;
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
    process::{Pid, PidfdFlags, pidfd_open},
};

/// How long a daemon that has written all data may take to exit, in seconds.
const EXIT_SECONDS_MAX: i64 = 10;

/// Waits until the process has exited. Returns false if it has not exited in time. A process that
/// this one cannot see counts as exited.
///
/// # Errors
/// Fails if the system cannot wait for processes.
pub(super) fn wait_for_exit(pid: u32) -> anyhow::Result<bool> {
    let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) else { return Ok(true) };
    let process = match pidfd_open(pid, PidfdFlags::empty()) {
        Ok(process) => process,
        // It has exited or is in another namespace, or the kernel lacks process descriptors.
        Err(Errno::SRCH | Errno::NOSYS | Errno::PERM | Errno::INVAL) => return Ok(true),
        Err(error) => return Err(error).context("cannot wait for forebay to exit"),
    };
    let timeout = Timespec { tv_sec: EXIT_SECONDS_MAX, tv_nsec: 0 };
    loop {
        match poll(&mut [PollFd::new(&process, PollFlags::IN)], Some(&timeout)) {
            Ok(count) => return Ok(count > 0),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error).context("cannot wait for forebay to exit"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn the_exit_of_a_process_is_detected() {
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let pid = child.id();
        let waiting = std::thread::spawn(move || wait_for_exit(pid).unwrap());
        drop(child.stdin.take());
        assert!(waiting.join().unwrap());
        child.wait().unwrap();
        assert!(wait_for_exit(pid).unwrap(), "a process that has exited");
        assert!(wait_for_exit(u32::MAX).unwrap(), "a number that no process has");
    }
}
