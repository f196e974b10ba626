//! Checks, before an upgrade, that the new program can take over. This server serves meanwhile.
//!
//! The new program itself checks the configuration, with the arguments that the upgrade will pass,
//! because it may read the configuration differently. The server passes it the size of its own pool
//! and heap, which are in use during the check and available to the successor, and the sizes from
//! which the successor decides whether it continues with the pool.

use super::activated::ActivatedAddresses;
use super::memory;
use crate::keeper::{self, HandoverTarget, KeeperLink, handover};
use forebay_api::{ErrorKind, Problem};
use forebay_config::KeptMemory;
use rustix::io::ioctl_fionbio;
use std::ffi::OsString;
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Time limit of a check, which reads the configuration and looks up the disks' names.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
const ANSWER_POLL: Duration = Duration::from_millis(20);

/// How much of the program's standard error is kept: its last line is shown.
const OUTPUT_BYTES_MAX: usize = 64 << 10;
/// The largest capacity of a pipe, unless an administrator has raised it (`fs.pipe-max-size`).
const PIPE_BYTES_MAX: usize = 1 << 20;

/// The environment variables that a server sets for a check, in bytes: the memory that its
/// successor gets from it, the memory for which its pool was created, and the memory to which it
/// was set since.
const MEMORY_VARIABLE: &str = "FOREBAY_SERVER_MEMORY";
const LIMIT_VARIABLE: &str = "FOREBAY_SERVER_MEMORY_LIMIT";
const NOW_VARIABLE: &str = "FOREBAY_SERVER_MEMORY_NOW";
/// The environment variable with the addresses of activated sockets, one a line.
const ACTIVATED_VARIABLE: &str = "FOREBAY_SERVER_ACTIVATED";

/// What a program says after its check if it continues the connections of the server that runs it.
/// A former version says nothing of that, and could not even listen while connections wait for it.
const CONTINUES: &str = "continues connections, version";

/// What a check says to the server that runs it, beside its result; `None` if an operator runs it.
pub(crate) fn announcement() -> Option<String> {
    let is_of_server = std::env::var_os(MEMORY_VARIABLE).is_some();
    is_of_server.then(|| format!("{CONTINUES} {}\n", handover::VERSION))
}

/// The memory of the server that runs this check before an upgrade, if one does.
pub(super) fn memory_of_server() -> KeptMemory {
    let bytes = |variable| std::env::var(variable).ok().and_then(|text| text.parse().ok());
    KeptMemory {
        used_bytes: bytes(MEMORY_VARIABLE).unwrap_or(0),
        limit_bytes: bytes(LIMIT_VARIABLE),
        now_bytes: bytes(NOW_VARIABLE),
        start_bytes: None,
    }
}

/// The activated sockets of the server that runs this check before an upgrade, if one does. Its
/// successor gets the same.
pub(super) fn activated_of_server() -> ActivatedAddresses {
    let text = std::env::var(ACTIVATED_VARIABLE).unwrap_or_default();
    ActivatedAddresses::parse(&text)
}

/// The program that an upgrade starts.
pub(super) struct Successor {
    program: PathBuf,
    /// The pool that it will adopt.
    pool: OwnedFd,
    /// Where it gets connections from.
    pub(super) target: HandoverTarget,
}

impl Successor {
    /// The successor that runs the program of the keeper on `pool`; `None` if there is nothing to
    /// hand over.
    ///
    /// # Errors
    /// Fails if the pool's descriptor cannot be duplicated.
    pub(super) fn of(link: &mut KeeperLink, pool: Option<&OwnedFd>) -> io::Result<Option<Self>> {
        let (program, target) = (link.successor.take(), std::mem::take(&mut link.target));
        let (Some(program), Some(pool)) = (program, pool) else { return Ok(None) };
        Ok(Some(Self { program, pool: pool.try_clone()?, target }))
    }

    /// Checks that the program starts and accepts the current configuration. Returns whether it
    /// continues connections.
    ///
    /// # Errors
    /// The message includes the last line that the program wrote to standard error.
    pub(super) fn check(&self, activated: &ActivatedAddresses) -> Result<bool, Problem> {
        let program = &self.program;
        let fail = |message, remedy: &str| Err(Problem::new(ErrorKind::Failed, message, remedy));
        if let Err(reason) = run(Command::new(program).arg("--version")) {
            let message = format!("{} does not start ({reason})", program.display());
            return fail(
                message,
                "put a working program there, and upgrade again; the running server is unchanged",
            );
        }
        let mut arguments = std::env::args_os().skip(1);
        // The first argument is the command, which options must follow.
        let command: Vec<OsString> = arguments.by_ref().take(1).collect();
        let mut check = Command::new(program);
        check.args(command).arg("--check").args(arguments);
        check.env(ACTIVATED_VARIABLE, activated.to_text());
        let kept = memory::of_pool(&self.pool);
        check.env(MEMORY_VARIABLE, (kept.used_bytes + memory::private_bytes()).to_string());
        for (variable, bytes) in
            [(LIMIT_VARIABLE, kept.limit_bytes), (NOW_VARIABLE, kept.now_bytes)]
        {
            match bytes {
                Some(bytes) => check.env(variable, bytes.to_string()),
                None => check.env_remove(variable),
            };
        }
        match run(&mut check) {
            Ok(output) => {
                let wanted = format!("{CONTINUES} {}", handover::VERSION);
                Ok(self.target.is_some() && output.lines().any(|line| line == wanted))
            }
            Err(reason) => {
                let message = format!("the new program refuses the configuration: {reason}");
                fail(message, "correct it, and upgrade again; the running server is unchanged")
            }
        }
    }
}

