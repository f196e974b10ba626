//! What the enumerated machines are asked to do.

use crate::harness::dice::Dice;
use forebay_types::{ByteRange, REGION_BYTES, SECTOR_BYTES};
use forebay_volume::RequestKind;
use std::fmt;

/// Sectors that workloads may touch: two lines before the border of the first two regions, and two
/// behind it.
pub(super) const SECTORS: usize = 32;
/// The first of them on the volume.
pub(super) const FIRST: u64 = REGION_BYTES / SECTOR_BYTES - 16;

/// One operation of a workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// A client's request.
    Request(RequestKind, ByteRange),
    /// Time passes, and the background writes back what is old enough.
    Tick,
    /// The journal begins a checkpoint.
    Checkpoint,
    /// The process dies and another one starts.
    Kill,
    /// The power fails and comes back.
    Power,
    /// The process is stopped and started as an operator does it.
    Restart,
}

/// The sectors of a byte range, counted from the first that workloads touch.
pub(super) fn places(range: ByteRange) -> std::ops::Range<usize> {
    let first = (range.offset / SECTOR_BYTES - FIRST) as usize;
    first..first + (range.len / SECTOR_BYTES) as usize
}

/// Sectors from `first` on, counted the same way.
pub(super) const fn sectors(first: u64, count: u64) -> ByteRange {
    ByteRange::new((FIRST + first) * SECTOR_BYTES, count * SECTOR_BYTES)
}

const WRITE: RequestKind = RequestKind::Write { fua: false };
const FUA: RequestKind = RequestKind::Write { fua: true };
const TRIM: RequestKind = RequestKind::Trim { fua: false };
const ZERO: RequestKind = RequestKind::Zero { fua: false, unmap: false };

impl Operation {
    /// The set that is enumerated. The border of the regions lies behind sector 15.
    pub const ALL: [Self; 14] = [
        Self::Request(WRITE, sectors(11, 1)),
        Self::Request(WRITE, sectors(8, 8)),
        Self::Request(WRITE, sectors(8, 16)),
        Self::Request(WRITE, sectors(6, 6)),
        Self::Request(FUA, sectors(10, 2)),
        Self::Request(RequestKind::Flush, ByteRange::new(0, 0)),
        Self::Request(TRIM, sectors(10, 4)),
        Self::Request(ZERO, sectors(4, 8)),
        Self::Request(RequestKind::Read, sectors(0, 24)),
        Self::Tick,
        Self::Checkpoint,
        Self::Kill,
        Self::Power,
        Self::Restart,
    ];

    /// Any operation, of any place and length.
    pub(super) fn draw(dice: &mut Dice) -> Self {
        let count = dice.skewed(1, 16);
        let range = sectors(dice.below(SECTORS as u64 - count + 1), count);
        let fua = dice.chance(300_000);
        match dice.weighted(&[30, 8, 10, 5, 5, 6, 12, 8, 4, 4, 2]) {
            0 => Self::Request(WRITE, range),
            1 => Self::Request(FUA, range),
            2 => Self::Request(RequestKind::Flush, ByteRange::new(0, 0)),
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

/// What keeps the acknowledged writes of the machine's volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kept {
    /// Nothing but memory.
    None,
    /// A journal, each write before it is acknowledged.
    Ack,
    /// A journal, with the next flush.
    Flush,
}

impl Kept {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::None, Self::Ack, Self::Flush];
}

impl fmt::Display for Kept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::None => "none",
            Self::Ack => "journal, ack",
            Self::Flush => "journal, flush",
        })
    }
}

/// One machine and what it is asked to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Workload {
    /// What protects its volume.
    pub kept: Kept,
    /// Whether each shard takes one dirty line only, so that other writes go through to the disk.
    pub tight: bool,
    /// What it does, in order; each may begin before the one before it has ended.
    pub operations: Vec<Operation>,
}

impl fmt::Display for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words: Vec<String> = self.operations.iter().map(Operation::to_string).collect();
        let room = if self.tight { "little room" } else { "room" };
        write!(f, "{}; {room}: {}", self.kept, words.join(", "))
    }
}

/// How many workloads there are of `length` operations.
pub(super) const fn count(length: u32) -> u64 {
    (Operation::ALL.len() as u64).pow(length) * Kept::ALL.len() as u64 * 2
}

/// Workload number `index` of those with `length` operations.
pub(super) fn workload(length: u32, mut index: u64) -> Workload {
    let mut digit = |base: usize| {
        let digit = (index % base as u64) as usize;
        index /= base as u64;
        digit
    };
    let (kept, tight) = (Kept::ALL[digit(3)], digit(2) == 1);
    let operations = (0..length).map(|_| Operation::ALL[digit(Operation::ALL.len())]).collect();
    Workload { kept, tight, operations }
}

/// Workloads whose indexes leave the same rest have the same machine and begin with the same
/// operation.
pub(super) const ALIKE: u64 = (Operation::ALL.len() * Kept::ALL.len() * 2) as u64;

/// A workload that follows from the seed.
pub(super) fn random(dice: &mut Dice) -> Workload {
    let (kept, tight) = (dice.pick(&Kept::ALL), dice.chance(500_000));
    let operations = (0..dice.range(3, 10)).map(|_| Operation::draw(dice)).collect();
    Workload { kept, tight, operations }
}

/// Everything that workloads may touch.
pub(super) const fn all_sectors() -> ByteRange {
    sectors(0, SECTORS as u64)
}
