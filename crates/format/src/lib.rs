//! The on-disk formats of Forebay: layout, checksums, encoding and validation.
//!
//! This crate does no I/O. The daemon, the simulator and the offline tools share it, so the layout
//! is defined in one place ([`journal`], [`WarmList`]). Numbers are little-endian and of fixed
//! width, except the pairs of a [`StatisticsFile`]. Each structure of fixed size has a compile-time
//! assertion of it. All have a checksum, which in a journal binds the content to the journal's
//! identity and to its place and order. Parsers do not trust their input: they return a value only
//! after all checks have passed.

#![deny(missing_docs)]

mod checksum;
mod history;
pub mod journal;
mod statistics;
mod warm_list;

pub use checksum::{Checksum, checksum};
pub use history::{HistoryError, HistoryFile, history_bytes};
pub use statistics::{
    Identity, NumberGroup, STATISTICS_BYTES_MAX, StatisticsError, StatisticsFile, pack, unpack,
};
pub use warm_list::{WarmDisk, WarmList, WarmListError, warm_list_bytes};
