//! The removal of volumes.

use super::{Daemon, clients, monitors, problem};
use forebay_api::{DiscardRequest, Discarded, ErrorKind, Problem};
use forebay_control::ProgressFn;
use std::path::Path;

/// Removes a volume. With `force`, even if clients are connected to it.
pub(super) fn remove(
    daemon: &Daemon,
    name: &str,
    force: bool,
    progress: ProgressFn<'_>,
) -> Result<(), Problem> {
    let _claim = daemon.claims.volume(name)?;
    if daemon.missing.forget(name) {
        return Ok(());
    }
    check_clients(daemon, name, force)?;
    daemon.runtime.volumes().remove(name, daemon.observing(progress)).map_err(problem)?;
    forget(daemon, name);
    Ok(())
}

/// Removes a volume although its disk does not take its data.
pub(super) fn discard(
    daemon: &Daemon,
    name: &str,
    request: &DiscardRequest,
) -> Result<Discarded, Problem> {
    let save_to = request.save_to.as_deref().map(Path::new);
    if let Some(path) = save_to.filter(|path| !path.is_absolute()) {
        let message = format!("'{}' is not an absolute path", path.display());
        return Err(Problem::new(ErrorKind::Invalid, message, "name the whole path"));
    }
    let _claim = daemon.claims.volume(name)?;
    check_clients(daemon, name, request.force)?;
    let discarded = daemon.runtime.volumes().discard(name, save_to);
    let discarded = discarded.map_err(problem)?;
    forget(daemon, name);
    Ok(Discarded {
        bytes: discarded.bytes,
        saved_to: discarded.saved_to.map(|path| path.display().to_string()),
        may_lack_more: discarded.may_lack_more,
    })
}

/// Refuses a removal while clients are connected. With `force`, logs them.
fn check_clients(daemon: &Daemon, name: &str, force: bool) -> Result<(), Problem> {
    if force {
        clients::log_connected(&daemon.runtime, Some(name));
        return Ok(());
    }
    clients::refuse_connected(&daemon.runtime, Some(name))
}

fn forget(daemon: &Daemon, name: &str) {
    daemon.state().volumes.retain(|spec| spec.name != name);
    monitors::close(daemon, name);
    // Before another volume gets its number.
    daemon.statistics.observe();
    tracing::info!(volume = %name, "volume removed");
}
