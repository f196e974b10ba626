//! What one volume missed in a shard, and in its miniatures.

use super::{Misses, PoolSize};

/// The time in which counts fall by half, in seconds.
const HALF_LIFE_S: f64 = 3_600.0;
/// Until counts are old enough, they fall by half in this part of their age: the first accesses to
/// an empty cache would otherwise count for hours.
const YOUNG_SHARE: f64 = 0.25;
/// A change of the shard's size by one doubling leaves this natural exponent of the counts.
const RESIZE_EXPONENT: f64 = -4.0;

/// The accesses to one volume in a shard, and the misses with other sizes of the pool. All counts
/// decay.
#[derive(Clone, Debug, Default)]
pub struct SizeCounts {
    /// Sampled accesses that missed in the miniature of each size.
    misses: [f64; PoolSize::COUNT],
    sampled: f64,
    /// All accesses, and those that missed in the shard, up to the last decay.
    real: AccessCounts,
    /// The counters of the shard at the last decay.
    counted: AccessCounts,
    /// The age of the counts in seconds. Changes of the size make them younger.
    age_s: f64,
    /// The time that the counts cover in seconds, decayed like these.
    weight_s: f64,
}

/// Accesses of clients in lines, and those of them that missed.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct AccessCounts {
    /// Lines read and written.
    pub accesses: f64,
    /// Lines of these that were not in memory.
    pub misses: f64,
}

impl AccessCounts {
    fn plus(self, other: Self) -> Self {
        Self { accesses: self.accesses + other.accesses, misses: self.misses + other.misses }
    }

    fn minus(self, other: Self) -> Self {
        self.plus(other.times(-1.0))
    }

    fn times(self, by: f64) -> Self {
        Self { accesses: self.accesses * by, misses: self.misses * by }
    }
}

impl SizeCounts {
    /// Counts a sampled access.
    pub(crate) fn count(&mut self, misses: Misses) {
        self.sampled += 1.0;
        for size in PoolSize::ALL {
            self.misses[size as usize] += f64::from(u8::from(misses.at(size)));
        }
    }

    /// Records that `seconds` have passed since the last call. `counters` are those of the volume
    /// in the shard, which never fall.
    pub fn pass_time(&mut self, seconds: f64, counters: AccessCounts) {
        self.take(counters);
        self.age_s = (self.age_s + seconds).min(HALF_LIFE_S / YOUNG_SHARE);
        self.weight_s += seconds;
        let half_life_s = (self.age_s * YOUNG_SHARE).min(HALF_LIFE_S);
        if half_life_s > 0.0 {
            self.keep(0.5f64.powf(seconds / half_life_s));
        }
    }

    /// Records that the shard now has `times` as many lines as before: what was counted before says
    /// less.
    pub fn resize(&mut self, times: f64, counters: AccessCounts) {
        let keep = (RESIZE_EXPONENT * times.log2().abs()).exp();
        if keep < 1.0 {
            self.take(counters);
            self.age_s *= keep;
            self.keep(keep);
        }
    }

    /// What the counts say. A sampled access stands for `1 / rate` accesses.
    pub fn prediction(&self, rate: f64, counters: AccessCounts) -> SizePrediction {
        let AccessCounts { accesses, misses } = self.real.plus(counters.minus(self.counted));
        let now = self.misses[PoolSize::Now as usize];
        SizePrediction {
            accesses,
            misses,
            sampled: self.sampled,
            seconds: self.weight_s,
            changes: self.misses.map(|missed| (missed - now) / rate),
        }
    }

    #[cfg(test)]
    pub(super) const fn set(&mut self, sampled: f64, misses: [f64; PoolSize::COUNT]) {
        (self.sampled, self.misses) = (sampled, misses);
    }

    fn take(&mut self, counters: AccessCounts) {
        self.real = self.real.plus(counters.minus(self.counted));
        self.counted = counters;
    }

    fn keep(&mut self, keep: f64) {
        self.real = self.real.times(keep);
        self.misses = self.misses.map(|misses| misses * keep);
        self.sampled *= keep;
        self.weight_s *= keep;
    }
}

/// The share of a volume's accesses that miss now, and that would miss with other sizes of the
/// pool: what was measured, changed by what the miniatures of these sizes missed more or less than
/// that of the present one.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SizePrediction {
    /// Accesses, decayed, in lines.
    accesses: f64,
    /// Measured misses among them.
    misses: f64,
    /// The accesses to sampled lines among them: the basis of the prediction.
    sampled: f64,
    /// The time that the counts cover.
    seconds: f64,
    /// The misses of each size beyond the measured ones.
    changes: [f64; PoolSize::COUNT],
}

impl SizePrediction {
    /// Adds the counts of the same volume in another shard.
    pub fn add(&mut self, other: &Self) {
        self.accesses += other.accesses;
        self.misses += other.misses;
        self.sampled += other.sampled;
        self.seconds = self.seconds.max(other.seconds);
        self.changes.iter_mut().zip(other.changes).for_each(|(sum, change)| *sum += change);
    }

    /// All accesses, decayed, in lines.
    pub const fn accesses(&self) -> f64 {
        self.accesses
    }

    /// The accesses to sampled lines among them.
    pub const fn sampled_accesses(&self) -> f64 {
        self.sampled
    }

    /// Accesses per second.
    pub fn access_rate(&self) -> f64 {
        self.accesses / self.seconds.max(1.0)
    }

    /// The hits that a size of the pool would bring compared with the present one, in decayed
    /// accesses; negative if hits would be lost.
    pub fn hits_gained(&self, size: PoolSize) -> f64 {
        -self.changes[size as usize].clamp(-self.misses, (self.accesses - self.misses).max(0.0))
    }

    /// The same per second.
    pub fn hits_gained_rate(&self, size: PoolSize) -> f64 {
        self.hits_gained(size) / self.seconds.max(1.0)
    }

    /// The share of accesses that miss with this size of the pool, from 0 to 1; of the present
    /// size, it is measured. `None` without accesses.
    pub fn miss_ratio(&self, size: PoolSize) -> Option<f64> {
        let misses = self.misses - self.hits_gained(size);
        (self.accesses > 0.0).then(|| (misses / self.accesses).clamp(0.0, 1.0))
    }
}
