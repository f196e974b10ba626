//! What Forebay leaves on storage of its own: layout, checksums, and the checks that make bytes
//! read from a device usable.
//!
//! Nothing here reads or writes: bytes go in and come out. The daemon, the simulator and the
//! offline tool share this crate, so there is one place that says what a journal looks like
//! ([`journal`]). All numbers are little-endian and of fixed width; every structure has its size
//! asserted when it is compiled, and a checksum that binds the content to its place, to the
//! identity of the journal and to its order in it. What was read is not trusted: a parser returns
//! a value only after all its checks.

mod checksum;
pub mod journal;

pub use checksum::{Checksum, checksum};
