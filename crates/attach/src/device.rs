//! What the watcher knows of a device: one interface for both drivers of the kernel.

use crate::record::{AttachedVolume, KernelDevice};
use forebay_api::BlockingClient;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

/// What a device does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WatchedState {
    /// This process serves it.
    Live(u32),
    /// Its requests wait for a server.
    Waiting,
    /// The driver is about to change it.
    Changing,
    /// It was never started, or is being removed.
    Stopped,
    /// It is not there.
    Gone,
}

/// A device of the kernel.
pub(crate) trait WatchedDevice {
    /// # Errors
    /// When the driver does not answer.
    fn state(&mut self) -> anyhow::Result<WatchedState>;

    /// Waits for up to `time`, less if the state has changed.
    fn wait(&mut self, time: Duration);

    /// Takes over a device that another process has left. What follows is as for one that waits.
    ///
    /// # Errors
    /// When the server does not answer.
    fn adopt(&mut self, client: &BlockingClient) -> anyhow::Result<()>;

    /// Gives the device, whose requests wait, to the server of `client`, and returns its process.
    ///
    /// # Errors
    /// When no server answers, or the driver refuses. It can be tried again.
    fn give(&mut self, client: &BlockingClient) -> anyhow::Result<u32>;

    /// Why the device keeps its size when its volume has grown. `None` if [`WatchedDevice::grow`]
    /// is for it.
    ///
    /// # Errors
    /// When the driver does not answer.
    fn fixed_size(&mut self) -> anyhow::Result<Option<String>>;

    /// Makes the device larger, because its volume has grown to `size_bytes`. It must be live, and
    /// must not be removed meanwhile: see [`crate::record::ChangeLock`].
    ///
    /// # Errors
    /// When the driver refuses.
    fn grow(&mut self, size_bytes: u64) -> anyhow::Result<()>;

    /// Removes the device. Its requests fail.
    ///
    /// # Errors
    /// When the driver refuses.
    fn remove(&mut self) -> anyhow::Result<()>;
}

/// The device that is to be made for a volume.
pub(crate) struct AttachPlan {
    pub volume: String,
    /// The server's control socket.
    pub socket: PathBuf,
    /// The volume's backing store and its size in bytes.
    pub disk: (String, u64),
    pub queues: Option<u16>,
    pub depth: Option<u16>,
    /// How long requests may wait for a server.
    pub limit: Option<Duration>,
}

impl AttachPlan {
    pub(crate) fn attached(&self, device: KernelDevice) -> AttachedVolume {
        let (volume, socket) = (self.volume.clone(), self.socket.clone());
        AttachedVolume { volume, device, socket, disk: self.disk.clone() }
    }
}

/// Loads a module of the kernel, in which a driver may be. Its failure shows when that is opened.
pub(crate) fn load_module(name: &str) {
    let mut command = Command::new("modprobe");
    command.args(["-q", name]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let _ = command.status();
}
