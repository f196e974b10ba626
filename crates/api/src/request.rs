//! What clients ask for, and how long operations answer.

use crate::{Mode, Problem};
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

/// Settings of a volume; those left out stay as they are, or have their default in a new volume.
/// The words are those of the command line, and are read by the same parser: hence texts, so that
/// a word of a later version is answered with a sentence.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct VolumeSettings {
    /// How requests are cached. Default: write-through.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Mode>)]
    pub mode: Option<String>,
    /// What keeps acknowledged writes that are not on the disk yet: `journal`, or `none`, which
    /// needs `accept_loss` for write-back. A volume that is served can't go from or to `journal`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub protection: Option<String>,
    /// Where the journal lies, an absolute path or a URL; with the protection `journal` and only
    /// then. Volumes may share one. A volume that is served keeps its journal.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(example = "/dev/nvme0n1")]
    pub journal: Option<String>,
    /// A second device that holds all that the journal holds, so that either may fail. Volumes that
    /// share a journal name the same. A volume that is served keeps it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(example = "/dev/nvme1n1")]
    pub journal_mirror: Option<String>,
    /// When a write that the journal keeps is acknowledged: `ack`, when its record is stable, or
    /// `flush`, at once, and a FLUSH waits for the records. Default: ack. A volume that is served
    /// keeps it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub durability: Option<String>,
    /// What a write is acknowledged from while the UPS would not bridge a power failure: `stable`,
    /// the disk's stable storage, or `disk-cache`, the disk, whose volatile cache loses it in a
    /// power failure. Only with the protection `ups`. Default: stable.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unsafe_supply: Option<String>,
    /// Whether what is dirty goes to the disk in order, so that the disk alone is always as some
    /// moment in the past has left it. Default: false. A volume that is served keeps it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ordered: Option<bool>,
    /// Whether the loss of acknowledged writes is accepted. Needed for write-back that nothing
    /// protects; with a journal it means that what is left of a damaged one is served.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub accept_loss: Option<bool>,
    /// Whether writes are refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub read_only: Option<bool>,
    /// Whether data is read ahead. Default: true.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prefetch: Option<bool>,
    /// Data in a full stripe of the disk, a size as in `112KiB`, without parity and copies; `none`
    /// for no stripes, `auto` for what the disk says. Default: auto. A volume that is served keeps
    /// it, and what follows here of the disk.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(example = "112KiB")]
    pub stripe: Option<String>,
    /// What of a stripe lies on one disk: a size that divides the stripe, or `auto`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(example = "16KiB")]
    pub chunk: Option<String>,
    /// Where the first whole stripe begins, from the first byte of the volume: a size below the
    /// stripe, or `auto`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stripe_offset: Option<String>,
    /// Whether seeks cost: `yes`, `no` or `auto`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rotational: Option<String>,
    /// Below which size writes are worth gathering: a size as in `64KiB`, `off` for none, or `auto`
    /// to measure it. Default: auto.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(example = "64KiB")]
    pub gather_below: Option<String>,
    /// Which p99 of reads write-back leaves alone: a time as in `20ms`, `idle` for that of the disk
    /// without write-back, or `off`. Default: idle.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(example = "20ms")]
    pub read_latency: Option<String>,
    /// What write-back takes of the disk in a second at most, a size as in `50MiB`, or `off`.
    /// Default: off.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(example = "50MiB")]
    pub write_back_rate: Option<String>,
    /// I/Os in a second that write-back takes at most, or `off`. Default: off.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(example = "200")]
    pub write_back_iops: Option<String>,
    /// How long reads may put off what is dirty, a time as in `10min`, or `off` for any. Default:
    /// 24h.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(example = "10min")]
    pub write_back_age: Option<String>,
    /// Whether clients must encrypt: `required` or `optional`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls: Option<String>,
    /// A text for people, one line of at most 4096 bytes; an empty one takes it away.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
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
