//! An analysis of the benefit: a phase without the cache, one in which it fills, and one with it. A
//! share of the regions is held out throughout.

use crate::{DiskUse, LatencySummary};
use serde::{Deserialize, Serialize};
use std::fmt;
use utoipa::ToSchema;

/// A phase of an analysis.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum AnalysisPhase {
    /// All requests are served as if there were no cache.
    Measure,
    /// The cache works, fills and learns. Its results do not count yet.
    Learn,
    /// The cache works.
    Accelerate,
}

impl AnalysisPhase {
    /// All phases, in order.
    pub const ALL: [Self; 3] = [Self::Measure, Self::Learn, Self::Accelerate];
}

impl fmt::Display for AnalysisPhase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Measure => "measure",
            Self::Learn => "learn",
            Self::Accelerate => "accelerate",
        })
    }
}

/// What an analysis does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum AnalysisState {
    /// There is none.
    #[default]
    None,
    /// It runs.
    Running,
    /// All phases are complete.
    Complete,
    /// It was stopped before its end.
    Stopped,
}

impl fmt::Display for AnalysisState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::None => "none",
            Self::Running => "running",
            Self::Complete => "complete",
            Self::Stopped => "stopped",
        })
    }
}

/// What to analyze, and for how long.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct AnalysisRequest {
    /// The length of the phase `measure` in seconds, in which the volumes are served without their
    /// cache: 1 to 604800. Null: each volume gets its cache back as soon as it has had enough
    /// requests, after an hour at most, and the phase ends with the last one.
    pub measure_seconds: Option<u64>,
    /// The length of the phase `learn` in seconds: 1 to 604800.
    pub learn_seconds: u64,
    /// The length of the phase `accelerate` in seconds: 1 to 604800.
    pub accelerate_seconds: u64,
    /// The percentage of the regions that are held out: 1 to 50.
    pub hold_out_percent: u32,
    /// The names of the volumes, at most 32. Empty for all that are not in bypass.
    pub volumes: Vec<String>,
}

impl Default for AnalysisRequest {
    fn default() -> Self {
        let day = 24 * 60 * 60;
        Self {
            measure_seconds: None,
            learn_seconds: day,
            accelerate_seconds: day,
            hold_out_percent: 1,
            volumes: Vec::new(),
        }
    }
}

impl AnalysisRequest {
    /// The longest that the phase `measure` takes without a length, in seconds.
    pub const MEASURE_SECONDS: u64 = 60 * 60;

    /// The longest that the phase `measure` takes, in seconds.
    pub fn measure_seconds_max(&self) -> u64 {
        self.measure_seconds.unwrap_or(Self::MEASURE_SECONDS)
    }
}

/// What an analysis means for a volume in its phase `measure`: the volume is served as if there
/// were no cache.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct CacheOff {
    /// Since when, in UTC.
    pub since: String,
    /// For how long still, in seconds, at most.
    pub seconds_left: u64,
}

/// A period during an analysis in which the server was not running.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AnalysisInterruption {
    /// When the server started again, in UTC.
    pub resumed_at: String,
    /// The phase that was interrupted.
    pub phase: AnalysisPhase,
}

/// A volume and its disk, as an analysis has found them at its start.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct AnalyzedVolume {
    /// Its name.
    pub name: String,
    /// Its backing store: a path or URL.
    pub backing: String,
    /// Its size, a multiple of 512.
    pub size_bytes: u64,
    /// Whether seeks cost its disk time; null if unknown.
    pub rotational: Option<bool>,
    /// The disk's data per full stripe; zero without stripes.
    pub stripe_bytes: u64,
    /// Its mode.
    pub mode: String,
    /// What preserves acknowledged writes that are not on the disk, as in the volume's status.
    pub protection: String,
    /// Whether dirty data is destaged in order.
    pub ordered: bool,
    /// Whether sequential streams are read ahead.
    pub prefetch: bool,
}

/// What an analysis has judged: the server and the volumes at its start.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct AnalysisSubject {
    /// The name of the host.
    pub host: String,
    /// The version of the server.
    pub version: String,
    /// The limit of the cache's memory, metadata included.
    pub memory_bytes: u64,
    /// The volumes.
    pub volumes: Vec<AnalyzedVolume>,
}

