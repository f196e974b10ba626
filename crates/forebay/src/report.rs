//! What went wrong, in one line for people and one number for programs.

use forebay_config::ConfigError;
use forebay_types::Shown;
use std::{
    error::Error,
    io::{self, Write},
    process::ExitCode,
};

/// The exit code for a command line or a configuration that can't be.
const USAGE: u8 = 2;

/// Says why the command line can't be, or shows the help or the version that it asks for.
pub(crate) fn usage(error: &clap::Error) -> ExitCode {
    if !error.use_stderr() {
        return print(&error.to_string()).map_or(ExitCode::FAILURE, |()| ExitCode::SUCCESS);
    }
    match error.source() {
        // A value that one of our parsers refused; its sentence says more than clap's.
        Some(source) => say(&format!("{source}")),
        None => eprint!("{}", Shown::lines(&error.to_string())),
    }
    ExitCode::from(USAGE)
}

/// Says what failed.
pub(crate) fn failure(error: &anyhow::Error) -> ExitCode {
    say(&format!("{error:#}"));
    if error.downcast_ref::<ConfigError>().is_some() { USAGE.into() } else { ExitCode::FAILURE }
}

/// One line on standard error, where nobody is left to tell when that fails.
fn say(sentence: &str) {
    let _ = writeln!(io::stderr(), "forebay: {}", Shown::line(sentence));
}

/// Writes to standard output. A reader that has seen enough, such as `head`, is no failure.
///
/// # Errors
/// It can't be written, as to a full disk.
pub(crate) fn print(text: &str) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    // Tables show what is in names of disks and descriptions, and ask nothing of the terminal.
    let text = Shown::lines(text).to_string();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(anyhow::Error::new(error).context("standard output can't be written"))
        }
        _ => Ok(()),
    }
}
