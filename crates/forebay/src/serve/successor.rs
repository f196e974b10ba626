//! Checks, before an upgrade, that the new program can take over. This server serves meanwhile.
//!
//! The new program itself checks the configuration, with the arguments that the upgrade will pass,
//! because it may read the configuration differently. The server passes it the size of its own pool
//! and heap, which are in use during the check and available to the successor.

use super::memory;
use crate::keeper;
use forebay_api::{ErrorKind, Problem};
use forebay_config::KeptMemory;
use std::ffi::OsString;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Time limit of a check, which reads the configuration and looks up the disks' names.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
const ANSWER_POLL: Duration = Duration::from_millis(20);

/// The environment variable that a server sets for a check: the memory, in bytes, that its
/// successor gets from it.
const MEMORY_VARIABLE: &str = "FOREBAY_SERVER_MEMORY";

/// The memory of the server that runs this check before an upgrade, if one does.
pub(super) fn memory_of_server() -> KeptMemory {
    let bytes = std::env::var(MEMORY_VARIABLE).ok().and_then(|text| text.parse().ok());
    KeptMemory { used_bytes: bytes.unwrap_or(0), limit_bytes: None }
}

/// The program that an upgrade starts.
pub(super) struct Successor {
    program: PathBuf,
    /// The pool that it will adopt.
    pool: OwnedFd,
}

impl Successor {
    /// The successor that runs `program` on `pool`; `None` if there is nothing to hand over.
    ///
    /// # Errors
    /// Fails if the pool's descriptor cannot be duplicated.
    pub(super) fn new(
        program: Option<PathBuf>,
        pool: Option<&OwnedFd>,
    ) -> io::Result<Option<Self>> {
        let (Some(program), Some(pool)) = (program, pool) else { return Ok(None) };
        Ok(Some(Self { program, pool: pool.try_clone()? }))
    }

    /// Checks that the program starts and accepts the current configuration.
    ///
    /// # Errors
    /// The message includes the last line that the program wrote to standard error.
    pub(super) fn check(&self) -> Result<(), Problem> {
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
        let bytes = memory::of_pool(&self.pool).used_bytes + anonymous_bytes();
        if let Err(reason) = run(check.env(MEMORY_VARIABLE, bytes.to_string())) {
            let message = format!("the new program refuses the configuration: {reason}");
            return fail(message, "correct it, and upgrade again; the running server is unchanged");
        }
        Ok(())
    }
}

/// The memory of this process outside of the pool, in bytes. It is free when the process has ended.
fn anonymous_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let field = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
    let kib = field.and_then(|field| field.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok());
    kib.unwrap_or(0) << 10
}

/// Runs a command. If it fails, returns the last line that it wrote to standard error.
fn run(command: &mut Command) -> Result<(), String> {
    let command = command.env_remove(keeper::VARIABLE).stdin(Stdio::null()).stdout(Stdio::null());
    let mut child = command.stderr(Stdio::piped()).spawn().map_err(|error| error.to_string())?;
    let begin = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().map_err(|error| error.to_string())? {
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
        return Ok(());
    }
    let mut output = Vec::new();
    if let Some(mut stderr) = child.stderr.take() {
        // On an error, the message falls back to the exit status.
        let _ = stderr.read_to_end(&mut output);
    }
    let output = String::from_utf8_lossy(&output);
    let last = output.lines().map(str::trim).rfind(|line| !line.is_empty());
    let last = last.map(|line| line.strip_prefix("forebay: ").unwrap_or(line));
    Err(last.map_or_else(|| status.to_string(), str::to_owned))
}
