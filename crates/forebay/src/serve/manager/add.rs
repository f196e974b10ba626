//! Adds volumes: opens a disk with its journal, and hands both to the runtime.

use super::missing::Rest;
use super::ownership::Ownership;
use super::{Daemon, add_served, monitors, moves, problem, vigil};
use crate::report::problem as problem_of;
use crate::serve::calibrations::Disk;
use crate::serve::changes::log_frozen;
use crate::serve::journals::StoreAccess;
use crate::serve::vault;
use forebay_api::{ErrorKind, Problem};
use forebay_backend::{Description, OpenOptions};
use forebay_config::{ResolvedGeometry, VolumeSpec};
use forebay_runtime::{VolumeError, VolumeSettings};
use forebay_state::identity;
use forebay_types::{DiskFormat, DiskGeometry, Size, TlsUse};
use std::sync::Arc;

/// How the disk of a volume is opened.
pub(in crate::serve) struct Opening<'a> {
    pub(in crate::serve) access: StoreAccess,
    /// Whether the volume is still to be added, once its disk is open.
    pub(in crate::serve) is_wanted: &'a dyn Fn() -> bool,
}

impl Opening<'_> {
    /// Waits for disks in use as the daemon does.
    pub(in crate::serve) fn of(daemon: &Daemon) -> Self {
        Self { access: StoreAccess::waiting(daemon.in_use_wait), is_wanted: &|| true }
    }
}

/// Adds a volume of the configuration, or has it tried again later if it is not required.
pub(super) fn add_configured(daemon: &Daemon, spec: VolumeSpec) -> Result<(), Problem> {
    if spec.config.standby {
        vigil::check(&spec)?;
        daemon.missing.stand_by(spec, Rest::None);
        return Ok(());
    }
    match add(daemon, spec.clone(), &Opening::of(daemon)) {
        Err(problem) if spec.config.nofail => {
            daemon.missing.wait_for(spec, &problem);
            Ok(())
        }
        added => added,
    }
}

/// Adds a volume. Takes no figures of other volumes, so that a start is linear.
pub(in crate::serve) fn add(
    daemon: &Daemon,
    mut spec: VolumeSpec,
    opening: &Opening<'_>,
) -> Result<(), Problem> {
    check_new(daemon, &spec)?;
    let (read_only, access) = (spec.config.read_only, opening.access);
    let refuse_images =
        spec.config.format == DiskFormat::Auto && !daemon.runtime.is_in_pool(&spec.name);
    let options = OpenOptions { read_only, refuse_images, ..access.options(&spec) };
    let backend = forebay_backend::open(&spec.backing, &options).map_err(|error| {
        let here = in_use_here(daemon, &spec.backing);
        let problem = here.map_or_else(|| problem_of(&error), problem);
        Problem { message: format!("volume '{}': {}", spec.name, problem.message), ..problem }
    })?;
    // After the open, which may hang: without a claim it blocks no other command, nor a stop.
    let _claim = daemon.claims.volume(&spec.name)?;
    if !(opening.is_wanted)() {
        return Err(problem(VolumeError::Leaving(spec.name)));
    }
    let lease = daemon.journals.lease();
    let (journal, first) = daemon.journals.to_begin_with(&daemon.runtime, &spec, access)?;
    let wanted = std::mem::replace(&mut spec, first);
    let ownership = Ownership::of(daemon, &spec, &backend)?;
    let size = Size(backend.description().size_bytes());
    let geometry = geometry(daemon, &spec, backend.description());
    let medium = backend.medium();
    let disk = Disk::new(&spec.backing, backend.description());
    let split_cost = daemon.calibrations.cost_of(&disk);
    let calibrations = Arc::clone(&daemon.calibrations);
    let settings = VolumeSettings {
        name: spec.name.clone(),
        backend,
        config: spec.config.clone(),
        identity: identity(&spec.name, &spec.backing),
        geometry,
        gather_below: None,
        split_cost,
        on_measured: Some(Arc::new(move |cost| calibrations.keep(&disk, cost))),
        journal,
        vault: vault::of_volume(daemon.runtime.volumes().protectors().vault().as_ref(), &spec),
        accept_disk: daemon.journals.accepts_disk_of(&spec.name),
        has_other_owner: ownership.has_other_owner,
        on_recovered: ownership.on_recovered,
    };
    if let Err(error) = daemon.runtime.volumes().add(settings) {
        list_half_added(daemon, spec);
        return Err(problem(error));
    }
    let (VolumeSpec { name, backing, .. }, mode) = (&spec, spec.config.mode);
    tracing::info!(volume = %name, %backing, %size, %mode, "volume added");
    daemon.notes.set(name, &medium, &daemon.journals.media_of(&spec));
    if spec.config.frozen {
        log_frozen(name, true);
    }
    let name = spec.name.clone();
    add_served(daemon, spec.clone());
    daemon.missing.forget(&name);
    drop(lease);
    if spec != wanted {
        moves::complete(daemon, &spec, wanted);
    }
    monitors::add(daemon, &name);
    Ok(())
}

