//! Trace replay: the miss ratio by policy and cache size.
//!
//! A replay counts accesses as a block cache does: one access per 4 KiB block that a request
//! touches, first to last, reads and writes alike. It drives the same [`Eviction`] values as the
//! engine, in one shard, with every line evictable at any time. OPT (Belady's rule), which knows
//! the future, bounds all policies.

pub mod engine;
mod opt;
mod table;

pub use opt::misses_of_opt;
pub use table::{Row, Table};

use crate::policies::PolicyKind;
use crate::trace::{Op, Trace};
use forebay_policy::{CAPACITY_LINES_MAX, Eviction, Hint, Lines, Slot, Weir};
use forebay_types::{LINE_BYTES, Size};
use std::collections::HashMap;

/// A trace prepared for replay: blocks are numbered in the order of their first access.
#[derive(Clone, Debug)]
pub struct Workload {
    /// The trace's name.
    pub name: String,
    /// The number of the block of each access.
    pub accesses: Vec<u32>,
    /// Whether each access is a write.
    pub is_write: Vec<bool>,
    /// The key of each block: a well-mixed hash of its volume and place.
    pub keys: Vec<u64>,
    /// Leading accesses that fill the cache and are not counted.
    pub warm_up_len: usize,
    /// Distinct blocks of the counted accesses; a [`Memory::Share`] is a share of these.
    pub counted_blocks: usize,
}

/// The size of the cache.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Memory {
    /// Memory for data, in bytes, rounded down to whole lines.
    Bytes(Size),
    /// A share of the distinct blocks of the trace, above 0, rounded down; 1 holds them all.
    Share(f64),
}

/// A comparison to run.
#[derive(Clone, Debug)]
pub struct ReplayPlan {
    /// The policies, in the order of the columns.
    pub policies: Vec<PolicyKind>,
    /// Whether to add the bound that no policy can beat.
    pub with_opt: bool,
    /// The sizes, in the order of the rows of one trace.
    pub memories: Vec<Memory>,
    /// Sizes below this many lines get no row: they show rounding rather than policies.
    pub lines_min: usize,
}

/// Why a replay cannot run.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum ReplayError {
    /// Less memory than one line.
    #[error("memory of {0} holds no line of 4KiB; give at least 4KiB")]
    TooSmall(Size),
    /// More lines than a shard supports.
    #[error("memory of {0} is more than a replay takes; give at most 64GiB")]
    TooLarge(Size),
    /// A share that is not above 0 and at most 1.
    #[error("a cache cannot hold {0} of the blocks; give a share above 0 and at most 1")]
    Share(f64),
}

/// The counts of one replay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Accesses, one per block touched.
    pub access_count: u64,
    /// Accesses whose block was not in the cache.
    pub miss_count: u64,
}

impl Outcome {
    /// Misses per access, from 0 to 1; 0 if there was no access.
    pub fn miss_ratio(self) -> f64 {
        if self.access_count == 0 { 0.0 } else { self.miss_count as f64 / self.access_count as f64 }
    }
}

impl Workload {
    /// Numbers the blocks of `trace`.
    ///
    /// # Panics
    /// Panics if the trace touches 2^32 blocks (16 TiB of data) or more.
    pub fn new(trace: &Trace) -> Self {
        let mut numbers = HashMap::new();
        let (mut accesses, mut is_write) = (Vec::new(), Vec::new());
        let mut keys = Vec::new();
        for request in &trace.requests {
            for block in request.blocks() {
                let number = *numbers.entry((request.volume, block)).or_insert_with(|| {
                    keys.push(key_of(request.volume, block));
                    u32::try_from(keys.len() - 1).expect("a trace touches less than 16 TiB")
                });
                accesses.push(number);
                is_write.push(request.op == Op::Write);
            }
        }
        let counted_blocks = keys.len();
        Self { name: trace.name.clone(), accesses, is_write, keys, warm_up_len: 0, counted_blocks }
    }

    /// This workload, run after `other`, with which it shares no block. Only the accesses of this
    /// workload are counted. It shows how long a policy keeps lines that are no longer used.
    ///
    /// # Panics
    /// Panics if both together touch 2^32 blocks or more.
    #[must_use]
    pub fn after(&self, other: &Self) -> Self {
        let first = u32::try_from(self.block_count()).expect("blocks are numbered in 32 bits");
        let number = |&block: &u32| first.checked_add(block).expect("fewer than 2^32 blocks");
        let mut keys = self.keys.clone();
        // The traces may use the same volumes: hash again, so that the keys differ.
        keys.extend(other.keys.iter().map(|&key| key_of(u32::MAX, key)));
        Self {
            name: format!("{} after {}", self.name, other.name),
            accesses: other.accesses.iter().map(number).chain(self.accesses.clone()).collect(),
            is_write: [&other.is_write[..], &self.is_write].concat(),
            keys,
            warm_up_len: other.accesses.len() + self.warm_up_len,
            counted_blocks: self.counted_blocks,
        }
    }

    /// Accesses that are counted.
    pub fn counted_len(&self) -> u64 {
        (self.accesses.len() - self.warm_up_len) as u64
    }

    /// Distinct blocks, those of the warm-up included.
    pub fn block_count(&self) -> usize {
        self.keys.len()
    }
}

/// The key of a block: a mixer like that of SplitMix64 over volume and block, so that every bit of
/// both affects every bit of the key.
fn key_of(volume: u32, block: u64) -> u64 {
    let mut z = block ^ u64::from(volume).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    for factor in [0xbf58_476d_1ce4_e5b9, 0x94d0_49bb_1331_11eb] {
        z = (z ^ (z >> 31)).wrapping_mul(factor);
    }
    z ^ (z >> 29)
}

