//! The lab: seeded simulation of the shipped engine, trace replay and policy comparison.

pub mod enumerate;
pub mod replay;
pub mod sim;
pub mod trace;
