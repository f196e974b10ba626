//! Eviction policies, the policies of writeback, miss-ratio curves, and the access history.
//!
//! An eviction policy is a pure value behind [`Eviction`]. It owns the eviction order and the
//! ghosts of recently evicted lines, and nothing else: no data, index or clock. The engine keeps
//! one value per shard and notifies it of accesses; the lab's trace replay drives the same code, so
//! miss ratios measured there apply to the shipped policy. The lab has further policies, for
//! comparison.
//!
//! Lines are named by their [`Slot`]. A slot is *resident* from [`Eviction::on_insert`] until
//! [`Eviction::evict`] returns it or [`Eviction::on_remove`] is called for it.
//! [`Eviction::on_move`] passes this state to another slot. Callers pass only slots below the
//! capacity, and insert only slots that are not resident. Violations panic, because a corrupt
//! eviction order would eventually give one slot to two lines. A shard may shrink and grow within
//! the capacity ([`Eviction::set_capacity`]).
//!
//! [`Weir`] allocates all memory at once, for the full capacity: at most 14 bytes per line, ghosts
//! included.
//!
//! The writeback policies are [`SplitCost`], the cost of splitting a write on a disk, measured by
//! [`Probing`], and [`Governor`], which sets the writeback [`Pace`] by the latency of reads.
//!
//! [`RequestLimiter`] decides when the requests of a volume with limits pass.
//!
//! [`BackgroundControl`] decides how much background work may use while others need it.
//!
//! [`AccessHistory`] knows what a volume needs at which time of the day and week.
//!
//! [`Miniatures`] find out what a volume would miss in a smaller or larger pool, and
//! [`SizeOutlook`] says what follows from that. [`Sizer`] decides how much memory the cache may
//! have, and [`Growth`] how much it should have; [`SizeControl`] joins both with the operator's
//! settings. [`CurveEstimator`] estimates what a volume would miss in an LRU cache of its own, and
//! [`Division`] is a division of the pool between volumes by these curves.

#![deny(missing_docs)]

mod background;
mod curve;
mod division;
mod fingerprints;
mod governor;
mod growth;
mod history;
mod limiter;
pub mod list;
mod miniature;
mod pace;
mod probing;
mod sizer;
mod sizing;
mod split_cost;
mod weir;

#[cfg(any(test, feature = "testing"))]
pub mod testing;

pub use background::BackgroundControl;
pub use curve::{CurveConfig, CurveEstimator, CurveStep, MissRatioCurve};
pub use division::{Division, VolumeShare};
pub use governor::{DiskSample, Governor, GovernorState, ReadTarget, ReadTimes, WritebackLimits};
pub use growth::{Growth, GrowthReason, GrowthSample, gain_per_doubling};
pub use history::{
    AccessHistory, Confidence, ConfidenceChange, Demand, Forecast, Needs, SlotPoll, SlotTracker,
};
pub use limiter::{Passage, RequestLimiter, RequestLimits};
pub use miniature::{
    AccessCounts, LineAccess, Miniatures, Misses, OutlookLog, PoolSize, ReadKind, SequenceWatch,
    SizeAdvice, SizeCounts, SizeOutlook, SizePrediction, WatchStep,
};
pub use pace::Pace;
pub use probing::{DISK_NS_MAX, Probing, READ_BYTES_MAX, READS_MAX};
pub use sizer::{MemorySample, SizeDecision, SizeReason, Sizer};
pub use sizing::{MachineFigures, MemoryBounds, MemoryUse, SizeControl, SizeSettings};
pub use split_cost::{
    GATHER_BELOW_DEFAULT_BYTES, ReadTime, SIZES_MIN, SplitCost, ThresholdSource, Unclear,
    gather_below,
};
pub use weir::{CAPACITY_LINES_MAX, Weir};

/// The index of a line's slot in its shard, less than the capacity.
pub type Slot = u32;

/// The reason for inserting a line.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Hint {
    /// A client requested it.
    Normal,
    /// A client wrote it. Evicting it costs a disk read only if a client reads it later.
    Write,
    /// A recognised sequential stream prefetched it. It will most likely be read once, so it should
    /// not displace other lines.
    Stream,
    /// Clients used it repeatedly before a restart, so it is kept like a reused line.
    Hot,
    /// A forecast says that clients will need it soon. It replaces only a line that is worth less
    /// than one future use, if the policy knows of such a line.
    Forecast,
}

/// Queries that a policy makes about lines of its shard while it searches for one to evict.
pub trait Lines {
    /// Returns true if the line is evictable now: clean, unpinned and without I/O in flight.
    fn is_evictable(&self, slot: Slot) -> bool;

