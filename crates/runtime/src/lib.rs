//! The driver that runs the engine in real time: threads, rings, sockets and the pool's memory.
//!
//! A [`Runtime`] has workers: threads with a reactor each (io_uring, or epoll where io_uring is
//! forbidden), which own a share of the clients. Workers share the pool and its shards. A worker
//! calls a shard inline, under the shard's lock, for the duration of a lookup, and sends hits from
//! the pool without copying them. Volumes can be added and removed while the runtime runs.

mod calibrate;
mod clients;
mod descriptors;
mod drain;
mod error;
mod govern;
mod locks;
mod memory_plan;
mod pool;
mod protect;
mod reactor;
#[cfg(test)]
mod rig;
mod server;
mod shared;
mod start;
mod stats;
mod status;
mod timeouts;
mod volume_table;
mod warm;
mod worker;

pub use calibrate::{CalibrateError, Calibration, CalibrationFailure, GatherStatus};
pub use descriptors::Descriptors;
pub use drain::HeldUp;
pub use error::{StartError, VolumeError};
pub use forebay_format::journal::JournalId;
pub use forebay_policy::{GovernorStatus, Limits, ReadTarget, SplitCost, ThresholdSource};
pub use pool::{PoolError, dirty_bytes_in, inherit, new_file as new_pool_file};
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
pub use server::{Engine, Runtime, RuntimeConfig, VolumeChange, VolumeSettings};
pub use stats::{LatencyClass, LatencySummary, RequestCounters};
pub use status::{MemoryStatus, RuntimeStatus, VolumeStatus};
pub use timeouts::Timeouts;
