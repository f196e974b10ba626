//! Modelled disks: how long each I/O takes, from the mechanics of a disk.
//!
//! [`Hdd`] and [`Ssd`] are pure: times go in, times come out, and the same calls give the same
//! answers. The lab drives them in virtual time, [`ModelBackend`] in real time over a store that
//! holds the data.

mod hdd;
mod live;
mod options;
mod ssd;

#[cfg(test)]
mod tests;

pub use hdd::{Hdd, HddSpec, Scheduler};
pub use live::ModelBackend;
pub use options::ModelError;
pub(crate) use options::open;
pub use ssd::{Ssd, SsdSpec};

use crate::IoKind;

/// The timing of a disk with a queue.
///
/// Times are nanoseconds since any moment and never go back. The disk catches up with the time it
/// is told, so a caller that comes late sees what a punctual one would have seen, provided that
/// it had nothing to enqueue in between.
pub trait DiskModel: Send {
    /// Gives the disk an I/O at `now_ns`. The number `id` is the caller's.
    fn enqueue(&mut self, now_ns: u64, id: u64, kind: IoKind, offset: u64, len: u64);

    /// When the next I/O is done, as far as that is known now: it can be earlier once another is
    /// enqueued. `None` when nothing is in flight.
    fn next_completion(&self) -> Option<u64>;

    /// Takes the next I/O that is done at `now_ns`.
    fn pop(&mut self, now_ns: u64) -> Option<u64>;

    /// Whether seeks cost.
    fn is_rotational(&self) -> bool;
}
