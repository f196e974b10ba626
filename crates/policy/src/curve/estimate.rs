//! A miss-ratio curve as a value: the answers about one volume, added up over the shards.

use super::classes;
use forebay_types::LINE_BYTES;

/// A miss-ratio curve: the share of the accesses that an LRU cache of each size would miss.
///
/// Counts are decayed, so recent accesses weigh more. The counts of volumes that decay together can
/// be compared.
#[derive(Clone, Debug, PartialEq)]
pub struct MissRatioCurve {
    accesses: f64,
    sampled: f64,
    /// Hits by class of distance within a shard. The first may be negative.
    hits: Vec<f64>,
    /// The number of shards added up. The memory of a cache is divided equally among them.
    shards: u32,
}

/// A size of the cache, compared with another one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CurveStep {
    /// The size in bytes.
    pub bytes: u64,
    /// The share of accesses that miss at this size, from 0 to 1.
    pub miss_ratio: f64,
    /// The hits gained over the size compared with, in decayed accesses; negative if lost.
    pub hits_gained: f64,
}

impl MissRatioCurve {
    pub(super) const fn of(accesses: f64, sampled: f64, hits: Vec<f64>) -> Self {
        Self { accesses, sampled, hits, shards: 1 }
    }

    /// Adds the curve of the same volume in other shards.
    ///
    /// # Panics
    /// If the depths differ.
    pub fn add(&mut self, other: &Self) {
        assert_eq!(self.hits.len(), other.hits.len(), "curves of different depths are added");
        self.accesses += other.accesses;
        self.sampled += other.sampled;
        self.hits.iter_mut().zip(&other.hits).for_each(|(hits, more)| *hits += more);
        self.shards += other.shards;
    }

    /// All accesses, decayed, in lines.
    pub const fn accesses(&self) -> f64 {
        self.accesses
    }

    /// The accesses to sampled lines among them: the basis of the estimate.
    pub const fn sampled_accesses(&self) -> f64 {
        self.sampled
    }

    /// The size in bytes up to which the curve is known. For larger caches, the estimate is
    /// that of this size, and may be too high.
    pub fn depth_bytes(&self) -> u64 {
        self.bytes_of(classes::first_of(self.hits.len()))
    }

    /// The hits of a cache of `bytes`, in decayed accesses.
    pub fn hits(&self, bytes: u64) -> f64 {
        let lines = bytes as f64 / self.bytes_of(1) as f64;
        let mut sum = 0.0;
        for (class, &hits) in self.hits.iter().enumerate() {
            let (first, next) = (classes::first_of(class), classes::first_of(class + 1));
            let share = (lines - first as f64) / (next - first) as f64;
            if share <= 0.0 {
                break;
            }
            sum += hits * share.min(1.0);
        }
        sum.clamp(0.0, self.accesses)
    }

    /// The share of accesses that a cache of `bytes` misses, from 0 to 1. `None` without accesses.
    pub fn miss_ratio(&self, bytes: u64) -> Option<f64> {
        (self.accesses > 0.0).then(|| 1.0 - self.hits(bytes) / self.accesses)
    }

    /// Compares other sizes with a cache of `bytes`: up to `fewer` steps of `step_bytes` below it,
    /// as far as the size stays positive, and `more` steps above it, in ascending order. A plateau
    /// may end in a cliff several steps away, which a single step does not show. Empty without
    /// accesses.
    pub fn steps(&self, bytes: u64, step_bytes: u64, fewer: u32, more: u32) -> Vec<CurveStep> {
        let here = self.hits(bytes);
        let below = (1..=u64::from(fewer))
            .rev()
            .filter_map(|step| bytes.checked_sub(step * step_bytes).filter(|&bytes| bytes > 0));
        let above = (1..=u64::from(more)).map(|step| bytes + step * step_bytes);
        let step_to = |bytes| {
            let miss_ratio = self.miss_ratio(bytes)?;
            Some(CurveStep { bytes, miss_ratio, hits_gained: self.hits(bytes) - here })
        };
        below.chain(above).filter_map(step_to).collect()
    }

    /// The size of the whole cache that has `lines` lines in each shard.
    fn bytes_of(&self, lines: u64) -> u64 {
        lines * LINE_BYTES * u64::from(self.shards)
    }
}
