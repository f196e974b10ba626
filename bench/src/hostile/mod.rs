//! Hostile clients and a well-behaved witness, for tests of an orderly stop.

pub mod crowd;
pub mod script;
pub mod witness;
