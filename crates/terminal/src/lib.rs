//! What the commands print: pages, tables, units, and errors with a remedy.
//!
//! Everything is escaped on its way out, so that names and messages cannot control the terminal.

pub mod columns;
pub mod page;
pub mod units;

use forebay_types::{Blame, Fault, Remedy, Shown};
use serde::Serialize;
use std::error::Error;
use std::fmt;
use std::io::{self, Write};

/// An error with a remedy, for errors that have no type of their own.
#[derive(Debug)]
pub struct Failure {
    error: anyhow::Error,
    remedy: Remedy,
    blame: Blame,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl Error for Failure {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.error.source()
    }
}

forebay_types::faults! { Failure }

impl Fault for Failure {
    fn remedy(&self) -> Remedy {
        self.remedy.clone()
    }

    fn blame(&self) -> Blame {
        self.blame
    }
}

/// Attaches a remedy to an error.
pub fn with_remedy(error: impl Into<anyhow::Error>, remedy: impl Into<Remedy>) -> anyhow::Error {
    Failure { error: error.into(), remedy: remedy.into(), blame: Blame::Environment }.into()
}

/// An error of the configuration alone, which is the same on every machine.
pub fn misconfigured(error: anyhow::Error, remedy: impl Into<Remedy>) -> anyhow::Error {
    Failure { error, remedy: remedy.into(), blame: Blame::Operator }.into()
}

/// Writes to standard output. A closed pipe is no error, as the reader may be `head`.
///
/// # Errors
/// Fails for example if standard output is a file on a full disk.
pub fn print(text: &str) -> anyhow::Result<()> {
    // Names and descriptions in tables must not control the terminal.
    print_escaped(&Shown::lines(text).to_string())
}

/// Like [`print()`], for a value as a JSON document. The only way in which the program prints JSON:
/// characters that must not control the terminal are escaped as JSON requires.
///
/// # Errors
/// Those of [`print()`].
pub fn print_json(value: &impl Serialize) -> anyhow::Result<()> {
    print_escaped(&json_document(value)?)
}

fn json_document(value: &impl Serialize) -> anyhow::Result<String> {
    Ok(format!("{}\n", Shown::json(&serde_json::to_string_pretty(value)?)))
}

/// Like [`print()`], for text whose parts are escaped already.
///
/// # Errors
/// Those of [`print()`].
pub fn print_escaped(text: &str) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(anyhow::Error::new(error).context("cannot write to standard output"))
        }
        _ => Ok(()),
    }
}
