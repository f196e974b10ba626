//! The status of the server and its volumes. Counters start with the server, or when the volume was
//! added, and never decrease.

use crate::{
    Alert, BackgroundStatus, CacheOff, CacheRatio, Counters, CurveStatus, Damage, DiskUse,
    DurabilityClass, GatherStatus, GeometryStatus, HostRole, HostStatus, HostVolume, JournalStatus,
    Latencies, LearnStatus, Mode, PatrolStatus, PinStatus, PoolDivision, PowerStatus, SavedStatus,
    SiteSummary, VaultStatus, VolumeSettings, VolumeState, WarmUpStatus, WriteBackFigures,
};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

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
    /// Why the last reload has not applied the whole configuration file; none if it has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reload_failure: Option<String>,
    /// Its uptime.
    pub uptime_seconds: u64,
    /// The I/O engine: `io_uring` or `epoll`.
    pub io_engine: String,
    /// Threads of the data path.
    pub workers: u32,
    /// The time in which they looked for requests instead of sleeping, in milliseconds, summed over
    /// them.
    #[serde(default)]
    pub polled_ms: u64,
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
    /// The server's log.
    #[serde(default)]
    pub log: LogStatus,
    /// Open NBD connections.
    pub connections: u64,
    /// The NBD listeners, with the ports that the system chose: `tcp:[::]:10809`.
    pub listeners: Vec<String>,
    /// The volumes, in the order of their addition.
    pub volumes: Vec<VolumeStatus>,
    /// Volumes with `nofail=yes` that the server cannot serve, and tries again.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub missing: Vec<MissingVolume>,
    /// The journals of the volumes, each once.
    pub journals: Vec<JournalStatus>,
    /// The UPSes; null if none is configured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub power: Option<PowerStatus>,
    /// The vault; null without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vault: Option<VaultStatus>,
    /// The site that this server watches; null unless it does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub site: Option<SiteSummary>,
    /// What is wrong, the most serious first.
    #[serde(default)]
    pub alerts: Vec<Alert>,
}

impl Status {
    /// What the server tells the others of its site, on the machine `host`.
    pub fn for_site(&self, host: &str) -> HostStatus {
        let served = self.volumes.iter().map(|volume| {
            let counters = &volume.counters;
            HostVolume {
                name: volume.name.clone(),
                backing: volume.backing.clone(),
                role: HostRole::Serves,
                shared: volume.shared,
                state: volume.state,
                size_bytes: volume.size_bytes,
                class: volume.class,
                dirty_bytes: volume.dirty_bytes,
                requests: counters.reads + counters.writes,
                hits: counters.read_hits + counters.deferred_writes,
            }
        });
        let missing = self.missing.iter().map(|volume| HostVolume {
            name: volume.name.clone(),
            backing: volume.backing.clone(),
            role: match (volume.standby, volume.taken_over) {
                (true, _) => HostRole::Standby,
                (false, true) => HostRole::TakenOver,
                (false, false) => HostRole::Missing,
            },
            shared: volume.shared,
            ..HostVolume::default()
        });
        HostStatus {
            host: host.to_owned(),
            version: self.version.clone(),
            uptime_seconds: self.uptime_seconds,
            limit_bytes: self.memory.limit_bytes,
            used_bytes: self.memory.used_bytes,
            connections: self.connections,
            volumes: served.chain(missing).collect(),
            alerts: self.alerts.iter().filter(|alert| !alert.of_site).cloned().collect(),
        }
    }
}

/// A volume that the server cannot serve now.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct MissingVolume {
    /// Its name.
    pub name: String,
    /// Its backing store.
    pub backing: String,
    /// For how long.
    pub seconds: u64,
    /// Why the last attempt failed, and what to do; null while the disk has not answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Whether another client has taken over its disk: it is not tried again.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub taken_over: bool,
    /// Whether it is on standby: it is served from a takeover on.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub standby: bool,
    /// Whether its disk can have one owner among several hosts.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub shared: bool,
    /// On standby with `takeover-after`: for how many seconds its owner has been silent, or this
    /// host has listened in vain.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner_silent_seconds: Option<u64>,
    /// Why this host would not take it over by itself, although it has `takeover-after`: it cannot
    /// tell whether the owner lives, or the last takeover has failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unwatched: Option<String>,
}

/// The server's log, whose reader may be too slow. The server does not wait for it.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct LogStatus {
    /// Lines that were dropped since the start.
    pub dropped_lines: u64,
    /// How long a line has been waiting for the reader.
    pub waiting_seconds: u64,
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

/// A disk that does not answer: its oldest I/O in flight.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct DiskStall {
    /// `read`, `write`, `flush`, `trim` or `zero`.
    pub operation: String,
    /// Why it was issued: `demand`, `destage-urgent`, `destage`, `prefetch`, `preload` or `pin`.
    pub cause: String,
    /// The first byte; none for a flush.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub offset: Option<u64>,
    /// Bytes; none for a flush.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub length: Option<u64>,
    /// How long the disk has not answered it, in milliseconds.
    pub waited_ms: u64,
    /// The I/Os that have waited for seconds, this one included.
    pub ios: u64,
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
    /// Since when an analysis has its cache off, and how long still; null if none does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache_off: Option<CacheOff>,
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
    /// What is lost of acknowledged writes if the host is lost.
    #[serde(default)]
    pub class: DurabilityClass,
    /// Whether its disk can have one owner among several hosts, and this one is it.
    #[serde(default)]
    pub shared: bool,
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
    /// Whether nothing is admitted into memory except pinned ranges and dirty data: reads of what
    /// is there are served from it, and all others go to the disk.
    #[serde(default)]
    pub frozen: bool,
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
    /// What an operator should know about its disk and its journal.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
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
    /// Why it is failing or stalled, in one line.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state_reason: Option<String>,
    /// The I/O that its disk has not answered for longest; null while it answers all within
    /// seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stall: Option<DiskStall>,
    /// The I/Os that its disk has failed lately; 0 again at the first I/O that succeeds ten minutes
    /// after the last of them. `counters.backend_errors` has all of them.
    #[serde(default)]
    pub disk_errors: u64,
    /// Bytes in memory.
    pub cached_bytes: u64,
    /// Bytes in memory that other volumes do not take from it, by `share-min`.
    #[serde(default)]
    pub share_min_bytes: u64,
    /// The most bytes that it may have in memory, by `share-max`; `null` if there is no limit.
    #[serde(default)]
    pub share_max_bytes: Option<u64>,
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
    /// Latencies of its requests and of its disk.
    pub latency: Latencies,
    /// How busy its disk is with its I/Os.
    #[serde(default)]
    pub disk: DiskUse,
}
