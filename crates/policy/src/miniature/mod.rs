//! What a volume would miss with less or more memory, by miniature simulations of the shipped
//! policy (Waldspurger, Saemundsson, Ahmad, Park, "Cache Modeling and Optimization using Miniature
//! Simulations", USENIX ATC 2017).
//!
//! A shard runs one [`Weir`] for each [`PoolSize`] over a sample of its lines: those with a hash
//! below a threshold. Each has the sampling rate times as many lines as a shard of that size would
//! have. It is told what the shard's own policy is told: reads and writes of clients, lines that
//! streams read ahead, preloads, erased lines. So it keeps what the cache would keep, for all
//! volumes together, and what read-ahead serves is no miss at any size. [`SizeCounts`] has the
//! misses of one volume.
//!
//! Small samples misjudge the share of misses, but all sizes have the same sample and the same
//! accesses, so the *differences* between sizes are much more exact. The misses with the present
//! size are measured, and the prediction for another one is the measured figure and the difference
//! ([`SizePrediction`]).
//!
//! What read-ahead serves is a miss at no size: streams adapt to the size of the pool. They begin
//! with misses, so a run of reads that are all hits is not read ahead, but would be in a smaller
//! pool. So [`SequenceWatch`] looks for lines that are read in sequence, and the largest miniature
//! remembers them.
//!
//! The price: an access to a line that is not sampled costs nothing (the test is that of
//! [`crate::CurveEstimator`]); a sampled one, a lookup and mostly a hit or an eviction in each of
//! four small caches. Memory: 27 bytes per slot of a miniature.
//!
//! Lines that clients have written are dirty, and cannot be evicted, as long as their share of the
//! miniature is not above that of dirty lines in the shard now.
//!
//! The limits: a line is there or not as a whole, lines in use can be evicted, and shares of
//! volumes (`share-min`, `share-max`) are ignored. The first reads of a stream, which miss before
//! it is recognised, count as served if the line was read in sequence before. A disk that is slow
//! to take dirty data leaves more of a smaller pool dirty.
//!
//! [`Weir`]: crate::Weir

mod cache;
mod caches;
mod counts;
mod lines;
mod outlook;
mod sequence;

#[cfg(test)]
pub(crate) mod tests;

pub use counts::{AccessCounts, SizeCounts, SizePrediction};
pub use outlook::{OutlookLog, SizeAdvice, SizeOutlook};
pub use sequence::{SequenceWatch, WatchStep};

use crate::Hint;
use cache::MiniatureCache;
use caches::Caches;

/// The threshold for the upper half of a hash at a sampling rate of one.
const ALL: u64 = 1 << 32;
/// The lines of the miniature of the present size in each shard of the pool, where the bounds of
/// the rate allow it.
const SAMPLES: usize = 256;
/// The bounds of the sampling rate, as the binary logarithm of its inverse. Few accesses may be
/// sampled, and a sample must be large enough.
const RATE_SHIFTS: (u32, u32) = (4, 8);
/// The most lines of the miniature of the present size. Shards with more at the lowest rate have a
/// lower one.
const SAMPLES_MAX: usize = 4096;

/// A size of the pool, compared with the present one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PoolSize {
    /// Half.
    Half,
    /// The present one.
    Now,
    /// Twice.
    Twice,
    /// Four times.
    FourTimes,
}

impl PoolSize {
    /// The number of sizes.
    pub const COUNT: usize = 4;
    /// All sizes, in ascending order.
    pub const ALL: [Self; Self::COUNT] = [Self::Half, Self::Now, Self::Twice, Self::FourTimes];

    /// `bytes`, or lines, at this size.
    pub const fn of(self, bytes: u64) -> u64 {
        match self {
            Self::Half => bytes / 2,
            Self::Now => bytes,
            Self::Twice => bytes.saturating_mul(2),
            Self::FourTimes => bytes.saturating_mul(4),
        }
    }
}

/// How a client has read a line.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReadKind {
    /// It was not in the pool, and not read ahead.
    Missed,
    /// It was in the pool.
    Hit,
    /// The same, and reads before it were in sequence: a smaller pool would read it ahead.
    InSequence,
    /// It was read for the first time after it was read ahead.
    Ahead,
}

/// The sizes at which an access has missed: a bit for each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Misses(u8);

impl Misses {
    /// Whether it has missed at this size.
    pub const fn at(self, size: PoolSize) -> bool {
        self.0 & 1 << size as u8 != 0
    }
}

/// The miniatures of a shard. See the module.
pub struct Miniatures {
    /// Lines with the upper half of their hash below this are sampled.
    threshold: u64,
    /// The slots of the shard.
    slots: usize,
    /// Lines that the shard may hold, and those of them that the policy does not evict.
    lines: usize,
    retained: usize,
    /// Allocated by the first sampled access.
    caches: Option<Box<Caches>>,
}

/// An access of a client to a line.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct LineAccess {
    /// `Hint::Write` for a write.
    pub hint: Hint,
    /// Whether the pool has the line.
    pub is_hit: bool,
    /// Whether this is the first read of a line that was read ahead. It need not have arrived yet.
    pub was_ahead: bool,
    /// Whether an absent line is admitted to the pool. If not, no size would serve it.
    pub admits: bool,
    /// For a write that is acknowledged from memory, the share of the shard that is dirty now.
    pub dirty_share: Option<f64>,
}

impl Miniatures {
    /// The miniatures of a shard with `slots` lines.
    pub const fn new(slots: usize) -> Self {
        let threshold = ALL >> rate_shift(slots);
        Self { threshold, slots, lines: slots, retained: 0, caches: None }
    }

