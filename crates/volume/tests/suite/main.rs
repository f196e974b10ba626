//! Tests of dispatchers over shards, driven by hand (`world.rs`): against an oracle, and rule by
//! rule.

mod oracle;
mod staged;
mod world;
