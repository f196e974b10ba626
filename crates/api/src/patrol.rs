//! The patrol over memory, and what it has found.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// How damage to memory is noticed and undone, and how that is going. Counters count from the start
/// of the server.
#[derive(Clone, Debug, PartialEq, Default, Serialize, Deserialize, ToSchema)]
pub struct PatrolStatus {
    /// `parity`, `checksum` or `off`, as in `--ecc`.
    pub ecc: String,
    /// Lines whose checksum was computed after they had changed.
    pub sealed_lines: u64,
    /// Lines whose checksum was compared by the patrol.
    pub verified_lines: u64,
    /// Bytes of lines that have changed and have no new checksum yet.
    pub unsealed_bytes: u64,
    /// Dirty bytes that can be corrected from parity.
    pub parity_bytes: u64,
    /// Bytes of the pool that hold parity.
    pub parity_slot_bytes: u64,
    /// Walks over the whole pool that have ended.
    pub walks: u64,
    /// How long the last walk took in that part of the pool where it took longest; zero before.
    pub walk_seconds: f64,
    /// What was found in all volumes that are served.
    pub damage: Damage,
}

/// Damage to memory that was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct Damage {
    /// Lines found damaged.
    pub found_lines: u64,
    /// Of those, dirty lines that were put right from their parity.
    pub corrected_lines: u64,
    /// Of those, lines that were clean in part at least, which is read from the disk again.
    pub fetched_again_lines: u64,
    /// Of those, lines with dirty data that was beyond repair.
    pub lost_lines: u64,
    /// Lines of which lost data came back from the volume's journal.
    pub back_from_journal_lines: u64,
    /// Bytes that were lost and have not been written again. Reads of them fail, and flushes.
    pub lost_bytes: u64,
}

impl Damage {
    /// Adds what was found elsewhere.
    pub const fn add(&mut self, other: &Self) {
        self.found_lines += other.found_lines;
        self.corrected_lines += other.corrected_lines;
        self.fetched_again_lines += other.fetched_again_lines;
        self.lost_lines += other.lost_lines;
        self.back_from_journal_lines += other.back_from_journal_lines;
        self.lost_bytes += other.lost_bytes;
    }
}
