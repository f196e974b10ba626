//! What is told of a vault and of a dump.

use forebay_types::IoError;
use std::fmt;
use std::time::SystemTime;

/// What a vault is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VaultPhase {
    /// It is empty and takes a dump.
    Ready,
    /// It holds what an earlier process dumped and is not on its disks yet.
    Holding,
    /// It is being written.
    Dumping,
    /// It holds a dump of this process.
    Dumped,
    /// It takes nothing more.
    Failed(IoError),
}

/// How fast a vault is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Measured {
    /// Bytes of clients' data made stable in a second, all that a dump does included.
    pub write_bytes_per_second: u64,
    /// Bytes of clients' data read back and checked in a second.
    pub read_bytes_per_second: u64,
    /// When.
    pub at: SystemTime,
}

/// How a vault is doing.
#[derive(Clone, Debug)]
pub struct VaultStatus {
    /// Its device.
    pub name: String,
    /// What it is doing.
    pub phase: VaultPhase,
    /// Bytes that a dump may take with its records.
    pub capacity_bytes: u64,
    /// How fast it is, once that was measured.
    pub measured: Option<Measured>,
    /// Why its device is not reckoned with just now, if so.
    pub trouble: Option<String>,
    /// Looks at its device that have ended well.
    pub looks: u64,
    /// The last dump of this process.
    pub last_dump: Option<DumpReport>,
    /// Volumes that it holds data of from an earlier process, with the bytes.
    pub held: Vec<(String, u64)>,
    /// Whether that is everything that was dirty then.
    pub is_whole: bool,
}

/// What became of a dump.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DumpReport {
    /// When it began.
    pub begun_at: SystemTime,
    /// Bytes of clients' data in it.
    pub bytes: u64,
    /// Bytes written for it, superblocks not counted.
    pub written_bytes: u64,
    /// Batches.
    pub batches: u64,
    /// How often something failed and was written at another place.
    pub failures: u32,
    /// Milliseconds until everything was written and stable.
    pub write_ms: u64,
    /// Milliseconds until it was sealed: from then on a loss of power loses nothing.
    pub sealed_ms: u64,
    /// Milliseconds until everything was read back, and the disks were flushed.
    pub total_ms: u64,
    /// Whether everything was read back, and was what had been written.
    pub verified: bool,
    /// Volumes whose disks have not confirmed that their caches are on stable storage.
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

/// Bytes in a second, of bytes in milliseconds.
pub(super) fn rate(bytes: u64, ms: u64) -> u64 {
    (u128::from(bytes) * 1000 / u128::from(ms.max(1))) as u64
}

impl fmt::Display for DumpReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mib_per_second = rate(self.bytes, self.sealed_ms) >> 20;
        let (bytes, sealed_ms, total_ms) = (self.bytes, self.sealed_ms, self.total_ms);
        write!(f, "{bytes} bytes are safe after {sealed_ms} ms ({mib_per_second} MiB/s), ")?;
        let verified = if self.verified { "verified" } else { "NOT VERIFIED" };
        write!(f, "{verified} after {total_ms} ms")?;
        if self.failures > 0 {
            write!(f, ", with {} failures of the device", self.failures)?;
        }
        if !self.unflushed.is_empty() {
            write!(f, "; NOT FLUSHED: {}", self.unflushed.join(", "))?;
        }
        Ok(())
    }
}
