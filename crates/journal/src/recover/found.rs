//! What a walk finds in a log: records, and the parts that are unreadable.

use forebay_format::journal::{Record, Superblock};
use std::fmt;

/// A record from the log, with the position of its payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FoundRecord {
    pub record: Record,
    /// Position of its payload on the device, in bytes.
    pub position: u64,
    /// Whether the payload does not match its checksum.
    pub is_damaged: bool,
}

/// Part of the log that had been durable and is now unreadable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Damage {
    /// The payload of some records of a batch, which have [`FoundRecord::is_damaged`] set.
    Payload {
        /// The batch number.
        batch: u64,
    },
    /// Whole batches, whose records are unknown.
    Batches {
        /// The first lost batch.
        first: u64,
        /// The first readable batch after the lost ones, if any. It is `first` if that batch is
        /// in another place.
        next: Option<u64>,
        /// Position of the first lost batch on the device, in bytes.
        position: u64,
    },
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Payload { batch } => write!(f, "the payload of batch {batch} is damaged"),
            Self::Batches { first, next: Some(next), position } => match next.checked_sub(1) {
                Some(last) if last > *first => {
                    write!(f, "batches {first} to {last} at byte {position} are damaged")
                }
                Some(last) if last == *first => {
                    write!(f, "batch {first} at byte {position} is damaged")
                }
                _ => write!(f, "batch {next} is not at byte {position}, where it belongs"),
            },
            Self::Batches { first, next: None, position } => {
                write!(f, "batch {first} at byte {position} is unreadable")
            }
        }
    }
}

/// The content of a log.
#[derive(Clone, Debug)]
pub struct Found {
    /// The newest superblock.
    pub superblock: Superblock,
    /// The records of everything that a disk may lack, in order. In a long log, overwritten records
    /// are left out.
    pub records: Vec<FoundRecord>,
    /// The number of the next batch.
    pub next_batch: u64,
    /// The chain of the next batch.
    pub chain: u32,
    /// The number of the next record.
    pub next_record: u64,
    /// The segment of the last batch, if any.
    pub last_segment: Option<u64>,
    /// The unreadable parts.
    pub damage: Vec<Damage>,
}

impl Found {
    /// The content of a new journal.
    pub const fn empty(superblock: Superblock) -> Self {
        Self {
            superblock,
            records: Vec::new(),
            next_batch: 0,
            chain: 0,
            next_record: 0,
            last_segment: None,
            damage: Vec::new(),
        }
    }

    /// Drops all records, because they are on stable storage on their disks.
    pub fn drop_records(&mut self) {
        self.records.clear();
    }
}
