//! Modelled disks and arrays: the time of each I/O, derived from the mechanics of a disk.
//!
//! [`Hdd`], [`Ssd`], [`Fixed`] and [`ArrayModel`] are pure and deterministic: times go in, times
//! come out. They run in virtual time, or with [`ModelBackend`] in real time over a store for the
//! data.

mod answers;
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
/// Times are nanoseconds since an arbitrary epoch and never decrease. Calls advance the disk to the
/// given time, so a disk that is polled late gives the same answers as one polled on time.
pub trait DiskModel: Send {
    /// Submits an I/O at `now_ns`, with an `id` of the caller's choice.
    fn enqueue(&mut self, now_ns: u64, id: u64, kind: IoKind, offset: u64, len: u64);

    /// The time of the next completion, as known now: it can become earlier when another I/O is
    /// enqueued. `None` if nothing is in flight.
    fn next_completion(&self) -> Option<u64>;

    /// Removes the next I/O completed by `now_ns`.
    fn pop(&mut self, now_ns: u64) -> Option<u64>;

    /// Whether seeks cost time.
    fn is_rotational(&self) -> bool;

    /// The layout of the array, if the disk is one.
    fn array(&self) -> Option<&ArraySpec> {
        None
    }

    /// The preferred I/O geometry.
    fn geometry(&self) -> DiskGeometry {
        let rotational = Some(self.is_rotational());
        let bare = DiskGeometry { rotational, ..DiskGeometry::default() };
        // Each drive of a mirror has all data, so there are no stripes to fill.
        let striped = self.array().filter(|array| array.level() != Level::Raid1);
        striped.map_or(bare, |array| DiskGeometry {
            stripe_bytes: array.stripe_bytes(),
            chunk_bytes: array.chunk_bytes(),
            optimal_bytes: array.stripe_bytes(),
            ..bare
        })
    }
}
