//! Tests of the built program as a daemon: durability across kills and power cuts, start refusals,
//! memory use, and connection limits.

#![allow(clippy::unwrap_used, reason = "test helpers may panic")]

mod activated;
mod advise;
mod analyze;
mod background;
mod bad_input;
mod changes;
mod checked;
#[path = "../../../runtime/tests/common/mod.rs"]
mod common;
mod connections;
mod crash;
mod curve;
mod dashboard;
mod devices;
mod discard;
mod disks;
mod etcd;
mod frozen;
mod full;
mod gather;
mod geometry;
mod grow;
mod handover;
mod hold;
mod hosts;
mod json;
mod kept;
mod libnbd;
mod listening;
mod locks;
mod log_reader;
mod memory;
mod memory_limits;
mod metrics;
mod mirror;
mod missing;
mod move_journal;
mod nbd_disks;
#[allow(dead_code, reason = "the driver's tests use the rest")]
#[path = "../../../power/tests/nut_lab/mod.rs"]
mod nut_lab;
mod ordered;
mod pin_files;
mod pins;
mod pool_shares;
mod power;
mod power_cut;
mod presence;
mod process;
mod ratio;
mod relied;
mod relisten;
mod relisten_tls;
mod reload;
mod remedies;
mod request_limits;
mod rescue;
mod resize;
mod s3_disks;
#[allow(dead_code, reason = "the tests of the backend use the rest")]
#[path = "../../../backend-s3/tests/s3_server/mod.rs"]
mod s3_server;
mod saved;
mod site;
mod sizing;
mod slow;
mod statistics;
mod stopping;
mod takeover;
mod time_of_day;
mod trace;
mod vault;
mod vigil;
mod warm_up;
