//! The driver that runs the engine in real time: threads, rings, sockets and the pool's memory.
//!
//! A [`Runtime`] has workers: threads with a reactor each (io_uring, or epoll where io_uring is
//! forbidden), which own a share of the clients. Workers share the pool and its shards. A worker
//! calls a shard inline, under the shard's lock, for the duration of a lookup, and sends hits from
//! the pool without copying them. Volumes can be added and removed while the runtime runs.
//!
//! The modules use each other from top to bottom only:
//!
//! | modules | contents |
//! | --- | --- |
//! | `runtime` | start, stop, and what a program calls |
//! | `service` | volumes: add, change, remove, report |
//! | `warm_up`, `learn`, `resize`, `collapser` | threads beside the path of requests |
//! | `worker` | the loop of a worker, its I/O and its clients |
//! | `error` | why a start or an operation on a volume fails |
//! | `protect` | the vault, the patrol, what shards do for journals |
//! | `shared` | what workers share: shards, volumes, inboxes |
//! | `journal` | the journals and their threads |
//! | `pool`, `disk`, `stats`, `budget`, `background` | lines, disks, counters, limits |
//! | `platform` | the system: reactors, locks, memory, descriptors, time |

mod background;
mod budget;
mod collapser;
mod disk;
mod error;
mod journal;
mod learn;
mod memory_plan;
mod platform;
mod pool;
mod protect;
mod resize;
#[cfg(test)]
mod rig;
mod runtime;
mod service;
mod shared;
mod stats;
mod warm_up;
mod worker;
mod write_share;

pub use background::BackgroundShares;
pub use disk::{DiskStall, examine_disk};
pub use error::{MoveError, Stall, StartError, VolumeError, remedy_for_save};
pub use forebay_backend::SaveState;
pub use forebay_engine::{IoCause, Uncached};
pub use forebay_format::journal::JournalId;
pub use forebay_frontend::Peer;
pub use forebay_policy::{
    BackgroundControl, Division, GovernorState, GrowthReason, MachineFigures, MemoryBounds,
    MemorySample, MemoryUse, MissRatioCurve, OutlookLog, PoolSize, ReadTarget, SizeAdvice,
    SizeControl, SizeDecision, SizeOutlook, SizePrediction, SizeReason, SizeSettings, SplitCost,
    ThresholdSource, VolumeShare, WritebackLimits, gain_per_doubling,
};
pub use journal::{
    Journal, JournalError, JournalPatrol, JournalRecord, JournalSettings, JournalStatus,
    KeptStatus, MemberRecord, Missing, MissingDevice, OnFailure, VoidRecords, VolumeJournal,
    beat_every, journal_is_shared,
};
pub use learn::Histories;
pub use memory_plan::limit_for_pool;
pub use platform::clock::{LocalClock, LocalTime, SystemClock};
pub use platform::descriptors::Descriptors;
pub use pool::{
    MemoryWords, PoolError, PoolLimits, dirty_bytes_in, inherit, limits_in,
    new_file as new_pool_file, used_bytes_in,
};
pub use protect::patrol::PatrolStatus;
pub use protect::power::UpsVolumes;
pub use protect::vault::{
    DrillReport, DumpReport, LogReader, Measured, OnVoid, Vault, VaultError, VaultPhase,
    VaultRecord, VaultSettings, VaultStatus, VolumeVault, vault_bytes_for,
};
pub use resize::ResizeError;
pub use runtime::{
    LeftBehind, Runtime, RuntimeConfig, clients, clients_joined, continue_clients, disconnect,
    has_left_requests, leave, memory_status,
};
pub use service::{
    Discarded, MemoryStatus, OnRecovered, Protectors, RecordError, Recording, RuntimeStatus,
    SlowLog, SlowUnlogged, VolumeCondition, VolumeService, VolumeSettings, VolumeStatus,
    abandon_in_pool, is_lost, medium_of, move_journal, surrender, taken_over, without_journal,
};
pub use shared::{
    CalibrateError, Calibration, CalibrationFailure, ConnectedClient, Ecc, ForecastScore,
    ForecastStatus, GatherStatus, LearnState, LearnStatus, OnMeasured, PinError, PinStatus,
    Recorded, Served, SlowRequest, SlowWait, Timeouts, VolumeSlow, WaitingRequest, WaitingRequests,
    WarmUpState, WarmUpStatus,
};
pub use stats::{
    ArmTimes, DiskUse, InternalIos, Latencies, LatencyClass, LatencyHistogram, NamedStatistics,
    RequestCounters, ResponseTimes, VolumeStatistics, size_class_bytes,
};
pub use warm_up::WarmLists;
pub use worker::Engine;
pub use write_share::{ShareError, WriteShares};

forebay_types::faults! {
    CalibrateError, JournalError, journal::MissingDevice, MoveError, PinError,
    pool::PoolError, RecordError, ResizeError, ShareError, Stall, StartError, VaultError,
    VolumeError
}
