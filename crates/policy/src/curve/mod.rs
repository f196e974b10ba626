//! The miss-ratio curve of a volume, estimated while the volume is served.
//!
//! [`CurveEstimator`] is fixed-size SHARDS (Waldspurger, Park, Garthwaite, Ahmad, "Efficient MRC
//! Construction with SHARDS", USENIX FAST 2015). It samples lines, not accesses: a line is sampled
//! if its hash is below a threshold, so all accesses to it are seen or none. The reuse distance of
//! an access is the number of other lines accessed since the last access to the same line. Among
//! the sampled lines alone this number is smaller by the sampling rate, by which it is divided. An
//! LRU cache of `n` lines hits exactly the accesses with a distance below `n`, so the histogram of
//! distances is the curve of hits for all sizes at once. If the memory of the samples is full, the
//! threshold falls, lines above it are dropped, and earlier counts are scaled to the new rate. The
//! difference between the expected and the actual number of sampled accesses is due to the most
//! accessed lines, and counts as hits at the shortest distance (SHARDS-adj in the paper).
//!
//! Two things differ from the paper. The threshold falls only until the samples cover the *depth*,
//! the largest distance of interest; from then on, the least recently accessed line is dropped,
//! because its next access is beyond the depth in any case. And counts decay at the caller's
//! request, so that the curve follows the load.
//!
//! The price: an access to a line that is not sampled costs an increment, a shift and a compare, in
//! addition to the hash of the line, which the caller has. An access to a sampled one costs a
//! lookup and the population count of at most 1,024 bits. Memory is 8.2 bytes per sampled access
//! and four per distance class, within the limit that the caller sets, heap and value included.
//!
//! The limits of the estimate: it assumes LRU, while the shipped policy usually misses less; it
//! counts reads and writes alike; and it ignores prefetch. [`crate::Miniatures`] do not, but know a
//! few sizes of the whole pool only, not of one volume.

mod classes;
mod estimate;
mod sampled;

#[cfg(test)]
mod tests;

pub use estimate::{CurveStep, MissRatioCurve};

use forebay_types::LINE_BYTES;
use sampled::SampledLines;

/// Positions for sampled accesses in one estimator. About two thirds of them, 2,730 lines in each
/// shard, are sampled when the memory is full. The mean error on synthetic loads is then 0.002 to
/// 0.02; it falls only with the square root of the memory.
const CAPACITY_MAX: usize = 4096;
/// With fewer positions, the estimate would be noise.
const CAPACITY_MIN: usize = 64;
/// The threshold for the upper half of a hash at a sampling rate of one.
const ALL: u64 = 1 << 32;
/// The weight of a sampled access. Counts are integers that decay: with a weight of one, those of
/// rare distances would be rounded to nothing.
const WEIGHT: u32 = 16;

/// The memory for the curves of all volumes, as a part of a shard's lines: less than a thousandth.
const MEMORY_SHARE: usize = 1024;
/// The depth in a shard, as a multiple of its lines: the largest cache that a curve describes.
const SHARD_DEPTH: u64 = 8;
/// The lines that a curve samples of a working set as large as the shard, where the rate's bounds
/// allow it.
const SHARD_SAMPLES: f64 = 2048.0;
/// The bounds of the initial sampling rate in a shard. A sampled access costs 200 ns, mostly in
/// misses of the processor's cache: 3 ns per hit at the lower bound, in shards of at least 512 MiB.
const SHARD_RATES: (f64, f64) = (1.0 / 64.0, 1.0 / 16.0);

/// A volume is read once if less than this share of its accesses is to lines that a cache twice as
/// large as the shard, for this volume alone, would still have.
const READ_ONCE_SHARE: f64 = 1.0 / 32.0;
/// The classes of distances beyond that cache: two doublings, to eight times the shard.
const FAR_CLASSES: usize = classes::of_doublings((SHARD_DEPTH / 2).ilog2());
/// The sampled accesses from which on that can be told.
const READ_ONCE_SAMPLES_MIN: f64 = 512.0;

/// The limits of an estimator.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CurveConfig {
    /// Distances of at least this many lines count as misses at any size.
    pub depth_lines: u64,
    /// The initial sampling rate, above 0 and at most 1.
    pub rate_max: f64,
}

impl CurveConfig {
    /// The configuration of each volume's estimator in a shard of `lines`.
    pub fn for_shard(lines: usize) -> Self {
        let rate_max = (SHARD_SAMPLES / lines as f64).clamp(SHARD_RATES.0, SHARD_RATES.1);
        Self { depth_lines: (lines as u64 * SHARD_DEPTH).max(1), rate_max }
    }

