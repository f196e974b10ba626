//! The status of the vault, and the report of a drill.

use crate::Latencies;
use serde::{Deserialize, Serialize};
use std::fmt;
use utoipa::ToSchema;

/// The state of a vault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum VaultState {
    /// It is empty, ready for a dump.
    #[default]
    Ready,
    /// It holds an earlier server's dump that is not on the disks yet.
    Holding,
    /// A dump is being written.
    Dumping,
    /// It holds a dump of this server; writes are halted until it is emptied.
    Dumped,
    /// It accepts no dump.
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
    /// Its device or file.
    pub name: String,
    /// Its state.
    pub state: VaultState,
    /// Why it has failed, or the problem with the dump that it holds, in one line.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state_reason: Option<String>,
    /// The largest dump in bytes, records included.
    pub capacity_bytes: u64,
    /// Bytes made durable per second, as last measured; null before the first measurement.
    pub write_bytes_per_second: Option<u64>,
    /// Bytes read back and verified per second, as last measured; null before.
    pub read_bytes_per_second: Option<u64>,
    /// The time of the measurement, in seconds since 1970; null before.
    pub measured_at: Option<u64>,
    /// The last dump of this server.
    pub last_dump: Option<DumpSummary>,
    /// Volumes with data in an earlier server's dump. While there are any, the vault accepts no
    /// dump, and there is no write-back under UPS protection.
    pub held: Vec<HeldVolume>,
}

/// A dump.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct DumpSummary {
    /// Its start, in seconds since 1970.
    pub begun_at: u64,
    /// Bytes of clients' data.
    pub bytes: u64,
    /// Milliseconds until the dump was durable.
    pub sealed_ms: u64,
    /// Milliseconds until the dump was also read back.
    pub total_ms: u64,
    /// Whether the data read back matched.
    pub verified: bool,
    /// How often the device failed and another place on it was used.
    pub failures: u32,
}

/// The held data of a volume.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct HeldVolume {
    /// The volume's name.
    pub volume: String,
    /// Bytes that its disk may not have.
    pub bytes: u64,
}

/// The report of a drill.
#[derive(Clone, Debug, PartialEq, Default, Serialize, Deserialize, ToSchema)]
pub struct DrillReport {
    /// Its start: `2026-02-28T13:05:09Z`.
    pub begun_at: String,
    /// The vault.
    pub vault: String,
    /// Whether all dirty data was saved in time: it was durable and read back, and the disks were
    /// flushed, before the battery would have run out.
    pub saved_in_time: bool,
    /// The same in a sentence, with any problem.
    pub verdict: String,
    /// Bytes in dirty lines under UPS protection at the start.
    pub dirty_bytes: u64,
    /// Bytes saved: the dirty sectors of these lines, or test data.
    pub bytes: u64,
    /// Whether nothing was dirty, so that as much test data was saved as may be dirty.
    #[serde(default)]
    pub test_data: bool,
    /// Milliseconds until the data was durable in the vault.
    pub write_ms: u64,
    /// Milliseconds until the disks' own caches were also flushed.
    pub disks_ms: u64,
    /// Milliseconds until the data was also read back and compared.
    pub total_ms: u64,
    /// Bytes made durable per second in this drill. The cache of a device takes a small amount
    /// faster than the larger one of a measurement.
    pub bytes_per_second: u64,
    /// Bytes made durable per second as last measured before, on which the dirty limit is based;
    /// null if never.
    #[serde(default)]
    pub measured_bytes_per_second: Option<u64>,
    /// Whether the data read back matched.
    pub verified: bool,
    /// How often the vault's device failed and another place on it was used.
    pub failures: u32,
    /// Bytes unchanged in memory when they were read back.
    pub same_bytes: u64,
    /// Bytes rewritten by clients or destaged meanwhile.
    pub changed_bytes: u64,
    /// Volumes whose disks did not confirm a flush.
    pub unflushed: Vec<String>,
    /// The limit of dirty bytes at the start: by the UPS's budget, the pool and the vault; null if
    /// no UPS is configured.
    pub dirty_bytes_max: Option<u64>,
    /// How long the battery would have lasted, in seconds; null if unknown.
    pub battery_seconds: Option<u32>,
    /// Clients' latencies in the two seconds before.
    pub latency_before: Latencies,
    /// Clients' latencies during the drill.
    pub latency_during: Latencies,
    /// The file of this report.
    pub path: Option<String>,
}
