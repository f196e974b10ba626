//! The cache engine: one shard of the cache as a deterministic state machine.
//!
//! A [`Shard`] owns the lines of some regions of all volumes: which lines are in its part of the
//! pool, which of their sectors are valid and dirty, which operations are in flight, and which line
//! is evicted next. It has no clock, thread or file, and never accesses the data itself. A driver
//! calls it with parts of client requests and with I/O completions. Each call returns at once and
//! leaves the work it requests in an [`Outbox`]. The runtime drives shards in real time, each under
//! its own lock; the lab drives them in virtual time. Both run this code.
//!
//! A shard is made of components, each of which owns its state:
//! - `index`: the line table, the slots, the eviction policy, and the sets of dirty and of unsealed
//!   slots;
//! - `slabs`, part of the index: the ranges of slots whose memory is given back and taken again,
//!   and the free slots of each;
//! - `shares`, part of the index: how many lines volumes are guaranteed, and may have at most;
//! - `ops`: operations in flight, and writes held back until another write to their stripe
//!   completes;
//! - `writeback`: for each volume, the dirty lines in ascending order and the destage schedule; for
//!   the shard, the dirty quota;
//! - `integrity`: seals, parity and the patrol;
//! - `volume`: the settings and counters of each volume, with `sampling`, what its accesses tell
//!   about other sizes of the pool.
//!
//! `line` has what all components name: keys, the entries of the table, seals. `lines` makes the
//! changes of a line that concern several components. `modes` (reads, writes, erases), `destage`
//! and `complete` work on one volume through it; `resize` works on the lines of all volumes.
//! `shard` is the interface to the driver and contains little logic. It lends the driver components
//! for queries, among them the state of a volume ([`Shard::volume`]) and the slots
//! ([`Shard::slots`]).
//!
//! Invariants ([`Shard::self_check`] checks the first three):
//! - a line is in at most one resident slot, and an indexed slot holds the line it is indexed for;
//! - dirty sectors are valid or lost (`integrity`), and the dirty set of a volume holds exactly its
//!   dirty lines;
//! - a line takes part in one operation at a time (`ops` explains why this orders overlapping
//!   requests);
//! - pinned data is never overwritten: a write moves the line to another slot instead;
//! - a sealed line has not changed since the driver computed its checksum.
//!
//! The price: for each line, 16 bytes in the line table, 5.3 in the index, and the policy's
//! metadata. A request that covers several lines looks up each of them.

mod action;
mod complete;
mod counters;
mod destage;
mod index;
mod integrity;
mod line;
mod lines;
mod modes;
mod ops;
mod resize;
mod sabotage;
mod sampling;
mod shard;
mod slabs;
mod uncached;
mod volume;
mod writeback;

pub use action::{
    Answer, Attempt, IoAction, IoCause, IoId, IoVerb, JournalOp, JournalRequest, MemoryStep,
    Outbox, Outcome, Part, PartId, Place, Segment, WaitsFor,
};
pub use counters::VolumeCounters;
pub use index::Slots;
pub use index::lookup::Hints;
pub use index::recover::{Fate, Recovery, TableDamage};
pub use index::retained::retained_lines_max;
pub use index::warm::WarmView;
pub use integrity::{Inspection, PatrolCounters, PatrolWork, SealVerdict};
pub use line::key::LineKey;
pub use line::meta::{LineMeta, LineTable, SLOTS_MAX, Slot};
pub use line::seal::{PARITIES_PER_SLOT, ParityPlace, Seal};
pub use modes::erase::{EraseKind, EraseOutcome};
pub use modes::read::{PreloadKind, PreloadOutcome, ReadOutcome};
pub use modes::{JournalRecording, WriteOutcome, WriteTerms};
pub use resize::ResizeStep;
#[cfg(feature = "sabotage")]
pub use sabotage::PlantedBug;
pub use shard::pins::Pinned;
pub use shard::{
    Shard, ShardUsage, abandon_unclaimed, begin_forecast, checkpoint, dirty_lines_in,
    end_former_forecasts, erasable_until, erase_long, limits_of_size, pool_share_lines,
    set_dirty_lines_max, set_pool_share, size_prediction,
};
pub use slabs::{Slab, Slabs};
pub use uncached::{Arm, LineHits, Uncached};
pub use volume::{Protection, ShardVolume};
pub use writeback::dirty::DirtyLine;
pub use writeback::elevator::Elevator;
pub use writeback::quota::{DirtyQuota, ShardConfig};