    /// Divides the memory for curves in a shard of `lines`, less than a thousandth of its data,
    /// among `volumes`: equal limits in bytes. If they would be too low, the first volumes get
    /// enough for an estimate, and the others none.
    pub fn limits(self, lines: usize, volumes: usize) -> impl Iterator<Item = usize> {
        let bytes = lines * LINE_BYTES as usize / MEMORY_SHARE;
        let estimates = volumes.min(bytes / CurveEstimator::bytes_min(self));
        (0..volumes).map(move |volume| if volume < estimates { bytes / estimates } else { 0 })
    }
}

/// Estimates the miss-ratio curve of one volume in one shard. See the module.
#[derive(Debug)]
pub struct CurveEstimator {
    /// Lines with the upper half of their hash below this are sampled.
    threshold: u64,
    /// The caller samples lines below this, too, or all.
    other_threshold: u32,
    /// The larger of both: one comparison finds all lines of which an access is more than counted.
    watched: u64,
    /// Accesses, decayed.
    accesses: u64,
    /// Allocated by the first sampled access, because a shard may have many idle volumes.
    counts: Option<Box<AccessCounts>>,
    /// The capacity that the limit allows; zero if it allows no estimate.
    capacity_max: u32,
    config: CurveConfig,
}

/// The sampled lines, and the counts of accesses to them.
#[derive(Debug)]
struct AccessCounts {
    sampled: SampledLines,
    /// Accesses by class of distance.
    hits: Box<[u32]>,
    /// Accesses beyond the depth, and first accesses.
    beyond: u32,
    /// The accesses at distances up to twice the shard: all but the last [`FAR_CLASSES`].
    near: u64,
    /// What one access adds to a count: [`WEIGHT`], or less after an overflow.
    weight: u32,
}

impl CurveEstimator {
    /// An estimator that counts nothing until [`CurveEstimator::set_limit`] gives it memory.
    ///
    /// # Panics
    /// If the depth is zero or the rate out of range.
    pub fn new(config: CurveConfig) -> Self {
        assert!(config.depth_lines > 0, "a curve without depth");
        assert!(config.rate_max > 0.0 && config.rate_max <= 1.0, "rate {}", config.rate_max);
        Self {
            threshold: 0,
            other_threshold: 0,
            watched: 0,
            accesses: 0,
            counts: None,
            capacity_max: 0,
            config,
        }
    }

    /// Sets the threshold of another sample that the caller takes of the same lines, [`u32::MAX`]
    /// for all. See [`CurveEstimator::record`].
    pub const fn set_other_threshold(&mut self, threshold: u32) {
        self.other_threshold = threshold;
        self.set_threshold(self.threshold);
    }

    const fn set_threshold(&mut self, threshold: u64) {
        self.threshold = threshold;
        let other = match self.other_threshold {
            u32::MAX => ALL,
            other => other as u64,
        };
        self.watched = if threshold > other { threshold } else { other };
    }

    /// The least memory with which [`CurveEstimator::set_limit`] allows an estimate, in bytes.
    pub const fn bytes_min(config: CurveConfig) -> usize {
        Self::fixed_bytes(config) + SampledLines::heap_bytes_for(CAPACITY_MIN)
    }

    /// Sets the memory limit in bytes, this value included. Below [`CurveEstimator::bytes_min`] the
    /// estimate ends, and its memory is freed. A lower limit lowers the sampling rate; a higher one
    /// does not raise it again. Memory is allocated when it is needed.
    pub fn set_limit(&mut self, bytes: usize) {
        let samples_bytes = bytes.saturating_sub(Self::fixed_bytes(self.config));
        let capacity = SampledLines::capacity_within(samples_bytes, CAPACITY_MAX);
        if capacity < CAPACITY_MIN {
            let other_threshold = self.other_threshold;
            *self = Self::new(self.config);
            self.set_other_threshold(other_threshold);
            return;
        }
        if self.capacity_max == 0 {
            // Earlier accesses were not sampled.
            self.accesses = 0;
            self.set_threshold(((ALL as f64 * self.config.rate_max) as u64).max(1));
        }
        self.capacity_max = capacity as u32;
        if let Some(counts) = &mut self.counts
            && counts.sampled.capacity() > capacity
        {
            let threshold = counts.drop_until(kept(capacity), self.threshold, self.config);
            counts.sampled.resize(capacity);
            self.set_threshold(threshold);
        }
        assert!(self.bytes() <= bytes, "{} bytes, limit {bytes}", self.bytes());
    }

