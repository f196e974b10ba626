//! An address that moves with the volume, and servers whose disk is the volume at that address:
//! what happens to the owner is a pause for them and not an error.

use crate::forebay::Forebay;
use anyhow::{Result, ensure};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Servers through which all clients reach the volume.
const FRONTS: usize = 2;
/// The memory of each, in bytes.
const MEMORY_BYTES: u64 = 32 << 20;

/// The address. It is with one host, none or, after a cut, with both.
#[derive(Clone, Debug)]
pub struct MovingAddress {
    /// Shell command with {verb} and {host}: `bring` gives a host the address, `drop` takes it,
    /// `cut` cuts a host off from its clients, `heal` connects it again.
    pub command: String,
}

impl MovingAddress {
    /// Has the command do `verb` to a host.
    ///
    /// # Errors
    /// If it fails.
    pub fn apply(&self, verb: &str, host: usize) -> Result<()> {
        let command = self.command.replace("{verb}", verb).replace("{host}", &host.to_string());
        let output = Command::new("sh").args(["-c", &command]).output()?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{command}: {said}");
        Ok(())
    }

    /// Moves the address from one host to another. A host that is out of reach keeps it.
    ///
    /// # Errors
    /// If the command fails.
    pub fn move_to(&self, from: Option<usize>, to: usize) -> Result<()> {
        if let Some(from) = from {
            self.apply("drop", from)?;
        }
        self.apply("bring", to)
    }
}

/// Starts the servers of the clients, with their files in folders of `folder`. They keep nothing:
/// each request goes to the address.
///
/// # Errors
/// If they cannot be started, or do not reach the volume.
pub fn start_fronts(
    programs: &Path,
    folder: &Path,
    disk: &str,
    volume: &str,
) -> Result<Vec<Forebay>> {
    let mut fronts = Vec::new();
    for front in 0..FRONTS {
        let dir: PathBuf = folder.join(format!("front-{front}"));
        std::fs::create_dir_all(&dir)?;
        let volumes = [format!("{volume}={disk},mode=bypass")];
        fronts.push(Forebay::start(programs, &dir, &volumes, MEMORY_BYTES, &[])?);
    }
    Ok(fronts)
}
