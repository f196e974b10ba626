//! Tests of one shard, driven by hand (`rig.rs`): its rules one by one, its sector masks
//! against an oracle, and what is left of it when it is killed at any moment.

#![allow(clippy::unwrap_used, reason = "a helper of a test may fail like the test")]

mod elevator;
mod gather;
mod kill;
#[path = "../../../lab/src/policies/lru.rs"]
mod lru;
mod memory;
mod order;
mod patrol;
mod rig;
mod rules;
mod sectors;
mod staged;
mod stripes;
