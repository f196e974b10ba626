//! The patrol, which scrubs the pool, and the damage that it has found.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The patrol, which scrubs the pool. Counters start with the server.
#[derive(Clone, Debug, PartialEq, Default, Serialize, Deserialize, ToSchema)]
pub struct PatrolStatus {
    /// `parity`, `checksum` or `off`, as in `--ecc`.
    pub ecc: String,
    /// Lines sealed: their checksums were computed after a change.
    pub sealed_lines: u64,
    /// Lines whose checksums were verified.
    pub verified_lines: u64,
    /// Bytes of changed lines that are not sealed yet.
    pub unsealed_bytes: u64,
    /// Dirty bytes that can be corrected from parity.
    pub parity_bytes: u64,
    /// Bytes of the pool that hold parity.
    pub parity_slot_bytes: u64,
    /// Completed walks over the whole pool.
    pub walks: u64,
    /// The duration of the last walk, in the shard where it took longest; zero before the first.
    pub walk_seconds: f64,
    /// The damage found in all served volumes.
    pub damage: Damage,
}

/// Damage to memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct Damage {
    /// Lines found damaged.
    pub found_lines: u64,
    /// Damaged dirty lines repaired by parity.
    pub corrected_lines: u64,
    /// Damaged lines with clean data, which is read from the disk again.
    pub fetched_again_lines: u64,
    /// Damaged lines with dirty data beyond repair.
    pub lost_lines: u64,
    /// Lines whose lost data was recovered from the volume's journal.
    pub back_from_journal_lines: u64,
    /// Lost bytes that have not been rewritten. Reads of them fail, and so do flushes.
    pub lost_bytes: u64,
}

impl Damage {
    /// Adds the damage of another volume.
    pub const fn add(&mut self, other: &Self) {
        self.found_lines += other.found_lines;
        self.corrected_lines += other.corrected_lines;
        self.fetched_again_lines += other.fetched_again_lines;
        self.lost_lines += other.lost_lines;
        self.back_from_journal_lines += other.back_from_journal_lines;
        self.lost_bytes += other.lost_bytes;
    }
}