/// Checks a volume before anything of it is opened, and warns of a UPS without a vault.
fn check_new(daemon: &Daemon, spec: &VolumeSpec) -> Result<(), Problem> {
    check_name(daemon, &spec.name)?;
    check_tls(daemon, spec)?;
    check_shared_journal(daemon, spec)?;
    vigil::check(spec)?;
    let has_vault = daemon.runtime.volumes().protectors().vault().is_some();
    spec.check_ups(&daemon.state().config.ups.upses, has_vault)
        .map_err(|error| problem_of(&error))?;
    if spec.config.protection.has_ups() && !has_vault {
        tracing::warn!(
            volume = %spec.name,
            "no vault: the UPS does not protect the volume, which writes through if its \
             journal fails"
        );
    }
    if let Some(bytes) = forebay_backend::allocated_bytes(&spec.backing) {
        daemon.sizing.check_beside(&spec.name, bytes)?;
    }
    Ok(())
}

/// Refuses a journal that another volume has opened without reserving it, or with.
fn check_shared_journal(daemon: &Daemon, spec: &VolumeSpec) -> Result<(), Problem> {
    let config = &spec.config;
    let state = daemon.state();
    let other = state.volumes.iter().find(|other| {
        let has_journal = config.journal.is_some() && other.config.journal == config.journal;
        has_journal && other.config.reserve != config.reserve
    });
    let Some(other) = other else { return Ok(()) };
    let message = format!(
        "volumes '{}' and '{}' share a journal, and only one of them has reserve=yes",
        spec.name, other.name
    );
    let remedy = "set reserve alike for both, or name another journal";
    Err(Problem::new(ErrorKind::Invalid, message, remedy))
}

/// Refuses the name of a served volume. Without this, an addition of the same disk under the
/// same name would fail because the disk is in use.
fn check_name(daemon: &Daemon, name: &str) -> Result<(), Problem> {
    if daemon.state().volumes.iter().all(|volume| volume.name != name) {
        return Ok(());
    }
    let volumes = daemon.volume_figures();
    match volumes.iter().find(|volume| volume.name == name) {
        None => Ok(()),
        Some(half) if half.half_added => Err(problem(VolumeError::HalfAdded(name.to_owned()))),
        Some(_) => Err(problem(VolumeError::NameInUse(name.to_owned()))),
    }
}

/// The error for a disk that cannot be opened because a volume of this server has it.
fn in_use_here(daemon: &Daemon, backing: &str) -> Option<VolumeError> {
    let identity = Some(forebay_backend::identity_of(backing)?);
    let mut volumes = daemon.volume_figures().into_iter();
    let volume = volumes.find(|it| it.backing.identity == identity)?.name;
    Some(VolumeError::BackingInUse { backing: backing.to_owned(), volume })
}

/// Resolves the geometry of a volume's disk. Logs inconsistencies; the status shows them too.
fn geometry(daemon: &Daemon, spec: &VolumeSpec, disk: &Description) -> DiskGeometry {
    let found =
        ResolvedGeometry::new(&spec.config, &disk.geometry, daemon.runtime.stripe_bytes_max());
    for note in &found.notes {
        tracing::warn!(volume = %spec.name, %note, "inconsistent disk geometry");
    }
    found.used()
}

/// Refuses `tls=required` if TLS is off, as no client could reach the volume.
pub(super) fn check_tls(daemon: &Daemon, spec: &VolumeSpec) -> Result<(), Problem> {
    if spec.config.tls != TlsUse::Required || daemon.tls.is_on() {
        return Ok(());
    }
    let message = format!("volume '{}' has tls=required, but TLS is off", spec.name);
    let remedy = "start the server with --tls selective, --tls-cert and --tls-key";
    Err(Problem::new(ErrorKind::Invalid, message, remedy))
}

/// Lists a volume whose addition failed, if that could not be undone: it has to be removed.
fn list_half_added(daemon: &Daemon, spec: VolumeSpec) {
    let volumes = daemon.volume_figures();
    let is_left = volumes.iter().any(|volume| volume.name == spec.name && volume.half_added);
    let mut state = daemon.state();
    if is_left && state.volumes.iter().all(|volume| volume.name != spec.name) {
        state.volumes.push(spec);
    }
}
