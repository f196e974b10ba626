//! The workloads of enumerated machines.

use crate::harness::WHOLE;
use crate::harness::dice::Dice;
use crate::harness::places::{SECTORS, places, sectors};
use crate::named::named;
use forebay_types::{ByteRange, Durability};
use forebay_volume::RequestKind;
use std::fmt;

/// One operation of a workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// A client's request.
    Request(RequestKind, ByteRange),
    /// Time passes; background writeback destages old data.
    Tick,
    /// The journal begins a checkpoint.
    Checkpoint,
    /// The process is killed, and the next one starts.
    Kill,
    /// Power fails and returns. A UPS bridges the dump of the data that it protects.
    Power,
    /// The process is stopped and started by the operator.
    Restart,
}

const WRITE: RequestKind = RequestKind::Write { fua: false };
const FUA: RequestKind = RequestKind::Write { fua: true };
const TRIM: RequestKind = RequestKind::Trim { fua: false };
const ZERO: RequestKind = RequestKind::Zero { fua: false, unmap: false };

impl Operation {
    /// The enumerated operations. The border of the regions follows sector 15.
    pub const ALL: [Self; 14] = [
        Self::Request(WRITE, sectors(11, 1)),
        Self::Request(WRITE, sectors(8, 8)),
        Self::Request(WRITE, sectors(8, 16)),
        Self::Request(WRITE, sectors(6, 6)),
        Self::Request(FUA, sectors(10, 2)),
        Self::Request(RequestKind::Flush, WHOLE),
        Self::Request(TRIM, sectors(10, 4)),
        Self::Request(ZERO, sectors(4, 8)),
        Self::Request(RequestKind::Read, sectors(0, 24)),
        Self::Tick,
        Self::Checkpoint,
        Self::Kill,
        Self::Power,
        Self::Restart,
    ];

    /// A random operation at a random place.
    pub(super) fn draw(dice: &mut Dice) -> Self {
        let count = dice.skewed(1, 16);
        let range = sectors(dice.below(SECTORS as u64 - count + 1), count);
        let fua = dice.chance(300_000);
        match dice.weighted(&[30, 8, 10, 5, 5, 6, 12, 8, 4, 4, 2]) {
            0 => Self::Request(WRITE, range),
            1 => Self::Request(FUA, range),
            2 => Self::Request(RequestKind::Flush, WHOLE),
            3 => Self::Request(RequestKind::Trim { fua }, range),
            4 => Self::Request(RequestKind::Zero { fua, unmap: dice.chance(500_000) }, range),
            5 => Self::Request(RequestKind::Read, range),
            6 => Self::Tick,
            7 => Self::Checkpoint,
            8 => Self::Kill,
            9 => Self::Power,
            _ => Self::Restart,
        }
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (kind, range) = match self {
            Self::Request(RequestKind::Flush, _) => return f.write_str("flush"),
            Self::Request(kind, range) => (kind, range),
            Self::Tick => return f.write_str("tick"),
            Self::Checkpoint => return f.write_str("checkpoint"),
            Self::Kill => return f.write_str("kill"),
            Self::Power => return f.write_str("power"),
            Self::Restart => return f.write_str("restart"),
        };
        let places = places(*range);
        let name = match kind {
            RequestKind::Write { fua: true } => "fua",
            RequestKind::Write { fua: false } => "write",
            RequestKind::Trim { .. } => "trim",
            RequestKind::Zero { .. } => "zero",
            _ => "read",
        };
        write!(f, "{name} {}+{}", places.start, places.len())
    }
}

named! {
    /// What protects the dirty data of the machine's volume.
    "protection" enum ProtectedBy {
        /// Nothing: dirty data is in memory only.
        Nothing = "none",
        /// A UPS, which bridges each loss of power until a vault has the dirty data.
        Ups = "ups",
        /// A journal with `durability=ack`: each write is recorded before its acknowledgement.
        Ack = "journal, ack",
        /// A journal with `durability=flush`: writes are recorded by the next flush.
        Flush = "journal, flush",
        /// A journal with `durability=ack`, and the UPS once the journal has failed.
        AckAndUps = "journal+ups, ack",
    }
}

impl ProtectedBy {
    /// When the journal acknowledges writes, if there is one.
    pub(super) const fn journal(self) -> Option<Durability> {
        match self {
            Self::Nothing | Self::Ups => None,
            Self::Ack | Self::AckAndUps => Some(Durability::Ack),
            Self::Flush => Some(Durability::Flush),
        }
    }

    pub(super) const fn has_ups(self) -> bool {
        matches!(self, Self::Ups | Self::AckAndUps)
    }
}

/// A machine and its operations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Workload {
    /// What protects its volume.
    pub protected_by: ProtectedBy,
    /// Whether each shard may have only one dirty line, so that other writes go through to the
    /// disk.
    pub tight: bool,
    /// The operations in order; each may begin before the previous one has ended.
    pub operations: Vec<Operation>,
}

impl fmt::Display for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words: Vec<String> = self.operations.iter().map(Operation::to_string).collect();
        let limit = if self.tight { "low" } else { "high" };
        write!(f, "{}; {limit} dirty limit: {}", self.protected_by, words.join(", "))
    }
}

/// The number of workloads with `length` operations.
pub(super) const fn count(length: u32) -> u64 {
    (Operation::ALL.len() as u64).pow(length) * ProtectedBy::ALL.len() as u64 * 2
}

/// Workload number `index` among those with `length` operations.
pub(super) fn workload(length: u32, mut index: u64) -> Workload {
    let mut digit = |base: usize| {
        let digit = (index % base as u64) as usize;
        index /= base as u64;
        digit
    };
    let protected_by = ProtectedBy::ALL[digit(ProtectedBy::ALL.len())];
    let tight = digit(2) == 1;
    let operations = (0..length).map(|_| Operation::ALL[digit(Operation::ALL.len())]).collect();
    Workload { protected_by, tight, operations }
}

/// Workloads whose numbers are equal modulo this have the same machine and the same first
/// operation.
pub(super) const GROUPS: u64 = (Operation::ALL.len() * ProtectedBy::ALL.len() * 2) as u64;

/// A random workload.
pub(super) fn random(dice: &mut Dice) -> Workload {
    let (protected_by, tight) = (dice.pick(&ProtectedBy::ALL), dice.chance(500_000));
    let operations = (0..dice.range(3, 10)).map(|_| Operation::draw(dice)).collect();
    Workload { protected_by, tight, operations }
}
