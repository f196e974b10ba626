//! Transfers to disks whose blocks are larger than a sector.
//!
//! The cache works in sectors of 512 bytes, but the smallest unit of a disk may be a block of 4
//! KiB, or of 64 KiB behind an NBD server. A write that covers a block in part is a
//! read-modify-write: it reads the block, changes its own sectors in memory, and writes the block
//! back. Two such transfers on one block at the same time would overwrite each other's changes,
//! even if they change different sectors.
//!
//! So a transfer *owns* each block that it covers in part, from before its first read until after
//! its last write, and the next transfer that needs the block waits. [`BlockOwners`] alone decides
//! this. The runtime and the simulator both start every change of a disk through it, and carry out
//! the steps of the same [`BlockPlan`].
//!
//! Transfers of the same sectors are excluded elsewhere: a line takes part in one operation at a
//! time (`ops` in the engine), so no two transfers in flight change the same sector.
//! [`BlockOwners::start`] asserts that for each change, at every block size.
//!
//! Cost: a lock per volume, and an entry in a tree for each write to the disk. A transfer of whole
//! blocks needs no plan and never waits.

use forebay_engine::IoVerb;
use forebay_types::{ByteRange, Few, SECTOR_BYTES};
use std::collections::{BTreeMap, HashSet, VecDeque};

/// The sectors that one transfer changes on a disk, and the blocks that it owns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockClaim {
    /// The sectors, in ascending order; adjacent ones are one range.
    changed: Few<ByteRange>,
    /// Indices of the blocks covered in part, in ascending order.
    owned: Vec<u64>,
}

/// A step of a [`BlockPlan`]. Steps run one after the other, in the transfer's own buffer, which
/// holds [`BlockPlan::memory`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockStep {
    /// Read these blocks from the disk.
    Read(ByteRange),
    /// Copy the transfer's data, or zeroes, over the blocks read.
    Apply,
    /// Write these blocks to the disk.
    Write {
        /// Whole blocks.
        range: ByteRange,
        /// Force unit access.
        fua: bool,
    },
    /// Zero these blocks with a command to the disk.
    Zero {
        /// Whole blocks.
        range: ByteRange,
        /// Whether the disk may deallocate the range.
        unmap: bool,
    },
}

/// The steps of a transfer that does not consist of whole blocks, or that needs a bounce buffer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockPlan {
    /// The range on the disk that the buffer holds: the whole blocks around the transfer.
    pub memory: ByteRange,
    /// The steps, in order. A failed step ends the transfer.
    pub steps: Vec<BlockStep>,
}

/// The whole blocks around a range.
const fn widened(range: ByteRange, block_bytes: u64) -> ByteRange {
    let start = range.offset / block_bytes * block_bytes;
    ByteRange::new(start, range.end().next_multiple_of(block_bytes) - start)
}

/// The whole blocks inside a range; empty if there are none.
pub(crate) const fn whole_blocks(range: ByteRange, block_bytes: u64) -> ByteRange {
    let start = range.offset.next_multiple_of(block_bytes);
    let end = range.end() / block_bytes * block_bytes;
    ByteRange::new(start, end.saturating_sub(start))
}

impl BlockClaim {
    /// The claim of a transfer that changes these disjoint ranges, in ascending order, on a disk
    /// with blocks of `block_bytes` (a power of two, at least a sector).
    ///
    /// # Panics
    /// If the ranges overlap or are not in order.
    pub fn new(ranges: impl IntoIterator<Item = ByteRange>, block_bytes: u64) -> Self {
        let mut changed: Few<ByteRange> = Few::new();
        for range in ranges {
            match changed.last_mut() {
                Some(last) if last.end() == range.offset => last.len += range.len,
                Some(last) => {
                    assert!(last.end() < range.offset, "{range} overlaps or precedes {last}");
                    changed.push(range);
                }
                None => changed.push(range),
            }
        }
        let mut owned = Vec::new();
        for range in &changed {
            for edge in [range.offset, range.end()] {
                // The byte before the end is in the last block.
                let block = if edge == range.offset { edge } else { edge - 1 } / block_bytes;
                if !edge.is_multiple_of(block_bytes) && owned.last() != Some(&block) {
                    owned.push(block);
                }
            }
        }
        Self { changed, owned }
    }

