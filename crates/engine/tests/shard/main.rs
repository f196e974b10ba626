//! Tests of one shard with a hand-driven disk (`rig.rs`): single rules, sector masks against an
//! oracle, resizes, and recovery after a kill at any point.

#![allow(clippy::unwrap_used, reason = "a helper of a test may fail like the test")]

mod checkpoint;
mod curve;
mod elevator;
mod frozen;
mod gather;
mod hold_out;
mod instant;
mod kill;
mod long_erases;
#[path = "../../../lab/src/policies/lru.rs"]
mod lru;
mod memory;
mod order;
mod patrol;
mod pins;
mod pool_shares;
mod pool_sizes;
mod preload;
mod read_once;
mod resize;
mod rig;
mod rules;
mod sectors;
mod shares;
mod staged;
mod stripes;
