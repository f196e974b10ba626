//! The status of the server and its volumes. Counters start with the server, or when the volume was
//! added, and never decrease.

use crate::{
    BackgroundStatus, CacheRatio, CurveStatus, Damage, GatherStatus, GeometryStatus, JournalStatus,
    LearnStatus, PatrolStatus, PinStatus, PoolDivision, PowerStatus, SavedStatus, VaultStatus,
    VolumeSettings, WarmUpStatus, WriteBackFigures,
};
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, fmt};
use utoipa::ToSchema;

/// The cache mode of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// Writes are acknowledged from memory and destaged later.
    WriteBack,
    /// Writes are acknowledged from the disk, and kept in memory.
    #[default]
    WriteThrough,
    /// Writes are acknowledged from the disk, and nothing new is cached.
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

/// The status of the server and its volumes.
#[derive(Clone, Debug, PartialEq, Default, Serialize, Deserialize, ToSchema)]
pub struct Status {
    /// The version of the server.
    pub version: String,
    /// Its process id.
    pub pid: u32,
    /// Whether it was started again because the program of an upgrade exited before it served.
    #[serde(default)]
    pub rolled_back: bool,
    /// Its uptime.
    pub uptime_seconds: u64,
    /// The I/O engine: `io_uring` or `epoll`.
    pub io_engine: String,
    /// Threads of the data path.
    pub workers: u32,
    /// Memory of the cache.
    pub memory: Memory,
    /// How that memory is divided between the volumes; null with fewer than two.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub division: Option<PoolDivision>,
    /// The patrol, which scrubs that memory.
    #[serde(default)]
    pub patrol: PatrolStatus,
    /// What background work may use.
    #[serde(default)]
    pub background: BackgroundStatus,
    /// Open NBD connections.
    pub connections: u64,
    /// The NBD listeners, with the ports that the system chose: `tcp:[::]:10809`.
    pub listeners: Vec<String>,
    /// The volumes, in the order of their addition.
    pub volumes: Vec<VolumeStatus>,
    /// The journals of the volumes, each once.
    pub journals: Vec<JournalStatus>,
    /// The UPSes; null if none is configured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub power: Option<PowerStatus>,
    /// The vault; null without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vault: Option<VaultStatus>,
}

/// Memory of the cache, in bytes.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct Memory {
    /// The limit now, metadata included.
    pub limit_bytes: u64,
    /// Why the limit is what it is; null while the machine's memory is unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sizing: Option<MemorySizing>,
    /// The least that the limit can be set to while the server runs.
    #[serde(default)]
    pub limit_bytes_min: u64,
    /// The most that the limit can be set to: the one at the start, or what `memory=auto` takes at
    /// most.
    #[serde(default)]
    pub limit_bytes_max: u64,
    /// The part of the pool that may hold data now. It follows the limit as fast as memory can be
    /// emptied.
    pub pool_bytes: u64,
    /// The part of the pool that holds data.
    pub used_bytes: u64,
    /// The dirty part of that data.
    pub dirty_bytes: u64,
    /// How the pool is divided between reads and writes; null while the server starts or stops.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache_ratio: Option<CacheRatio>,
    /// Memory for the index and other metadata outside the pool.
    pub metadata_bytes: u64,
    /// The pinned ranges of all volumes, in memory or not.
    #[serde(default)]
    pub pinned_bytes: u64,
    /// The limit of `pinned_bytes`.
    #[serde(default)]
    pub pinned_bytes_max: u64,
}

/// Whether the machine has enough memory for the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum MemoryState {
    /// The cache has the memory that it is to have.
    #[default]
    Steady,
    /// Memory is short: the cache has given some back, or has its minimum.
    Short,
    /// The cache is to have more memory, and grows when enough has been free for a while.
    Recovering,
    /// The cache grows.
    Growing,
}

