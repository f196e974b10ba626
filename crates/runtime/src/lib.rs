//! The driver that runs the engine in real time: threads, rings, sockets and the pool's memory.
//!
//! A [`Runtime`] has workers: threads with a reactor each (io_uring, or epoll where io_uring is
//! forbidden), which own a share of the clients. Workers share the pool and its shards. A worker
//! calls a shard inline, under the shard's lock, for the duration of a lookup, and sends hits from
//! the pool without copying them. Volumes can be added and removed while the runtime runs.

mod background;
mod clients;
mod descriptors;
mod disks;
mod error;
mod gather;
mod govern;
mod huge_pages;
mod learn;
mod locks;
mod memory_plan;
mod pins;
mod pool;
mod protect;
mod reactor;
mod recording;
mod resize;
#[cfg(test)]
mod rig;
mod runtime;
mod service;
mod shared;
mod slow;
mod stats;
mod timeouts;
mod warm_up;
mod worker;
mod write_share;

pub use background::BackgroundShares;
pub use descriptors::Descriptors;
pub use disks::DiskStall;
pub use error::{StartError, VolumeError, remedy_for_save};
pub use forebay_backend::SaveState;
pub use forebay_engine::{IoCause, Uncached};
pub use forebay_format::journal::JournalId;
pub use forebay_frontend::Peer;
pub use forebay_policy::{
    BackgroundControl, Division, GovernorState, GrowthReason, MachineFigures, MemoryBounds,
    MemorySample, MemoryUse, MissRatioCurve, OutlookLog, ReadTarget, SizeAdvice, SizeControl,
    SizeDecision, SizeOutlook, SizeReason, SizeSettings, SplitCost, ThresholdSource, VolumeShare,
    WritebackLimits, gain_per_doubling,
};
pub use gather::{Calibration, CalibrationFailure, GatherStatus, OnMeasured};
pub use learn::{
    ForecastScore, ForecastStatus, Histories, LearnState, LearnStatus, LocalClock, LocalTime,
    SystemClock,
};
pub use memory_plan::limit_for_pool;
pub use pins::{PinError, PinStatus};
pub use pool::{
    MemoryWords, PoolError, PoolLimits, dirty_bytes_in, inherit, limits_in,
    new_file as new_pool_file, used_bytes_in,
};
pub use protect::guard::examine_disk;
pub use protect::journal::{
    Journal, JournalError, JournalPatrol, JournalRecord, JournalSettings, JournalStatus,
    KeptStatus, MemberRecord, MissingDevice, OnFailure, VoidRecords, VolumeJournal,
};
pub use protect::patrol::{Ecc, PatrolStatus};
pub use protect::vault::{
    DrillReport, DumpReport, Measured, Missing, OnVoid, Vault, VaultError, VaultPhase, VaultRecord,
    VaultSettings, VaultStatus, VolumeVault, vault_bytes_for,
};
pub use recording::{RecordError, Recorded, Recording, Served};
pub use resize::ResizeError;
pub use runtime::{
    Engine, LeftBehind, Runtime, RuntimeConfig, clients, conditions, discard_volume, leave,
    memory_status, set_hold_out, writers,
};
pub use service::{
    CalibrateError, Discarded, MemoryStatus, RuntimeStatus, Stall, VolumeCondition, VolumeSettings,
    VolumeStatus,
};
pub use slow::{
    SlowLog, SlowRequest, SlowUnlogged, SlowWait, VolumeSlow, WaitingRequest, WaitingRequests,
};
pub use stats::{
    ArmTimes, DiskUse, InternalIos, Latencies, LatencyClass, LatencyHistogram, NamedStatistics,
    RequestCounters, ResponseTimes, VolumeStatistics, size_class_bytes,
};
pub use timeouts::Timeouts;
pub use warm_up::{WarmLists, WarmUpState, WarmUpStatus};
pub use write_share::{ShareError, WriteShares};

forebay_types::faults! {
    service::CalibrateError, JournalError, protect::journal::MissingDevice, PinError,
    pool::PoolError, RecordError, ResizeError, ShareError, service::Stall, StartError, VaultError,
    VolumeError
}
