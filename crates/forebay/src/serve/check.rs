//! Whether a configuration can be served, without serving it: nothing is locked, opened for writing
//! or changed, so this may be asked beside the daemon that has the same disks.

use super::{memory_bytes, tls};
use crate::report::with_remedy;
use anyhow::{Context, anyhow};
use forebay_backend::{FileError, OpenError};
use forebay_config::{Config, Listen};
use std::path::Path;

/// Checks the memory, the certificates, and that the disks, journals and directories of sockets
/// that are named are there. Not whether a program has them, nor what they hold.
///
/// # Errors
/// It could not be served.
pub(crate) fn check(config: &Config) -> anyhow::Result<()> {
    memory_bytes(config.memory)?;
    tls::load(&config.tls)?;
    for volume in &config.volumes {
        let name = &volume.name;
        check_backing(&volume.backing, &format!("volume '{name}'"))?;
        if let Some(journal) = &volume.journal {
            let what = format!("volume '{name}': its journal");
            let found = check_backing(journal, &what);
            // One of two devices is enough.
            let mirror = volume.journal_mirror.as_deref();
            if mirror.is_none_or(|mirror| check_backing(mirror, &what).is_err()) {
                found?;
            }
        }
    }
    if let Some(vault) = &config.vault {
        match forebay_backend::look(vault) {
            // It is made at the start.
            Err(OpenError::File(FileError::NotFound { path })) if has_directory(&path) => {}
            looked => looked.context("the vault")?,
        }
    }
    config.nbd.iter().try_for_each(check_listener)
}

fn check_backing(backing: &str, what: &str) -> anyhow::Result<()> {
    forebay_backend::look(backing).with_context(|| what.to_owned())
}

fn check_listener(listen: &Listen) -> anyhow::Result<()> {
    match listen {
        Listen::Unix(path) if !has_directory(path) => Err(with_remedy(
            anyhow!("there is no directory for the socket {}", path.display()),
            "make it, or choose another path",
        )),
        _ => Ok(()),
    }
}

fn has_directory(path: &Path) -> bool {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    parent.unwrap_or(Path::new(".")).is_dir()
}