    fn owned_runs(&self, block_bytes: u64) -> Vec<ByteRange> {
        let mut runs: Vec<ByteRange> = Vec::with_capacity(2);
        for block in &self.owned {
            let range = ByteRange::new(block * block_bytes, block_bytes);
            match runs.last_mut() {
                Some(last) if last.end() == range.offset => last.len += range.len,
                _ => runs.push(range),
            }
        }
        runs
    }

    /// The range from the first changed sector to the last.
    fn span(&self) -> ByteRange {
        let first = self.changed.first().map_or(0, |range| range.offset);
        ByteRange::new(first, self.changed.last().map_or(0, |range| range.end()) - first)
    }
}

impl BlockPlan {
    /// The plan of a read; `None` if it consists of whole blocks and the disk can read into its
    /// memory directly (`is_usable`).
    pub fn of_read(range: ByteRange, block_bytes: u64, is_usable: bool) -> Option<Self> {
        let memory = widened(range, block_bytes);
        let is_direct = memory == range && is_usable;
        (!is_direct).then(|| Self { memory, steps: vec![BlockStep::Read(memory)] })
    }

    /// The plan of a change; `None` if it consists of whole blocks and the disk can write from its
    /// memory directly (`is_usable`; true if it has no data).
    ///
    /// # Panics
    /// If a discard does not consist of whole blocks (the dispatcher rounds discards inwards), or a
    /// coalesced write omits a block between its first and its last.
    pub fn of_change(
        claim: &BlockClaim,
        verb: IoVerb,
        block_bytes: u64,
        is_usable: bool,
    ) -> Option<Self> {
        if claim.owned.is_empty() && is_usable {
            return None;
        }
        let memory = widened(claim.span(), block_bytes);
        let runs = claim.owned_runs(block_bytes);
        let reads = runs.iter().map(|&run| BlockStep::Read(run));
        let mut steps: Vec<BlockStep> = reads.chain([BlockStep::Apply]).collect();
        match verb {
            IoVerb::Write { fua } => {
                let whole = claim.changed.iter().map(|range| whole_blocks(*range, block_bytes).len);
                let owned = runs.iter().map(|run| run.len);
                let covered: u64 = whole.chain(owned).sum();
                assert!(covered == memory.len, "a coalesced write omits a block: {claim:?}");
                steps.push(BlockStep::Write { range: memory, fua });
            }
            IoVerb::Zero { unmap } => {
                let inner = whole_blocks(claim.span(), block_bytes);
                if inner.len > 0 {
                    steps.push(BlockStep::Zero { range: inner, unmap });
                }
                steps.extend(runs.iter().map(|&range| BlockStep::Write { range, fua: false }));
            }
            IoVerb::Read | IoVerb::Discard => panic!("{verb:?} of partial blocks: {claim:?}"),
        }
        Some(Self { memory, steps })
    }
}

/// The owned blocks of one disk, and the transfers that wait for them. `T` names a transfer.
#[derive(Debug)]
pub struct BlockOwners<T> {
    /// The ranges that transfers in flight change, from the first byte of each to its end.
    changing: BTreeMap<u64, u64>,
    owned: HashSet<u64>,
    /// In order of arrival.
    waiting: VecDeque<(BlockClaim, T)>,
}

impl<T> Default for BlockOwners<T> {
    fn default() -> Self {
        Self { changing: BTreeMap::new(), owned: HashSet::new(), waiting: VecDeque::new() }
    }
}

impl<T> BlockOwners<T> {
    /// Starts a change. Returns true if the caller may carry it out now. Otherwise another transfer
    /// owns one of its blocks or waits for it, and [`BlockOwners::end`] returns `name` once the
    /// change may start.
    ///
    /// # Panics
    /// If a transfer in flight changes one of the same sectors.
    #[must_use]
    pub fn start(&mut self, claim: &BlockClaim, name: T) -> bool {
        let is_wanted = |block: &u64| {
            self.owned.contains(block)
                || self.waiting.iter().any(|(claim, _)| claim.owned.contains(block))
        };
        if claim.owned.iter().any(is_wanted) {
            self.waiting.push_back((claim.clone(), name));
            return false;
        }
        self.admit(claim);
        true
    }

