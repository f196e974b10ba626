//! The removal of volumes.

use super::{Daemon, clients, forget_served, monitors, problem};
use crate::serve::periodic::Periodic;
use forebay_api::{DiscardRequest, Discarded, ErrorKind, Problem};
use forebay_control::ProgressFn;
use forebay_runtime::{taken_over, without_journal};
use forebay_threads::Thread;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Time between two looks for volumes that were taken over.
const INTERVAL: Duration = Duration::from_secs(1);

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

/// Starts the thread that ends volumes whose disks other clients have taken over. Dropping the
/// result ends it.
///
/// # Errors
/// The system refuses a thread.
pub(in crate::serve) fn start(daemon: Arc<Daemon>) -> io::Result<Periodic> {
    Periodic::start(Thread::named("taken-over"), INTERVAL, move || surrender(&daemon))
}

/// Removes the volumes whose disks other clients have taken over, and those that cannot continue
/// without their journals. They are listed as missing. The former are not tried again: the operator
/// adds them, or removes them, once it is known which server is to have them.
pub(super) fn surrender(daemon: &Daemon) {
    let volumes = daemon.runtime.volumes();
    let taken_over = taken_over(volumes);
    let mut all = taken_over.clone();
    all.extend(without_journal(volumes).into_iter().filter(|name| !taken_over.contains(name)));
    for name in all {
        // The next call tries again.
        let Ok(_claim) = daemon.claims.volume(&name) else { continue };
        let spec = daemon.state().volumes.iter().find(|spec| spec.name == name).cloned();
        let Some(spec) = spec else { continue };
        clients::log_connected(&daemon.runtime, Some(&name));
        if let Err(error) = forebay_runtime::surrender(daemon.runtime.volumes(), &name) {
            tracing::error!(volume = %name, %error, "cannot end a volume that was taken over");
            continue;
        }
        forget(daemon, &name);
        daemon.journals.close_if_unused(&daemon.runtime, &spec);
        if taken_over.contains(&name) {
            daemon.missing.end(spec);
        } else {
            let message = "its journal has failed, and another host would not know that it \
                           continues without";
            let remedy = "check the journal's device; the volume is tried again";
            daemon.missing.wait_for(spec, &Problem::new(ErrorKind::Failed, message, remedy));
        }
    }
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
    forget_served(daemon, name);
    monitors::close(daemon, name);
    // Before another volume gets its number.
    daemon.statistics.observe();
    tracing::info!(volume = %name, "volume removed");
}
