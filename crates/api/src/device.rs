//! Volumes as block devices of the server's machine.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A block device that the kernel's ublk driver has made, for the server to serve a volume on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ServeDevice {
    /// Its number: the server opens `/dev/ublkcNUMBER`.
    pub ublk: u32,
    /// Its queues.
    #[schema(minimum = 1, maximum = 64)]
    pub queues: u16,
    /// Requests in flight of each queue at most.
    #[schema(minimum = 1, maximum = 4096)]
    pub depth: u16,
}

/// The size of a volume whose disk was measured again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct VolumeSize {
    /// Its size in bytes.
    pub size_bytes: u64,
    /// Its size before, in bytes.
    pub former_bytes: u64,
}

/// What the kernel has to know of a volume that is served on a block device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct ServedDevice {
    /// The process that serves it.
    pub pid: u32,
    /// Its size in bytes.
    pub size_bytes: u64,
    /// Whether writes are refused.
    pub read_only: bool,
    /// Whether its disk turns.
    pub rotational: bool,
    /// The unit in which its disk is addressed, in bytes: 512 or more.
    pub logical_block_bytes: u32,
    /// The smallest unit that its disk writes without reading, in bytes.
    pub physical_block_bytes: u32,
    /// The best unit of large writes, as a stripe, in bytes; 0 if unknown.
    pub optimal_bytes: u32,
    /// Whether discards reach its disk.
    pub can_discard: bool,
}

/// A block device of the kernel's NBD client that is about to be connected to the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ConnectDevice {
    /// The device's last connection, if it has had one. While requests of it are in flight, the
    /// server refuses another one: one of them would be carried out after its repetition.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replaces: Option<DeviceConnection>,
}

/// A connection of a client to a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct DeviceConnection {
    /// The server, as [`ConnectedDevice::instance`].
    pub instance: u64,
    /// The client's number in the list of that server's clients.
    pub client: u64,
}

/// Where a block device of the kernel's NBD client is connected.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct ConnectedDevice {
    /// What the kernel has to know of the volume.
    pub device: ServedDevice,
    /// Identifies this run of the server, as its process may not: a container has few.
    pub instance: u64,
    /// The path of the server's Unix socket; none if it has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unix: Option<String>,
    /// The server's TCP address as this machine reaches it; none if it has a Unix socket.
    #[schema(example = "127.0.0.1:10809")]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tcp: Option<String>,
}
