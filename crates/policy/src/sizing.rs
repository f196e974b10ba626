//! The size of the cache, from the operator's settings and the figures of the machine.
//!
//! Settings give a maximum, a minimum, and either a fixed size or the choice of one. [`Growth`]
//! chooses, [`Sizer`] says what the machine allows, and [`SizeControl`] combines them. The daemon
//! and the simulator drive this code: they supply the figures and carry the decisions out.

use crate::{Growth, GrowthReason, GrowthSample, MemorySample, SizeDecision, Sizer};
use forebay_types::limits::MEMORY_BYTES_MIN;

/// The sizes between which the memory of a process can be set while it runs, in bytes. The memory
/// for everything but lines stays as it is, and with it the tables of lines whose memory is given
/// back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryBounds {
    /// The minimum. Pinned ranges raise it.
    pub least_bytes: u64,
    /// The memory now.
    pub now_bytes: u64,
    /// The maximum.
    pub most_bytes: u64,
    /// All sizes differ from the maximum by multiples of this; at least 1.
    pub step_bytes: u64,
}

impl MemoryBounds {
    /// The bounds of a process with at most `most_bytes`, of which `data_bytes` are for lines. Of
    /// these, `missing_bytes` are given back or soon will be. One step always stays.
    pub fn new(most_bytes: u64, data_bytes: u64, missing_bytes: u64, step_bytes: u64) -> Self {
        let removable_bytes = data_bytes - step_bytes;
        let least_bytes = (most_bytes - removable_bytes).max(MEMORY_BYTES_MIN).min(most_bytes);
        Self { least_bytes, now_bytes: most_bytes - missing_bytes, most_bytes, step_bytes }
    }

    /// The size that results when the memory is set to `memory_bytes`, which is within the bounds.
    pub fn rounded(&self, memory_bytes: u64) -> u64 {
        let missing_bytes = self.most_bytes.saturating_sub(memory_bytes);
        self.most_bytes - missing_bytes.next_multiple_of(self.step_bytes).min(self.most_bytes)
    }

    /// The nearest size that the pool can have, rounded down if possible.
    pub fn within(&self, bytes: u64) -> u64 {
        // The least that any server may have, 32 MiB, can lie between two sizes of the pool. Round
        // up then, because a smaller size is refused.
        let rounded = self.rounded(bytes.clamp(self.least_bytes, self.most_bytes));
        match rounded < self.least_bytes {
            true => (rounded + self.step_bytes).min(self.most_bytes),
            false => rounded,
        }
    }

    /// The use of this memory by a pool with `data_bytes` for lines, which has taken `used_bytes`.
    pub const fn memory_use(self, data_bytes: u64, used_bytes: u64) -> MemoryUse {
        let lines_bytes = data_bytes - (self.most_bytes - self.now_bytes);
        MemoryUse {
            bounds: self,
            unused_bytes: lines_bytes.saturating_sub(used_bytes),
            pending_bytes: used_bytes.saturating_sub(lines_bytes),
        }
    }
}

/// The memory that a process may have, and how much of it the pool has taken, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryUse {
    /// The memory that the process may have.
    pub bounds: MemoryBounds,
    /// The part of it that the pool has not taken yet.
    pub unused_bytes: u64,
    /// The memory that the pool still has to give back.
    pub pending_bytes: u64,
}

/// The operator's settings, in bytes. `None` leaves the choice to the server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SizeSettings {
    /// The size while there is enough memory.
    pub memory: Option<u64>,
    /// The size that the cache keeps while memory is short. Not above the other two.
    pub min: Option<u64>,
    /// The most that the server chooses.
    pub max: Option<u64>,
}

impl SizeSettings {
    /// The largest size that the server may choose.
    pub fn most_bytes(&self, bounds: &MemoryBounds) -> u64 {
        self.max.map_or(bounds.most_bytes, |bytes| bounds.within(bytes))
    }

    /// The size that the cache keeps while memory is short.
    fn least_bytes(&self, bounds: &MemoryBounds, wanted_bytes: u64) -> u64 {
        match self.min {
            None => bounds.within(bounds.least_bytes),
            Some(bytes) => bounds.within(bytes).min(wanted_bytes),
        }
    }

