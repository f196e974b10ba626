//! I/Os of shards on their way to a disk.

use super::memory::Memory;
use super::oracle::{Oracle, describe_stamp};
use super::shard::PooledShard;
use forebay_engine::{IoAction, IoVerb};
use forebay_types::{ByteRange, IoResult, SECTOR_BYTES, VolumeId};
use forebay_volume::Mergeable;

/// An I/O of a shard, with its memory.
pub(crate) struct Io {
    pub shard: usize,
    pub action: IoAction,
    memory: Option<(Memory, u64)>,
    /// The content of a write's memory when it was started, or the result of a read.
    pub stamps: Vec<u64>,
    /// The simulator sets an error here only if the I/O must not reach the disk. The enumeration
    /// sets the result; of a failed change, the first half reaches the disk.
    pub result: IoResult,
    block_bytes: u64,
}

impl Mergeable for Io {
    fn verb(&self) -> IoVerb {
        self.action.verb
    }

    fn volume(&self) -> VolumeId {
        self.action.volume
    }

    fn range(&self) -> ByteRange {
        self.action.range
    }

    fn block_bytes(&self) -> u64 {
        self.block_bytes
    }
}

impl Io {
    pub(crate) const fn new(
        shard: usize,
        action: IoAction,
        memory: Option<(Memory, u64)>,
        block_bytes: u64,
    ) -> Self {
        Self { shard, action, memory, stamps: Vec::new(), result: Ok(()), block_bytes }
    }

    pub(crate) fn is_read(&self) -> bool {
        self.action.verb == IoVerb::Read
    }

    pub(crate) const fn is_write(&self) -> bool {
        matches!(self.action.verb, IoVerb::Write { .. })
    }

    /// Whether the I/O lies inside a volume of this size, and its memory covers it exactly.
    pub(crate) fn is_valid(&self, volume_bytes: u64) -> bool {
        let range = self.action.range;
        let bytes: u64 = self.action.segments.iter().map(|s| u64::from(s.len)).sum();
        let has_memory = self.is_read() || self.is_write();
        range.fits(volume_bytes)
            && range.is_sector_aligned()
            && bytes == if has_memory { range.len } else { 0 }
    }

    /// Whether both I/Os change a common sector.
    pub(crate) fn conflicts_with(&self, other: &Self) -> bool {
        self.action.volume == other.action.volume
            && !self.is_read()
            && !other.is_read()
            && self.action.range.overlaps(other.action.range)
    }

    /// The current content of its memory.
    pub(crate) fn current_stamps(&self, shards: &[PooledShard]) -> Vec<u64> {
        let mut stamps = Vec::with_capacity((self.action.range.len / SECTOR_BYTES) as usize);
        let memory = self.memory.as_ref().map(|(memory, base)| (memory, *base));
        shards[self.shard].stamps(&self.action.segments, memory, &mut stamps);
        stamps
    }

    /// Copies the result of a read to its memory; if `misplaced`, one sector too early in a
    /// request's memory. Returns false if there is no such memory.
    pub(crate) fn fill_memory(&self, shards: &mut [PooledShard], misplaced: bool) -> bool {
        let memory = self.memory.as_ref().map(|(memory, base)| {
            let shift = if misplaced && *base > 0 { SECTOR_BYTES } else { 0 };
            (memory, base - shift)
        });
        shards[self.shard].fill(&self.action.segments, &self.stamps, memory)
    }

    /// Whether it belongs to a part that does not start at the beginning of its request's memory.
    pub(crate) fn has_base(&self) -> bool {
        self.memory.as_ref().is_some_and(|(_, base)| *base > 0)
    }

    /// The first sector whose new content no client wrote there, and a description of that content.
    /// `first` is the number of the I/O's first sector.
    pub(crate) fn first_foreign(&self, first: u64, oracle: &Oracle) -> Option<(u64, String)> {
        let mut sectors = (first..).zip(&self.stamps);
        let found = sectors.find(|&(sector, &stamp)| !oracle.was_written(sector, stamp));
        found.map(|(sector, &stamp)| (sector, describe_stamp(stamp)))
    }
}