    /// The key under which the line was inserted: a well-mixed 64-bit hash of its volume and line
    /// number. Policies treat equal keys as the same line; a rare collision makes them misjudge one
    /// line.
    fn key(&self, slot: Slot) -> u64;
}

/// An eviction policy for one shard.
pub trait Eviction: Send {
    /// Its name in tables.
    fn name(&self) -> &'static str;

    /// Inserts the line `key` in `slot`. If [`Eviction::evict`] freed the slot, and not
    /// [`Eviction::vacate`], `key` equals its `incoming`.
    ///
    /// # Panics
    /// Panics if the slot is resident or not below the capacity.
    fn on_insert(&mut self, slot: Slot, key: u64, hint: Hint);

    /// Records a read of the resident line in `slot`. This is the hot path: a few nanoseconds,
    /// no allocation.
    fn on_hit(&mut self, slot: Slot);

    /// Records a write to the resident line in `slot`. As fast as [`Eviction::on_hit`], which it
    /// calls by default.
    fn on_write(&mut self, slot: Slot) {
        self.on_hit(slot);
    }

    /// Records the first access to the resident line in `slot`, which was preloaded. If it was
    /// inserted with [`Hint::Forecast`], this access was expected, and need not be a reuse. Returns
    /// whether the line belongs to the current forecast.
    fn on_first_use(&mut self, slot: Slot) -> bool {
        self.on_hit(slot);
        false
    }

    /// Begins a forecast: lines that are inserted with [`Hint::Forecast`] from now on belong to it.
    fn begin_forecast(&mut self) {}

    /// Adds the resident line in `slot`, which was preloaded and not used yet, to the current
    /// forecast. Returns false if it is in the forecast already, or is worth more than its lines.
    /// By default, lines of forecasts are like others.
    fn forecast_again(&mut self, _slot: Slot) -> bool {
        false
    }

    /// Makes unused lines of earlier forecasts, at most `lines_max`, the next to be evicted.
    /// Returns whether there may be more.
    fn end_former_forecasts(&mut self, _lines_max: usize) -> bool {
        false
    }

    /// Removes the resident line in `slot` for an external reason (trim, volume removal). It leaves
    /// no ghost.
    ///
    /// # Panics
    /// Panics if the slot is not resident.
    fn on_remove(&mut self, slot: Slot);

    /// Moves the resident line in `old` to `new`, which is not resident. By default this is a
    /// removal and an insertion; a policy may override it to keep the line's position.
    ///
    /// # Panics
    /// Panics if `old` is not resident, or `new` is.
    fn on_move(&mut self, old: Slot, new: Slot, key: u64) {
        self.on_remove(old);
        self.on_insert(new, key, Hint::Normal);
    }

    /// Takes a hit from the resident line in `slot`, for the caller's own search for a line to
    /// evict. Returns false if it has none, so that the line may be evicted. By default, no line
    /// has hits.
    fn spare(&mut self, _slot: Slot) -> bool {
        false
    }

    /// The value of the resident line in `slot`, from zero to [`LINE_VALUE_MAX`]: zero for a line
    /// that need not be cached again after a restart, and [`LINE_VALUE_HOT`] or more for one that
    /// was used repeatedly. By default, all lines have the same value.
    ///
    /// [`LINE_VALUE_MAX`]: forebay_types::LINE_VALUE_MAX
    /// [`LINE_VALUE_HOT`]: forebay_types::LINE_VALUE_HOT
    fn value(&self, _slot: Slot) -> u8 {
        1
    }

    /// Evicts a resident line in favour of `incoming`, which will be inserted with `hint`. Policies
    /// with ghosts keep one of the evicted line. Skips unevictable lines with bounded work; returns
    /// `None` if it finds no evictable line within the bound, or if no line is resident. The next
    /// call continues the search, so repeated calls find an evictable line if there is one. A call
    /// may be repeated for the same `incoming`, and need not be followed by its insertion.
    fn evict(&mut self, incoming: u64, hint: Hint, lines: &dyn Lines) -> Option<Slot>;

    /// Like [`Eviction::evict`], for a slot that gets its line later, while other lines may be
    /// evicted and inserted, or that gets no line of the policy.
    fn vacate(&mut self, lines: &dyn Lines) -> Option<Slot> {
        self.evict(0, Hint::Stream, lines)
    }

    /// Sets how many lines may be resident, at most the capacity with which the policy was created.
    /// Slots are still numbered up to that capacity. More lines may be resident until they are
    /// removed. By default, a policy keeps the parameters for its original capacity.
    fn set_capacity(&mut self, _lines: usize) {}

    /// The size of this policy in bytes, heap included.
    fn metadata_bytes(&self) -> usize;

    /// Verifies the whole state, in time proportional to the capacity. For tests and the simulator.
    ///
    /// # Panics
    /// Panics if an invariant is violated.
    fn self_check(&self);
}
