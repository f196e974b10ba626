//! The program that an upgrade starts: whether it can go on, found out while the one before serves.
//!
//! The new program itself is asked, as it may read the configuration differently, with the
//! arguments that it will be started with.

use crate::keeper;
use forebay_api::{ErrorKind, Problem};
use std::ffi::OsString;
use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Longest time that the new program may take to answer: more than any file system that works needs
/// for the configuration and for the names of the disks.
const ANSWER_WAIT: Duration = Duration::from_secs(30);
const ANSWER_POLL: Duration = Duration::from_millis(20);

/// Checks that `program` starts, and takes the configuration as it is now.
///
/// # Errors
/// It does not; the message has its own words.
pub(super) fn check(program: &Path) -> Result<(), Problem> {
    let fail = |message, remedy: &str| Err(Problem::new(ErrorKind::Failed, message, remedy));
    if let Err(reason) = run(Command::new(program).arg("--version")) {
        let message = format!("{} does not start ({reason})", program.display());
        return fail(message, "put a forebay that does there; this one goes on");
    }
    let mut arguments = std::env::args_os().skip(1);
    // The first of them is the command, and all options belong behind it.
    let command: Vec<OsString> = arguments.by_ref().take(1).collect();
    if let Err(reason) = run(Command::new(program).args(command).arg("--check").args(arguments)) {
        let message = format!("the new program refuses the configuration: {reason}");
        return fail(message, "mend it, and upgrade again; the server goes on as it was");
    }
    Ok(())
}

/// Runs a command to its end. Gives what it said if it failed.
fn run(command: &mut Command) -> Result<(), String> {
    let command = command.env_remove(keeper::VARIABLE).stdin(Stdio::null()).stdout(Stdio::null());
    let mut child = command.stderr(Stdio::piped()).spawn().map_err(|error| error.to_string())?;
    let begin = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().map_err(|error| error.to_string())? {
            break status;
        }
        if begin.elapsed() > ANSWER_WAIT {
            // Neither can fail: the child is ours, and has not been waited for.
            let _ = child.kill();
            let _ = child.wait();
            return Err(format!("it did not answer within {} s", ANSWER_WAIT.as_secs()));
        }
        std::thread::sleep(ANSWER_POLL);
    };
    if status.success() {
        return Ok(());
    }
    let mut said = Vec::new();
    if let Some(mut stderr) = child.stderr.take() {
        // What can't be read is missing in the message, and no more.
        let _ = stderr.read_to_end(&mut said);
    }
    let said = String::from_utf8_lossy(&said);
    let last = said.lines().map(str::trim).rfind(|line| !line.is_empty());
    let last = last.map(|line| line.strip_prefix("forebay: ").unwrap_or(line));
    Err(last.map_or_else(|| status.to_string(), str::to_owned))
}
