//! Checks a configuration without serving it. It locks, writes and changes nothing, so it can run
//! beside a daemon that uses the same disks.

use super::manager::vigil;
use super::{dashboard, journals, listen, memory, power, site, successor, tls, vault};
use crate::report::{self, problem as problem_of, with_remedy};
use anyhow::{Context, anyhow};
use forebay_api::Problem;
use forebay_backend::OpenOptions;
use forebay_config::{Config, VolumeSpec};
use forebay_format::journal::Geometry;
use forebay_runtime::JournalError;
use forebay_state::Kind;
use forebay_types::{Action, DiskFormat, Remedy, Size};
use rustix::fs::{Access, AtFlags};

/// Checks what a start would, as far as that is known without locking, connecting or writing
/// anything: the memory size, the certificates, the UPS settings, the addresses, the state
/// directory, and disks, journals and vault up to whether they accept writes. Not whether they are
/// free, what a journal or vault holds, or whether servers can be reached: the daemon may still
/// fail to start. If a server runs this check before an upgrade, its own memory counts as
/// available.
///
/// # Errors
/// Returns the first fault found.
pub(crate) fn check(config: &Config) -> anyhow::Result<()> {
    let memory = memory::choose(config, successor::memory_of_server())?;
    tls::load(&config.tls)?;
    power::check(&config.ups)?;
    dashboard::check(config)?;
    site::check(config)?;
    check_state(config)?;
    let mut bytes = memory.start_bytes;
    for volume in &config.volumes {
        volume.check_ups(&config.ups.upses, config.vault.is_some())?;
        vigil::check(volume)
            .map_err(|problem| with_remedy(anyhow!(problem.message), problem.remedy))?;
        match try_disk(volume) {
            Err(problem) if volume.config.nofail || volume.config.standby => {
                report::warn(&format!(
                    "{}, and may be missing: {}",
                    problem.message, problem.remedy
                ));
                continue;
            }
            tried => {
                tried.map_err(|problem| with_remedy(anyhow!(problem.message), problem.remedy))?;
            }
        }
        check_journal(volume).with_context(|| format!("volume '{}'", volume.name))?;
        if let Some(volume_bytes) = forebay_backend::allocated_bytes(&volume.backing) {
            bytes = bytes.saturating_add(volume_bytes);
            let used_bytes = successor::memory_of_server().used_bytes;
            memory::check_growth(bytes, config.memory.reserve, used_bytes).with_context(|| {
                format!("volume '{}' takes {} of memory", volume.name, Size(volume_bytes))
            })?;
        }
    }
    config.vault.as_ref().map_or(Ok(()), |vault| vault::check(vault, memory.start_bytes))?;
    if let Some(directory) = &config.vhost_user {
        for volume in &config.volumes {
            listen::check_rights(&directory.socket_of(&volume.name)?)?;
        }
    }
    successor::activated_of_server().check(&config.nbd, &config.tls)?;
    config.nbd.iter().try_for_each(|address| listen::check(address, &config.tls, &config.state))
}

/// Checks that the disk of a volume could be opened, if it is free.
///
/// # Errors
/// Fails as an addition of the volume would.
pub(super) fn try_disk(volume: &VolumeSpec) -> Result<(), Problem> {
    let options = OpenOptions {
        read_only: volume.config.read_only,
        refuse_images: volume.config.format == DiskFormat::Auto,
        reserve: volume.config.reserve,
        ..OpenOptions::default()
    };
    forebay_backend::try_open(&volume.backing, &options).map(drop).map_err(|error| {
        let problem = problem_of(&error);
        Problem { message: format!("volume '{}': {}", volume.name, problem.message), ..problem }
    })
}

/// Checks that the devices of a volume's journal could be opened, if they are free. A mirrored
/// journal starts with one of its devices.
fn check_journal(volume: &VolumeSpec) -> anyhow::Result<()> {
    let Some(journal) = &volume.config.journal else { return Ok(()) };
    let found = try_journal(journal);
    let mirror = volume.config.journal_mirror.as_ref().map(|mirror| try_journal(mirror));
    match (found, mirror) {
        (Err(_), Some(Ok(found))) | (Ok(found), Some(Err(_)) | None) => found,
        (Ok(found), Some(Ok(mirror))) => found.and(mirror),
        (Err(error), Some(Err(_)) | None) => Err(error),
    }
}

/// Opens a stand-in for a device of a journal. The outer error is that of opening it, the inner one
/// that of using it.
fn try_journal(name: &str) -> anyhow::Result<anyhow::Result<()>> {
    let device = forebay_backend::try_open(name, &OpenOptions::default());
    let device = device.context("its journal")?;
    let bytes = device.description().size_bytes();
    let name = name.to_owned();
    Ok(match journals::check_lasts(&*device) {
        Err(message) => Err(with_remedy(anyhow!(message), journals::MEMORY_REMEDY)),
        Ok(()) if Geometry::for_size(bytes).is_none() => {
            Err(JournalError::Small { name, bytes }.into())
        }
        Ok(()) => Ok(()),
    })
}

fn check_state(config: &Config) -> anyhow::Result<()> {
    let uses = [
        (Kind::Journal, config.volumes.iter().any(|volume| volume.config.journal.is_some())),
        (Kind::Vault, config.vault.is_some()),
    ];
    for (kind, _) in uses.into_iter().filter(|(_, is_used)| *is_used) {
        journals::check_state_dir(&config.state, kind).map_err(|message| {
            with_remedy(anyhow!(message), Action::set("state", "/var/lib/forebay"))
        })?;
    }
    // A directory that does not exist is created.
    let existing = config.state.ancestors().find(|place| place.exists());
    let (access, flags) = (Access::WRITE_OK | Access::EXEC_OK, AtFlags::EACCESS);
    existing.map_or(Ok(()), |place| {
        rustix::fs::accessat(rustix::fs::CWD, place, access, flags).map_err(|error| {
            let what = format!("cannot write to the state directory {}", config.state.display());
            let remedy = Remedy::from("check its permissions").or(Action::NameState);
            with_remedy(anyhow::Error::new(error).context(what), remedy)
        })
    })
}