/// An analysis and its progress.
#[derive(Clone, Debug, PartialEq, Default, Serialize, Deserialize, ToSchema)]
pub struct AnalysisStatus {
    /// What it does. The other fields are meaningless if there is none.
    pub state: AnalysisState,
    /// The phase, while it runs.
    pub phase: Option<AnalysisPhase>,
    /// The request that started it.
    pub request: AnalysisRequest,
    /// What it judges; null if an earlier version started it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subject: Option<AnalysisSubject>,
    /// When it began, in UTC.
    pub begun_at: String,
    /// When it ended, in UTC.
    pub ended_at: Option<String>,
    /// The time that was analyzed so far, in seconds, without interruptions.
    pub analyzed_seconds: f64,
    /// The time left, in seconds, at most.
    pub remaining_seconds: f64,
    /// Complete intervals, each with other regions held out.
    pub batches: u64,
    /// Times at which the server was not running. The interval in progress is lost each time.
    pub interruptions: Vec<AnalysisInterruption>,
    /// Why the analysis cannot be kept over a restart at present.
    pub problem: Option<String>,
}

/// Requests of a class of sizes, and the sum of their response times.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct SizeTimes {
    /// The largest request of the class, in bytes.
    pub up_to_bytes: u64,
    /// Requests.
    pub requests: u64,
    /// The sum of their response times, in seconds.
    pub seconds: f64,
}

/// A volume in one interval of an analysis.
#[derive(Clone, Debug, PartialEq, Default, Serialize, Deserialize, ToSchema)]
pub struct AnalysisVolume {
    /// Its name.
    pub name: String,
    /// How long regions were held out, in seconds; `None` if throughout the interval. Only
    /// requests of this time are compared. It is shorter than the interval in a busy volume.
    #[serde(default)]
    pub compared_seconds: Option<f64>,
    /// Reads that the cache has served, among those compared.
    pub served_reads: Vec<SizeTimes>,
    /// Reads that were held out.
    pub held_reads: Vec<SizeTimes>,
    /// Writes that the cache has served, among those compared.
    pub served_writes: Vec<SizeTimes>,
    /// Writes that were held out. In a write-back volume, none outside of the phase `measure`; none
    /// at all if it is ordered, or if its protection makes them wait longer than without a cache.
    pub held_writes: Vec<SizeTimes>,
    /// All reads.
    pub reads: u64,
    /// All writes.
    pub writes: u64,
    /// Bytes of the reads.
    pub read_bytes: u64,
    /// Bytes of the writes.
    pub write_bytes: u64,
    /// Reads with all data in memory.
    pub read_hits: u64,
    /// Writes acknowledged from memory.
    pub deferred_writes: u64,
    /// The response times of reads.
    pub read_latency: LatencySummary,
    /// The response times of writes.
    pub write_latency: LatencySummary,
    /// Reads that went to the disk, of any cause.
    pub disk_reads: u64,
    /// Writes that went to the disk, of any cause.
    pub disk_writes: u64,
    /// Those among them that were destages.
    #[serde(default)]
    pub destages: u64,
    /// Bytes of the disk's reads.
    pub disk_read_bytes: u64,
    /// Bytes of the disk's writes.
    pub disk_write_bytes: u64,
    /// How busy the disk was. `in_flight` is that of the end of the interval.
    pub disk: DiskUse,
    /// Bytes read ahead that clients then read.
    pub prefetch_used_bytes: u64,
    /// Bytes preloaded that clients then read.
    pub preload_used_bytes: u64,
    /// Writes that shared their I/O with others.
    pub gathered_writes: u64,
    /// The I/Os shared by these writes.
    pub gathered_ios: u64,
}

impl AnalysisVolume {
    /// Whether more than one in twenty of its disk's I/Os was a destage. In the phase `measure`,
    /// these are of writes from before: requests wait for what a disk without a cache would have
    /// done already.
    pub const fn is_writing_back(&self) -> bool {
        self.destages.saturating_mul(20) > self.disk_reads.saturating_add(self.disk_writes)
    }
}

/// An interval of an analysis. Other regions are held out in the next one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct AnalysisBatch {
    /// The phase.
    pub phase: AnalysisPhase,
    /// When it began, in UTC.
    pub begun_at: String,
    /// Its length in seconds.
    pub seconds: f64,
    /// The processor time of the server, in seconds.
    pub cpu_seconds: f64,
    /// The volumes that were analyzed for the whole interval.
    pub volumes: Vec<AnalysisVolume>,
}

/// An analysis with all that it has counted.
#[derive(Clone, Debug, PartialEq, Default, Serialize, Deserialize, ToSchema)]
pub struct Analysis {
    /// Its progress.
    pub status: AnalysisStatus,
    /// Its intervals, in order.
    pub batches: Vec<AnalysisBatch>,
}
