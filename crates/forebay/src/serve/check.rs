//! Checks a configuration without serving it. It locks, writes and changes nothing, so it can run
//! beside a daemon that uses the same disks.

use super::{memory_bytes, successor, tls};
use crate::report::with_remedy;
use anyhow::{Context, anyhow};
use forebay_backend::{FileError, OpenError};
use forebay_config::{Config, Listen};
use std::path::Path;

/// Checks the memory size, the certificates, and that the named disks, journals, vault and socket
/// directories exist. Does not check that they are free, what they hold, or the UPS settings, so
/// the daemon may still fail to start. If a server runs this check before an upgrade, its own memory
/// counts as available.
///
/// # Errors
/// Returns the first fault found.
pub(crate) fn check(config: &Config) -> anyhow::Result<()> {
    memory_bytes(config.memory, successor::memory_of_server())?;
    tls::load(&config.tls)?;
    for volume in &config.volumes {
        let name = &volume.name;
        check_backing(&volume.backing, &format!("volume '{name}'"))?;
        if let Some(journal) = &volume.journal {
            let what = format!("volume '{name}': its journal");
            let found = check_backing(journal, &what);
            // A mirrored journal starts with one of its devices.
            let mirror = volume.journal_mirror.as_deref();
            if mirror.is_none_or(|mirror| check_backing(mirror, &what).is_err()) {
                found?;
            }
        }
    }
    if let Some(vault) = &config.vault {
        match forebay_backend::check(vault) {
            // The start creates it.
            Err(OpenError::File(FileError::NotFound { path })) if has_directory(&path) => {}
            result => result.context("the vault")?,
        }
    }
    config.nbd.iter().try_for_each(check_listener)
}

fn check_backing(backing: &str, what: &str) -> anyhow::Result<()> {
    forebay_backend::check(backing).with_context(|| what.to_owned())
}

fn check_listener(listen: &Listen) -> anyhow::Result<()> {
    match listen {
        Listen::Unix(path) if !has_directory(path) => Err(with_remedy(
            anyhow!("the directory of the socket {} does not exist", path.display()),
            "create it, or choose another path",
        )),
        _ => Ok(()),
    }
}

fn has_directory(path: &Path) -> bool {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    parent.unwrap_or(Path::new(".")).is_dir()
}
