//! A byte-exact model of a volume, and the client that compares a server with it.
//!
//! The model shares no code with the server: the wire format is [`crate::wire`], and the permitted
//! contents of a sector follow from the requests alone. All 64 words of a written sector depend on
//! its number, a generation and the run's seed, so a stale, torn, swapped or zeroed sector can be
//! identified.
//!
//! - [`stamp`]: the content of a sector.
//! - [`oracle`]: the permitted contents of each sector, from what was sent, answered and flushed.
//! - [`plan`]: the choice of requests. Connections own disjoint sets of sectors, which interleave
//!   within a block of the disk and within a cache line; reads go anywhere.
//! - [`connection`]: the protocol, with many requests in flight.
//! - [`session`]: drives the connections and checks each answer with the oracle.
//! - [`disk`]: direct access to the backing store, without the server.

pub mod connection;
pub mod disk;
pub mod oracle;
pub mod plan;
pub mod session;
pub mod stamp;
