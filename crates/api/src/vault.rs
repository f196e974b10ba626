//! What the server tells about its vault, and about a rehearsal.

use crate::Latencies;
use serde::{Deserialize, Serialize};
use std::fmt;
use utoipa::ToSchema;

/// What a vault is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum VaultState {
    /// It is empty and takes a dump.
    #[default]
    Ready,
    /// It holds what was dumped before this server started and is not on its disks yet.
    Holding,
    /// It is being written.
    Dumping,
    /// It holds a dump of this server; writes are halted until it is emptied.
    Dumped,
    /// It takes nothing more.
    Failed,
}

impl fmt::Display for VaultState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ready => "ready",
            Self::Holding => "holding",
            Self::Dumping => "dumping",
            Self::Dumped => "dumped",
            Self::Failed => "failed",
        })
    }
}

/// The vault.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct VaultStatus {
    /// Where it lies.
    pub name: String,
    /// What it is doing.
    pub state: VaultState,
    /// Why it has failed, or what is wrong with what it holds, in one line.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state_reason: Option<String>,
    /// Bytes that a dump can take, its records included.
    pub capacity_bytes: u64,
    /// Bytes made stable in a second, as measured last; null before that.
    pub write_bytes_per_second: Option<u64>,
    /// Bytes read back and checked in a second, as measured last; null before that.
    pub read_bytes_per_second: Option<u64>,
    /// When that was measured, in seconds since 1970; null before that.
    pub measured_at: Option<u64>,
    /// The last dump of this server.
    pub last_dump: Option<DumpSummary>,
    /// Volumes that it holds data of from before the server started. As long as there is one, the
    /// vault takes nothing, and nothing is write-back under a supply.
    pub held: Vec<HeldVolume>,
}

/// A dump.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct DumpSummary {
    /// When it began, in seconds since 1970.
    pub begun_at: u64,
    /// Bytes of clients' data in it.
    pub bytes: u64,
    /// Milliseconds until all of it was stable.
    pub sealed_ms: u64,
    /// Milliseconds until it was read back, too.
    pub total_ms: u64,
    /// Whether everything read back was what had been written.
    pub verified: bool,
    /// How often the device failed and another place was taken.
    pub failures: u32,
}

/// What the vault holds of a volume.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct HeldVolume {
    /// The volume's name.
    pub volume: String,
    /// Bytes that its disk may not have.
    pub bytes: u64,
}

/// What a rehearsal of a power failure has shown.
#[derive(Clone, Debug, PartialEq, Default, Serialize, Deserialize, ToSchema)]
pub struct DrillReport {
    /// When it began: `2026-02-28T13:05:09Z`.
    pub begun_at: String,
    /// The vault.
    pub vault: String,
    /// Whether everything dirty would have been in safety in time: written, stable and read back,
    /// the disks flushed, and all of that while the battery would have lasted.
    pub saved_in_time: bool,
    /// The same in a sentence, with what was wrong.
    pub verdict: String,
    /// Bytes in dirty lines under supplies when it began.
    pub dirty_bytes: u64,
    /// Bytes saved: the dirty sectors of these lines.
    pub bytes: u64,
    /// Milliseconds until all of it was stable.
    pub write_ms: u64,
    /// Milliseconds until the disks' own caches were flushed, too.
    pub disks_ms: u64,
    /// Milliseconds until all of it was read back and compared, too.
    pub total_ms: u64,
    /// Bytes made stable in a second.
    pub bytes_per_second: u64,
    /// Whether everything read back was what had been written.
    pub verified: bool,
    /// How often the vault's device failed and another place was taken.
    pub failures: u32,
    /// Bytes that were the same in memory when they were read back.
    pub same_bytes: u64,
    /// Bytes that clients had written again, or that had gone to their disk, in the meantime.
    pub changed_bytes: u64,
    /// Volumes whose disks did not confirm a flush.
    pub unflushed: Vec<String>,
    /// How much might have been dirty then, in bytes; null where no supply is watched.
    pub dirty_bytes_max: Option<u64>,
    /// How long the battery would have lasted, in seconds; null where that is not known.
    pub battery_seconds: Option<u32>,
    /// Clients' latencies in the two seconds before.
    pub latency_before: Latencies,
    /// Clients' latencies while it lasted.
    pub latency_during: Latencies,
    /// Where the report was written.
    pub path: Option<String>,
}
