//! Shared code of the benchmarks: a batching client, a bare server as baseline, third-party
//! servers, the CPU time of other processes; and a [`model`] of a volume to compare a server with.
//!
//! Every figure comes from a run on this machine, next to a baseline from the same minute. Figures
//! from other days or machines are not comparable, so the programs print ratios. The client side
//! uses none of Forebay's code: [`wire`] implements the protocol independently, so that an error in
//! the server's codec cannot cancel itself out.

pub mod allocations;
pub mod area;
pub mod bare;
pub mod browser;
pub mod cells;
pub mod client;
pub mod commit;
pub mod content;
pub mod cpu;
pub mod figures;
pub mod fio;
pub mod forebay;
pub mod group;
pub mod guest;
pub mod hostile;
pub mod load;
pub mod model;
pub mod page_cache;
pub mod servers;
pub mod site;
pub mod table;
pub mod users;
pub mod ways;
pub mod wire;
