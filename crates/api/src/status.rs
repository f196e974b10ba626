//! What the server tells about itself and its volumes. All counters count from the start of the
//! server, or from when the volume was added, and never go back.

use crate::{
    Damage, GatherStatus, GeometryStatus, JournalStatus, PatrolStatus, PowerStatus, VaultStatus,
    VolumeSettings, WriteBackFigures,
};
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, fmt};
use utoipa::ToSchema;

/// How a volume is cached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// Writes are acknowledged from memory and reach the disk later.
    WriteBack,
    /// Writes are acknowledged when they are on the disk; memory keeps a copy.
    #[default]
    WriteThrough,
    /// Nothing new is kept in memory.
    Bypass,
}

impl From<forebay_types::Mode> for Mode {
    fn from(mode: forebay_types::Mode) -> Self {
        match mode {
            forebay_types::Mode::WriteBack => Self::WriteBack,
            forebay_types::Mode::WriteThrough => Self::WriteThrough,
            forebay_types::Mode::Bypass => Self::Bypass,
        }
    }
}

impl From<Mode> for forebay_types::Mode {
    fn from(mode: Mode) -> Self {
        match mode {
            Mode::WriteBack => Self::WriteBack,
            Mode::WriteThrough => Self::WriteThrough,
            Mode::Bypass => Self::Bypass,
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        forebay_types::Mode::from(*self).fmt(f)
    }
}

/// The state of everything.
#[derive(Clone, Debug, PartialEq, Default, Serialize, Deserialize, ToSchema)]
pub struct Status {
    /// The version of the server.
    pub version: String,
    /// Its process.
    pub pid: u32,
    /// How long it has been running.
    pub uptime_seconds: u64,
    /// How files and sockets are driven: `io_uring` or `epoll`.
    pub io_engine: String,
    /// Threads of the data path.
    pub workers: u32,
    /// Memory of the cache.
    pub memory: Memory,
    /// What watches over that memory, and what it has found.
    #[serde(default)]
    pub patrol: PatrolStatus,
    /// NBD connections that are open.
    pub connections: u64,
    /// Where NBD clients connect, with the ports that the system chose: `tcp:[::]:10809`.
    pub listeners: Vec<String>,
    /// The volumes, in the order they were added.
    pub volumes: Vec<VolumeStatus>,
    /// The journals that volumes name, each once.
    pub journals: Vec<JournalStatus>,
    /// The supplies that bridge a power failure; null where none are watched.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub power: Option<PowerStatus>,
    /// The vault; null where there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vault: Option<VaultStatus>,
}

/// Memory of the cache, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct Memory {
    /// The most it may take, metadata included.
    pub limit_bytes: u64,
    /// What the pool for cached data has now.
    pub pool_bytes: u64,
    /// How much of the pool holds data.
    pub used_bytes: u64,
    /// How much of that is not on its disk yet.
    pub dirty_bytes: u64,
    /// What index and bookkeeping take beside the pool.
    pub metadata_bytes: u64,
}

/// All volumes.
#[derive(Clone, Debug, PartialEq, Default, Serialize, Deserialize, ToSchema)]
pub struct VolumeList {
    /// The volumes, in the order they were added.
    pub volumes: Vec<VolumeStatus>,
}

/// What a volume is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum VolumeState {
    /// All is well.
    #[default]
    Serving,
    /// Its dirty data is being written on request.
    Flushing,
    /// It is served, but not as it should be; the reason says why.
    Failing,
}

impl fmt::Display for VolumeState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Serving => "serving",
            Self::Flushing => "flushing",
            Self::Failing => "failing",
        })
    }
}

