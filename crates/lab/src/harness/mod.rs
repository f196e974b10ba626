//! What the simulator, the enumeration and the experiments are built of.
//!
//! Each of the three drives the shipped dispatcher and shards in virtual time and decides what
//! happens when. The parts that do not depend on this are here: shards with the memory of their
//! pools, the I/Os between shards and disks, the records of a journal, the events to come, and the
//! oracle that knows what each sector may hold.
//!
//! Memory holds one stamp of eight bytes for each sector of 512: see [`memory`].

pub(crate) mod dice;
pub(crate) mod io;
pub(crate) mod journal;
pub(crate) mod memory;
pub(crate) mod oracle;
pub(crate) mod parallel;
pub(crate) mod queue;
mod sabotage;
pub(crate) mod shard;
pub(crate) mod slab;

pub use sabotage::Sabotage;
