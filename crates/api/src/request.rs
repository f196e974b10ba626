//! Bodies of requests, and the answers to long operations.

use crate::{Problem, VolumeSettings};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A volume to serve.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AddVolume {
    /// The name that clients use: 1 to 256 bytes, without control characters, `=` and `,`.
    pub name: String,
    /// An absolute path or a URL.
    #[schema(example = "/dev/sdb")]
    pub backing: String,
    /// Settings that differ from their defaults.
    #[serde(default)]
    pub settings: VolumeSettings,
}

/// Settings of the server that can change while it runs. One left out stays unchanged.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ServerSettings {
    /// Memory for the cache, between the minimum and the maximum in the status, or `auto`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(example = "512MiB")]
    pub memory: Option<String>,
    /// Memory that the cache keeps while other programs run short of it, or `auto`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(example = "64MiB")]
    pub memory_min: Option<String>,
    /// The most that `memory=auto` takes, or `auto`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(example = "4GiB")]
    pub memory_max: Option<String>,
    /// Memory left to the system, or `auto`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(example = "500MiB")]
    pub memory_reserve: Option<String>,
    /// Percentages of the cache for reads and for writes that are not on the disk yet, or `auto`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(example = "25:75")]
    pub cache_ratio: Option<String>,
    /// Whether background work slows down while other programs wait: `auto` or `full`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(example = "full")]
    pub background: Option<String>,
}

/// Ranges of a volume to pin or to unpin.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PinRequest {
    /// Each as `OFFSET+LENGTH`, in bytes or with a unit, or `all` for the whole volume. Not empty.
    #[schema(example = json!(["1GiB+256MiB"]))]
    pub ranges: Vec<String>,
}

/// How a volume is removed whose disk does not take its data.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DiscardRequest {
    /// Disconnect clients, too.
    #[serde(default)]
    pub force: bool,
    /// The absolute path of a file to create, which gets the data first, in the format of a vault.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(example = "/srv/db.vault")]
    pub save_to: Option<String>,
}

/// What was given up with a volume.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct Discarded {
    /// Acknowledged data that the disk lacks, in bytes: exact if it was saved, otherwise in whole
    /// lines of the cache. Zero if the disk took everything after all.
    pub bytes: u64,
    /// The file that has this data.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub saved_to: Option<String>,
    /// The disk may lack more: data that was written to it before a flush failed, and that is no
    /// longer in memory.
    pub may_lack_more: bool,
}

/// The progress of a long operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct Progress {
    /// Dirty bytes not yet destaged.
    pub dirty_bytes_left: u64,
    /// Dirty bytes at the beginning. Writes of clients may add to them.
    pub dirty_bytes_total: u64,
}

/// A long operation that is running and has not reported any progress yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct Running {}

/// The successful end of a long operation, without details.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct Done {}

/// One line of the answer to a long operation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Event {
    /// Progress: any number of lines.
    Progress(Progress),
    /// No progress so far: any number of lines, before those with progress.
    Running(Running),
    /// Success: the last line.
    Done(Done),
    /// Failure: the last line.
    Error(Problem),
}
