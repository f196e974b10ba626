//! A byte-exact model of a volume, and the client that compares a server with it.
//!
//! The model shares nothing with the server: the wire format is [`crate::wire`], and what a sector
//! may hold follows from the requests alone. Each sector that is written carries its own number, a
//! generation and the run's seed in all of its 64 words, so a sector that is stale, torn, swapped
//! or zeroed is detected.
//!
//! - [`stamp`]: the content of a sector.
//! - [`oracle`]: the allowed contents of each sector, from the requests sent, answered and flushed.
//! - [`plan`]: generates the requests. Connections own disjoint sets of sectors, which interleave
//!   within a block of the disk and within a cache line; reads go anywhere.
//! - [`connection`]: the protocol, with many requests in flight.
//! - [`session`]: drives the connections and asks the oracle about each answer.
//! - [`disk`]: direct access to the backing store.

pub mod connection;
pub mod disk;
pub mod oracle;
pub mod plan;
pub mod session;
pub mod stamp;
