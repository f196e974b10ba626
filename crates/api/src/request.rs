//! What clients ask for, and how long operations answer.

use crate::{Problem, VolumeSettings};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A volume to serve.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AddVolume {
    /// What clients ask for: 1 to 256 bytes, without control characters, `=` and `,`.
    pub name: String,
    /// A path, absolute because the server runs elsewhere, or a URL.
    #[schema(example = "/dev/sdb")]
    pub backing: String,
    /// Settings that differ from their defaults.
    #[serde(default)]
    pub settings: VolumeSettings,
}

/// How far a long operation is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct Progress {
    /// Dirty bytes that still have to be written.
    pub dirty_bytes_left: u64,
    /// Dirty bytes when it began. Clients that go on writing can make more of it.
    pub dirty_bytes_total: u64,
}

/// The end of a long operation; a place for what may be told later.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct Done {}

/// One line of the answer to a long operation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Event {
    /// How far it is; any number of lines, each making the ones before obsolete.
    Progress(Progress),
    /// It is done. The last line.
    Done(Done),
    /// It failed. The last line.
    Error(Problem),
}
