//! Shared by the benchmarks: a batching client, a bare server to measure against, the
//! servers of others, and a stopwatch for the CPU time of another process; and a [`model`] of a
//! volume that a server is compared with.
//!
//! Every figure printed here is the outcome of a run on this machine, beside a yardstick from the
//! same minute. A figure from another day or another machine is worth nothing next to it, so the
//! programs print ratios first. Nothing of Forebay's own code is used on the client's side: the
//! wire format in [`wire`] is written a second time, so that a mistake in the server's codec can't
//! cancel itself out.

pub mod area;
pub mod bare;
pub mod cells;
pub mod client;
pub mod commit;
pub mod content;
pub mod cpu;
pub mod figures;
pub mod fio;
pub mod forebay;
pub mod hostile;
pub mod load;
pub mod model;
pub mod servers;
pub mod table;
pub mod wire;
