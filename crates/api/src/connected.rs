//! The connected clients.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The clients that are connected, each connection by itself, the longest connected first.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct ConnectedClients {
    /// Identifies the server. A server that takes over the clients of another one continues with
    /// its number and theirs; 0 of a server that takes none over.
    #[serde(default)]
    pub instance: u64,
    /// The clients, also those that have not chosen a volume yet.
    pub clients: Vec<ConnectedClient>,
}

/// One connection of a client.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct ConnectedClient {
    /// Its number, by which it can be disconnected. Numbers begin at 1 with each server, and are
    /// not reused by it.
    pub id: u64,
    /// The volume; none until the client has chosen one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub volume: Option<String>,
    /// What it is, as text: the process or address, and for a client in the kernel its devices and
    /// where they are in use.
    #[schema(example = "process 812 (nbd-client), /dev/nbd0 mounted at /srv")]
    pub client: String,
    /// Its address and port, if it is connected over TCP.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// The process that has connected the Unix socket.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub process: Option<u32>,
    /// The name of that process's program, while it runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub program: Option<String>,
    /// The user of that process, by name if it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// When it connected, in UTC.
    #[schema(example = "2026-02-28T13:05:09Z")]
    pub connected_at: String,
    /// Whether the connection is encrypted with TLS.
    pub tls: bool,
    /// Requests that are not answered yet.
    pub requests_in_flight: u64,
    /// Bytes that it has read.
    pub read_bytes: u64,
    /// Bytes that it has written.
    pub written_bytes: u64,
}
