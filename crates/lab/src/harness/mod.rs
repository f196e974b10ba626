//! The parts that the simulator, the enumeration and the experiments share.
//!
//! Each of the three drives the shipped dispatcher and shards in virtual time and decides on the
//! order of events. The parts that do not depend on that order are here: shards with the memory of
//! their pools, the I/Os between shards and disks, the records of a journal, the event queue, and
//! the oracle that knows the permitted contents of each sector.
//!
//! Memory holds one stamp of eight bytes per sector of 512 bytes: see [`memory`].

pub(crate) mod dice;
pub(crate) mod io;
pub(crate) mod journal;
pub(crate) mod log_device;
pub(crate) mod memory;
pub(crate) mod oracle;
pub(crate) mod parallel;
pub(crate) mod places;
pub(crate) mod queue;
mod sabotage;
pub(crate) mod shard;
pub(crate) mod slab;
pub(crate) mod vault;

pub use sabotage::Sabotage;

/// The range of a request for the whole volume.
pub(crate) const WHOLE: forebay_types::ByteRange = forebay_types::ByteRange::new(0, 0);