/// How the limit of the memory was decided.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct MemorySizing {
    /// The setting `memory`, as configured or set since.
    pub memory: String,
    /// The limit that follows from the setting while there is enough memory, in bytes.
    pub wanted_bytes: u64,
    /// The limit that the cache keeps while memory is short, in bytes.
    pub min_bytes: u64,
    /// The limit that the cache does not exceed, in bytes.
    #[serde(default)]
    pub max_bytes: u64,
    /// The memory that is left to the system, in bytes.
    pub reserve_bytes: u64,
    /// The memory that programs can have, within the limits of all control groups, in bytes.
    pub available_bytes: u64,
    /// The control group that limits it; null if the machine does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limited_by: Option<String>,
    /// Whether there is enough memory.
    pub state: MemoryState,
    /// Why the limit is what it is, in one sentence.
    pub reason: String,
}

/// All volumes.
#[derive(Clone, Debug, PartialEq, Default, Serialize, Deserialize, ToSchema)]
pub struct VolumeList {
    /// The volumes, in the order of their addition.
    pub volumes: Vec<VolumeStatus>,
}

/// The state of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum VolumeState {
    /// It is served without errors.
    #[default]
    Serving,
    /// It is being removed, or restored from its journal; new requests are refused.
    Flushing,
    /// It is served with errors; see the reason.
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
    /// The name that clients use.
    pub name: String,
    /// Its backing store: a path or URL.
    pub backing: String,
    /// Its size, a multiple of 512.
    pub size_bytes: u64,
    /// The configured mode.
    pub mode: Mode,
    /// The mode that applies now.
    pub effective_mode: Mode,
    /// Why the modes differ, if they do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub effective_mode_reason: Option<String>,
    /// What preserves acknowledged writes that are not on the disk: `journal`, `ups`,
    /// `journal+ups`, `none`, or `unstated`.
    pub protection: String,
    /// Its journal; null without one.
    pub journal: Option<String>,
    /// The mirror of its journal; null without one.
    pub journal_mirror: Option<String>,
    /// When a write that the journal records is acknowledged: `ack`: when its record is durable.
    /// `flush`: at once, and a FLUSH waits for the records. Null without a journal.
    pub durability: Option<String>,
    /// Where a write must be before it is acknowledged while the UPS is not safe: `stable`: on the
    /// disk's stable storage. `disk-cache`: in the disk's cache. Null without the protection `ups`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unsafe_supply: Option<String>,
    /// Whether dirty data is destaged in order.
    #[serde(default)]
    pub ordered: bool,
    /// Whether the operator accepts that a crash loses acknowledged writes.
    pub accept_loss: bool,
    /// Whether writes are refused.
    pub read_only: bool,
    /// Whether sequential streams are read ahead.
    pub prefetch: bool,
    /// Its warm-up: what was valuable in memory before a stop or a reboot is read again.
    #[serde(default)]
    pub warm_up: WarmUpStatus,
    /// Its pinned ranges, which stay in memory.
    #[serde(default)]
    pub pins: PinStatus,
    /// What it has learned of the time of the day.
    #[serde(default)]
    pub learn: LearnStatus,
    /// Its image, if it is a volume in memory that is saved.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub saved: Option<SavedStatus>,
    /// The effective geometry of its disk.
    #[serde(default)]
    pub geometry: GeometryStatus,
    /// Statistics of writeback.
    #[serde(default)]
    pub write_back: WriteBackFigures,
    /// The threshold below which writes are gathered.
    #[serde(default)]
    pub gather: GatherStatus,
    /// Whether clients must encrypt: `required` or `optional`.
    pub tls: String,
    /// A description for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// All settings that have a value, including defaults.
    #[serde(default)]
    pub settings: VolumeSettings,
    /// Its state.
    pub state: VolumeState,
    /// Why it is failing, in one line.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state_reason: Option<String>,
    /// Bytes in memory.
    pub cached_bytes: u64,
    /// Dirty bytes among them.
    pub dirty_bytes: u64,
    /// Damage to its lines in memory.
    #[serde(default)]
    pub damage: Damage,
    /// What it would miss with less or more memory.
    #[serde(default)]
    pub curve: CurveStatus,
    /// Its counters.
    pub counters: Counters,
    /// Latencies of its requests.
    pub latency: Latencies,
}