impl Successor {
    /// Logs that connections are closed, as they are not handed over, and why.
    pub(super) fn log_closing(&self) {
        let reason = match self.target.is_some() {
            true => "the new program is a version that does not continue them",
            false => "the keeper is of a former version, or the unit has FileDescriptorStoreMax=1",
        };
        tracing::warn!(reason, "the upgrade closes the connections of NBD clients");
    }
}

/// Runs a command, and returns the end of its output. If it fails, returns the last line that it
/// wrote to standard error.
fn run(command: &mut Command) -> Result<String, String> {
    let command = command.env_remove(keeper::VARIABLE).stdin(Stdio::null()).stdout(Stdio::piped());
    let mut child = command.stderr(Stdio::piped()).spawn().map_err(|error| error.to_string())?;
    let mut errors = CommandOutput::new(child.stderr.take());
    let mut output = CommandOutput::new(child.stdout.take());
    let begin = Instant::now();
    let status = loop {
        let exited = child.try_wait().map_err(|error| error.to_string())?;
        errors.read_written();
        output.read_written();
        if let Some(status) = exited {
            break status;
        }
        if begin.elapsed() > ANSWER_TIMEOUT {
            // Neither can fail: the child is this process's, and no wait has collected it.
            let _ = child.kill();
            let _ = child.wait();
            return Err(format!("it did not answer within {} s", ANSWER_TIMEOUT.as_secs()));
        }
        std::thread::sleep(ANSWER_POLL);
    };
    if status.success() {
        return Ok(String::from_utf8_lossy(&output.end).into_owned());
    }
    let errors = String::from_utf8_lossy(&errors.end);
    let last = errors.lines().map(str::trim).rfind(|line| !line.is_empty());
    let last = last.map(|line| line.strip_prefix("forebay: ").unwrap_or(line));
    Err(last.map_or_else(|| status.to_string(), str::to_owned))
}

/// The end of what a program writes to a pipe. It is read while the program runs, because a program
/// that has filled the pipe waits until it is read.
struct CommandOutput<P> {
    pipe: Option<P>,
    end: Vec<u8>,
}

impl<P: Read + AsFd> CommandOutput<P> {
    fn new(pipe: Option<P>) -> Self {
        // Does not fail for a pipe. A blocking read would wait for every process that has it open.
        let pipe = pipe.filter(|pipe| ioctl_fionbio(pipe, true).is_ok());
        Self { pipe, end: Vec::new() }
    }

    /// Reads what the program has written since the last call, up to [`PIPE_BYTES_MAX`].
    fn read_written(&mut self) {
        let Some(pipe) = &mut self.pipe else { return };
        let mut chunk = vec![0; OUTPUT_BYTES_MAX];
        for _ in 0..PIPE_BYTES_MAX / OUTPUT_BYTES_MAX {
            // On an error, the message falls back to the exit status.
            let Ok(count @ 1..) = pipe.read(&mut chunk) else { return };
            self.end.extend_from_slice(&chunk[..count]);
            let excess = self.end.len().saturating_sub(OUTPUT_BYTES_MAX);
            self.end.drain(..excess);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_line_is_found_however_much_the_program_writes() {
        // More than a pipe holds.
        let script = "head -c 300000 /dev/zero | tr '\\0' x >&2; echo >&2
                      echo 'forebay: no such disk' >&2; exit 1";
        let failed = run(Command::new("sh").args(["-c", script]));
        assert_eq!(failed, Err("no such disk".to_owned()));
    }

    #[test]
    fn an_exit_without_a_message_is_reported_by_its_status() {
        let failed = run(Command::new("sh").args(["-c", "exit 3"]));
        assert_eq!(failed, Err("exit status: 3".to_owned()));
        let output = run(Command::new("sh").args(["-c", "echo noise >&2; echo said"]));
        assert_eq!(output.as_deref(), Ok("said\n"));
    }
}
