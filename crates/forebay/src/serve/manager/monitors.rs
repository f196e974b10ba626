//! The sockets of volumes for virtual machine monitors.

use super::{Daemon, device};
use crate::report::with_remedy;
use crate::serve::listen;
use anyhow::anyhow;
use forebay_api::Problem;
use forebay_config::SocketDirectory;
use forebay_control::SocketFile;
use forebay_vhost::RINGS_MAX;
use forebay_vhost::block::GuestDisk;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;

/// The socket of a volume, whose clients wait until [`accept`].
pub(in crate::serve) struct BoundMonitor {
    volume: String,
    listener: OwnedFd,
    file: SocketFile,
}

/// Makes the sockets of all volumes.
///
/// # Errors
/// The directory or a socket cannot be made.
pub(in crate::serve) fn bind_all(daemon: &Daemon) -> anyhow::Result<Vec<BoundMonitor>> {
    let (directory, volumes) = {
        let state = daemon.state();
        let names = state.volumes.iter().map(|volume| volume.name.clone());
        (state.config.vhost_user.clone(), names.collect::<Vec<_>>())
    };
    let Some(directory) = directory else { return Ok(Vec::new()) };
    let path = directory.path();
    std::fs::create_dir_all(path).map_err(|error| {
        let message = anyhow!("cannot create {} for vhost-user: {error}", path.display());
        with_remedy(message, "choose another directory")
    })?;
    volumes.iter().map(|volume| bind(daemon, &directory, volume)).collect()
}

fn bind(
    daemon: &Daemon,
    directory: &SocketDirectory,
    volume: &str,
) -> anyhow::Result<BoundMonitor> {
    let address = directory.socket_of(volume)?;
    let (listener, file) = listen::bind_unix(&address, daemon.in_use_wait)?;
    Ok(BoundMonitor { volume: volume.to_owned(), listener: listener.into(), file })
}

/// Accepts monitors, at these sockets, and at those of volumes that are added from now on.
pub(in crate::serve) fn accept(daemon: &Daemon, sockets: Vec<BoundMonitor>) {
    daemon.serves_monitors.store(true, Ordering::Relaxed);
    let bound: Vec<String> = sockets.iter().map(|socket| socket.volume.clone()).collect();
    for socket in sockets {
        accept_at(daemon, socket);
    }
    // A disk that was missing may have been added since the sockets were made.
    let served: Vec<String> = daemon.state().volumes.iter().map(|it| it.name.clone()).collect();
    for volume in served.iter().filter(|volume| !bound.contains(volume)) {
        add(daemon, volume);
    }
}

fn accept_at(daemon: &Daemon, socket: BoundMonitor) {
    let BoundMonitor { volume, listener, file } = socket;
    let served = block_device(daemon, &volume).map_err(|problem| anyhow!(problem.message));
    let listening = served.and_then(|device| Ok(daemon.vhost.listen(&volume, listener, device)?));
    if let Err(error) = listening {
        tracing::error!(%volume, %error, "no virtual machine can use the volume");
    }
    daemon.state().keep_socket(file);
}

/// Makes and serves the socket of a volume that was added to a running server, if there are such
/// sockets. The volume is served without it if it cannot be made.
pub(super) fn add(daemon: &Daemon, volume: &str) {
    let directory = daemon.state().config.vhost_user.clone();
    let serves = daemon.serves_monitors.load(Ordering::Relaxed);
    let Some(directory) = directory.filter(|_| serves) else { return };
    match bind(daemon, &directory, volume) {
        Ok(socket) => accept_at(daemon, socket),
        Err(error) => {
            let error = format!("{error:#}");
            tracing::error!(%volume, error, "no virtual machine can use the volume");
        }
    }
}

/// Closes the socket of a volume that was removed.
pub(super) fn close(daemon: &Daemon, volume: &str) {
    daemon.vhost.close(volume);
    let directory = daemon.state().config.vhost_user.clone();
    if let Some(Ok(address)) = directory.map(|directory| directory.socket_of(volume)) {
        let files = daemon.state().take_socket(&address);
        super::remove_files(files);
    }
}

/// A volume as the disk of a virtual machine.
fn block_device(daemon: &Daemon, volume: &str) -> Result<GuestDisk, Problem> {
    let disk = device::describe(daemon, volume)?;
    Ok(GuestDisk {
        bytes: disk.size_bytes,
        is_read_only: disk.read_only,
        logical_block_bytes: disk.logical_block_bytes,
        physical_block_bytes: disk.physical_block_bytes,
        optimal_bytes: disk.optimal_bytes,
        can_discard: disk.can_discard,
        rings: RINGS_MAX,
    })
}
