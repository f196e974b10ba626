//! `forebay rescue`: looks into a journal or a vault, and brings what it holds to a disk, without a
//! daemon.
//!
//! What it opens it locks, as the daemon does, so neither ever sees the other at work. It changes a
//! log in one way only: a new superblock, in place of the older of the two copies, says that a
//! volume's records are void; where a journal has two devices, they are brought to the same first.
//! Whatever interrupts it before that leaves everything as it was, and the same command may be
//! given again.

mod access;
mod apply;
mod log;
mod release;
mod show;
mod source;

use crate::cli::is_root;
use crate::report;
use clap::{Args, Subcommand};
use forebay_config::default_state;
use source::Source;
use std::path::PathBuf;
use std::process::ExitCode;

/// What can be done with a journal or a vault.
#[derive(Debug, Subcommand)]
pub(crate) enum RescueCommand {
    /// Show which journal or vault it is and what it holds of which volume
    List(LookArguments),
    /// Read everything and check every checksum
    #[command(long_about = "Read everything and check every checksum.\n\
        Ends with 0 if it is whole, 1 if something in it is damaged or missing, 2 if it can't be \
        used.")]
    Verify(LookArguments),
    /// Write what it holds of a volume to a disk, compare, and mark it as done
    Apply(apply::ApplyArguments),
    /// Give up what it holds of a volume
    Discard(release::DiscardArguments),
}

/// Which journal or vault is meant.
#[derive(Args, Clone, Debug)]
pub(crate) struct SourceArguments {
    /// The journal or vault: what journal= or --vault names
    #[arg(value_name = "DEVICE")]
    pub(crate) path: String,

    /// The journal's second device: what journal-mirror= names
    #[arg(long, value_name = "DEVICE")]
    pub(crate) mirror: Option<String>,

    /// State directory of the daemon that had it, where its failure would be on record
    /// [default: /run/forebay for root, else $XDG_RUNTIME_DIR/forebay]
    #[arg(long, value_name = "DIR", env = "FOREBAY_STATE", hide_env_values = true)]
    pub(crate) state: Option<PathBuf>,

    /// Say it as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

impl SourceArguments {
    fn open(&self, read_only: bool) -> anyhow::Result<Source> {
        let state_dir = self.state_dir();
        Source::open(&self.path, self.mirror.as_deref(), read_only, state_dir.as_deref())
    }

    fn state_dir(&self) -> Option<PathBuf> {
        self.state.clone().or_else(|| default_state(is_root()))
    }
}

/// Arguments of commands that only look.
#[derive(Args, Debug)]
pub(crate) struct LookArguments {
    #[command(flatten)]
    source: SourceArguments,
}

/// The exit code for what can't be used at all.
const UNUSABLE: u8 = 2;

/// Which volume of it is meant.
#[derive(Args, Clone, Debug)]
pub(crate) struct VolumeArguments {
    /// The volume, by the name it was served under
    #[arg(long = "volume", value_name = "NAME")]
    name: String,

    /// Its number there, where several have that name
    #[arg(long, value_name = "N")]
    number: Option<u16>,
}

/// Does what is asked.
pub(crate) fn run(command: RescueCommand) -> ExitCode {
    let outcome = match command {
        RescueCommand::List(arguments) => look(&arguments.source, show::list),
        RescueCommand::Verify(arguments) => look(&arguments.source, show::verify),
        RescueCommand::Apply(arguments) => apply::run(&arguments).map(|()| ExitCode::SUCCESS),
        RescueCommand::Discard(arguments) => {
            release::discard(&arguments).map(|()| ExitCode::SUCCESS)
        }
    };
    outcome.unwrap_or_else(|error| report::failure(&error))
}

fn look(
    arguments: &SourceArguments,
    show: fn(&Source, bool) -> anyhow::Result<ExitCode>,
) -> anyhow::Result<ExitCode> {
    match arguments.open(true) {
        Ok(source) => show(&source, arguments.json),
        Err(error) => {
            let _ = report::failure(&error);
            Ok(UNUSABLE.into())
        }
    }
}

#[cfg(test)]
mod tests;
