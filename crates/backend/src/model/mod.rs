//! Modelled disks and arrays of them: how long each I/O takes, from the mechanics of a disk.
//!
//! [`Hdd`], [`Ssd`], [`Fixed`] and [`ArrayModel`] are pure: times go in, times come out, and the
//! same calls give the same answers. They are driven in virtual time, or by [`ModelBackend`] in
//! real time over a store that holds the data.

mod array;
mod fixed;
mod hdd;
mod live;
mod options;
mod ssd;

#[cfg(test)]
mod tests;

pub use array::{
    Array, ArrayError, ArrayModel, ArraySpec, DRIVE_COUNT_MAX, Drive, DriveCount, Level,
};
pub use fixed::Fixed;
pub use hdd::{Hdd, HddSpec, Scheduler};
pub use live::ModelBackend;
pub(crate) use options::open;
pub use options::{ModelError, timing};
pub use ssd::{Ssd, SsdSpec};

use crate::IoKind;
use forebay_types::DiskGeometry;

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

    /// The shape of the array, if it is one.
    fn array(&self) -> Option<&ArraySpec> {
        None
    }

    /// How it would like to be read and written.
    fn geometry(&self) -> DiskGeometry {
        let rotational = Some(self.is_rotational());
        let bare = DiskGeometry { rotational, ..DiskGeometry::default() };
        // On a mirror, each drive has everything: no write is better for being longer.
        let striped = self.array().filter(|array| array.level() != Level::Raid1);
        striped.map_or(bare, |array| DiskGeometry {
            stripe_bytes: array.stripe_bytes(),
            chunk_bytes: array.chunk_bytes(),
            optimal_bytes: array.stripe_bytes(),
            ..bare
        })
    }
}
