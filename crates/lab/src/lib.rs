//! The lab: the shipped engine in virtual time, to test and to measure it.
//!
//! - [`sim`]: long random runs with faults, each determined by a seed.
//! - [`site`]: short random runs of many hosts with shared stores, with takeovers.
//! - [`enumerate`]: all short runs of a small machine, with a crash after every step.
//! - [`replay`], [`trace`], [`policies`]: miss ratios of eviction policies on recorded requests.
//! - [`experiment`]: the benefit of the cache for its users, on modelled disks.
//!
//! The first two compare every read and every state after a crash with an oracle, which knows the
//! permitted contents of each sector. Nothing here depends on the machine that runs it: the same
//! arguments give the same results.

pub mod enumerate;
pub mod experiment;
mod grid;
mod harness;
mod named;
pub mod policies;
pub mod replay;
pub mod sim;
pub mod site;
pub mod trace;
