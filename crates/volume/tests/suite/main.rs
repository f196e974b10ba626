//! Tests of dispatchers over shards with manual control of I/O (`world.rs`): against an oracle, and
//! of single rules.

mod flushes;
mod long_erases;
mod oracle;
mod ordered;
mod staged;
mod trails;
mod world;