    fn admit(&mut self, claim: &BlockClaim) {
        for range in &claim.changed {
            let before = self.changing.range(..range.end()).next_back();
            let is_free = before.is_none_or(|(_, &end)| end <= range.offset);
            assert!(is_free, "two transfers change sectors of {range}: {before:?} is in flight");
            self.changing.insert(range.offset, range.end());
        }
        self.owned.extend(&claim.owned);
    }

    /// Ends a change, successful or not. Appends to `next` the names of the waiting changes that
    /// may start now.
    ///
    /// # Panics
    /// If the change was not in flight.
    pub fn end(&mut self, claim: &BlockClaim, next: &mut Vec<T>) {
        for range in &claim.changed {
            let end = self.changing.remove(&range.offset);
            assert!(end == Some(range.end()), "{range} was not in flight");
        }
        for block in &claim.owned {
            assert!(self.owned.remove(block), "block {block} was not owned");
        }
        if claim.owned.is_empty() || self.waiting.is_empty() {
            return;
        }
        // A transfer that still waits reserves its blocks, so that no later transfer overtakes it.
        let mut reserved: HashSet<u64> = HashSet::new();
        for (claim, name) in std::mem::take(&mut self.waiting) {
            let is_free = |block| !self.owned.contains(block) && !reserved.contains(block);
            if claim.owned.iter().all(is_free) {
                self.admit(&claim);
                next.push(name);
            } else {
                reserved.extend(&claim.owned);
                self.waiting.push_back((claim, name));
            }
        }
    }

    /// Whether no change is in flight and none waits.
    pub fn is_idle(&self) -> bool {
        self.changing.is_empty() && self.waiting.is_empty()
    }
}