    /// The most memory that the miniatures of a shard with `slots` lines take, in bytes.
    pub fn bytes_max(slots: usize) -> usize {
        let slots_of = PoolSize::ALL.map(|size| miniature_slots(slots, size));
        slots_of.map(MiniatureCache::heap_bytes_max).into_iter().sum::<usize>()
            + size_of::<Caches>()
    }

    /// Lines with the upper half of their hash below this are sampled.
    pub const fn threshold(&self) -> u32 {
        self.threshold as u32
    }

    /// The share of lines that are sampled.
    pub const fn rate(&self) -> f64 {
        self.threshold as f64 / ALL as f64
    }

    /// Whether the line with this hash is sampled.
    pub const fn samples(&self, hash: u64) -> bool {
        hash >> 32 < self.threshold
    }

    /// A client accesses a line. Counts it for its volume if the line is sampled. Returns how it
    /// was read.
    pub fn access(
        &mut self,
        hash: u64,
        access: LineAccess,
        counts: &mut SizeCounts,
    ) -> Option<ReadKind> {
        let (line, caches) = self.sampled(hash)?;
        let (misses, kind) = caches.access(line, access);
        counts.count(misses);
        (access.hint != Hint::Write).then_some(kind)
    }

    /// A line that was read was read in sequence with others, or not.
    pub fn set_in_sequence(&mut self, hash: u64, is_in_sequence: bool) {
        if let Some((line, caches)) = self.sampled(hash) {
            caches.set_in_sequence(line, is_in_sequence);
        }
    }

    /// A stream reads a line ahead, or passes over it.
    pub fn prefetch(&mut self, hash: u64) {
        if let Some((line, caches)) = self.sampled(hash) {
            caches.prefetch(line);
        }
    }

    /// A line is preloaded with this hint.
    pub fn preload(&mut self, hash: u64, hint: Hint) {
        self.for_each(hash, |cache, line| cache.preload(line, hint));
    }

    /// A line is removed from the pool.
    pub fn remove(&mut self, hash: u64) {
        self.for_each(hash, MiniatureCache::remove);
    }

    /// See [`crate::Eviction::begin_forecast`].
    pub fn begin_forecast(&mut self) {
        self.caches_mut().for_each(MiniatureCache::begin_forecast);
    }

    /// See [`crate::Eviction::end_former_forecasts`].
    pub fn end_former_forecasts(&mut self, lines_max: usize) {
        self.caches_mut().for_each(|cache| cache.end_former_forecasts(lines_max));
    }

    /// The shard may hold `lines` lines, of which the policy does not evict `retained`. Returns how
    /// many times the former number of lines that is.
    pub fn set_lines(&mut self, lines: usize, retained: usize) -> f64 {
        let times = lines.max(1) as f64 / self.lines.max(1) as f64;
        if (self.lines, self.retained) != (lines, retained) {
            (self.lines, self.retained) = (lines, retained);
            let capacities = self.capacities();
            self.caches_mut().zip(capacities).for_each(|(cache, lines)| cache.set_capacity(lines));
        }
        times
    }

    /// Bytes on the heap.
    pub fn heap_bytes(&self) -> usize {
        self.caches.as_deref().map_or(0, Caches::bytes)
    }

    /// # Panics
    /// Panics if an invariant is violated.
    pub fn self_check(&self) {
        let caches = self.caches.iter().flat_map(|caches| &caches.of_sizes);
        caches.for_each(MiniatureCache::self_check);
        assert!(self.heap_bytes() <= Self::bytes_max(self.slots), "{} bytes", self.heap_bytes());
    }

    /// The name of a sampled line in the miniatures, which exist from now on. The upper half of the
    /// hash decides about the sampling, so the lower half is the name.
    fn sampled(&mut self, hash: u64) -> Option<(u32, &mut Caches)> {
        if !self.samples(hash) {
            return None;
        }
        if self.caches.is_none() {
            self.allocate();
        }
        Some((hash as u32, self.caches.as_deref_mut()?))
    }

    #[cold]
    fn allocate(&mut self) {
        let mut of_sizes =
            PoolSize::ALL.map(|size| MiniatureCache::new(miniature_slots(self.slots, size)));
        let capacities = self.capacities();
        of_sizes.iter_mut().zip(capacities).for_each(|(cache, lines)| cache.set_capacity(lines));
        self.caches = Some(Box::new(Caches { of_sizes }));
    }

    fn caches_mut(&mut self) -> impl Iterator<Item = &mut MiniatureCache> {
        self.caches.iter_mut().flat_map(|caches| &mut caches.of_sizes)
    }

    fn for_each(&mut self, hash: u64, call: impl Fn(&mut MiniatureCache, u32)) {
        if let Some((line, caches)) = self.sampled(hash) {
            caches.of_sizes.iter_mut().for_each(|cache| call(cache, line));
        }
    }

    /// The lines that each miniature may hold.
    fn capacities(&self) -> [usize; PoolSize::COUNT] {
        PoolSize::ALL.map(|size| {
            let lines = (size.of(self.lines as u64) as usize).saturating_sub(self.retained);
            let sampled = (lines as u64 * self.threshold).div_ceil(ALL) as usize;
            sampled.clamp(1, miniature_slots(self.slots, size))
        })
    }
}

/// The binary logarithm of the inverse sampling rate in a shard with `slots` lines.
const fn rate_shift(slots: usize) -> u32 {
    let (least, most) = RATE_SHIFTS;
    let mut shift = least;
    while (shift < most && slots >> (shift + 1) >= SAMPLES) || slots >> shift > SAMPLES_MAX {
        shift += 1;
    }
    shift
}

/// The slots of a miniature in a shard with `slots` lines.
const fn miniature_slots(slots: usize, size: PoolSize) -> usize {
    let sampled = size.of(slots as u64).div_ceil(1 << rate_shift(slots)) as usize;
    if sampled == 0 { 1 } else { sampled }
}
