//! `forebay rescue`: inspects a journal or vault and writes its data to a disk, without a daemon.
//!
//! It locks the devices it opens, as the daemon does, so the two never use one at the same time.
//! Its only change to a log is a new superblock that voids a volume's records; the devices of a
//! mirrored journal are synchronized first. An interruption before the new superblock is written
//! leaves the records valid, and the same command can be run again.

mod access;
mod apply;
mod log;
mod release;
mod show;
mod source;

use clap::{Args, Subcommand};
use source::Source;
use std::path::PathBuf;
use std::process::ExitCode;

/// The subcommands of `forebay rescue`.
#[derive(Debug, Subcommand)]
pub enum RescueCommand {
    /// Show the identity of a journal or vault and the data it holds of each volume
    List(InspectArguments),
    /// Read all records and verify every checksum
    #[command(long_about = "Read all records and verify every checksum.\n\
        The exit code is 0 if everything is intact, 1 if data is damaged or missing, 2 if the \
        device is not usable.")]
    Verify(InspectArguments),
    /// Write a volume's data from a journal or vault to a disk, verify it, and mark it as applied
    Apply(apply::ApplyArguments),
    /// Give up a volume's data in a journal or vault
    Discard(release::DiscardArguments),
}

/// Selects a journal or vault.
#[derive(Args, Clone, Debug)]
pub struct SourceArguments {
    /// The journal or vault: what journal= or --vault names
    #[arg(value_name = "DEVICE")]
    pub(crate) path: String,

    /// The journal's second device: what journal-mirror= names
    #[arg(long, value_name = "DEVICE")]
    pub(crate) mirror: Option<String>,

    /// State directory of the daemon that used it, which records whether its data is still the
    /// newest
    #[arg(long, value_name = "DIR", env = "FOREBAY_STATE", hide_env_values = true)]
    pub(crate) state: Option<PathBuf>,

    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

impl SourceArguments {
    fn open(&self, read_only: bool) -> anyhow::Result<Source> {
        Source::open(&self.path, self.mirror.as_deref(), read_only, self.state.as_deref())
    }
}

/// Arguments of the read-only commands.
#[derive(Args, Debug)]
pub struct InspectArguments {
    #[command(flatten)]
    source: SourceArguments,
}

/// The exit code for a device that holds no usable journal or vault.
const UNUSABLE: u8 = 2;

/// Selects a volume in a journal or vault.
#[derive(Args, Clone, Debug)]
pub struct VolumeArguments {
    /// The volume, by the name it was served under
    #[arg(long = "volume", value_name = "NAME")]
    name: String,

    /// The volume's number, if several volumes have that name
    #[arg(long, value_name = "N")]
    number: Option<u16>,
}

/// Runs a `forebay rescue` command. `failure` prints an error.
pub fn run(command: RescueCommand, failure: fn(&anyhow::Error) -> ExitCode) -> ExitCode {
    let outcome = match command {
        RescueCommand::List(arguments) => inspect(&arguments.source, show::list, failure),
        RescueCommand::Verify(arguments) => inspect(&arguments.source, show::verify, failure),
        RescueCommand::Apply(arguments) => apply::run(&arguments).map(|()| ExitCode::SUCCESS),
        RescueCommand::Discard(arguments) => {
            release::discard(&arguments).map(|()| ExitCode::SUCCESS)
        }
    };
    outcome.unwrap_or_else(|error| failure(&error))
}

fn inspect(
    arguments: &SourceArguments,
    show: fn(&Source, bool) -> anyhow::Result<ExitCode>,
    failure: fn(&anyhow::Error) -> ExitCode,
) -> anyhow::Result<ExitCode> {
    match arguments.open(true) {
        Ok(source) => show(&source, arguments.json),
        Err(error) => {
            let _ = failure(&error);
            Ok(UNUSABLE.into())
        }
    }
}

#[cfg(test)]
mod tests;