/// Runs the comparison: one row per workload and size, one column per policy.
///
/// # Errors
/// Fails if a size is out of range.
pub fn run(workloads: &[Workload], plan: &ReplayPlan) -> Result<Table, ReplayError> {
    let mut columns: Vec<String> = plan.policies.iter().map(ToString::to_string).collect();
    if plan.with_opt {
        columns.push("opt".to_owned());
    }
    let mut table = Table { columns, rows: Vec::new() };
    for workload in workloads {
        for &memory in &plan.memories {
            let capacity = memory.lines(workload)?;
            if capacity < plan.lines_min.max(1) {
                continue;
            }
            let outcome = |kind: &PolicyKind| {
                let mut policy = kind.build(capacity);
                replay(workload, policy.as_mut(), capacity)
            };
            let mut cells: Vec<Outcome> = plan.policies.iter().map(outcome).collect();
            if plan.with_opt {
                cells.push(misses_of_opt(workload, capacity));
            }
            table.rows.push(Row { trace: workload.name.clone(), capacity_lines: capacity, cells });
        }
    }
    Ok(table)
}

impl Memory {
    /// The lines of the cache for this workload; may be 0 for a small share.
    fn lines(self, workload: &Workload) -> Result<usize, ReplayError> {
        match self {
            Self::Bytes(size) if size.bytes() < LINE_BYTES => Err(ReplayError::TooSmall(size)),
            Self::Bytes(size) => {
                let lines = size.bytes() / LINE_BYTES;
                let lines = usize::try_from(lines).ok().filter(|&n| n <= CAPACITY_LINES_MAX);
                lines.ok_or(ReplayError::TooLarge(size))
            }
            Self::Share(share) if share > 0.0 && share <= 1.0 => {
                Ok((workload.counted_blocks as f64 * share) as usize)
            }
            Self::Share(share) => Err(ReplayError::Share(share)),
        }
    }
}

/// The key of the line in each slot; every line is evictable.
struct AllClean<'a>(&'a [u64]);

impl Lines for AllClean<'_> {
    fn is_evictable(&self, _slot: Slot) -> bool {
        true
    }

    fn key(&self, slot: Slot) -> u64 {
        self.0[slot as usize]
    }
}

const ABSENT: u32 = u32::MAX;

/// Replays a workload through one policy, which must be empty and built for `capacity` lines.
/// Writes are accesses like reads.
pub fn replay(workload: &Workload, policy: &mut dyn Eviction, capacity: usize) -> Outcome {
    let mut cache = Cache::new(workload, policy, capacity);
    let mut miss_count = 0;
    for (i, &block) in workload.accesses.iter().enumerate() {
        let is_miss = cache.access(block, Hint::Normal);
        miss_count += u64::from(is_miss && i >= workload.warm_up_len);
    }
    Outcome { access_count: workload.counted_len(), miss_count }
}

/// Replays a workload through Weir, with hints for writes, as the engine gives them. Counts the
/// reads, and all accesses.
pub(crate) fn replay_hinted(workload: &Workload, capacity: usize) -> [Outcome; 2] {
    let mut policy = Weir::new(capacity);
    let mut cache = Cache::new(workload, &mut policy, capacity);
    let mut outcomes = [Outcome { access_count: 0, miss_count: 0 }; 2];
    for (i, (&block, &is_write)) in workload.accesses.iter().zip(&workload.is_write).enumerate() {
        let is_miss = cache.access(block, if is_write { Hint::Write } else { Hint::Normal });
        if i >= workload.warm_up_len {
            for outcome in &mut outcomes[usize::from(is_write)..] {
                outcome.access_count += 1;
                outcome.miss_count += u64::from(is_miss);
            }
        }
    }
    outcomes
}

/// A cache of lines without data, which are clean.
struct Cache<'a> {
    policy: &'a mut dyn Eviction,
    /// The keys of the blocks.
    keys_of_blocks: &'a [u64],
    /// The slot of each block, or [`ABSENT`].
    slots: Vec<u32>,
    /// The block and the key in each slot.
    residents: Vec<u32>,
    keys: Vec<u64>,
    capacity: usize,
}

impl<'a> Cache<'a> {
    fn new(workload: &'a Workload, policy: &'a mut dyn Eviction, capacity: usize) -> Self {
        Self {
            policy,
            keys_of_blocks: &workload.keys,
            slots: vec![ABSENT; workload.block_count()],
            residents: Vec::with_capacity(capacity),
            keys: Vec::with_capacity(capacity),
            capacity,
        }
    }

    /// Accesses a block. Returns whether it was absent.
    fn access(&mut self, block: u32, hint: Hint) -> bool {
        let slot = self.slots[block as usize];
        if slot != ABSENT {
            match hint {
                Hint::Write => self.policy.on_write(slot),
                _ => self.policy.on_hit(slot),
            }
            return false;
        }
        let key = self.keys_of_blocks[block as usize];
        let slot = if self.residents.len() < self.capacity {
            self.residents.push(block);
            self.keys.push(key);
            self.residents.len() as u32 - 1
        } else {
            let slot = self.policy.evict(key, hint, &AllClean(&self.keys));
            let slot = slot.expect("a full cache of evictable lines has a victim");
            self.slots[self.residents[slot as usize] as usize] = ABSENT;
            self.residents[slot as usize] = block;
            self.keys[slot as usize] = key;
            slot
        };
        self.slots[block as usize] = slot;
        self.policy.on_insert(slot, key, hint);
        true
    }
}

#[cfg(test)]
mod tests;