    /// The size while there is enough memory.
    fn wanted_bytes(&self, bounds: &MemoryBounds, growth: &Growth) -> u64 {
        if let Some(bytes) = self.memory {
            return bounds.within(bytes);
        }
        let bytes = growth.target_bytes().max(self.min.unwrap_or(0));
        bounds.within(bytes.min(self.most_bytes(bounds)))
    }
}

/// The figures of the machine and its control groups at one moment. See [`MemorySample`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MachineFigures {
    /// Any clock, in milliseconds.
    pub now_ms: u64,
    /// The memory that programs can have, within the limits of all control groups, in bytes.
    pub available_bytes: u64,
    /// By how much a control group exceeds its limit, in bytes.
    pub excess_bytes: u64,
    /// The memory that is left to the system, in bytes. At zero, the cache never shrinks.
    pub reserve_bytes: u64,
    /// How long a program waited for memory since the last figures, in microseconds.
    pub stalled_us: u64,
    /// How often a control group reached a limit since the last figures.
    pub limit_events: u64,
}

/// Decides the size of the cache. See the module.
#[derive(Clone, Debug)]
pub struct SizeControl {
    growth: Growth,
    sizer: Sizer,
}

impl SizeControl {
    /// Begins with the size of a cache.
    pub fn new(now_bytes: u64) -> Self {
        Self { growth: Growth::new(now_bytes), sizer: Sizer::default() }
    }

    /// Why the server has not chosen a larger size.
    pub const fn growth_reason(&self) -> GrowthReason {
        self.growth.reason()
    }

    /// The size that the server has chosen, in bytes.
    pub const fn target_bytes(&self) -> u64 {
        self.growth.target_bytes()
    }

    /// The size that applies at once when the operator changes the settings to these, and how to
    /// continue from there. `is_size_set` says whether the change names the size, as a number or
    /// by leaving it to the server, and not only its bounds.
    pub fn changed(
        &self,
        settings: &SizeSettings,
        bounds: &MemoryBounds,
        is_size_set: bool,
    ) -> (u64, Self) {
        let growth = match is_size_set {
            // Growth starts from the current size.
            true => Growth::new(bounds.now_bytes),
            false => self.growth.clone(),
        };
        let wanted_bytes = settings.wanted_bytes(bounds, &growth);
        let least_bytes = settings.least_bytes(bounds, wanted_bytes);
        let bytes = match is_size_set {
            true => wanted_bytes,
            false => bounds.now_bytes.min(wanted_bytes).max(least_bytes),
        };
        (bytes, Self { growth, sizer: self.sizer.clone() })
    }

    /// Whether [`SizeControl::decide_growth`] is due: once a minute, if the server chooses the
    /// size.
    pub fn is_growth_due(&mut self, settings: &SizeSettings, now_ms: u64) -> bool {
        settings.memory.is_none() && self.growth.is_due(now_ms)
    }

    /// Decides whether the cache should be larger. `unused_bytes` of it are without data, and
    /// `gain` is that of [`crate::gain_per_doubling`].
    pub fn decide_growth(
        &mut self,
        settings: &SizeSettings,
        bounds: &MemoryBounds,
        now_ms: u64,
        unused_bytes: u64,
        gain: Option<f64>,
    ) {
        self.growth.decide(&GrowthSample {
            now_ms,
            size_bytes: bounds.now_bytes,
            unused_bytes,
            most_bytes: settings.most_bytes(bounds),
            step_bytes: bounds.step_bytes,
            gain,
        });
    }

    /// Decides the size on figures. The caller carries the decision out before the next call.
    pub fn decide(
        &mut self,
        settings: &SizeSettings,
        found: &MemoryUse,
        figures: &MachineFigures,
    ) -> (MemorySample, SizeDecision) {
        let MemoryUse { bounds, unused_bytes, pending_bytes } = *found;
        let wanted_bytes = settings.wanted_bytes(&bounds, &self.growth);
        let sample = MemorySample {
            now_ms: figures.now_ms,
            available_bytes: figures.available_bytes,
            excess_bytes: figures.excess_bytes,
            reserve_bytes: figures.reserve_bytes,
            stalled_us: figures.stalled_us,
            limit_events: figures.limit_events,
            size_bytes: bounds.now_bytes,
            unused_bytes,
            pending_bytes,
            least_bytes: settings.least_bytes(&bounds, wanted_bytes),
            wanted_bytes,
            step_bytes: bounds.step_bytes,
        };
        let decision = self.sizer.decide(&sample);
        (sample, decision)
    }
}

#[cfg(test)]
mod tests;
