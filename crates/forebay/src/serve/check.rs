//! Checks a configuration without serving it. It locks, writes and changes nothing, so it can run
//! beside a daemon that uses the same disks.

use super::vault::can_be_created;
use super::{dashboard, journals, listen, memory, power, successor, tls};
use crate::reliance::Kind;
use crate::report::with_remedy;
use anyhow::{Context, anyhow};
use forebay_backend::{FileError, OpenError};
use forebay_config::{Config, Listen};
use forebay_types::Action;

/// Checks the memory size, the certificates, the UPS settings, the addresses, whether the state
/// directory outlives a reboot if it must, and that the named disks, journals, vault and socket
/// directories exist. Does not check that they are free, or what they hold, so the daemon may still
/// fail to start. If a server runs this check before an upgrade, its own memory counts as
/// available.
///
/// # Errors
/// Returns the first fault found.
pub(crate) fn check(config: &Config) -> anyhow::Result<()> {
    memory::choose(config, successor::memory_of_server())?;
    tls::load(&config.tls)?;
    power::check(&config.ups)?;
    dashboard::check(config)?;
    check_state(config)?;
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
        let is_created = forebay_backend::plain_path(vault).is_some_and(can_be_created);
        match forebay_backend::check(vault) {
            Err(OpenError::File(FileError::NotFound { .. })) if is_created => {}
            result => result.context("the vault")?,
        }
    }
    // The start creates the state directory.
    let state = Some(config.state.as_path());
    let is_there =
        |address: &&Listen| matches!(address, Listen::Unix(path) if path.parent() == state);
    let mut elsewhere = config.nbd.iter().filter(|address| !is_there(address));
    elsewhere.try_for_each(|address| listen::check(address, &config.tls))
}

fn check_state(config: &Config) -> anyhow::Result<()> {
    let uses = [
        (Kind::Journal, config.volumes.iter().any(|volume| volume.journal.is_some())),
        (Kind::Vault, config.vault.is_some()),
    ];
    for (kind, _) in uses.into_iter().filter(|(_, is_used)| *is_used) {
        journals::check_state_dir(&config.state, kind).map_err(|message| {
            with_remedy(anyhow!(message), Action::set("state", "/var/lib/forebay"))
        })?;
    }
    Ok(())
}

fn check_backing(backing: &str, what: &str) -> anyhow::Result<()> {
    forebay_backend::check(backing).with_context(|| what.to_owned())
}
