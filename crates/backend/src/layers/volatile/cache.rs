//! The cached, unflushed blocks: a plain value, without locks and threads.

use super::Volatility;
use crate::random::Random;
use crate::{AlignedBuffer, Buffer};
use forebay_types::ByteRange;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The largest write to the backend below, in bytes.
const RUN_BYTES_MAX: u64 = 256 << 10;

/// A block of the store: number and content.
pub(super) type CachedBlock = (u64, Arc<[u8]>);

struct CacheEntry {
    /// The number of the change that wrote it.
    version: u64,
    bytes: Arc<[u8]>,
}

/// Consecutive blocks, written below in one I/O.
pub(super) struct BlockRun {
    /// Offset in the store.
    pub(super) offset: u64,
    /// The data.
    pub(super) bytes: AlignedBuffer,
    /// The versions of the blocks.
    versions: Vec<u64>,
}

/// Written, unflushed blocks.
pub(super) struct BlockCache {
    block_bytes: u64,
    limit_bytes: u64,
    keep: f64,
    random: Random,
    entries: BTreeMap<u64, CacheEntry>,
    /// Blocks to be written below before a flush: the share `keep`.
    early: BTreeSet<u64>,
    /// The number of the newest change.
    version: u64,
}

/// Copies `blocks` into the buffers of a read at `offset`, where they overlap.
///
/// # Safety
/// The buffers must be valid, and not accessed by others during the call.
pub(super) unsafe fn overlay(offset: u64, buffers: &[Buffer], blocks: &[CachedBlock]) {
    let Some((_, first)) = blocks.first() else { return };
    let block_bytes = first.len() as u64;
    let mut start = offset;
    for buffer in buffers {
        // SAFETY: guaranteed by the caller.
        let target = unsafe { buffer.as_mut_slice() };
        let end = start + target.len() as u64;
        let from = blocks.partition_point(|(number, _)| (number + 1) * block_bytes <= start);
        for (number, bytes) in &blocks[from..] {
            let place = number * block_bytes;
            if place >= end {
                break;
            }
            let (low, high) = (place.max(start), (place + block_bytes).min(end));
            let source = &bytes[(low - place) as usize..(high - place) as usize];
            target[(low - start) as usize..(high - start) as usize].copy_from_slice(source);
        }
        start = end;
    }
}

impl BlockCache {
    pub(super) fn new(block_bytes: u32, volatility: Volatility) -> Self {
        Self {
            block_bytes: u64::from(block_bytes),
            limit_bytes: volatility.limit_bytes,
            keep: volatility.keep,
            random: Random::new(volatility.seed),
            entries: BTreeMap::new(),
            early: BTreeSet::new(),
            version: 0,
        }
    }

    /// The number of the newest change.
    pub(super) const fn version(&self) -> u64 {
        self.version
    }

    /// Cached bytes.
    pub(super) fn bytes(&self) -> u64 {
        self.entries.len() as u64 * self.block_bytes
    }

    /// Whether the cache exceeds its limit.
    pub(super) fn is_full(&self) -> bool {
        self.bytes() > self.limit_bytes
    }

    /// Whether blocks are to be written below without a flush.
    pub(super) fn has_early(&self) -> bool {
        !self.early.is_empty()
    }

    fn numbers(&self, range: ByteRange) -> std::ops::Range<u64> {
        range.offset / self.block_bytes..range.end().div_ceil(self.block_bytes)
    }

    /// Caches a write at `offset`, in whole blocks.
    ///
    /// # Safety
    /// The buffers must belong to a write that is not answered before this returns.
    pub(super) unsafe fn write(&mut self, offset: u64, buffers: &[Buffer]) {
        let mut bytes = Vec::with_capacity(buffers.iter().map(Buffer::len).sum());
        for buffer in buffers {
            // SAFETY: guaranteed by the caller.
            bytes.extend_from_slice(unsafe { buffer.as_slice() });
        }
        self.version += 1;
        let first = offset / self.block_bytes;
        for (number, block) in (first..).zip(bytes.chunks(self.block_bytes as usize)) {
            self.insert(number, block.into());
        }
    }

    /// Zeroes a range of whole blocks.
    pub(super) fn zero(&mut self, range: ByteRange) {
        self.version += 1;
        let zeroes: Arc<[u8]> = vec![0; self.block_bytes as usize].into();
        self.numbers(range).for_each(|number| self.insert(number, zeroes.clone()));
    }

    fn insert(&mut self, number: u64, bytes: Arc<[u8]>) {
        self.entries.insert(number, CacheEntry { version: self.version, bytes });
        if self.keep > 0.0 && self.random.unit() < self.keep {
            self.early.insert(number);
        }
    }

    /// The cached blocks of a range.
    pub(super) fn blocks(&self, range: ByteRange) -> Vec<CachedBlock> {
        let entries = self.entries.range(self.numbers(range));
        entries.map(|(&number, entry)| (number, entry.bytes.clone())).collect()
    }

    /// Whether any block of a range is cached.
    pub(super) fn has(&self, range: ByteRange) -> bool {
        self.entries.range(self.numbers(range)).next().is_some()
    }

    /// The cached blocks of a range, as runs to write below.
    pub(super) fn runs(&self, range: ByteRange) -> Vec<BlockRun> {
        self.join(self.entries.range(self.numbers(range)))
    }

    /// All cached blocks, as runs.
    pub(super) fn all_runs(&self) -> Vec<BlockRun> {
        self.join(self.entries.iter())
    }

    /// Takes the blocks to be written below without a flush.
    pub(super) fn take_early(&mut self) -> Vec<BlockRun> {
        let early = std::mem::take(&mut self.early);
        self.join(early.iter().filter_map(|number| self.entries.get_key_value(number)))
    }

    fn join<'a>(&self, entries: impl Iterator<Item = (&'a u64, &'a CacheEntry)>) -> Vec<BlockRun> {
        let mut rows: Vec<(u64, Vec<&CacheEntry>)> = Vec::new();
        for (&number, entry) in entries {
            match rows.last_mut() {
                Some((first, row))
                    if *first + row.len() as u64 == number
                        && (row.len() as u64) < RUN_BYTES_MAX / self.block_bytes =>
                {
                    row.push(entry);
                }
                _ => rows.push((number, vec![entry])),
            }
        }
        let run = |(first, row): (u64, Vec<&CacheEntry>)| {
            let mut bytes = AlignedBuffer::new(row.len() * self.block_bytes as usize);
            for (target, entry) in bytes.chunks_mut(self.block_bytes as usize).zip(&row) {
                target.copy_from_slice(&entry.bytes);
            }
            let versions = row.iter().map(|entry| entry.version).collect();
            BlockRun { offset: first * self.block_bytes, bytes, versions }
        };
        rows.into_iter().map(run).collect()
    }

    /// Drops the blocks of a written run, unless they have changed since.
    pub(super) fn release(&mut self, run: &BlockRun) {
        let first = run.offset / self.block_bytes;
        for (number, &version) in (first..).zip(&run.versions) {
            if self.entries.get(&number).is_some_and(|entry| entry.version == version) {
                self.entries.remove(&number);
            }
        }
    }

    /// Drops the blocks of a range whose version is at most `version`.
    pub(super) fn release_until(&mut self, range: ByteRange, version: u64) {
        let numbers: Vec<u64> = self
            .entries
            .range(self.numbers(range))
            .filter(|(_, entry)| entry.version <= version)
            .map(|(&number, _)| number)
            .collect();
        numbers.iter().for_each(|number| drop(self.entries.remove(number)));
    }
}
