//! Shared by the benchmarks: a batching client, a bare server to measure against, the
//! servers of others, and a stopwatch for the CPU time of another process; and a [`model`] of a
//! volume that a server is compared with.
//!
//! Every figure is measured on this machine, together with a baseline from the same minute.
//! Absolute figures of other days or machines are not comparable, so the programs print ratios
//! first. The client side uses none of Forebay's code: [`wire`] implements the wire format a second
//! time, so that a bug in the server's codec cannot cancel out.

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
