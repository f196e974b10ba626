//! Whether another server has owned the disk of a volume since this host had it: what this host has
//! of the volume elsewhere is then older than the disk, and must not be written to it.

use super::Daemon;
use crate::keeper::KeeperLink;
use forebay_api::{ErrorKind, Problem};
use forebay_backend::Backend;
use forebay_config::{KeeperMode, VolumeSpec};
use forebay_runtime::{OnRecovered, abandon_in_pool};
use forebay_state::Tenures;
use std::sync::Arc;

/// What this host may use of what it has of a volume.
#[derive(Default)]
pub(super) struct Ownership {
    /// What it has in the pool, in a journal of its own and in the vault is older than the disk.
    pub(super) has_other_owner: bool,
    /// To be called before a client can write.
    pub(super) on_recovered: Option<OnRecovered>,
}

impl Ownership {
    /// Compares the tenure that this host remembers with that of the disk. If the volume has a
    /// journal that other hosts have used with the disk, everything is there: what this host's
    /// pool has is dropped.
    ///
    /// # Errors
    /// The record of this host cannot be read, or the disk does not say who has owned it, although
    /// a keeper may have older data.
    pub(super) fn of(
        daemon: &Daemon,
        spec: &VolumeSpec,
        disk: &Arc<dyn Backend>,
    ) -> Result<Self, Problem> {
        let (name, backing) = (&spec.name, &spec.backing);
        let Some(tenure) = disk.tenure().filter(|_| !spec.config.read_only) else {
            check_unknown(daemon, spec)?;
            return Ok(Self::default());
        };
        let tenures = Tenures { state_dir: daemon.state().config.state.clone() };
        let last = tenures.last(name, backing).map_err(|error| {
            let message = format!(
                "volume '{name}': cannot read in the state directory when this host has owned its \
                 disk: {error}"
            );
            let remedy = "make the file readable, or remove it: what this host has of the volume \
                          then counts as older than the disk";
            Problem::new(ErrorKind::Failed, message, remedy)
        })?;
        let mut has_other_owner = !tenure.follows(last);
        if has_other_owner && daemon.journals.is_shared(spec) {
            let dirty_bytes = abandon_in_pool(daemon.runtime.volumes(), name);
            if dirty_bytes > 0 {
                tracing::warn!(
                    volume = %name,
                    dirty_bytes,
                    "another server has owned the disk: what was in memory here is dropped, its \
                     journal has everything"
                );
            }
            has_other_owner = false;
        }
        let (name, backing, disk) = (name.clone(), backing.clone(), Arc::clone(disk));
        let on_recovered: OnRecovered = Box::new(move || {
            tenures.record(&name, &backing, tenure.own)?;
            disk.settle_tenure()
        });
        Ok(Self { has_other_owner, on_recovered: Some(on_recovered) })
    }
}

/// Refuses a keeper for a reserved disk that does not say who has reserved it.
fn check_unknown(daemon: &Daemon, spec: &VolumeSpec) -> Result<(), Problem> {
    let has_keeper = daemon.state().config.keeper != KeeperMode::No || KeeperLink::is_child();
    if !spec.config.reserve || spec.config.read_only || !has_keeper {
        return Ok(());
    }
    let message = format!(
        "volume '{}': its disk does not say who has reserved it, and a keeper would keep data that \
         is older than the disk once another host has had it",
        spec.name
    );
    Err(Problem::new(ErrorKind::Invalid, message, "start the server with --keeper no"))
}
