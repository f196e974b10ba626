//! The control API: its types, its description and its client.
//!
//! HTTP/1.1 with JSON over a Unix socket, `control.sock` in the state directory. Whoever may open
//! that socket may do everything; there is no other right. The types here are what goes over it,
//! [`paths`] says where, and [`openapi`] describes both from the same source; the description is
//! kept in `openapi.json` next to this crate, and a test fails when it has drifted.
//!
//! Three requests take as long as the disks take: stopping, removing a volume and flushing one.
//! They answer with newline-delimited JSON, one [`Event`] a line: progress while it lasts, and as
//! the last line `done` or `error`. A stream that ends without either was cut off, and the client
//! says so. The price is a content type of our own (`application/x-ndjson`); in return a shell
//! script can follow the progress line by line. What fails at once, such as a volume that does not
//! exist, is answered like every other error, with a status and no stream.

mod blocking;
mod client;
mod description;
mod error;
mod gather;
mod geometry;
mod journal;
pub mod paths;
mod patrol;
mod power;
mod request;
mod settings;
mod status;
mod vault;
mod write_back;

pub use blocking::BlockingClient;
pub use client::{Client, ClientError};
pub use description::openapi;
pub use error::{ErrorBody, ErrorKind, Problem};
pub use gather::{GatherSource, GatherStatus};
pub use geometry::{GeometrySource, GeometryStatus};
pub use journal::{JournalFigures, JournalState, JournalStatus, UnservedWrites};
pub use patrol::{Damage, PatrolStatus};
pub use power::{PowerStatus, SupplyStatus};
pub use request::{AddVolume, Done, Event, Progress};
pub use settings::VolumeSettings;
pub use status::{
    Counters, Latencies, LatencySummary, Memory, Mode, Status, VolumeList, VolumeState,
    VolumeStatus,
};
pub use vault::{DrillReport, DumpSummary, HeldVolume, VaultState, VaultStatus};
pub use write_back::{GovernorStatus, WriteBackFigures};