/// Whether two writes may be coalesced: the second follows the first, or the gap between them lies
/// in blocks that one of the two covers in part and so reads anyway.
pub(crate) const fn can_join(first: ByteRange, second: ByteRange, block_bytes: u64) -> bool {
    if block_bytes == SECTOR_BYTES || first.end() == second.offset {
        return first.end() == second.offset;
    }
    first.end() < second.offset
        && second.offset / block_bytes * block_bytes <= first.end().next_multiple_of(block_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIB: u64 = 1024;

    fn range(offset: u64, len: u64) -> ByteRange {
        ByteRange::new(offset, len)
    }

    fn claim(offset: u64, len: u64) -> BlockClaim {
        BlockClaim::new([range(offset, len)], 4 * KIB)
    }

    #[test]
    fn whole_blocks_need_no_plan() {
        let write = IoVerb::Write { fua: true };
        let whole = claim(8 * KIB, 4 * KIB);
        assert_eq!(BlockPlan::of_change(&whole, write, 4 * KIB, true), None);
        assert_eq!(BlockPlan::of_change(&whole, IoVerb::Discard, 4 * KIB, true), None);
        assert_eq!(BlockPlan::of_read(range(8 * KIB, 4 * KIB), 4 * KIB, true), None);
        let sector = BlockClaim::new([range(512, 512)], 512);
        assert_eq!(BlockPlan::of_change(&sector, write, 512, true), None);
    }

    #[test]
    fn memory_that_the_disk_cannot_use_is_copied() {
        let memory = range(8 * KIB, 4 * KIB);
        let write = BlockStep::Write { range: memory, fua: false };
        let plan = BlockPlan::of_change(
            &claim(8 * KIB, 4 * KIB),
            IoVerb::Write { fua: false },
            4 * KIB,
            false,
        );
        let steps = vec![BlockStep::Apply, write];
        assert_eq!(plan, Some(BlockPlan { memory, steps }));
        let plan = BlockPlan::of_read(memory, 4 * KIB, false);
        assert_eq!(plan, Some(BlockPlan { memory, steps: vec![BlockStep::Read(memory)] }));
    }

    #[test]
    fn a_write_reads_only_the_blocks_at_its_edges() {
        let plan = BlockPlan::of_change(
            &claim(3 * KIB, 64 * KIB),
            IoVerb::Write { fua: true },
            4 * KIB,
            true,
        );
        let steps = vec![
            BlockStep::Read(range(0, 4 * KIB)),
            BlockStep::Read(range(64 * KIB, 4 * KIB)),
            BlockStep::Apply,
            BlockStep::Write { range: range(0, 68 * KIB), fua: true },
        ];
        assert_eq!(plan, Some(BlockPlan { memory: range(0, 68 * KIB), steps }));
    }

    #[test]
    fn a_coalesced_write_reads_a_block_once() {
        let pieces =
            [range(0, 512), range(2560, 512), range(4 * KIB, 4 * KIB), range(9 * KIB, 512)];
        let claim = BlockClaim::new(pieces, 4 * KIB);
        assert_eq!(claim.owned, [0, 2]);
        let write = IoVerb::Write { fua: false };
        let plan = BlockPlan::of_change(&claim, write, 4 * KIB, true).expect("partial blocks");
        let reads = |at: u64| BlockStep::Read(range(at, 4 * KIB));
        assert_eq!(plan.steps[..2], [reads(0), reads(8 * KIB)]);
        assert_eq!(plan.memory, range(0, 12 * KIB));
    }

    #[test]
    fn zeroes_of_a_partial_block_are_written() {
        let zero = IoVerb::Zero { unmap: true };
        let plan = BlockPlan::of_change(&claim(3 * KIB, 10 * KIB), zero, 4 * KIB, true);
        let edges = [range(0, 4 * KIB), range(12 * KIB, 4 * KIB)];
        let steps = vec![
            BlockStep::Read(edges[0]),
            BlockStep::Read(edges[1]),
            BlockStep::Apply,
            BlockStep::Zero { range: range(4 * KIB, 8 * KIB), unmap: true },
            BlockStep::Write { range: edges[0], fua: false },
            BlockStep::Write { range: edges[1], fua: false },
        ];
        assert_eq!(plan, Some(BlockPlan { memory: range(0, 16 * KIB), steps }));
        let within =
            BlockPlan::of_change(&claim(512, 512), zero, 4 * KIB, true).expect("one block");
        assert_eq!(within.steps.len(), 3);
    }

    #[test]
    fn transfers_on_one_block_run_in_order_of_arrival() {
        let mut owners = BlockOwners::default();
        let claims: Vec<BlockClaim> = [0, 512, 1024, 4096 + 512].map(|at| claim(at, 512)).into();
        assert!(owners.start(&claims[0], 0));
        assert!(!owners.start(&claims[1], 1));
        assert!(!owners.start(&claims[2], 2));
        assert!(owners.start(&claims[3], 3), "another block");
        let mut next = Vec::new();
        owners.end(&claims[0], &mut next);
        assert_eq!(next, [1]);
        owners.end(&claims[1], &mut next);
        assert_eq!(next, [1, 2]);
        owners.end(&claims[2], &mut next);
        owners.end(&claims[3], &mut next);
        assert!(owners.is_idle());
    }

    #[test]
    fn a_transfer_over_two_blocks_is_not_overtaken() {
        let mut owners = BlockOwners::default();
        let (first, both, second) = (claim(0, 512), claim(3584, 1024), claim(6 * KIB, 512));
        assert!(owners.start(&first, 'a'));
        assert!(!owners.start(&both, 'b'));
        assert!(!owners.start(&second, 'c'), "b came first");
        let mut next = Vec::new();
        owners.end(&first, &mut next);
        assert_eq!(next, ['b']);
        owners.end(&both, &mut next);
        assert_eq!(next, ['b', 'c']);
    }

    #[test]
    #[should_panic(expected = "two transfers change sectors")]
    fn two_changes_of_one_sector_panic() {
        let mut owners = BlockOwners::default();
        assert!(owners.start(&BlockClaim::new([range(0, 1024)], 512), 0));
        let _ = owners.start(&BlockClaim::new([range(512, 512)], 512), 1);
    }

    #[test]
    fn writes_with_a_gap_inside_partial_blocks_are_coalesced() {
        assert!(!can_join(range(0, 512), range(1024, 512), 512));
        assert!(can_join(range(0, 512), range(1024, 512), 4096));
        assert!(can_join(range(0, 512), range(4096, 512), 4096), "adjacent blocks");
        assert!(!can_join(range(0, 4096), range(8192, 4096), 4096));
        assert!(!can_join(range(0, 512), range(8192, 512), 4096), "a block between them");
        assert!(!can_join(range(0, 1024), range(512, 512), 4096), "the two overlap");
    }
}
