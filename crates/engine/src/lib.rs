//! The cache engine: one shard of the cache as a deterministic state machine.
//!
//! A [`Shard`] owns the lines of some regions of all volumes: which lines are in its part of the
//! pool, which of their sectors are valid and dirty, which operations are in flight, and in what
//! order lines leave. It knows no clock, thread, file or byte of data. A driver calls it with the
//! parts of clients' requests and with the ends of I/Os; each call returns at once and leaves what
//! is to be done in an [`Outbox`]. The runtime drives shards in real time under one lock each, the
//! lab in virtual time; both run this code.
//!
//! A shard is made of components, each of which owns its state:
//! - `index`: the table of lines, their slots, the policy, which slots are dirty or have no seal;
//! - `ops`: operations in flight, and the writes that wait for one to the same stripe;
//! - `writeback`: per volume, the dirty lines in order of place, and when which of them is
//!   destaged; for the shard, how much is dirty;
//! - `integrity`: seals, parity and the patrol;
//! - `volume`: what each volume is set to, and its counters.
//!
//! `lines` has the changes of a line that concern several of them. `modes` (reads, writes, erases),
//! `writeback::destage` and `ops::complete` work on one volume through it; `shard` is the interface
//! to the driver and has no logic of its own.
//!
//! Invariants, checked by [`Shard::self_check`]:
//! - a line is in at most one resident slot, and an indexed slot holds the line it is indexed for;
//! - dirty sectors are valid or lost (`integrity`), and the dirty set of a volume holds exactly its
//!   dirty lines;
//! - a line takes part in one operation at a time (`ops` says why that orders everything);
//! - data under a pin is not overwritten: a write moves the line to another slot instead;
//! - a sealed line has not changed since the driver computed its checksum.
//!
//! The price: 16 bytes of metadata per line beside the data, 5.3 for the index, and what the
//! policy takes; a request that needs several lines looks each of them up.

mod action;
mod counters;
mod index;
mod integrity;
mod lines;
mod modes;
mod ops;
mod sabotage;
mod shard;
mod volume;
mod writeback;

pub use action::{
    Answer, Attempt, IoAction, IoId, IoVerb, MemoryStep, Note, NoteKind, Outbox, Outcome, Part,
    PartId, Place, Segment,
};
pub use counters::VolumeCounters;
pub use index::key::LineKey;
pub use index::lookup::Hints;
pub use index::meta::{LineMeta, LineTable, SLOTS_MAX, Slot};
pub use index::recover::{Fate, Recovery, TableDamage};
pub use integrity::parity::{PARITIES_PER_SLOT, ParityPlace};
pub use integrity::{Inspection, PatrolCounters, Seal, Verdict, Work};
pub use modes::erase::{EraseKind, EraseOutcome};
pub use modes::read::{ReadOutcome, Touched};
pub use modes::{Protection, Record, WriteOutcome, WriteTerms};
#[cfg(feature = "sabotage")]
pub use sabotage::PlantedBug;
pub use shard::{Shard, ShardUsage};
pub use writeback::dirty::DirtyLine;
pub use writeback::elevator::Elevator;
pub use writeback::quota::ShardConfig;
