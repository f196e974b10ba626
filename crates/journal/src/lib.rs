//! The journal: a log of acknowledged writes that are not yet on their disks.
//!
//! - [`Log`] is the writing side, a state machine that collects records in batches. One batch is
//!   written at a time, and the log notifies the waiters of a batch once the batch is durable
//!   (group commit).
//! - [`recover`] is the reading side: it walks the log of a previous process.
//!   [`recover_mirrored`] does so for a log on two devices.
//! - [`Image`] replays records in order: the ranges that a disk may lack, with their content.
//! - [`Freshness`] says whether the records are as new as the data in memory, so that lost data may
//!   be restored from them.
//! - [`Dump`] writes a vault, which has the same layout.
//! - [`identity`] checks whether a disk is the one that the records belong to.
//! - [`decision`] decides what to load into a volume at startup, or why not to serve it.
//!
//! `forebay-format` defines the layout on the device. This crate has no clock, thread or device:
//! the driver carries out the writes that [`Log`] asks for and reports their completion.
//!
//! Invariants:
//! - A record is durable only if every record before it is: batches are written in order, one at
//!   a time.
//! - The log never overwrites a segment that a durable superblock still needs.
//! - After a failed write to its last device the log accepts no more records, and tells all
//!   waiters: the content of the device after the last durable batch is unknown.
//!
//! The price: a write waits for the batch in flight and for full batches queued before its own, and
//! its bytes are copied once into its batch.

pub mod decision;
mod dump;
mod freshness;
pub mod identity;
mod image;
mod log;
mod mirror;
mod pieces;
mod recover;

pub use dump::{Dump, DumpFull, PlacedBatch};
pub use freshness::{Freshness, NewestRecords};
pub use image::{Extent, Image, Source};
pub use log::{
    Checkpoint, Log, LogAdmission, LogEntry, LogError, LogUsage, LogWrite, Mark, Notification,
    RecordOutcome, beat, checkpoints_in_progress, distance, is_durable_before, is_void,
    needs_checkpoint_for_starts, promise_beats,
};
pub use mirror::{MirrorDevice, MirrorStep, RecoveredLog, recover_mirrored};
pub use pieces::{Piece, pieces_to_restore};
pub use recover::{
    CopyRange, Damage, Found, FoundRecord, LogInspection, ReadAt, RecoverError, inspect, recover,
    recover_any, recover_vault,
};
