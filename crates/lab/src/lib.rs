//! The lab: seeded simulation of the shipped engine, trace replay and policy comparison, and
//! experiments in virtual time.

pub mod enumerate;
pub mod experiment;
mod grid;
mod harness;
mod named;
pub mod policies;
pub mod replay;
pub mod sim;
pub mod trace;
