//! The on-disk formats of Forebay: layout, checksums, encoding and validation.
//!
//! This crate does no I/O. The daemon, the simulator and the offline tools share it, so the layout
//! is defined in one place ([`journal`]). All numbers are little-endian and of fixed width. Each
//! structure has a compile-time assertion of its size, and a checksum that binds the content to the
//! journal's identity and to its place and order in the journal. Parsers do not trust their input:
//! they return a value only after all checks have passed.

mod checksum;
pub mod journal;

pub use checksum::{Checksum, checksum};
