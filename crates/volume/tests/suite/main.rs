//! Tests of dispatchers over shards with manual control of I/O (`world.rs`): against an oracle, and
//! of single rules.

mod flushes;
mod oracle;
mod ordered;
mod staged;
mod trails;
mod world;
