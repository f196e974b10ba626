//! Reports of a vault's state and of a dump.

use forebay_types::{Bytes, IoError};
use std::fmt;
use std::time::{Duration, SystemTime};

/// The state of a vault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VaultPhase {
    /// Empty, and accepts a dump.
    Ready,
    /// Holds data of an earlier process's dump that is not on the disks yet.
    Holding,
    /// A dump is being written.
    Dumping,
    /// Holds a dump of this process.
    Dumped,
    /// Accepts no dump.
    Failed(IoError),
}

/// The measured speed of a vault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Measured {
    /// Bytes of clients' data made durable per second, with the overhead of a dump.
    pub write_bytes_per_second: u64,
    /// Bytes of clients' data read back and verified per second.
    pub read_bytes_per_second: u64,
    /// The time of the measurement.
    pub at: SystemTime,
}

/// A snapshot of a vault's state.
#[derive(Clone, Debug)]
pub struct VaultStatus {
    /// Its device.
    pub name: String,
    /// Its state.
    pub phase: VaultPhase,
    /// Space for a dump with its records.
    pub capacity_bytes: u64,
    /// Its speed, once measured.
    pub measured: Option<Measured>,
    /// Why its device cannot be relied on at present.
    pub trouble: Option<String>,
    /// Probes of its device that have succeeded.
    pub probes: u64,
    /// The last dump of this process.
    pub last_dump: Option<DumpReport>,
    /// The volumes held from an earlier process, with the bytes of each.
    pub held: Vec<(String, u64)>,
    /// Whether the held dump is complete and undamaged.
    pub is_whole: bool,
}

/// The outcome of a dump.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DumpReport {
    /// When it began.
    pub begun_at: SystemTime,
    /// Bytes of clients' data.
    pub bytes: u64,
    /// Bytes written, without superblocks.
    pub written_bytes: u64,
    /// Batches written.
    pub batches: u64,
    /// Batches that failed and were written at another place.
    pub failures: u32,
    /// Milliseconds until everything was durable.
    pub write_ms: u64,
    /// Milliseconds until the dump was sealed: from then on a loss of power loses nothing.
    pub sealed_ms: u64,
    /// Milliseconds until the dump was read back and the disks were flushed.
    pub total_ms: u64,
    /// Whether everything was read back and is intact.
    pub verified: bool,
    /// Volumes whose disks have not confirmed a flush.
    pub unflushed: Vec<String>,
}

impl Default for DumpReport {
    fn default() -> Self {
        Self {
            begun_at: SystemTime::UNIX_EPOCH,
            bytes: 0,
            written_bytes: 0,
            batches: 0,
            failures: 0,
            write_ms: 0,
            sealed_ms: 0,
            total_ms: 0,
            verified: false,
            unflushed: Vec::new(),
        }
    }
}

/// Bytes per second. A small dump takes less than a millisecond.
pub(super) fn rate(bytes: u64, time: Duration) -> u64 {
    (u128::from(bytes) * 1_000_000 / time.as_micros().max(1)) as u64
}

impl fmt::Display for DumpReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mib_per_second = rate(self.bytes, Duration::from_millis(self.sealed_ms)) >> 20;
        let (bytes, sealed_ms, total_ms) = (Bytes(self.bytes), self.sealed_ms, self.total_ms);
        write!(f, "{bytes} sealed after {sealed_ms} ms ({mib_per_second} MiB/s), ")?;
        let verified = if self.verified { "verified" } else { "NOT VERIFIED" };
        write!(f, "{verified} after {total_ms} ms")?;
        if self.failures > 0 {
            write!(f, ", {} batches relocated", self.failures)?;
        }
        if !self.unflushed.is_empty() {
            write!(f, "; NOT FLUSHED: {}", self.unflushed.join(", "))?;
        }
        Ok(())
    }
}