    /// Records an access to the line with this well-mixed hash. Returns false if the line is in
    /// neither sample: this one, and that of [`CurveEstimator::set_other_threshold`].
    #[inline]
    pub fn record(&mut self, hash: u64) -> bool {
        self.accesses += 1;
        let fingerprint = (hash >> 32) as u32;
        let is_watched = u64::from(fingerprint) < self.watched;
        if is_watched {
            self.record_watched(fingerprint);
        }
        is_watched
    }

    /// Records that a line came into the cache before any access to it: a warm-up or a forecast
    /// reads it. That is no access, but the first one finds the line there, and counts as one to a
    /// line that was last accessed now.
    pub fn record_preload(&mut self, hash: u64) {
        let fingerprint = (hash >> 32) as u32;
        let is_known =
            || self.counts.as_ref().is_some_and(|counts| counts.sampled.contains(fingerprint));
        if u64::from(fingerprint) < self.threshold && !is_known() {
            self.place(fingerprint);
        }
    }

    /// Multiplies all counts by `keep`, so that later accesses weigh more.
    ///
    /// # Panics
    /// If `keep` is not between 0 and 1.
    pub fn decay(&mut self, keep: f64) {
        assert!((0.0..=1.0).contains(&keep), "{keep} of the counts are kept");
        self.accesses = (self.accesses as f64 * keep) as u64;
        if let Some(counts) = &mut self.counts {
            counts.scale(|count| (f64::from(count) * keep) as u32);
        }
    }

    /// The estimate; `None` if the limit allows none.
    pub fn curve(&self) -> Option<MissRatioCurve> {
        if self.capacity_max == 0 {
            return None;
        }
        let mut hits = vec![0.0; classes::count(self.config.depth_lines)];
        let mut sampled = 0.0;
        if let Some(counts) = &self.counts {
            let scale = 1.0 / (f64::from(counts.weight) * self.rate());
            let scaled = counts.hits.iter().map(|&count| f64::from(count) * scale);
            hits.iter_mut().zip(scaled).for_each(|(hits, scaled)| *hits = scaled);
            sampled = hits.iter().sum::<f64>() + f64::from(counts.beyond) * scale;
            hits[0] += self.accesses as f64 - sampled;
        }
        Some(MissRatioCurve::of(self.accesses as f64, sampled * self.rate(), hits))
    }

    /// Whether clients hardly ever return to a line while a cache twice as large as the shard would
    /// have it. False while there are too few accesses to tell: fewer than the shard has lines.
    pub fn is_read_once(&self) -> bool {
        let Some(counts) = self.counts.as_deref() else { return false };
        let sampled = self.accesses as f64 * self.rate();
        self.accesses >= self.config.depth_lines / SHARD_DEPTH
            && sampled >= READ_ONCE_SAMPLES_MIN
            && counts.near as f64 / f64::from(counts.weight) < sampled * READ_ONCE_SHARE
    }

    /// The current sampling rate; zero if the limit allows no estimate.
    pub fn rate(&self) -> f64 {
        self.threshold as f64 / ALL as f64
    }

    /// The size of this value in bytes, heap included.
    pub fn bytes(&self) -> usize {
        size_of::<Self>() + self.heap_bytes()
    }

    /// Bytes on the heap.
    pub fn heap_bytes(&self) -> usize {
        self.counts.as_ref().map_or(0, |counts| {
            size_of::<AccessCounts>() + size_of_val(&*counts.hits) + counts.sampled.heap_bytes()
        })
    }

    /// # Panics
    /// Panics if an invariant is violated. For tests: it visits all samples.
    pub fn self_check(&self) {
        let Some(counts) = self.counts.as_deref() else { return };
        assert_eq!(counts.near, counts.near_accesses(), "accesses at small distances");
        let sampled = &counts.sampled;
        sampled.self_check();
        assert!(sampled.capacity() <= self.capacity_max as usize, "more samples than allowed");
        let above = sampled.iter().filter(|&line| u64::from(line) >= self.threshold).count();
        assert_eq!(above, 0, "sampled lines above the threshold");
    }

    /// Memory that does not depend on the capacity for samples.
    const fn fixed_bytes(config: CurveConfig) -> usize {
        let classes_bytes = classes::count(config.depth_lines) * size_of::<u32>();
        size_of::<Self>() + size_of::<AccessCounts>() + classes_bytes
    }

