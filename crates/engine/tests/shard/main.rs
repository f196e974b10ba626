//! Tests of one shard, driven by hand (`rig.rs`): its rules one by one, and its sector masks
//! against an oracle.

mod rig;
mod rules;
mod sectors;
mod staged;
