//! Hostile clients, and a well-behaved client among them, against a server that must stop in time.

pub mod crowd;
pub mod script;
pub mod witness;