/// The counters of a volume since it was added. A part is the piece of a request in one region of
/// about 1 MiB; a line is 4 KiB. Requests, parts and lines are counted once, however often they are
/// retried. Hits, partial hits and misses of reads add up to the reads.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct Counters {
    /// Reads by clients.
    pub reads: u64,
    /// Writes by clients.
    pub writes: u64,
    /// Bytes of the reads.
    pub read_bytes: u64,
    /// Bytes of the writes.
    pub write_bytes: u64,
    /// Flushes by clients.
    pub flushes: u64,
    /// Trims by clients.
    pub trims: u64,
    /// Writes of zeroes by clients.
    pub zeroes: u64,
    /// Reads served completely from memory.
    pub read_hits: u64,
    /// Reads served partly from memory.
    pub read_partial_hits: u64,
    /// Reads with no line in memory.
    pub read_misses: u64,
    /// Lines written that were already in memory.
    pub write_hits: u64,
    /// Lines written that were not in memory.
    pub write_misses: u64,
    /// Parts of reads that bypassed the cache, by reason. They are among the misses and partial
    /// hits, except for retries after an error.
    pub uncached_reads: BTreeMap<String, u64>,
    /// Parts of writes acknowledged from the disk instead of memory, by reason.
    pub uncached_writes: BTreeMap<String, u64>,
    /// Reads from the disk; coalesced I/Os count as one.
    pub backend_reads: u64,
    /// Writes to the disk; coalesced I/Os count as one.
    pub backend_writes: u64,
    /// Bytes read from the disk.
    pub backend_read_bytes: u64,
    /// Bytes written to the disk.
    pub backend_write_bytes: u64,
    /// Bytes read ahead, in whole lines.
    pub prefetched_bytes: u64,
    /// Bytes read ahead that a client has read.
    pub prefetch_used_bytes: u64,
    /// Bytes read by the warm-up or for forecasts, in whole lines.
    #[serde(default)]
    pub preloaded_bytes: u64,
    /// Bytes read by the warm-up or for forecasts that a client has read.
    #[serde(default)]
    pub preload_used_bytes: u64,
    /// Bytes read by the warm-up or for forecasts that were evicted before a client read them.
    #[serde(default)]
    pub preload_in_vain_bytes: u64,
    /// Bytes of pinned ranges that were read because they are pinned, in whole lines.
    #[serde(default)]
    pub pin_loaded_bytes: u64,
    /// Requests answered with an error.
    pub errors: u64,
}

impl Counters {
    /// The fraction of reads served completely from memory; `None` before the first read.
    pub fn read_hit_ratio(&self) -> Option<f64> {
        (self.reads > 0).then(|| self.read_hits as f64 / self.reads as f64)
    }
}

/// Latencies of requests, from complete arrival to the handover of the reply for sending.
#[derive(Clone, Copy, Debug, PartialEq, Default, Serialize, Deserialize, ToSchema)]
pub struct Latencies {
    /// Reads served completely from memory.
    pub read_hit: LatencySummary,
    /// All other reads.
    pub read_miss: LatencySummary,
    /// Writes.
    pub write: LatencySummary,
    /// Flushes.
    pub flush: LatencySummary,
}

/// The summary of a latency histogram, in microseconds; all zero while the count is zero.
#[derive(Clone, Copy, Debug, PartialEq, Default, Serialize, Deserialize, ToSchema)]
pub struct LatencySummary {
    /// Measured requests.
    pub count: u64,
    /// The mean.
    pub mean_us: f64,
    /// The median.
    pub p50_us: f64,
    /// The 99th percentile.
    pub p99_us: f64,
    /// The maximum.
    pub max_us: f64,
}