/// One volume.
#[derive(Clone, Debug, PartialEq, Default, Serialize, Deserialize, ToSchema)]
pub struct VolumeStatus {
    /// What clients ask for.
    pub name: String,
    /// Where its data lies.
    pub backing: String,
    /// Its size, a multiple of 512.
    pub size_bytes: u64,
    /// The mode it was given.
    pub mode: Mode,
    /// The mode it has now.
    pub effective_mode: Mode,
    /// Why the two differ, where they do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub effective_mode_reason: Option<String>,
    /// What keeps acknowledged writes that are not on the disk yet: `journal`, `ups`,
    /// `journal+ups`, `none`, or `unstated`.
    pub protection: String,
    /// Where its journal lies; null without one.
    pub journal: Option<String>,
    /// Where the mirror of its journal lies; null without one.
    pub journal_mirror: Option<String>,
    /// When a write that the journal keeps is acknowledged: `ack`, when its record is stable, or
    /// `flush`, at once, and a FLUSH waits for the records. Null without a journal.
    pub durability: Option<String>,
    /// What a write is acknowledged from while the UPS would not bridge a power failure: `stable`,
    /// the disk's stable storage, or `disk-cache`. Null without the protection `ups`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unsafe_supply: Option<String>,
    /// Whether what is dirty goes to the disk in order.
    #[serde(default)]
    pub ordered: bool,
    /// Whether the operator accepts that a crash loses acknowledged writes.
    pub accept_loss: bool,
    /// Whether writes are refused.
    pub read_only: bool,
    /// Whether data is read ahead.
    pub prefetch: bool,
    /// What the geometry of its disk is taken to be.
    #[serde(default)]
    pub geometry: GeometryStatus,
    /// How what was written got there.
    #[serde(default)]
    pub write_back: WriteBackFigures,
    /// Which writes are worth gathering.
    #[serde(default)]
    pub gather: GatherStatus,
    /// Whether clients must encrypt: `required` or `optional`.
    pub tls: String,
    /// A text for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// All settings that have a value, those it was not given with their defaults.
    #[serde(default)]
    pub settings: VolumeSettings,
    /// What it is doing.
    pub state: VolumeState,
    /// Why it is failing, in one line.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state_reason: Option<String>,
    /// How much of it is in memory.
    pub cached_bytes: u64,
    /// How much of that is not on the disk yet.
    pub dirty_bytes: u64,
    /// Damage to its lines in memory.
    #[serde(default)]
    pub damage: Damage,
    /// What it has done.
    pub counters: Counters,
    /// How long it took.
    pub latency: Latencies,
}

/// What a volume has done since it was added. A request is what a client sent; a part is what of
/// it lies in one region of 1 MiB; a line is 4 KiB. Each is counted once, however often it was
/// tried inside. Hits, partial hits and misses of reads add up to the reads.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct Counters {
    /// Requests by clients to read.
    pub reads: u64,
    /// Requests by clients to write.
    pub writes: u64,
    /// Bytes that clients asked to read.
    pub read_bytes: u64,
    /// Bytes that clients asked to write.
    pub write_bytes: u64,
    /// Requests by clients to flush.
    pub flushes: u64,
    /// Requests by clients to trim.
    pub trims: u64,
    /// Requests by clients to write zeroes.
    pub zeroes: u64,
    /// Requests to read that were served from memory alone.
    pub read_hits: u64,
    /// Requests to read of which some lines were in memory.
    pub read_partial_hits: u64,
    /// Requests to read of which no line was in memory.
    pub read_misses: u64,
    /// Lines written that were in memory already.
    pub write_hits: u64,
    /// Lines written that were not.
    pub write_misses: u64,
    /// Parts of reads that went past memory, by reason. They are among the misses and partial
    /// hits, except where the read was tried again after an error.
    pub uncached_reads: BTreeMap<String, u64>,
    /// Parts of writes that were acknowledged by the disk and not from memory, by reason.
    pub uncached_writes: BTreeMap<String, u64>,
    /// I/Os sent to the disk to read, joined ones as one.
    pub backend_reads: u64,
    /// I/Os sent to the disk to write, joined ones as one.
    pub backend_writes: u64,
    /// Bytes that those asked for.
    pub backend_read_bytes: u64,
    /// Bytes that those brought.
    pub backend_write_bytes: u64,
    /// Bytes of lines read ahead.
    pub prefetched_bytes: u64,
    /// Bytes of those that were read by a client later.
    pub prefetch_used_bytes: u64,
    /// Requests answered with an error.
    pub errors: u64,
}

impl Counters {
    /// The part of the reads that memory served alone, from 0 to 1; `None` before the first read.
    pub fn read_hit_ratio(&self) -> Option<f64> {
        (self.reads > 0).then(|| self.read_hits as f64 / self.reads as f64)
    }
}

/// How long requests took, from the moment they had arrived to the moment their reply was handed
/// over for sending.
#[derive(Clone, Copy, Debug, PartialEq, Default, Serialize, Deserialize, ToSchema)]
pub struct Latencies {
    /// Reads served from memory alone.
    pub read_hit: LatencySummary,
    /// All other reads.
    pub read_miss: LatencySummary,
    /// Writes.
    pub write: LatencySummary,
    /// Flushes.
    pub flush: LatencySummary,
}

/// One latency histogram in a few numbers, in microseconds; all zero while the count is.
#[derive(Clone, Copy, Debug, PartialEq, Default, Serialize, Deserialize, ToSchema)]
pub struct LatencySummary {
    /// Requests that were measured.
    pub count: u64,
    /// The mean.
    pub mean_us: f64,
    /// Half of them took no longer.
    pub p50_us: f64,
    /// All but one in a hundred took no longer.
    pub p99_us: f64,
    /// The longest.
    pub max_us: f64,
}
