//! Reads a UPS with a command that prints lines of `key: value`, as `upsc` does, and exits with 0.
//!
//! The command runs in its own process group, which is killed on a timeout or on too much output.
//! Standard error is discarded.

use super::ReadingSource;
use crate::{ReadError, ReadErrorKind, UpsObservation, UpsReading};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open};
use std::io::{self, ErrorKind, Read};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// Maximum output of a command in bytes.
pub const OUTPUT_BYTES_MAX: usize = 64 << 10;

/// A [`ReadingSource`] that runs a command.
pub struct CommandSource {
    program: String,
    arguments: Vec<String>,
    timeout: Duration,
}

/// A child process and its process group. Ending or dropping it kills the group.
struct ProcessGroup {
    child: Child,
    status: Option<ExitStatus>,
}

impl ProcessGroup {
    /// Kills the rest of the group, and returns the child's exit status.
    fn end(&mut self) -> io::Result<ExitStatus> {
        if let Some(status) = self.status {
            return Ok(status);
        }
        // Kill before waiting: afterwards the process group id may be reused.
        if let Some(pid) = Pid::from_raw(self.child.id().cast_signed()) {
            let _ = kill_process_group(pid, Signal::KILL);
        }
        let status = self.child.wait()?;
        self.status = Some(status);
        Ok(status)
    }
}

impl Drop for ProcessGroup {
    fn drop(&mut self) {
        let _ = self.end();
    }
}

impl CommandSource {
    /// A program with its arguments, run without a shell, and killed after `timeout`.
    pub fn new(program: String, arguments: Vec<String>, timeout: Duration) -> Self {
        Self { program, arguments, timeout }
    }

    fn run(&self) -> io::Result<Vec<u8>> {
        let until = Instant::now() + self.timeout;
        let child = Command::new(&self.program)
            .args(&self.arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()?;
        let mut group = ProcessGroup { child, status: None };
        let pid = Pid::from_raw(group.child.id().cast_signed()).ok_or(ErrorKind::NotFound)?;
        let ended = pidfd_open(pid, PidfdFlags::empty())?;
        let stdout = group.child.stdout.take().ok_or(ErrorKind::BrokenPipe)?;
        let output = read_all(stdout, until)?;
        wait_readable(&ended, until)?;
        let status = group.end()?;
        if !status.success() {
            return Err(io::Error::other(format!("it failed with {status}")));
        }
        Ok(output)
    }
}

fn read_all(mut stdout: ChildStdout, until: Instant) -> io::Result<Vec<u8>> {
    let mut output = Vec::new();
    let mut bytes = [0; 4096];
    loop {
        wait_readable(&stdout, until)?;
        let count = stdout.read(&mut bytes)?;
        if count == 0 {
            return Ok(output);
        }
        output.extend_from_slice(&bytes[..count]);
        if output.len() > OUTPUT_BYTES_MAX {
            return Err(io::Error::other(format!("more than {OUTPUT_BYTES_MAX} bytes of output")));
        }
    }
}

fn wait_readable(what: &impl std::os::fd::AsFd, until: Instant) -> io::Result<()> {
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let time = Timespec::try_from(left).map_err(io::Error::other)?;
        match poll(&mut [PollFd::new(what, PollFlags::IN)], Some(&time)) {
            Ok(0) => return Err(ErrorKind::TimedOut.into()),
            Ok(_) => return Ok(()),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

impl ReadingSource for CommandSource {
    fn read(&mut self) -> UpsObservation {
        let fail = |kind, what: String| {
            let program = &self.program;
            let message = format!("UPS command '{program}' failed: {what}");
            ReadError::new(kind, message, "run it by hand and check its output")
        };
        let output = self.run().map_err(|error| match error.kind() {
            ErrorKind::TimedOut => {
                let ms = self.timeout.as_millis();
                fail(ReadErrorKind::TimedOut, format!("timed out after {ms} ms"))
            }
            _ => fail(ReadErrorKind::Command, error.to_string()),
        })?;
        UpsReading::from_lines(&String::from_utf8_lossy(&output))
            .map_err(|error| fail(ReadErrorKind::Malformed, error.to_string()))
    }
}
