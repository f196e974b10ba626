//! Advice from observed block I/O: what a cache would serve from memory, and which devices to
//! cache.
//!
//! A driver observes a device: it passes each read and write to an [`AccessLog`], and the figures
//! of the kernel as a [`Load`]. [`AccessLog::predict`] replays the log through the eviction policy
//! that the server uses, once for each size of the cache, and [`verdict()`] says what follows.
//! [`Prediction`]s of several devices share a given amount of memory by [`share_memory`].
//!
//! Volumes that a server serves are judged by their statistics ([`advise_served`]).
//!
//! Pure: the time of the observation is an argument.
//!
//! The price: a log takes at most 40 MiB. A log that would exceed this is sampled by place: it has
//! either all accesses to a place or none.

mod cache;
mod load;
mod log;
mod predict;
mod replay;
mod served;
mod share;
mod verdict;

pub use load::{Load, Pattern, SelfCaching};
pub use log::AccessLog;
pub use predict::{Point, Prediction};
pub use served::{PoolAdvice, Served, ServedAdvice, ServedCurve, advise_served};
pub use share::{Claim, share_memory};
pub use verdict::{Advice, Basis, Expectation, REQUESTS_MIN, Reason, verdict};
