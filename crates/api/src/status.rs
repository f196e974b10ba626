//! What the server tells about itself and its volumes. All counters count from the start of the
//! server, or from when the volume was added, and never go back.

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
    /// NBD connections that are open.
    pub connections: u64,
    /// Where NBD clients connect, with the ports that the system chose: `tcp:[::]:10809`.
    pub listeners: Vec<String>,
    /// The volumes, in the order they were added.
    pub volumes: Vec<VolumeStatus>,
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
    /// What keeps acknowledged writes that are not on the disk yet: `none`, or `unstated`.
    pub protection: String,
    /// Whether the operator accepts that a crash loses acknowledged writes.
    pub accept_loss: bool,
    /// Whether writes are refused.
    pub read_only: bool,
    /// Whether data is read ahead.
    pub prefetch: bool,
    /// Whether clients must encrypt: `required` or `optional`.
    pub tls: String,
    /// A text for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// What it is doing.
    pub state: VolumeState,
    /// Why it is failing, in one line.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state_reason: Option<String>,
    /// How much of it is in memory.
    pub cached_bytes: u64,
    /// How much of that is not on the disk yet.
    pub dirty_bytes: u64,
    /// What it has done.
    pub counters: Counters,
    /// How long it took.
    pub latency: Latencies,
}

/// What a volume has done. Reads and writes are those of clients; what became of each is told
/// apart below them, so that hits, partial hits, misses and uncached reads add up to the reads.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct Counters {
    /// Reads by clients.
    pub reads: u64,
    /// Writes by clients.
    pub writes: u64,
    /// Bytes read by clients.
    pub read_bytes: u64,
    /// Bytes written by clients.
    pub write_bytes: u64,
    /// Flushes by clients.
    pub flushes: u64,
    /// Trims by clients.
    pub trims: u64,
    /// Requests by clients to write zeroes.
    pub zeroes: u64,
    /// Reads served from memory alone.
    pub read_hits: u64,
    /// Reads of which a part was in memory.
    pub read_partial_hits: u64,
    /// Reads of which nothing was in memory.
    pub read_misses: u64,
    /// Writes to what was in memory already.
    pub write_hits: u64,
    /// Writes to what was not.
    pub write_misses: u64,
    /// Reads that memory was not asked for, by reason.
    pub uncached_reads: BTreeMap<String, u64>,
    /// Writes that memory kept no copy of, by reason.
    pub uncached_writes: BTreeMap<String, u64>,
    /// Reads from the disk.
    pub backend_reads: u64,
    /// Writes to the disk.
    pub backend_writes: u64,
    /// Bytes read from the disk.
    pub backend_read_bytes: u64,
    /// Bytes written to the disk.
    pub backend_write_bytes: u64,
    /// Bytes read ahead.
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
