//! How a backend is opened.

use std::time::Duration;

/// Options for opening a backend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenOptions {
    /// Refuse writes.
    pub read_only: bool,
    /// How long I/O waits for a lost server before it fails, in seconds.
    pub reconnect_seconds: u32,
    /// How long to wait for a file or block device that another program has open. The kernel may
    /// close the files of a killed process a moment after the process is gone.
    pub in_use_wait: Duration,
    /// Refuse a file or block device with a disk image in another format, such as qcow2.
    pub refuse_images: bool,
    /// Have a block device refuse the writes of other hosts, by a persistent reservation.
    pub reserve: bool,
    /// End what another host has of a store that only one may use: its reservation, or its lock.
    pub takes_over: bool,
    /// Only look at a store that another host or process may own: neither lock nor reserve it, and
    /// begin no tenure. It is opened for reading, whoever has it open.
    pub observes: bool,
    /// Which stores of a cluster share a connection: those that are opened with a text in common.
    /// What shuts out one of them shuts out all. Without a text, each has its own.
    pub connection: Vec<String>,
    /// Open a stand-in, see [`crate::try_open`].
    pub is_trial: bool,
}

impl OpenOptions {
    /// Looks at a store, see [`Self::observes`]. All looks at a cluster share a connection.
    pub fn observing() -> Self {
        let connection = vec!["observers".to_owned()];
        Self { read_only: true, observes: true, connection, ..Self::default() }
    }
}

impl Default for OpenOptions {
    fn default() -> Self {
        Self {
            read_only: false,
            reconnect_seconds: 30,
            in_use_wait: Duration::ZERO,
            refuse_images: false,
            reserve: false,
            takes_over: false,
            observes: false,
            connection: Vec::new(),
            is_trial: false,
        }
    }
}
