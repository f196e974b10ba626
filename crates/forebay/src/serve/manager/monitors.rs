//! The sockets of volumes for virtual machine monitors, and their changes by a reload.
//!
//! A reload makes the sockets of another directory first, and changes the rights of those that
//! stay. If that fails, it is undone. Then the new sockets take monitors, and the former ones are
//! closed; monitors that are connected stay connected. A socket whose file was deleted is made
//! again.

use super::{Daemon, device};
use crate::report::{sentence, with_remedy};
use crate::serve::listen;
use anyhow::anyhow;
use forebay_api::Problem;
use forebay_config::{Config, Listen, SocketDirectory};
use forebay_control::{SocketFile, SocketRights};
use forebay_vhost::RINGS_MAX;
use forebay_vhost::block::GuestDisk;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::{Arc, MutexGuard, PoisonError};

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
    let directory = daemon.state().config.vhost_user.clone();
    let Some(directory) = directory else { return Ok(Vec::new()) };
    create(directory.path())?;
    volumes(daemon).iter().map(|volume| bind(daemon, &directory, volume)).collect()
}

fn create(directory: &Path) -> anyhow::Result<()> {
    std::fs::create_dir_all(directory).map_err(|error| {
        let message = anyhow!("cannot create {} for vhost-user: {error}", directory.display());
        with_remedy(message, "choose another directory")
    })
}

fn volumes(daemon: &Daemon) -> Vec<String> {
    daemon.state().volumes.iter().map(|volume| volume.name.clone()).collect()
}

/// Waits until no other thread changes the sockets.
fn change(daemon: &Daemon) -> MutexGuard<'_, bool> {
    daemon.monitors.lock().unwrap_or_else(PoisonError::into_inner)
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
    let mut serves = change(daemon);
    *serves = true;
    for socket in sockets {
        accept_at(daemon, socket);
    }
    // A disk that was missing may have been added since the sockets were made.
    for volume in volumes(daemon) {
        add_at(daemon, &volume);
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
    if *change(daemon) {
        add_at(daemon, volume);
    }
}

fn add_at(daemon: &Daemon, volume: &str) {
    let directory = daemon.state().config.vhost_user.clone();
    let Some(directory) = directory.filter(|it| file_of(daemon, it, volume).is_none()) else {
        return;
    };
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
    let _changing = change(daemon);
    daemon.vhost.close(volume);
    let directory = daemon.state().config.vhost_user.clone();
    if let Some(Ok(address)) = directory.map(|directory| directory.socket_of(volume)) {
        let files = daemon.state().take_socket(&address);
        super::remove_files(files);
    }
}

/// The file of a volume's socket in a directory, if the server has made it.
fn file_of(daemon: &Daemon, directory: &SocketDirectory, volume: &str) -> Option<Arc<SocketFile>> {
    let Ok(Listen::Unix { path, .. }) = directory.socket_of(volume) else { return None };
    daemon.state().sockets.iter().find(|file| file.path() == path).cloned()
}

/// Changes of the sockets that can be applied without an error. Dropped without that, they are
/// undone.
pub(super) struct PreparedMonitors<'a> {
    daemon: &'a Daemon,
    /// No other thread changes them meanwhile.
    _changing: MutexGuard<'a, bool>,
    directory: Option<SocketDirectory>,
    has_made_directory: bool,
    opened: Vec<BoundMonitor>,
    /// Files whose rights were changed, and their former rights.
    changed: Vec<(Arc<SocketFile>, SocketRights)>,
}

impl<'a> PreparedMonitors<'a> {
    /// Makes the sockets of `new` that there are not.
    ///
    /// # Errors
    /// One of another directory cannot be made. Nothing has changed then.
    pub(super) fn prepare(daemon: &'a Daemon, old: &Config, new: &Config) -> anyhow::Result<Self> {
        let mut prepared = Self {
            daemon,
            _changing: change(daemon),
            directory: new.vhost_user.clone(),
            has_made_directory: false,
            opened: Vec::new(),
            changed: Vec::new(),
        };
        match prepared.open() {
            Ok(()) => Ok(prepared),
            // Of a reload that is about something else.
            Err(error) if old.vhost_user == new.vhost_user => {
                let error = sentence(&error);
                tracing::error!(error, "cannot make a socket of vhost-user again");
                Ok(prepared)
            }
            Err(error) => Err(error),
        }
    }

    fn open(&mut self) -> anyhow::Result<()> {
        let Some(directory) = self.directory.clone() else { return Ok(()) };
        self.has_made_directory = !directory.path().exists();
        create(directory.path())?;
        for volume in volumes(self.daemon) {
            match file_of(self.daemon, &directory, &volume) {
                Some(file) if file.path().symlink_metadata().is_ok() => {
                    let address = directory.socket_of(&volume)?;
                    self.change_rights(&address, file)?;
                }
                _ => self.opened.push(bind(self.daemon, &directory, &volume)?),
            }
        }
        Ok(())
    }

    fn change_rights(&mut self, address: &Listen, file: Arc<SocketFile>) -> anyhow::Result<()> {
        let Listen::Unix { access, .. } = address else { return Ok(()) };
        let is_same = self.daemon.state().config.vhost_user == self.directory;
        if !is_same {
            let former = file.rights()?;
            file.change_rights(listen::rights(address, access)?)?;
            self.changed.push((file, former));
        }
        Ok(())
    }

    /// Accepts monitors at the new sockets, and closes those of another directory.
    pub(super) fn apply(mut self) {
        let daemon = self.daemon;
        let removed = {
            let mut state = daemon.state();
            if state.has_stopped {
                return;
            }
            state.config.vhost_user.clone_from(&self.directory);
            let directory = self.directory.as_ref().map(SocketDirectory::path);
            state.sockets.extract_if(.., |file| file.path().parent() != directory).collect()
        };
        // Before the sockets, so that a monitor finds either a listening socket or none.
        super::remove_files(removed);
        if self.directory.is_none() {
            daemon.vhost.stop_listening();
        }
        for socket in std::mem::take(&mut self.opened) {
            accept_at(daemon, socket);
        }
        self.changed.clear();
        self.has_made_directory = false;
    }
}

impl Drop for PreparedMonitors<'_> {
    fn drop(&mut self) {
        for socket in self.opened.drain(..) {
            if let Err(error) = socket.file.remove() {
                tracing::warn!(%error, "cannot remove socket file");
            }
        }
        for (file, former) in self.changed.drain(..) {
            if let Err(error) = file.change_rights(former) {
                let (socket, error) = (file.path().display(), sentence(&error.into()));
                tracing::error!(%socket, error, "cannot restore the socket's rights");
            }
        }
        if let Some(directory) = self.directory.as_ref().filter(|_| self.has_made_directory) {
            // Fails if another program has put something there.
            let _ = std::fs::remove_dir(directory.path());
        }
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
