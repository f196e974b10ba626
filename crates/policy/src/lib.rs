//! Eviction: which line goes when another one needs its place.
//!
//! A policy is a pure value behind [`Eviction`]. It owns the order in which lines leave and the
//! memory of lines that left lately (its ghosts), and nothing else: no data, no index, no clock.
//! The engine keeps one policy value per shard, a [`Weir`], and tells it what happens there; the
//! lab's trace replay drives the same value, so a miss ratio measured in the lab is one of the
//! shipped code. The lab has further policies, for comparison.
//!
//! Lines are named by their [`Slot`]. Between [`Eviction::on_insert`] and the moment the slot is
//! either returned by [`Eviction::evict`] or handed to [`Eviction::on_remove`], it is *resident*.
//! Each slot is resident at most once, and a policy never sees a slot at or above its capacity.
//! Breaking this contract panics: an eviction order that has lost count would sooner or later
//! give one place to two lines.
//!
//! The price: a policy allocates everything when it is made, for the full capacity at once.
//! [`Weir`] needs at most 14 bytes per line, ghosts included.
//!
//! Beside them stands what decides which writes are worth gathering: [`SplitCost`], what splitting
//! a write costs on a disk, and [`Probing`], the reads that tell it; and [`Governor`], which tells
//! from how long reads take at which [`Pace`] write-back may go.

mod fingerprints;
mod governor;
pub mod list;
mod pace;
mod probing;
mod split_cost;
mod weir;

#[cfg(any(test, feature = "testing"))]
pub mod testing;

pub use governor::{Governor, GovernorStatus, Limits, ReadTarget, ReadTimes, Seen};
pub use pace::Pace;
pub use probing::{DISK_NS_MAX, Probing, READ_BYTES_MAX, READS_MAX};
pub use split_cost::{
    GATHER_BELOW_DEFAULT_BYTES, ReadTime, SIZES_MIN, SplitCost, ThresholdSource, Unclear,
    gather_below,
};
pub use weir::{CAPACITY_LINES_MAX, Weir};

/// The index of a line's place in its shard, from 0 to the capacity less one.
pub type Slot = u32;

/// What is known of a line when it comes in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Hint {
    /// A client asked for it.
    Normal,
    /// A recognised sequential stream put it there. It will most likely be read once and never
    /// again, so it should not displace others.
    Stream,
}

/// What a policy may ask about the lines of its shard while it looks for one to give up.
pub trait Lines {
    /// Whether the line can be given up at this moment: it is clean, unpinned, and no I/O is
    /// using it.
    fn may_go(&self, slot: Slot) -> bool;

    /// The key under which the line was inserted: a well-mixed 64-bit hash of its volume and
    /// line number. Policies take equal keys for the same line; a rare collision costs one
    /// misjudged line and no more.
    fn key(&self, slot: Slot) -> u64;
}

/// An eviction policy for one shard.
pub trait Eviction: Send {
    /// Its name in tables.
    fn name(&self) -> &'static str;

    /// The line `key` now lies in `slot`. When the place was made by [`Eviction::evict`], `key`
    /// is what that call was told as `incoming`.
    ///
    /// # Panics
    /// When the slot is resident already or not below the capacity.
    fn on_insert(&mut self, slot: Slot, key: u64, hint: Hint);

    /// The resident line in `slot` was read or written once more. This is the hot path: a few
    /// nanoseconds, no allocation.
    fn on_hit(&mut self, slot: Slot);

    /// The resident line in `slot` left for a reason that is not the policy's (trim, volume
    /// removed). It is forgotten without a ghost.
    ///
    /// # Panics
    /// When the slot is not resident.
    fn on_remove(&mut self, slot: Slot);

    /// The resident line in `old` now lies in `new`, which is not resident, and `old` is free. A
    /// policy that keeps the line's standing says how; for others it leaves and comes.
    ///
    /// # Panics
    /// When `old` is not resident, or `new` is.
    fn on_move(&mut self, old: Slot, new: Slot, key: u64) {
        self.on_remove(old);
        self.on_insert(new, key, Hint::Normal);
    }

    /// Chooses a resident line to give up for the line `incoming`, which will be inserted with
    /// `hint`, and forgets it, leaving a ghost where the policy keeps such. Lines that may not go
    /// are passed over with bounded work; `None` when none was found within the bound. The next
    /// call looks further on, so a line that may go is found in the end however many may not.
    /// `None` too when nothing is resident. A call may be repeated for the same `incoming`, and
    /// need not be followed by its insertion.
    fn evict(&mut self, incoming: u64, hint: Hint, lines: &dyn Lines) -> Option<Slot>;

    /// All bytes that this policy holds, heap included.
    fn metadata_bytes(&self) -> usize;

    /// Walks the whole state. For tests and the simulator: takes time in proportion to the
    /// capacity.
    ///
    /// # Panics
    /// When an invariant is broken.
    fn self_check(&self);
}
