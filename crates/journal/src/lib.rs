//! The journal: a log of writes that are acknowledged and not yet on their disks.
//!
//! [`Log`] is the writing side, a state machine: records go in, batches come out, one at a time,
//! and whoever waits for a record is told when its batch is durable (group commit). [`recover`]
//! is the reading side: it walks the log that a process left behind; [`recover_mirrored`] does so
//! where the log lies on two devices. [`Image`] says what a disk
//! lacks, after all records have had their say in order. [`Dump`] writes a vault: the same log, in
//! one go. [`identity`] says whether a disk is the
//! one that the records are for, and [`decision`] what is done with a volume at a start. What it
//! looks like on the device is `forebay-format`'s to say.
//!
//! Nothing here knows a clock, a thread or a device: the driver writes what it is handed and
//! reports the end.
//!
//! Invariants:
//! - a record is durable only when every record before it is: batches are written in order, one
//!   at a time;
//! - no segment is overwritten that the durable superblock still needs;
//! - after a failed write the log takes nothing more and says so to everybody who waits: what the
//!   device holds beyond the last durable batch is unknown from then on.
//!
//! The price: a write waits for at most one batch before its own, and its bytes are copied once
//! into the batch.

pub mod decision;
mod dump;
pub mod identity;
mod image;
mod log;
mod mirror;
mod recover;

pub use dump::{Dump, DumpFull, Placed};
pub use image::{Extent, Image, Source};
pub use log::{Admission, Checkpoint, Entry, Log, LogError, LogUsage, LogWrite, Mark, Noted, Told};
pub use mirror::{Copy, Half, Recovered, Step, recover_mirrored};
pub use recover::{
    Damage, Found, FoundRecord, Inspection, ReadAt, RecoverError, inspect, recover, recover_any,
    recover_vault,
};