    /// Makes a sampled line the last accessed one. Returns its distance before; the outer `None` if
    /// it is sampled no longer.
    fn place(&mut self, fingerprint: u32) -> Option<Option<usize>> {
        let config = self.config;
        let counts = self.counts.get_or_insert_with(|| Box::new(AccessCounts::new(config)));
        if counts.sampled.is_full() {
            let threshold = counts.make_space(self.capacity_max as usize, self.threshold, config);
            self.set_threshold(threshold);
            if u64::from(fingerprint) >= self.threshold {
                return None;
            }
        }
        let counts = self.counts.as_mut()?;
        Some(counts.sampled.access(fingerprint))
    }

    #[inline(never)]
    fn record_watched(&mut self, fingerprint: u32) {
        if u64::from(fingerprint) >= self.threshold {
            return;
        }
        let Some(distance) = self.place(fingerprint) else { return };
        let class = distance.map(|distance| {
            // Unbiased: of `d` other lines, `d` times the rate are sampled on average.
            classes::class_of(((distance as u64) << 32) / self.threshold)
        });
        let Some(counts) = &mut self.counts else { return };
        while !counts.add(class) {
            // With all counts, the weight of new accesses is halved. Once it is one, after 2^32
            // accesses at one distance without a decay, only earlier accesses lose weight.
            if !counts.halve() {
                self.accesses /= 2;
            }
        }
    }
}

/// Lines kept when the samples are full.
const fn kept(capacity: usize) -> usize {
    capacity * 2 / 3
}

impl AccessCounts {
    fn new(config: CurveConfig) -> Self {
        let hits = vec![0; classes::count(config.depth_lines)].into_boxed_slice();
        Self { sampled: SampledLines::default(), hits, beyond: 0, near: 0, weight: WEIGHT }
    }

    /// Counts an access. Returns false if the count would overflow.
    fn add(&mut self, class: Option<usize>) -> bool {
        let class = class.filter(|&class| class < self.hits.len());
        let count = class.map_or(&mut self.beyond, |class| &mut self.hits[class]);
        let Some(sum) = count.checked_add(self.weight) else { return false };
        *count = sum;
        if class.is_some_and(|class| class < self.near_classes()) {
            self.near += u64::from(self.weight);
        }
        true
    }

    /// Halves all counts, and the weight of later accesses. Returns whether the weight was halved.
    #[cold]
    fn halve(&mut self) -> bool {
        let is_halved = self.weight > 1;
        self.weight = (self.weight / 2).max(1);
        self.scale(|count| count / 2);
        is_halved
    }

    fn scale(&mut self, scale: impl Fn(u32) -> u32) {
        self.hits.iter_mut().for_each(|count| *count = scale(*count));
        self.beyond = scale(self.beyond);
        self.near = self.near_accesses();
    }

    /// See [`AccessCounts::near`].
    fn near_accesses(&self) -> u64 {
        self.hits[..self.near_classes()].iter().copied().map(u64::from).sum()
    }

    const fn near_classes(&self) -> usize {
        self.hits.len().saturating_sub(FAR_CLASSES)
    }

    /// Frees positions for sampled accesses. Drops accesses that were followed by another one to
    /// the same line, if that frees enough. Otherwise allocates more memory or, at the maximum,
    /// lowers the threshold and drops the oldest lines. Returns the threshold.
    #[cold]
    fn make_space(&mut self, capacity_max: usize, threshold: u64, config: CurveConfig) -> u64 {
        let capacity = self.sampled.capacity();
        let mut threshold = threshold;
        if capacity > 0 && self.sampled.len() <= kept(capacity) {
            self.sampled.retain(|_| true);
        } else if capacity < capacity_max {
            self.sampled.resize((capacity * 2).clamp(CAPACITY_MIN, capacity_max));
        } else {
            threshold = self.drop_until(kept(capacity), threshold, config);
        }
        assert!(!self.sampled.is_full(), "no space for sampled lines");
        threshold
    }

    /// Drops sampled lines until at most `len` remain. Returns the threshold.
    fn drop_until(&mut self, len: usize, threshold: u64, config: CurveConfig) -> u64 {
        let threshold_min = len as f64 * ALL as f64 / config.depth_lines as f64;
        let threshold_min = (threshold_min as u64).max(1);
        let mut threshold = threshold;
        while self.sampled.len() > len && threshold > threshold_min {
            let lower = (threshold / 4 * 3).max(threshold_min);
            let keep = lower as f64 / threshold as f64;
            threshold = lower;
            self.sampled.retain(|line| u64::from(line) < threshold);
            self.scale(|count| (f64::from(count) * keep).round() as u32);
        }
        let mut oldest = self.sampled.len().saturating_sub(len);
        self.sampled.retain(|_| {
            let is_kept = oldest == 0;
            oldest = oldest.saturating_sub(1);
            is_kept
        });
        threshold
    }
}
