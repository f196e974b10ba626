//! The built program as a daemon, seen from its clients and from the system: what it keeps when
//! it is killed, and how much memory it takes.

#![allow(clippy::unwrap_used, reason = "a helper of a test may fail like the test")]

mod bad_input;
#[path = "../../../runtime/tests/common/mod.rs"]
mod common;
mod connections;
mod crash;
mod gather;
mod geometry;
mod kept;
mod libnbd;
mod listening;
mod locks;
mod memory;
mod mirror;
#[allow(dead_code, reason = "the tests of the driver use more of it")]
#[path = "../../../power/tests/nut_lab/mod.rs"]
mod nut_lab;
mod ordered;
mod power;
mod power_cut;
mod presence;
mod process;
mod relied;
mod remedies;
mod rescue;
mod stopping;
mod vault;
